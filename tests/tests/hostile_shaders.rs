//! Malformed shader modules: the driver never hears of them, and the context goes on.

use anyhow::{Result, ensure};
use protocol::venus::generated::{
    ComputePipelineCreateInfo, CreateComputePipelines, CreatePipelineLayout, CreateShaderModule, Pipeline,
    PipelineLayout, PipelineLayoutCreateInfo, PipelineShaderStageCreateInfo, ShaderModule,
    ShaderModuleCreateInfo, ShaderStageFlags, SpecializationInfo, SpecializationMapEntry, VkResult,
};
use std::ffi::CStr;
use std::sync::Arc;
use tests::daemon::Daemon;
use tests::guest::device::Device;
use tests::guest::ring::REPLY;

/// `VK_ERROR_INVALID_SHADER_NV`.
const INVALID: VkResult = VkResult(-1_000_012_000);
const SUCCESS: VkResult = VkResult(0);

fn op(opcode: u32, operands: &[u32]) -> Vec<u32> {
    [&[(operands.len() as u32 + 1) << 16 | opcode][..], operands].concat()
}

/// A compute shader that does nothing, `main` calling nothing; `body` is what it does first and `behind` comes after it.
fn shader(body: &[u32], behind: &[u32]) -> Vec<u32> {
    let header = [0x0723_0203, 0x1_0300, 0, 64, 0];
    let parts = [
        header.to_vec(),
        op(17, &[1]),
        op(14, &[0, 1]),
        op(15, &[5, 1, u32::from_le_bytes(*b"main"), 0]),
        op(16, &[1, 17, 1, 1, 1]),
        op(71, &[9, 1, 7]),
        op(19, &[2]),
        op(33, &[3, 2]),
        op(21, &[4, 32, 0]),
        op(50, &[4, 9, 4]),
        op(28, &[10, 4, 9]),
        op(32, &[11, 4, 10]),
        op(59, &[11, 12, 4]),
        op(54, &[2, 1, 0, 3]),
        op(248, &[5]),
        body.to_vec(),
        op(253, &[]),
        op(56, &[]),
        behind.to_vec(),
    ];
    parts.concat()
}

struct Setup {
    // In the order in which they end.
    vulkan: Device,
    layout: PipelineLayout,
    daemon: Daemon,
}

impl Setup {
    fn new() -> Result<Self> {
        let daemon = Daemon::start()?;
        let mut vulkan = Device::create(&Arc::new(daemon.guest()?), "shaders")?;
        let (device, layout) = (vulkan.device, PipelineLayout(vulkan.new_id()));
        let info = PipelineLayoutCreateInfo::default();
        let create =
            CreatePipelineLayout { device, p_create_info: Some(&info), p_pipeline_layout: Some(&layout) };
        vulkan.call(|w| create.encode(REPLY, w))?;
        Ok(Self { vulkan, layout, daemon })
    }

    fn module(&mut self, code: &[u32]) -> Result<(ShaderModule, VkResult)> {
        let (device, module) = (self.vulkan.device, ShaderModule(self.vulkan.new_id()));
        let code_size = size_of_val(code) as u64;
        let info = ShaderModuleCreateInfo { code_size, p_code: Some(code), ..Default::default() };
        let create =
            CreateShaderModule { device, p_create_info: Some(&info), p_shader_module: Some(&module) };
        let result = self.vulkan.query(
            |w| create.encode(REPLY, w),
            |reply| {
                let _number = reply.u32()?;
                Ok(VkResult(reply.u32()? as i32))
            },
        )?;
        Ok((module, result))
    }

    fn pipeline(
        &mut self,
        module: ShaderModule,
        name: &CStr,
        constants: Option<&SpecializationInfo<'_>>,
    ) -> Result<VkResult> {
        let (device, pipelines) = (self.vulkan.device, [Pipeline(self.vulkan.new_id())]);
        let stage = PipelineShaderStageCreateInfo {
            stage: ShaderStageFlags::COMPUTE,
            module,
            p_name: Some(name),
            p_specialization_info: constants,
            ..Default::default()
        };
        let infos = [ComputePipelineCreateInfo { stage, layout: self.layout, ..Default::default() }];
        let create = CreateComputePipelines {
            device,
            pipeline_cache: Default::default(),
            create_info_count: 1,
            p_create_infos: Some(&infos),
            p_pipelines: Some(&pipelines),
        };
        self.vulkan.query(
            |w| create.encode(REPLY, w),
            |reply| {
                let _number = reply.u32()?;
                Ok(VkResult(reply.u32()? as i32))
            },
        )
    }
}

#[test]
fn malformed_modules_are_refused_and_the_context_goes_on() -> Result<()> {
    let mut setup = Setup::new()?;
    let sound = shader(&[], &[]);
    let function = |body: &[u32]| {
        [&op(54, &[2, 20, 0, 3])[..], &op(248, &[21]), body, &op(253, &[]), &op(56, &[])].concat()
    };
    let malformed: &[(&str, Vec<u32>)] = &[
        ("nothing", vec![]),
        ("a header alone", sound[..5].to_vec()),
        ("no end", sound[..sound.len() - 1].to_vec()),
        ("an instruction beyond the end", shader(&[], &[9 << 16 | 56])),
        ("an instruction of no words", shader(&[0], &[])),
        ("a branch to nowhere", shader(&op(249, &[30]), &[])),
        ("a branch to a type", shader(&op(249, &[2]), &[])),
        ("a value of nowhere", shader(&op(61, &[4, 30, 31]), &[])),
        ("an id beyond the bound", shader(&op(61, &[4, 30, 64]), &[])),
        ("a function that calls itself", shader(&op(57, &[2, 30, 1]), &[])),
        ("functions that call each other", shader(&op(57, &[2, 30, 20]), &function(&op(57, &[2, 31, 1])))),
    ];
    for (what, code) in malformed {
        let (module, result) = setup.module(code)?;
        ensure!(result == INVALID, "{what}: {result:?}");
        // A driver that does not wait for the answer goes on with the module.
        let result = setup.pipeline(module, c"main", None)?;
        ensure!(result == INVALID, "a pipeline of {what}: {result:?}");
    }
    let (module, result) = setup.module(&sound)?;
    ensure!(result == SUCCESS, "{result:?}");
    ensure!(setup.pipeline(module, c"main", None)? == SUCCESS);
    ensure!(setup.pipeline(module, c"other", None)? == INVALID, "there is no such entry point");
    setup.daemon.wait_for_workers(1)?;
    Ok(())
}

#[test]
fn specialisation_stays_in_its_data_and_gives_usable_sizes() -> Result<()> {
    let mut setup = Setup::new()?;
    let (module, result) = setup.module(&shader(&[], &[]))?;
    ensure!(result == SUCCESS, "{result:?}");
    for (offset, size, length, expected) in [
        (0, 4, 4u32, SUCCESS),
        (4, 4, 4, INVALID),
        (u32::MAX, 4, 4, INVALID),
        (0, 8, 4, INVALID),
        (0, u64::MAX, 4, INVALID),
        (0, 4, 0, INVALID),
        (0, 4, u32::MAX, INVALID),
    ] {
        let entries = [SpecializationMapEntry { constant_id: 7, offset, size }];
        let data = length.to_le_bytes();
        let constants = SpecializationInfo {
            map_entry_count: 1,
            p_map_entries: Some(&entries),
            data_size: 4,
            p_data: Some(&data),
        };
        let result = setup.pipeline(module, c"main", Some(&constants))?;
        ensure!(result == expected, "offset {offset}, size {size}, value {length}: {result:?}");
    }
    Ok(())
}
