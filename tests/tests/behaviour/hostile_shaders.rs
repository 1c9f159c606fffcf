//! Malformed shader modules: the daemon keeps them from the driver, and the context goes on.

use anyhow::{Result, ensure};
use protocol::venus::generated::{
    ComputePipelineCreateInfo, CreateComputePipelines, CreateDescriptorSetLayout, CreatePipelineLayout,
    CreateShaderModule, DescriptorSetLayout, DescriptorSetLayoutBinding, DescriptorSetLayoutCreateInfo,
    DescriptorType, Pipeline, PipelineLayout, PipelineLayoutCreateInfo, PipelineShaderStageCreateInfo,
    ShaderModule, ShaderModuleCreateInfo, ShaderStageFlags, SpecializationInfo, SpecializationMapEntry,
    VkResult,
};
use std::ffi::CStr;
use std::sync::Arc;
use tests::daemon::Daemon;
use tests::guest::device::Device;
use tests::guest::ring::REPLY;
use tests::guest::{Gpu, PATIENCE};

/// `VK_ERROR_INVALID_SHADER_NV`.
const INVALID: VkResult = VkResult(-1_000_012_000);
const SUCCESS: VkResult = VkResult(0);

fn op(opcode: u32, operands: &[u32]) -> Vec<u32> {
    [&[(operands.len() as u32 + 1) << 16 | opcode][..], operands].concat()
}

/// A compute shader that does nothing, whose `main` calls no function. `body` goes to the beginning of `main`, and `behind` after its end.
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

/// `PhysicalStorageBuffer`.
const PHYSICAL: u32 = 5349;

/// A shader with this body and these declarations ahead of the function.
fn doing(words: &[Vec<u32>], body: &[u32]) -> Vec<u32> {
    let mut code = shader(body, &[]);
    let function = code.windows(5).position(|words| words == op(54, &[2, 1, 0, 3])).expect("there is one");
    code.splice(function..function, words.concat());
    code
}

/// A shader that follows this path of constants, 0 (24) and 7 (25), from a structure of one number.
fn reaching(path: &[u32]) -> Vec<u32> {
    let types = [op(32, &[20, 4, 4]), op(30, &[21, 4]), op(32, &[22, 4, 21]), op(59, &[22, 23, 4])];
    let constants = [op(43, &[4, 24, 0]), op(43, &[4, 25, 7])];
    doing(&[types.concat(), constants.concat()], &op(65, &[&[20, 30, 23], path].concat()))
}

/// An empty shader that declares these capabilities, and makes this type.
fn with_type(capabilities: &[u32], ty: &[u32]) -> Vec<u32> {
    let mut code = doing(&[ty.to_vec()], &[]);
    code.splice(5..5, capabilities.iter().flat_map(|number| op(17, &[*number])));
    code
}

/// A shader that reads a buffer at this set and binding.
fn reading(set: u32, binding: u32) -> Vec<u32> {
    let types = [op(30, &[20, 4]), op(32, &[21, 2, 20]), op(59, &[21, 22, 2])].concat();
    let mut code = doing(&[types], &op(61, &[20, 30, 22]));
    let void = code.windows(2).position(|words| words == op(19, &[2])).expect("there is one");
    let decorations =
        [op(71, &[20, 3]), op(72, &[20, 0, 35, 0]), op(71, &[22, 34, set]), op(71, &[22, 33, binding])];
    code.splice(void..void, decorations.concat());
    code
}

/// An empty shader with physical addresses and these declarations ahead of the function.
fn declaring(words: &[Vec<u32>]) -> Vec<u32> {
    let mut code = doing(words, &[]);
    let memory_model = code.windows(3).position(|words| words == op(14, &[0, 1])).expect("there is one");
    let physical = [op(17, &[5347]), op(10, &text("SPV_KHR_physical_storage_buffer")), op(14, &[5348, 1])];
    code.splice(memory_model..memory_model + 3, physical.concat());
    code
}

fn text(text: &str) -> Vec<u32> {
    let padded: Vec<u8> = text.bytes().chain([0; 4]).collect();
    padded.as_chunks().0.iter().take(text.len() / 4 + 1).map(|word| u32::from_le_bytes(*word)).collect()
}

/// The way in which a shader states the size of its workgroups.
#[derive(Clone, Copy, Debug)]
enum Sized {
    /// `LocalSizeId`.
    Mode,
    /// A constant that is `WorkgroupSize`.
    BuiltIn,
}

