//! Pipelines: specialisation constants of every type, derivatives, caches, feedback, flags.

use anyhow::{Result, ensure};
use ash::vk;

use crate::bytes::{Plain, bytes_of, expect};
use crate::case::Case;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, STORAGE, Slot};

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = specialization();
    cases.extend(creation());
    cases.extend(caches());
    cases
}

/// Answers 64 words that are all `value`.
const FILL: &str = "layout(local_size_x = 64) in;
layout(constant_id = 0) const uint VALUE = 7;
layout(binding = 0) writeonly buffer To { uint to[]; };
void main() { to[gl_GlobalInvocationID.x] = VALUE + gl_LocalInvocationID.x; }";

/// Runs one workgroup of a kernel whose only binding is the result.
pub(crate) fn answer(gpu: &Gpu, kernel: &Kernel) -> Result<Vec<u32>> {
    let to = gpu.buffer(256)?;
    let set = gpu.set(kernel, &[STORAGE], &[Slot::Buffer(to.handle)])?;
    gpu.run(|commands| {
        gpu.bind(commands, kernel, set);
        unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
    })?;
    Ok(to.values())
}

fn filled(value: u32) -> Vec<u32> {
    (0..64).map(|i| value + i).collect()
}

fn specialization() -> Vec<Case> {
    fn typed<T: Plain + PartialEq + std::fmt::Debug + 'static>(
        name: &str,
        needs: &'static [&'static str],
        ty: &str,
        value: T,
    ) -> Case {
        Case::new(format!("pipelines.specialization.{name}"), move |gpu| {
            gpu.require(needs)?;
            let kernel = gpu.kernel(0).buffers(1).constant(5, value).build()?;
            let found = bytes_of(&answer(gpu, &kernel)?);
            expect(&crate::bytes::from_bytes::<T>(&found)[..1], &[value])
        })
        .glsl(format!(
            "layout(constant_id = 5) const {ty} VALUE = {ty}(1);
layout(scalar, binding = 0) writeonly buffer To {{ {ty} to; }};
void main() {{ to = VALUE; }}"
        ))
    }
    vec![
        typed("u8", &["shaderInt8", "storageBuffer8BitAccess"], "uint8_t", 0xa5u8),
        typed("i16", &["shaderInt16", "storageBuffer16BitAccess"], "int16_t", -12345i16),
        typed("u32", &[], "uint", 0xdead_beefu32),
        typed("i32", &[], "int", -77i32),
        typed("i64", &["shaderInt64"], "int64_t", -0x1234_5678_9abc_def0i64),
        typed("f16", &["shaderFloat16", "storageBuffer16BitAccess"], "float16_t", half::f16::from_f32(2.5)),
        typed("f32", &[], "float", -1.75f32),
        typed("f64", &["shaderFloat64"], "double", 1e300f64),
        Case::new("pipelines.specialization.bool", |gpu| {
            let kernel = gpu.kernel(0).buffers(1).constant(5, 1u32).constant(6, 0u32).build()?;
            expect(&answer(gpu, &kernel)?[..1], &[2])
        })
        .glsl(
            "layout(constant_id = 5) const bool YES = false;
layout(constant_id = 6) const bool NO = true;
layout(binding = 0) writeonly buffer To { uint to; };
void main() { to = YES ? (NO ? 1 : 2) : 3; }",
        ),
        Case::new("pipelines.specialization.workgroup_size", |gpu| {
            let kernel =
                gpu.kernel(0).buffers(1).constant(1, 8u32).constant(2, 4u32).constant(3, 2u32).build()?;
            expect(
                &answer(gpu, &kernel)?,
                &(0..64).map(|i| i ^ 8 << 8 ^ 4 << 12 ^ 2 << 16).collect::<Vec<u32>>(),
            )
        })
        .glsl(
            "layout(local_size_x_id = 1, local_size_y_id = 2, local_size_z_id = 3) in;
layout(binding = 0) writeonly buffer To { uint to[]; };
void main() {
    uint i = gl_LocalInvocationIndex;
    to[i] = i ^ gl_WorkGroupSize.x << 8 ^ gl_WorkGroupSize.y << 12 ^ gl_WorkGroupSize.z << 16;
}",
        ),
        Case::new("pipelines.specialization.operations", |gpu| {
            let kernel = gpu.kernel(0).buffers(1).constant(0, 6u32).constant(1, 4u32).build()?;
            let expected: Vec<u32> = (0..64).map(|i| if i < 24 { i * 10 } else { 0 }).collect();
            expect(&answer(gpu, &kernel)?, &expected)
        })
        .glsl(
            "layout(local_size_x = 64) in;
layout(constant_id = 0) const uint A = 1;
layout(constant_id = 1) const uint B = 1;
const uint SIZE = A * B;
const uint SUM = A + B;
shared uint part[SIZE];
layout(binding = 0) writeonly buffer To { uint to[]; };
void main() {
    uint i = gl_LocalInvocationIndex;
    if (i < SIZE) part[SIZE - 1 - i] = i * SUM;
    barrier();
    if (i < SIZE) to[i] = part[SIZE - 1 - i];
}",
        ),
    ]
}