/// A compute shader that does nothing in workgroups of the specialisation constant 7, by default of `default`.
fn sized(how: Sized, default: u32) -> Vec<u32> {
    let (mode, annotation, vector) = match how {
        Sized::Mode => (op(331, &[1, 38, 9, 10, 10]), vec![], vec![]),
        Sized::BuiltIn => {
            let vector = [op(23, &[11, 4, 3]), op(51, &[11, 12, 9, 10, 10])].concat();
            (op(16, &[1, 17, 1, 1, 1]), op(71, &[12, 11, 25]), vector)
        }
    };
    let parts = [
        vec![0x0723_0203, 0x1_0300, 0, 64, 0],
        op(17, &[1]),
        op(14, &[0, 1]),
        op(15, &[5, 1, u32::from_le_bytes(*b"main"), 0]),
        mode,
        op(71, &[9, 1, 7]),
        annotation,
        op(19, &[2]),
        op(33, &[3, 2]),
        op(21, &[4, 32, 0]),
        op(50, &[4, 9, default]),
        op(43, &[4, 10, 1]),
        vector,
        op(54, &[2, 1, 0, 3]),
        op(248, &[5]),
        op(253, &[]),
        op(56, &[]),
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
        Self::with(|gpu| Device::create_with_all_features(gpu, "shaders"))
    }

    fn with(create: impl FnOnce(&Arc<Gpu>) -> Result<Device>) -> Result<Self> {
        Self::on(Daemon::start()?, create)
    }

    fn on(daemon: Daemon, create: impl FnOnce(&Arc<Gpu>) -> Result<Device>) -> Result<Self> {
        let mut vulkan = create(&Arc::new(daemon.guest()?))?;
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
        ("a pointer that never comes", declaring(&[op(39, &[20, PHYSICAL]), op(28, &[21, 20, 9])])),
        ("a struct in itself", declaring(&[op(39, &[20, PHYSICAL]), op(30, &[20, 4, 20])])),
        (
            "an array in itself by way of a struct",
            declaring(&[op(39, &[20, PHYSICAL]), op(28, &[21, 20, 9]), op(30, &[20, 21])]),
        ),
        ("a pointer to itself", declaring(&[op(39, &[20, PHYSICAL]), op(32, &[20, PHYSICAL, 20])])),
        ("a member that is not there", reaching(&[25])),
        ("a part of a number", reaching(&[24, 24])),
        ("a pointer to another type", reaching(&[])),
        ("a sum of a number and a pointer", doing(&[], &op(128, &[4, 30, 9, 12]))),
        ("functions that call each other", shader(&op(57, &[2, 30, 20]), &function(&op(57, &[2, 31, 1])))),
    ];
    for (what, code) in malformed {
        let (module, result) = setup.module(code)?;
        ensure!(result == INVALID, "{what}: {result:?}");
        // A guest's driver that does not wait for the answer goes on with the module.
        let result = setup.pipeline(module, c"main", None)?;
        ensure!(result == INVALID, "a pipeline of {what}: {result:?}");
    }
    ensure!(setup.module(&reaching(&[24]))?.1 == SUCCESS);
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

#[test]
fn types_made_of_pointers_that_come_later_are_accepted() -> Result<()> {
    let mut setup = Setup::new()?;
    let node = [op(30, &[22, 4, 20]), op(32, &[20, PHYSICAL, 22])].concat();
    for (what, words) in [
        ("a struct", vec![]),
        ("an array", op(28, &[21, 20, 9])),
        ("a pointer", op(32, &[21, PHYSICAL, 20])),
        ("a struct of arrays", [op(28, &[21, 20, 9]), op(30, &[23, 21])].concat()),
    ] {
        let (module, result) = setup.module(&declaring(&[op(39, &[20, PHYSICAL]), words, node.clone()]))?;
        ensure!(result == SUCCESS, "{what}: {result:?}");
        ensure!(setup.pipeline(module, c"main", None)? == SUCCESS, "a pipeline of {what}");
    }
    Ok(())
}

#[test]
fn workgroups_are_as_large_as_the_pipeline_says() -> Result<()> {
    let mut setup = Setup::new()?;
    for how in [Sized::Mode, Sized::BuiltIn] {
        for default in [0, 1, u32::MAX] {
            let (module, result) = setup.module(&sized(how, default))?;
            ensure!(result == SUCCESS, "{how:?} with {default}: {result:?}");
            let usable = if default == 1 { SUCCESS } else { INVALID };
            let result = setup.pipeline(module, c"main", None)?;
            ensure!(result == usable, "{how:?} with the default {default}: {result:?}");
            for (size, expected) in
                [(1u32, SUCCESS), (64, SUCCESS), (0, INVALID), (1 << 20, INVALID), (u32::MAX, INVALID)]
            {
                // A constant that the module does not have may be of any width.
                let entries = [
                    SpecializationMapEntry { constant_id: 8, offset: 1, size: 3 },
                    SpecializationMapEntry { constant_id: 7, offset: 0, size: 4 },
                ];
                let data = size.to_le_bytes();
                let constants = SpecializationInfo {
                    map_entry_count: 2,
                    p_map_entries: Some(&entries),
                    data_size: 4,
                    p_data: Some(&data),
                };
                let result = setup.pipeline(module, c"main", Some(&constants))?;
                ensure!(result == expected, "{how:?} with {default}, specialised to {size}: {result:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_operator_is_told_why_and_not_more_than_a_few_times() -> Result<()> {
    let mut setup = Setup::new()?;
    let wrong = shader(&op(61, &[4, 30, 31]), &[]);
    for _ in 0..200 {
        ensure!(setup.module(&wrong)?.1 == INVALID);
    }
    let told = "OpLoad %30: id %31 is not defined here";
    let lines = |log: &str| log.lines().filter(|line| line.contains(told)).count();
    ensure!(
        tests::daemon::eventually(tests::guest::PATIENCE, || lines(&setup.daemon.log()) > 0),
        "nothing is said"
    );
    let log = setup.daemon.log();
    ensure!((1..=16).contains(&lines(&log)), "{} lines", lines(&log));
    Ok(())
}

/// `Float64`, `CooperativeMatrixKHR`, `BFloat16TypeKHR` and `Float8EXT`.
const FLOAT64: u32 = 10;
const COOPERATIVE_MATRIX: u32 = 6022;
const BFLOAT16: u32 = 5116;
const FLOAT8: u32 = 4212;

#[test]
fn shaders_have_the_capabilities_that_they_declare_and_their_device_enabled() -> Result<()> {
    let cases = [
        ("double precision", FLOAT64, op(22, &[20, 64])),
        ("bfloat16", BFLOAT16, op(22, &[20, 16, 0])),
        ("floats of 8 bits", FLOAT8, op(22, &[20, 8, 4214])),
        (
            "a cooperative matrix",
            COOPERATIVE_MATRIX,
            [
                op(43, &[4, 21, 3]),
                op(43, &[4, 22, 16]),
                op(43, &[4, 23, 0]),
                op(4456, &[20, 4, 21, 22, 22, 23]),
            ]
            .concat(),
        ),
    ];
    let mut without = Setup::with(|gpu| Device::create(gpu, "no features"))?;
    for (what, capability, words) in &cases {
        for declared in [&[*capability][..], &[]] {
            let (module, result) = without.module(&with_type(declared, words))?;
            ensure!(result == INVALID, "{what} with {declared:?}: {result:?}");
            ensure!(without.pipeline(module, c"main", None)? == INVALID, "a pipeline of {what}");
        }
    }
    without.daemon.wait_for_workers(1)?;
    let mut with_features = Setup::new()?;
    let (_, capability, words) = &cases[0];
    ensure!(with_features.module(&with_type(&[*capability], words))?.1 == SUCCESS, "the feature is enabled");
    ensure!(with_features.module(&with_type(&[], words))?.1 == INVALID, "the capability is not declared");
    Ok(())
}

#[test]
fn a_pipeline_has_what_its_shader_uses() -> Result<()> {
    let mut setup = Setup::new()?;
    // The layout has no sets.
    for (set, binding) in [(0, 0), (0, 7), (3, 0)] {
        let (module, result) = setup.module(&reading(set, binding))?;
        ensure!(result == SUCCESS, "set {set}, binding {binding}: {result:?}");
        let result = setup.pipeline(module, c"main", None)?;
        ensure!(result == INVALID, "a pipeline without set {set}, binding {binding}: {result:?}");
    }
    let binding = DescriptorSetLayoutBinding {
        binding: 7,
        descriptor_type: DescriptorType::UNIFORM_BUFFER,
        descriptor_count: 1,
        stage_flags: ShaderStageFlags::COMPUTE,
        p_immutable_samplers: None,
    };
    let (device, set) = (setup.vulkan.device, DescriptorSetLayout(setup.vulkan.new_id()));
    let info = DescriptorSetLayoutCreateInfo {
        binding_count: 1,
        p_bindings: Some(&[binding]),
        ..Default::default()
    };
    let create = CreateDescriptorSetLayout { device, p_create_info: Some(&info), p_set_layout: Some(&set) };
    setup.vulkan.call(|w| create.encode(REPLY, w))?;
    setup.layout = PipelineLayout(setup.vulkan.new_id());
    let info =
        PipelineLayoutCreateInfo { set_layout_count: 1, p_set_layouts: Some(&[set]), ..Default::default() };
    let create =
        CreatePipelineLayout { device, p_create_info: Some(&info), p_pipeline_layout: Some(&setup.layout) };
    setup.vulkan.call(|w| create.encode(REPLY, w))?;
    for (binding, expected) in [(7, SUCCESS), (0, INVALID), (8, INVALID)] {
        let (module, _) = setup.module(&reading(0, binding))?;
        let result = setup.pipeline(module, c"main", None)?;
        ensure!(result == expected, "binding {binding}: {result:?}");
    }
    setup.daemon.wait_for_workers(1)?;
    Ok(())
}

/// A shader that stores the result of a function, which calls another one twice, and so on: with all calls inlined the shader doubles at each of
/// these levels.
fn tower(levels: u32) -> Vec<u32> {
    let types = [op(32, &[60, 4, 4]), op(59, &[60, 61, 4]), op(33, &[62, 4, 4])].concat();
    let body = [op(57, &[4, 63, 70, 9]), op(62, &[61, 63])].concat();
    let mut code = doing(&[types], &body);
    code[3] = 70 + 4 * (levels + 1);
    for level in 0..=levels {
        let function = 70 + 4 * level;
        let (argument, half, whole) = (function + 1, function + 2, function + 3);
        let mut words =
            [op(54, &[4, function, 0, 62]), op(55, &[4, argument]), op(248, &[500 + level])].concat();
        let callee = function + 4;
        if level == levels {
            words.extend(
                [op(132, &[4, half, argument, argument]), op(128, &[4, whole, half, argument])].concat(),
            );
        } else {
            words.extend([op(57, &[4, half, callee, argument]), op(57, &[4, whole, callee, half])].concat());
        }
        words.extend([op(254, &[whole]), op(56, &[])].concat());
        code.extend(words);
    }
    code[3] = code[3].max(501 + levels);
    code
}

#[test]
fn a_shader_that_grows_by_its_calls_is_refused_before_the_driver_grows() -> Result<()> {
    let mut setup = Setup::new()?;
    let (module, result) = setup.module(&tower(4))?;
    ensure!(result == SUCCESS, "{result:?}");
    ensure!(setup.pipeline(module, c"main", None)? == SUCCESS, "a small one");
    for levels in [18, 40, 100] {
        let (_, result) = setup.module(&tower(levels))?;
        ensure!(result == INVALID, "{levels} levels: {result:?}");
    }
    let told = "instructions after inlining (shader_cost, raised by --max-shader-cost)";
    let is_told = || setup.daemon.log().contains(told);
    ensure!(tests::daemon::eventually(tests::guest::PATIENCE, is_told), "{}", setup.daemon.log());
    setup.daemon.wait_for_workers(1)?;
    Ok(())
}

#[test]
fn a_driver_that_compiles_for_too_long_costs_the_context() -> Result<()> {
    let daemon = Daemon::start_with(&["--max-shader-cost", "100000000", "--max-pipeline-time", "200ms"])?;
    let mut setup = Setup::on(daemon, |gpu| Device::create_with_all_features(gpu, "shaders"))?;
    let (module, result) = setup.module(&tower(20))?;
    ensure!(result == SUCCESS, "{result:?}");
    ensure!(setup.pipeline(module, c"main", None).is_err(), "the context is lost");
    setup.daemon.wait_for_workers(0)?;
    let told =
        "limit max-pipeline-time (200 ms) reached: the driver took longer to create pipelines; raise it";
    let is_told = || setup.daemon.log().contains(told);
    ensure!(tests::daemon::eventually(tests::guest::PATIENCE, is_told), "{}", setup.daemon.log());
    Ok(())
}

/// A shader of some KiB takes several GiB in a driver's compiler if its cost is not bounded.
#[test]
fn a_driver_that_takes_too_much_memory_costs_the_context() -> Result<()> {
    let options = ["--max-shader-cost", "100000000", "--max-pipeline-time", "60min", "--cgroup", "off"];
    let daemon = Daemon::start_with(&[&options[..], &["--max-worker-data", "768MiB"]].concat())?;
    let mut setup = Setup::on(daemon, |gpu| Device::create_with_all_features(gpu, "shaders"))?;
    let (small, result) = setup.module(&tower(4))?;
    ensure!(result == SUCCESS, "{result:?}");
    ensure!(setup.pipeline(small, c"main", None)? == SUCCESS, "a small one");
    let worker = setup.daemon.wait_for_workers(1)?[0].as_raw_nonzero();
    println!("{}", std::fs::read_to_string(format!("/proc/{worker}/status"))?);
    let (module, result) = setup.module(&tower(20))?;
    ensure!(result == SUCCESS, "{result:?}");
    ensure!(setup.pipeline(module, c"main", None).is_err(), "the context is lost");
    setup.daemon.wait_for_workers(0)?;
    let told = "limit max-worker-data reached: the driver took nearly all memory that a worker may have of its own; raise it";
    let is_told = || setup.daemon.log().contains(told);
    ensure!(tests::daemon::eventually(PATIENCE, is_told), "{}", setup.daemon.log());
    Ok(())
}