fn creation() -> Vec<Case> {
    vec![
        Case::new("pipelines.create.derivative", |gpu| {
            let allow = vk::PipelineCreateFlags::ALLOW_DERIVATIVES;
            let mut info = vk::ComputePipelineCreateInfo::default().flags(allow);
            let base = gpu
                .kernel(0)
                .buffers(1)
                .constant(0, 100u32)
                .build_with(&mut info, vk::PipelineCache::null())?;
            let mut info = vk::ComputePipelineCreateInfo::default()
                .flags(vk::PipelineCreateFlags::DERIVATIVE)
                .base_pipeline_handle(base.pipeline)
                .base_pipeline_index(-1);
            let derived = gpu
                .kernel(0)
                .buffers(1)
                .constant(0, 200u32)
                .build_with(&mut info, vk::PipelineCache::null())?;
            expect(&answer(gpu, &base)?, &filled(100))?;
            expect(&answer(gpu, &derived)?, &filled(200))
        })
        .glsl(FILL),
        Case::new("pipelines.create.many_in_one_call", |gpu| {
            let kernel = gpu.kernel(0).buffers(1).build()?;
            let module = gpu.module(0)?;
            let values: Vec<u32> = (0..10).map(|i| i * 1000).collect();
            let entry = [vk::SpecializationMapEntry { constant_id: 0, offset: 0, size: 4 }];
            let data: Vec<Vec<u8>> = values.iter().map(|value| bytes_of(&[*value])).collect();
            let constants: Vec<_> = data
                .iter()
                .map(|data| vk::SpecializationInfo::default().map_entries(&entry).data(data))
                .collect();
            let infos: Vec<_> = (constants.iter().enumerate())
                .map(|(index, constants)| {
                    let stage = vk::PipelineShaderStageCreateInfo::default()
                        .stage(vk::ShaderStageFlags::COMPUTE)
                        .module(module)
                        .name(c"main")
                        .specialization_info(constants);
                    let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(kernel.layout);
                    match index {
                        0 => info.flags(vk::PipelineCreateFlags::ALLOW_DERIVATIVES),
                        _ => info.flags(vk::PipelineCreateFlags::DERIVATIVE).base_pipeline_index(0),
                    }
                })
                .collect();
            let made =
                unsafe { gpu.device.create_compute_pipelines(vk::PipelineCache::null(), &infos, None) };
            let mut found = Vec::new();
            for pipeline in made.map_err(|(_, error)| error)? {
                gpu.later(move |device| unsafe { device.destroy_pipeline(pipeline, None) });
                found.push(answer(gpu, &Kernel { pipeline, ..kernel })?[0]);
            }
            expect(&found, &values)
        })
        .glsl(FILL),
        Case::new("pipelines.create.without_optimization", |gpu| {
            let flags = vk::PipelineCreateFlags::DISABLE_OPTIMIZATION;
            let mut info = vk::ComputePipelineCreateInfo::default().flags(flags);
            let kernel = gpu.kernel(0).buffers(1).build_with(&mut info, vk::PipelineCache::null())?;
            expect(&answer(gpu, &kernel)?, &filled(7))
        })
        .glsl(FILL),
        Case::new("pipelines.create.feedback", |gpu| {
            let mut whole = vk::PipelineCreationFeedback::default();
            let mut stages = [vk::PipelineCreationFeedback::default()];
            let mut feedback = vk::PipelineCreationFeedbackCreateInfo::default()
                .pipeline_creation_feedback(&mut whole)
                .pipeline_stage_creation_feedbacks(&mut stages);
            let mut info = vk::ComputePipelineCreateInfo::default().push_next(&mut feedback);
            let kernel = gpu
                .kernel(0)
                .buffers(1)
                .constant(0, 300u32)
                .build_with(&mut info, vk::PipelineCache::null())?;
            // The driver decides whether it gives feedback.
            expect(&answer(gpu, &kernel)?, &filled(300))
        })
        .glsl(FILL),
        Case::new("pipelines.create.module_destroyed", |gpu| {
            let code = gpu.spirv(0);
            let info = vk::ShaderModuleCreateInfo::default().code(&code);
            let module = unsafe { gpu.device.create_shader_module(&info, None) }?;
            let set_layout = gpu.set_layout(&[(STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
            let layout = gpu.pipeline_layout(&[set_layout], 0)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let made = unsafe { gpu.device.create_compute_pipelines(vk::PipelineCache::null(), &info, None) };
            let pipeline = made.map_err(|(_, error)| error)?[0];
            unsafe { gpu.device.destroy_shader_module(module, None) };
            gpu.later(move |device| unsafe { device.destroy_pipeline(pipeline, None) });
            expect(&answer(gpu, &Kernel { pipeline, layout, set_layout })?, &filled(7))
        })
        .glsl(FILL),
        Case::new("pipelines.create.without_module", |gpu| {
            gpu.require(&["maintenance5"])?;
            let code = gpu.spirv(0);
            let mut module = vk::ShaderModuleCreateInfo::default().code(&code);
            let set_layout = gpu.set_layout(&[(STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
            let layout = gpu.pipeline_layout(&[set_layout], 0)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .name(c"main")
                .push_next(&mut module);
            let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let made = unsafe { gpu.device.create_compute_pipelines(vk::PipelineCache::null(), &info, None) };
            let pipeline = made.map_err(|(_, error)| error)?[0];
            gpu.later(move |device| unsafe { device.destroy_pipeline(pipeline, None) });
            expect(&answer(gpu, &Kernel { pipeline, layout, set_layout })?, &filled(7))
        })
        .glsl(FILL),
        Case::new("pipelines.create.flags_2", |gpu| {
            gpu.require(&["maintenance5"])?;
            let mut flags = vk::PipelineCreateFlags2CreateInfoKHR::default()
                .flags(vk::PipelineCreateFlags2KHR::DISABLE_OPTIMIZATION);
            let mut info = vk::ComputePipelineCreateInfo::default().push_next(&mut flags);
            let kernel = gpu
                .kernel(0)
                .buffers(1)
                .constant(0, 5u32)
                .build_with(&mut info, vk::PipelineCache::null())?;
            expect(&answer(gpu, &kernel)?, &filled(5))
        })
        .glsl(FILL),
    ]
}

fn caches() -> Vec<Case> {
    fn cache(gpu: &Gpu, data: &[u8], flags: vk::PipelineCacheCreateFlags) -> Result<vk::PipelineCache> {
        let info = vk::PipelineCacheCreateInfo::default().initial_data(data).flags(flags);
        let cache = unsafe { gpu.device.create_pipeline_cache(&info, None) }?;
        gpu.later(move |device| unsafe { device.destroy_pipeline_cache(cache, None) });
        Ok(cache)
    }
    fn made_with(gpu: &Gpu, cache: vk::PipelineCache, value: u32) -> Result<Vec<u8>> {
        let mut info = vk::ComputePipelineCreateInfo::default();
        let kernel = gpu.kernel(0).buffers(1).constant(0, value).build_with(&mut info, cache)?;
        expect(&answer(gpu, &kernel)?, &filled(value))
    }
    const NONE: vk::PipelineCacheCreateFlags = vk::PipelineCacheCreateFlags::empty();
    vec![
        Case::new("pipelines.cache.of_its_own_data", |gpu| {
            let first = cache(gpu, &[], NONE)?;
            made_with(gpu, first, 40)?;
            let data = unsafe { gpu.device.get_pipeline_cache_data(first) }?;
            ensure!(data.len() >= 32, "{} bytes of data", data.len());
            let second = cache(gpu, &data, NONE)?;
            made_with(gpu, second, 40)
        })
        .glsl(FILL),
        Case::new("pipelines.cache.header", |gpu| {
            let first = cache(gpu, &[], NONE)?;
            let data = unsafe { gpu.device.get_pipeline_cache_data(first) }?;
            let word = |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
            expect(&[word(4), word(8), word(12)], &[1, gpu.properties.vendor_id, gpu.properties.device_id])?;
            expect(&data[16..32], &gpu.properties.pipeline_cache_uuid)?;
            Ok(Vec::new())
        }),
        Case::new("pipelines.cache.of_damaged_data", |gpu| {
            let first = cache(gpu, &[], NONE)?;
            made_with(gpu, first, 41)?;
            let mut data = unsafe { gpu.device.get_pipeline_cache_data(first) }?;
            for byte in data.iter_mut().skip(40).step_by(7) {
                *byte ^= 0x55;
            }
            let shorter = data.len() / 2;
            let second = cache(gpu, &data, NONE)?;
            made_with(gpu, second, 41)?;
            let third = cache(gpu, &data[..shorter], NONE)?;
            made_with(gpu, third, 42)
        })
        .glsl(FILL),
        Case::new("pipelines.cache.merged", |gpu| {
            let caches = (0..3).map(|_| cache(gpu, &[], NONE)).collect::<Result<Vec<_>>>()?;
            for (cache, value) in caches.iter().zip(50u32..) {
                made_with(gpu, *cache, value)?;
            }
            unsafe { gpu.device.merge_pipeline_caches(caches[0], &caches[1..]) }?;
            made_with(gpu, caches[0], 51)
        })
        .glsl(FILL),
        Case::new("pipelines.cache.synchronised_outside", |gpu| {
            gpu.require(&["pipelineCreationCacheControl"])?;
            let own = cache(gpu, &[], vk::PipelineCacheCreateFlags::EXTERNALLY_SYNCHRONIZED)?;
            made_with(gpu, own, 60)
        })
        .glsl(FILL),
        Case::new("pipelines.cache.fail_on_compile", |gpu| {
            gpu.require(&["pipelineCreationCacheControl"])?;
            let flags = vk::PipelineCreateFlags::FAIL_ON_PIPELINE_COMPILE_REQUIRED
                | vk::PipelineCreateFlags::EARLY_RETURN_ON_FAILURE;
            let mut info = vk::ComputePipelineCreateInfo::default().flags(flags);
            // Either the pipeline is in some cache, or the driver refuses it.
            match gpu
                .kernel(0)
                .buffers(1)
                .constant(0, 0x7777u32)
                .build_with(&mut info, vk::PipelineCache::null())
            {
                Ok(kernel) => drop(expect(&answer(gpu, &kernel)?, &filled(0x7777))?),
                Err(error) => {
                    let required = Some(&vk::Result::PIPELINE_COMPILE_REQUIRED);
                    ensure!(error.downcast_ref() == required, "{error}");
                }
            }
            made_with(gpu, vk::PipelineCache::null(), 61)
        })
        .glsl(FILL),
    ]
}
