//! Descriptor sets: arrays and how they are indexed, updates of every kind and at every time, pools.

use anyhow::{Result, ensure};
use ash::vk;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::elementwise::noise32;
use crate::gpu::{Buffer, Gpu, skip};
use crate::kernel::{Kernel, STORAGE, Slot};

const NONUNIFORM: &str = "#extension GL_EXT_nonuniform_qualifier : require\n";
const POINT: vk::PipelineBindPoint = vk::PipelineBindPoint::COMPUTE;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![dynamic_storage(), dynamic_uniform(), array(), nonuniform(), runtime_array()];
    cases.extend([variable_count(), update_after_bind(), update_unused_while_pending(), many()]);
    cases.extend([
        inline_block("whole", &[(0, 0, 64)]),
        inline_block("in_parts", &[(32, 32, 32), (0, 0, 16), (16, 16, 16)]),
    ]);
    cases.extend([
        copies(),
        templates(),
        consecutive_bindings(),
        several_sets(),
        a_gap_between_sets(),
        rebinding(),
    ]);
    cases.extend([pool_reset(), pool_free(), pool_used_up(), layout_support(), mutable()]);
    cases.extend([texel_uniform(), texel_storage(), texel_part(), non_uniform_texels()]);
    cases
}

/// A kernel of the case's first shader with a layout of its own.
pub(crate) fn kernel(gpu: &Gpu, set_layouts: &[vk::DescriptorSetLayout], push: u32) -> Result<Kernel> {
    let layout = gpu.pipeline_layout(set_layouts, push)?;
    let module = gpu.module(0)?;
    let stage = vk::PipelineShaderStageCreateInfo::default()
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module)
        .name(c"main");
    let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
    let made = unsafe { gpu.device.create_compute_pipelines(vk::PipelineCache::null(), &info, None) };
    let pipeline = made.map_err(|(_, error)| error)?[0];
    gpu.later(move |device| unsafe { device.destroy_pipeline(pipeline, None) });
    Ok(Kernel { pipeline, layout, set_layout: set_layouts.first().copied().unwrap_or_default() })
}

/// A layout whose bindings have flags.
fn flagged_layout(
    gpu: &Gpu,
    bindings: &[(vk::DescriptorType, u32, vk::DescriptorBindingFlags)],
    flags: vk::DescriptorSetLayoutCreateFlags,
) -> Result<vk::DescriptorSetLayout> {
    let all: Vec<_> = (0u32..)
        .zip(bindings)
        .map(|(binding, (ty, count, _))| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(binding)
                .descriptor_type(*ty)
                .descriptor_count(*count)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        })
        .collect();
    let binding_flags: Vec<_> = bindings.iter().map(|(_, _, flags)| *flags).collect();
    let mut binding_flags =
        vk::DescriptorSetLayoutBindingFlagsCreateInfo::default().binding_flags(&binding_flags);
    let info = vk::DescriptorSetLayoutCreateInfo::default()
        .bindings(&all)
        .flags(flags)
        .push_next(&mut binding_flags);
    gpu.set_layout_of(&info)
}

fn dispatch(gpu: &Gpu, commands: vk::CommandBuffer, kernel: &Kernel, set: vk::DescriptorSet, groups: u32) {
    gpu.bind(commands, kernel, set);
    unsafe { gpu.device.cmd_dispatch(commands, groups, 1, 1) };
}

/// Buffers of 16 words: buffer `i` holds `100 * i + 0..16`.
fn numbered(gpu: &Gpu, count: u32) -> Result<Vec<Buffer>> {
    (0..count).map(|i| gpu.buffer_of(&(0..16).map(|j| 100 * i + j).collect::<Vec<u32>>())).collect()
}

fn slots(buffers: &[Buffer]) -> Vec<Slot> {
    buffers.iter().map(|buffer| Slot::Buffer(buffer.handle)).collect()
}

fn dynamic(name: &str, ty: vk::DescriptorType, block: &str) -> Case {
    Case::new(format!("descriptors.{name}"), move |gpu| {
        let input = noise32(60, 1024);
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(1024)?);
        let kernel = gpu.kernel(0).bindings(&[ty, vk::DescriptorType::STORAGE_BUFFER_DYNAMIC]).build()?;
        let types = [ty, vk::DescriptorType::STORAGE_BUFFER_DYNAMIC];
        let slots = [Slot::Range(from.handle, 0, 256), Slot::Range(to.handle, 0, 256)];
        let set = gpu.set(&kernel, &types, &slots)?;
        gpu.run(|commands| unsafe {
            gpu.device.cmd_bind_pipeline(commands, POINT, kernel.pipeline);
            for (source, target) in [(256, 768), (1024, 0), (3584, 512)] {
                let sets = [set];
                gpu.device.cmd_bind_descriptor_sets(
                    commands,
                    POINT,
                    kernel.layout,
                    0,
                    &sets,
                    &[source, target],
                );
                gpu.device.cmd_dispatch(commands, 1, 1, 1);
            }
        })?;
        let mut expected = vec![0; 256];
        for (source, target) in [(64, 192), (256, 0), (896, 128)] {
            expected[target..target + 64].copy_from_slice(&input[source..source + 64]);
        }
        expect(&to.values::<u32>(), &expected)
    })
    .glsl(format!(
        "layout(local_size_x = 16) in;
{block}
layout(binding = 1) writeonly buffer To {{ uvec4 to[16]; }};
void main() {{ uint i = gl_GlobalInvocationID.x; to[i] = from[i]; }}"
    ))
}

fn dynamic_storage() -> Case {
    let block = "layout(binding = 0) readonly buffer From { uvec4 from[16]; };";
    dynamic("dynamic_storage", vk::DescriptorType::STORAGE_BUFFER_DYNAMIC, block)
}

fn dynamic_uniform() -> Case {
    let block = "layout(binding = 0) uniform From { uvec4 from[16]; };";
    dynamic("dynamic_uniform", vk::DescriptorType::UNIFORM_BUFFER_DYNAMIC, block)
}

fn array() -> Case {
    Case::new("descriptors.array_dynamically_uniform", |gpu| {
        gpu.require(&["shaderStorageBufferArrayDynamicIndexing"])?;
        let from = numbered(gpu, 4)?;
        let to = gpu.buffer(256)?;
        let layout =
            gpu.set_layout(&[(STORAGE, 4), (STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
        let kernel = kernel(gpu, &[layout], 0)?;
        let set = gpu.empty_set(layout, &[(STORAGE, 5)], vk::DescriptorPoolCreateFlags::empty())?;
        gpu.fill(set, 0, 0, STORAGE, &slots(&from));
        gpu.fill(set, 1, 0, STORAGE, &[Slot::Buffer(to.handle)]);
        gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 4))?;
        expect(&to.values::<u32>(), &(0..64).map(|i| 100 * (3 - i / 16) + i % 16).collect::<Vec<u32>>())
    })
    .glsl(
        "layout(local_size_x = 16) in;
layout(binding = 0) readonly buffer From { uint words[]; } from[4];
layout(binding = 1) writeonly buffer To { uint to[]; };
void main() { to[gl_GlobalInvocationID.x] = from[3 - gl_WorkGroupID.x].words[gl_LocalInvocationID.x]; }",
    )
}

fn nonuniform() -> Case {
    Case::new("descriptors.array_nonuniform", |gpu| {
        gpu.require(&["shaderStorageBufferArrayNonUniformIndexing", "descriptorIndexing"])?;
        let from = numbered(gpu, 8)?;
        let to = gpu.buffer(256)?;
        let layout =
            gpu.set_layout(&[(STORAGE, 8), (STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
        let kernel = kernel(gpu, &[layout], 0)?;
        let set = gpu.empty_set(layout, &[(STORAGE, 9)], vk::DescriptorPoolCreateFlags::empty())?;
        gpu.fill(set, 0, 0, STORAGE, &slots(&from));
        gpu.fill(set, 1, 0, STORAGE, &[Slot::Buffer(to.handle)]);
        gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 1))?;
        expect(&to.values::<u32>(), &(0..64).map(|i| 100 * (i * 5 % 8) + i % 16).collect::<Vec<u32>>())
    })
    .glsl(format!(
        "{NONUNIFORM}layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer From {{ uint words[]; }} from[8];
layout(binding = 1) writeonly buffer To {{ uint to[]; }};
void main() {{ uint i = gl_GlobalInvocationID.x; to[i] = from[nonuniformEXT(i * 5 % 8)].words[i % 16]; }}"
    ))
}

/// Reads element `index[i]` of an array of buffers without a size.
const RUNTIME: &str = "#extension GL_EXT_nonuniform_qualifier : require
layout(local_size_x = 16) in;
layout(binding = 0) writeonly buffer To { uint to[]; };
layout(binding = 1) readonly buffer From { uint words[]; } from[];
layout(push_constant) uniform Push { uint index[4]; };
void main() { to[gl_GlobalInvocationID.x] = from[index[gl_WorkGroupID.x]].words[gl_LocalInvocationID.x]; }";

fn runtime_set(
    gpu: &Gpu,
    extra: vk::DescriptorBindingFlags,
    count: u32,
    actual: Option<u32>,
) -> Result<(Kernel, vk::DescriptorSet)> {
    let bindings = [
        (STORAGE, 1, vk::DescriptorBindingFlags::empty()),
        (STORAGE, count, vk::DescriptorBindingFlags::PARTIALLY_BOUND | extra),
    ];
    let after = extra.contains(vk::DescriptorBindingFlags::UPDATE_AFTER_BIND);
    let (layout_flags, pool_flags) = if after {
        (
            vk::DescriptorSetLayoutCreateFlags::UPDATE_AFTER_BIND_POOL,
            vk::DescriptorPoolCreateFlags::UPDATE_AFTER_BIND,
        )
    } else {
        Default::default()
    };
    let layout = flagged_layout(gpu, &bindings, layout_flags)?;
    let kernel = kernel(gpu, &[layout], 16)?;
    let Some(actual) = actual else {
        return Ok((kernel, gpu.empty_set(layout, &[(STORAGE, count + 1)], pool_flags)?));
    };
    let pool = gpu.descriptor_pool(&[(STORAGE, actual + 1)], 1, pool_flags)?;
    let counts = [actual];
    let mut counts =
        vk::DescriptorSetVariableDescriptorCountAllocateInfo::default().descriptor_counts(&counts);
    let layouts = [layout];
    let info = vk::DescriptorSetAllocateInfo::default()
        .descriptor_pool(pool)
        .set_layouts(&layouts)
        .push_next(&mut counts);
    Ok((kernel, unsafe { gpu.device.allocate_descriptor_sets(&info) }?[0]))
}

fn run_runtime(
    gpu: &Gpu,
    kernel: &Kernel,
    set: vk::DescriptorSet,
    index: [u32; 4],
    between: impl FnOnce(),
) -> Result<()> {
    let commands = gpu.record(|commands| {
        gpu.push(commands, kernel, &index);
        dispatch(gpu, commands, kernel, set, 4);
    })?;
    between();
    gpu.submit(&[commands])
}

fn expected_of(index: [u32; 4]) -> Vec<u32> {
    (0..64).map(|i| 100 * index[i / 16] + i as u32 % 16).collect()
}

fn runtime_array() -> Case {
    Case::new("descriptors.partially_bound_runtime_array", |gpu| {
        gpu.require(&[
            "runtimeDescriptorArray",
            "descriptorBindingPartiallyBound",
            "shaderStorageBufferArrayDynamicIndexing",
        ])?;
        let (kernel, set) = runtime_set(gpu, vk::DescriptorBindingFlags::empty(), 50, None)?;
        let (from, to) = (numbered(gpu, 4)?, gpu.buffer(256)?);
        gpu.fill(set, 0, 0, STORAGE, &[Slot::Buffer(to.handle)]);
        for (element, slot) in [3, 17, 20, 49].into_iter().zip(slots(&from)) {
            gpu.fill(set, 1, element, STORAGE, &[slot]);
        }
        run_runtime(gpu, &kernel, set, [49, 3, 20, 17], || ())?;
        expect(&to.values::<u32>(), &expected_of([3, 0, 2, 1]))
    })
    .glsl(RUNTIME)
}

fn variable_count() -> Case {
    Case::new("descriptors.variable_count", |gpu| {
        gpu.require(&[
            "descriptorBindingVariableDescriptorCount",
            "descriptorBindingPartiallyBound",
            "runtimeDescriptorArray",
        ])?;
        let (kernel, set) =
            runtime_set(gpu, vk::DescriptorBindingFlags::VARIABLE_DESCRIPTOR_COUNT, 1000, Some(7))?;
        let (from, to) = (numbered(gpu, 7)?, gpu.buffer(256)?);
        gpu.fill(set, 0, 0, STORAGE, &[Slot::Buffer(to.handle)]);
        gpu.fill(set, 1, 0, STORAGE, &slots(&from));
        run_runtime(gpu, &kernel, set, [6, 0, 5, 2], || ())?;
        expect(&to.values::<u32>(), &expected_of([6, 0, 5, 2]))
    })
    .glsl(RUNTIME)
}

fn update_after_bind() -> Case {
    Case::new("descriptors.update_after_bind", |gpu| {
        gpu.require(&[
            "descriptorBindingStorageBufferUpdateAfterBind",
            "descriptorBindingPartiallyBound",
            "runtimeDescriptorArray",
        ])?;
        let (kernel, set) = runtime_set(gpu, vk::DescriptorBindingFlags::UPDATE_AFTER_BIND, 20, None)?;
        let (from, to) = (numbered(gpu, 8)?, gpu.buffer(256)?);
        gpu.fill(set, 0, 0, STORAGE, &[Slot::Buffer(to.handle)]);
        gpu.fill(set, 1, 0, STORAGE, &slots(&from[..4]));
        // The recording is done; the set still changes.
        run_runtime(gpu, &kernel, set, [0, 1, 2, 3], || gpu.fill(set, 1, 0, STORAGE, &slots(&from[4..])))?;
        expect(&to.values::<u32>(), &expected_of([4, 5, 6, 7]))
    })
    .glsl(RUNTIME)
}

fn update_unused_while_pending() -> Case {
    Case::new("descriptors.update_unused_while_pending", |gpu| {
        gpu.require(&[
            "descriptorBindingUpdateUnusedWhilePending",
            "descriptorBindingStorageBufferUpdateAfterBind",
        ])?;
        gpu.require(&["descriptorBindingPartiallyBound", "runtimeDescriptorArray"])?;
        let flags = vk::DescriptorBindingFlags::UPDATE_AFTER_BIND
            | vk::DescriptorBindingFlags::UPDATE_UNUSED_WHILE_PENDING;
        let (kernel, set) = runtime_set(gpu, flags, 20, None)?;
        let (from, to) = (numbered(gpu, 8)?, gpu.buffer(256)?);
        gpu.fill(set, 0, 0, STORAGE, &[Slot::Buffer(to.handle)]);
        gpu.fill(set, 1, 0, STORAGE, &slots(&from[..4]));
        let commands = gpu.record(|commands| {
            gpu.push(commands, &kernel, &[0u32, 1, 2, 3]);
            for _ in 0..50 {
                dispatch(gpu, commands, &kernel, set, 4);
                gpu.barrier(commands);
            }
        })?;
        let fence = gpu.fence(false)?;
        let buffers = [commands];
        let info = vk::SubmitInfo::default().command_buffers(&buffers);
        unsafe { gpu.device.queue_submit(gpu.queue(), &[info], fence) }?;
        gpu.fill(set, 1, 4, STORAGE, &slots(&from[4..]));
        gpu.wait(fence)?;
        expect(&to.values::<u32>(), &expected_of([0, 1, 2, 3]))?;
        run_runtime(gpu, &kernel, set, [7, 6, 5, 4], || ())?;
        expect(&to.values::<u32>(), &expected_of([7, 6, 5, 4]))
    })
    .glsl(RUNTIME)
}

fn many() -> Case {
    Case::new("descriptors.two_thousand", |gpu| {
        gpu.require(&[
            "runtimeDescriptorArray",
            "descriptorBindingPartiallyBound",
            "descriptorBindingStorageBufferUpdateAfterBind",
        ])?;
        let (kernel, set) = runtime_set(gpu, vk::DescriptorBindingFlags::UPDATE_AFTER_BIND, 2000, None)?;
        let (from, to) = (gpu.buffer_of(&noise32(61, 64 * 2000))?, gpu.buffer(256)?);
        gpu.fill(set, 0, 0, STORAGE, &[Slot::Buffer(to.handle)]);
        let infos: Vec<_> = (0..2000)
            .map(|i| vk::DescriptorBufferInfo { buffer: from.handle, offset: 256 * i, range: 256 })
            .collect();
        let write = vk::WriteDescriptorSet::default()
            .dst_set(set)
            .dst_binding(1)
            .descriptor_type(STORAGE)
            .buffer_info(&infos);
        unsafe { gpu.device.update_descriptor_sets(&[write], &[]) };
        let index = [1999, 1000, 1, 777];
        run_runtime(gpu, &kernel, set, index, || ())?;
        let words = noise32(61, 64 * 2000);
        let expected: Vec<u32> = (0..64).map(|i| words[64 * index[i / 16] as usize + i % 16]).collect();
        expect(&to.values::<u32>(), &expected)
    })
    .glsl(RUNTIME)
}

/// Writes an inline uniform block as pieces: where, from where in the data, bytes.
fn inline_block(name: &str, pieces: &'static [(u32, usize, usize)]) -> Case {
    Case::new(format!("descriptors.inline_block.{name}"), move |gpu| {
        gpu.require(&["inlineUniformBlock"])?;
        let data = bytes_of(&noise32(62, 16));
        let to = gpu.buffer(64)?;
        let inline = vk::DescriptorType::INLINE_UNIFORM_BLOCK;
        let layout =
            gpu.set_layout(&[(inline, 64), (STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
        let kernel = kernel(gpu, &[layout], 0)?;
        let sizes = [(inline, 64), (STORAGE, 1)]
            .map(|(ty, descriptor_count)| vk::DescriptorPoolSize { ty, descriptor_count });
        let mut blocks =
            vk::DescriptorPoolInlineUniformBlockCreateInfo::default().max_inline_uniform_block_bindings(1);
        let info =
            vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes).push_next(&mut blocks);
        let pool = unsafe { gpu.device.create_descriptor_pool(&info, None) }?;
        gpu.later(move |device| unsafe { device.destroy_descriptor_pool(pool, None) });
        let layouts = [layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        let set = unsafe { gpu.device.allocate_descriptor_sets(&info) }?[0];
        for (at, from, size) in pieces {
            let mut block =
                vk::WriteDescriptorSetInlineUniformBlock::default().data(&data[*from..*from + *size]);
            let mut write = vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(0)
                .dst_array_element(*at)
                .descriptor_type(inline)
                .push_next(&mut block);
            write.descriptor_count = *size as u32;
            unsafe { gpu.device.update_descriptor_sets(&[write], &[]) };
        }
        gpu.fill(set, 1, 0, STORAGE, &[Slot::Buffer(to.handle)]);
        gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 1))?;
        expect(
            &to.values::<u32>(),
            &noise32(62, 16).iter().map(|word| word.rotate_left(3)).collect::<Vec<_>>(),
        )
    })
    .glsl(
        "layout(local_size_x = 4) in;
layout(binding = 0) uniform From { uvec4 from[4]; };
layout(binding = 1) writeonly buffer To { uvec4 to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = from[i] << 3 | from[i] >> 29; }",
    )
}

/// Adds 16 words of two buffers into a third.
const ADD: &str = "layout(local_size_x = 16) in;
layout(binding = 0) readonly buffer A { uint a[]; };
layout(binding = 1) readonly buffer B { uint b[]; };
layout(binding = 2) buffer To { uint to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] += a[i] * 1000 + b[i]; }";

fn added(pairs: &[(u32, u32)]) -> Vec<u32> {
    (0..16).map(|i| pairs.iter().map(|(a, b)| (100 * a + i) * 1000 + 100 * b + i).sum()).collect()
}

fn copies() -> Case {
    Case::new("descriptors.copied_between_sets", |gpu| {
        let (from, to) = (numbered(gpu, 2)?, gpu.buffer(64)?);
        let kernel = gpu.kernel(0).buffers(3).build()?;
        let all = [Slot::Buffer(from[0].handle), Slot::Buffer(from[1].handle), Slot::Buffer(to.handle)];
        let first = gpu.set(&kernel, &[STORAGE; 3], &all)?;
        let second =
            gpu.empty_set(kernel.set_layout, &[(STORAGE, 3)], vk::DescriptorPoolCreateFlags::empty())?;
        let copy = |from, to| {
            vk::CopyDescriptorSet::default()
                .src_set(first)
                .src_binding(from)
                .dst_set(second)
                .dst_binding(to)
                .descriptor_count(1)
        };
        unsafe { gpu.device.update_descriptor_sets(&[], &[copy(0, 1), copy(1, 0), copy(2, 2)]) };
        gpu.run(|commands| dispatch(gpu, commands, &kernel, second, 1))?;
        expect(&to.values::<u32>(), &added(&[(1, 0)]))
    })
    .glsl(ADD)
}

fn templates() -> Case {
    Case::new("descriptors.update_template", |gpu| {
        let (from, to) = (numbered(gpu, 2)?, gpu.buffer(64)?);
        let kernel = gpu.kernel(0).buffers(3).build()?;
        let set =
            gpu.empty_set(kernel.set_layout, &[(STORAGE, 3)], vk::DescriptorPoolCreateFlags::empty())?;
        let infos: Vec<_> = [from[1].handle, from[0].handle, to.handle]
            .map(|buffer| vk::DescriptorBufferInfo { buffer, offset: 0, range: vk::WHOLE_SIZE })
            .to_vec();
        let size = size_of::<vk::DescriptorBufferInfo>();
        let entries: Vec<_> = (0..3)
            .map(|binding| vk::DescriptorUpdateTemplateEntry {
                dst_binding: binding,
                dst_array_element: 0,
                descriptor_count: 1,
                descriptor_type: STORAGE,
                offset: binding as usize * size,
                stride: size,
            })
            .collect();
        let info = vk::DescriptorUpdateTemplateCreateInfo::default()
            .descriptor_update_entries(&entries)
            .template_type(vk::DescriptorUpdateTemplateType::DESCRIPTOR_SET)
            .descriptor_set_layout(kernel.set_layout);
        let template = unsafe { gpu.device.create_descriptor_update_template(&info, None) }?;
        gpu.later(move |device| unsafe { device.destroy_descriptor_update_template(template, None) });
        unsafe { gpu.device.update_descriptor_set_with_template(set, template, infos.as_ptr().cast()) };
        gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 1))?;
        expect(&to.values::<u32>(), &added(&[(1, 0)]))
    })
    .glsl(ADD)
}

fn consecutive_bindings() -> Case {
    Case::new("descriptors.one_write_for_three_bindings", |gpu| {
        let (from, to) = (numbered(gpu, 2)?, gpu.buffer(64)?);
        let kernel = gpu.kernel(0).buffers(3).build()?;
        let set =
            gpu.empty_set(kernel.set_layout, &[(STORAGE, 3)], vk::DescriptorPoolCreateFlags::empty())?;
        let infos = [from[0].handle, from[1].handle, to.handle].map(|buffer| vk::DescriptorBufferInfo {
            buffer,
            offset: 0,
            range: vk::WHOLE_SIZE,
        });
        // Descriptors beyond the end of binding 0 are those of the next bindings.
        let write = vk::WriteDescriptorSet::default()
            .dst_set(set)
            .dst_binding(0)
            .descriptor_type(STORAGE)
            .buffer_info(&infos);
        unsafe { gpu.device.update_descriptor_sets(&[write], &[]) };
        gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 1))?;
        expect(&to.values::<u32>(), &added(&[(0, 1)]))
    })
    .glsl(ADD)
}

/// A layout and a set per buffer.
fn set_of(gpu: &Gpu, layout: vk::DescriptorSetLayout, buffer: &Buffer) -> Result<vk::DescriptorSet> {
    let set = gpu.empty_set(layout, &[(STORAGE, 1)], vk::DescriptorPoolCreateFlags::empty())?;
    gpu.fill(set, 0, 0, STORAGE, &[Slot::Buffer(buffer.handle)]);
    Ok(set)
}

fn several_sets() -> Case {
    Case::new("descriptors.four_sets", |gpu| {
        let (from, to) = (numbered(gpu, 3)?, gpu.buffer(64)?);
        let layout = gpu.set_layout(&[(STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
        let kernel = kernel(gpu, &[layout; 4], 0)?;
        let sets =
            from.iter().chain([&to]).map(|buffer| set_of(gpu, layout, buffer)).collect::<Result<Vec<_>>>()?;
        gpu.run(|commands| unsafe {
            gpu.device.cmd_bind_pipeline(commands, POINT, kernel.pipeline);
            gpu.device.cmd_bind_descriptor_sets(commands, POINT, kernel.layout, 2, &sets[2..], &[]);
            gpu.device.cmd_bind_descriptor_sets(commands, POINT, kernel.layout, 0, &sets[..2], &[]);
            gpu.device.cmd_dispatch(commands, 1, 1, 1);
        })?;
        expect(&to.values::<u32>(), &(0..16).map(|i| i + (100 + i) * 3 + (200 + i) * 7).collect::<Vec<u32>>())
    })
    .glsl(
        "layout(local_size_x = 16) in;
layout(set = 0, binding = 0) readonly buffer A { uint a[]; };
layout(set = 1, binding = 0) readonly buffer B { uint b[]; };
layout(set = 2, binding = 0) readonly buffer C { uint c[]; };
layout(set = 3, binding = 0) writeonly buffer To { uint to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = a[i] + b[i] * 3 + c[i] * 7; }",
    )
}

fn a_gap_between_sets() -> Case {
    Case::new("descriptors.empty_set_between", |gpu| {
        let (from, to) = (numbered(gpu, 1)?, gpu.buffer(64)?);
        let layout = gpu.set_layout(&[(STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
        let empty = gpu.set_layout(&[], vk::DescriptorSetLayoutCreateFlags::empty())?;
        let kernel = kernel(gpu, &[layout, empty, layout], 0)?;
        let sets = [set_of(gpu, layout, &from[0])?, set_of(gpu, layout, &to)?];
        gpu.run(|commands| unsafe {
            gpu.device.cmd_bind_pipeline(commands, POINT, kernel.pipeline);
            gpu.device.cmd_bind_descriptor_sets(commands, POINT, kernel.layout, 0, &sets[..1], &[]);
            gpu.device.cmd_bind_descriptor_sets(commands, POINT, kernel.layout, 2, &sets[1..], &[]);
            gpu.device.cmd_dispatch(commands, 1, 1, 1);
        })?;
        expect(&to.values::<u32>(), &(0..16).map(|i| i * 3).collect::<Vec<u32>>())
    })
    .glsl(
        "layout(local_size_x = 16) in;
layout(set = 0, binding = 0) readonly buffer A { uint a[]; };
layout(set = 2, binding = 0) writeonly buffer To { uint to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = a[i] * 3; }",
    )
}

fn rebinding() -> Case {
    Case::new("descriptors.rebound_between_dispatches", |gpu| {
        let (from, to) = (numbered(gpu, 5)?, gpu.buffer(64)?);
        let kernel = gpu.kernel(0).buffers(3).build()?;
        let pairs = [(0, 1), (1, 2), (2, 3), (4, 4), (0, 4)];
        let sets = pairs
            .iter()
            .map(|(a, b)| {
                gpu.set(&kernel, &[STORAGE; 3], &slots(&[from[*a as usize], from[*b as usize], to]))
            })
            .collect::<Result<Vec<_>>>()?;
        gpu.run(|commands| {
            for set in &sets {
                dispatch(gpu, commands, &kernel, *set, 1);
                gpu.barrier(commands);
            }
        })?;
        expect(&to.values::<u32>(), &added(&pairs))
    })
    .glsl(ADD)
}

fn pool_reset() -> Case {
    Case::new("descriptors.pool_reset", |gpu| {
        let from = numbered(gpu, 2)?;
        let kernel = gpu.kernel(0).buffers(3).build()?;
        let pool = gpu.descriptor_pool(&[(STORAGE, 3)], 4, vk::DescriptorPoolCreateFlags::empty())?;
        let to = gpu.buffer(64)?;
        for _ in 0..5 {
            let layouts = [kernel.set_layout; 4];
            let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
            for set in unsafe { gpu.device.allocate_descriptor_sets(&info) }? {
                for (binding, slot) in slots(&[from[0], from[1], to]).into_iter().enumerate() {
                    gpu.fill(set, binding as u32, 0, STORAGE, &[slot]);
                }
                gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 1))?;
            }
            unsafe { gpu.device.reset_descriptor_pool(pool, vk::DescriptorPoolResetFlags::empty()) }?;
        }
        expect(&to.values::<u32>(), &added(&[(0, 1); 20]))
    })
    .glsl(ADD)
}

fn pool_free() -> Case {
    Case::new("descriptors.freed_one_by_one", |gpu| {
        let from = numbered(gpu, 2)?;
        let kernel = gpu.kernel(0).buffers(3).build()?;
        let pool =
            gpu.descriptor_pool(&[(STORAGE, 3)], 2, vk::DescriptorPoolCreateFlags::FREE_DESCRIPTOR_SET)?;
        let to = gpu.buffer(64)?;
        let layouts = [kernel.set_layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        let mut kept = unsafe { gpu.device.allocate_descriptor_sets(&info) }?;
        for _ in 0..20 {
            let set = unsafe { gpu.device.allocate_descriptor_sets(&info) }?[0];
            unsafe { gpu.device.free_descriptor_sets(pool, &kept) }?;
            for (binding, slot) in slots(&[from[1], from[0], to]).into_iter().enumerate() {
                gpu.fill(set, binding as u32, 0, STORAGE, &[slot]);
            }
            gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 1))?;
            kept = vec![set];
        }
        expect(&to.values::<u32>(), &added(&[(1, 0); 20]))
    })
    .glsl(ADD)
}

fn pool_used_up() -> Case {
    Case::new("descriptors.pool_used_up", |gpu| {
        let layout = gpu.set_layout(&[(STORAGE, 4)], vk::DescriptorSetLayoutCreateFlags::empty())?;
        let pool = gpu.descriptor_pool(&[(STORAGE, 4)], 3, vk::DescriptorPoolCreateFlags::empty())?;
        let allocate = |count: usize| {
            let layouts = vec![layout; count];
            let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
            unsafe { gpu.device.allocate_descriptor_sets(&info) }
        };
        allocate(3)?;
        unsafe { gpu.device.reset_descriptor_pool(pool, vk::DescriptorPoolResetFlags::empty()) }?;
        allocate(3)?;
        Ok(Vec::new())
    })
}

fn layout_support() -> Case {
    Case::new("descriptors.layout_support", |gpu| {
        gpu.require(&["descriptorBindingVariableDescriptorCount"])?;
        let mut answers = Vec::new();
        for count in [1, 1000, 100_000, 4_000_000_000] {
            let binding = [vk::DescriptorSetLayoutBinding::default()
                .descriptor_type(STORAGE)
                .descriptor_count(count)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)];
            let flags = [vk::DescriptorBindingFlags::VARIABLE_DESCRIPTOR_COUNT];
            let mut flags = vk::DescriptorSetLayoutBindingFlagsCreateInfo::default().binding_flags(&flags);
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&binding).push_next(&mut flags);
            let mut variable = vk::DescriptorSetVariableDescriptorCountLayoutSupport::default();
            let mut support = vk::DescriptorSetLayoutSupport::default().push_next(&mut variable);
            unsafe { gpu.device.get_descriptor_set_layout_support(&info, &mut support) };
            let supported = support.supported;
            answers.extend([supported, variable.max_variable_descriptor_count]);
        }
        ensure!(answers[0] == 1, "one storage buffer is not supported");
        Ok(bytes_of(&answers))
    })
}

fn mutable() -> Case {
    Case::new("descriptors.mutable_type", |gpu| {
        gpu.require(&["mutableDescriptorType"])?;
        let uniform = vk::DescriptorType::UNIFORM_BUFFER;
        let types = [STORAGE, uniform];
        let list = [vk::MutableDescriptorTypeListEXT::default().descriptor_types(&types)];
        let mut lists =
            vk::MutableDescriptorTypeCreateInfoEXT::default().mutable_descriptor_type_lists(&list);
        let bindings: Vec<_> = [(0, vk::DescriptorType::MUTABLE_EXT), (1, STORAGE)]
            .map(|(binding, ty)| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(ty)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .to_vec();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings).push_next(&mut lists);
        let layout = gpu.set_layout_of(&info)?;
        let kernel = kernel(gpu, &[layout], 0)?;
        let sizes = [vk::DescriptorType::MUTABLE_EXT, STORAGE]
            .map(|ty| vk::DescriptorPoolSize { ty, descriptor_count: 1 });
        let info =
            vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes).push_next(&mut lists);
        let pool = unsafe { gpu.device.create_descriptor_pool(&info, None) }?;
        gpu.later(move |device| unsafe { device.destroy_descriptor_pool(pool, None) });
        let layouts = [layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        let set = unsafe { gpu.device.allocate_descriptor_sets(&info) }?[0];
        let (from, to) = (numbered(gpu, 1)?, gpu.buffer(64)?);
        gpu.fill(set, 0, 0, STORAGE, &slots(&from));
        gpu.fill(set, 0, 0, uniform, &slots(&from));
        gpu.fill(set, 1, 0, STORAGE, &slots(&[to]));
        gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 1))?;
        expect(&to.values::<u32>(), &(0..16).map(|i| i * 9).collect::<Vec<u32>>())
    })
    .glsl(
        "layout(local_size_x = 4) in;
layout(binding = 0) uniform From { uvec4 from[4]; };
layout(binding = 1) writeonly buffer To { uvec4 to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = from[i] * 9; }",
    )
}

fn texels(
    gpu: &Gpu,
    ty: vk::DescriptorType,
    from: Slot,
    to: Slot,
    to_type: vk::DescriptorType,
) -> Result<()> {
    let types = [ty, to_type];
    let kernel = gpu.kernel(0).bindings(&types).build()?;
    let set = gpu.set(&kernel, &types, &[from, to])?;
    gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 1))
}

const UNIFORM_TEXELS: vk::DescriptorType = vk::DescriptorType::UNIFORM_TEXEL_BUFFER;

fn texel_uniform() -> Case {
    Case::new("descriptors.texel_buffer.uniform", |gpu| {
        let input: Vec<u8> = (0..=255).collect();
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(1024)?);
        let view = gpu.buffer_view(&from, vk::Format::R8G8B8A8_UNORM, 0, vk::WHOLE_SIZE)?;
        texels(gpu, UNIFORM_TEXELS, Slot::View(view), Slot::Buffer(to.handle), STORAGE)?;
        let rounded: Vec<u32> =
            to.values::<f32>().iter().map(|value| (value * 255.0).round() as u32).collect();
        expect(&rounded, &(0..=255).collect::<Vec<u32>>())?;
        Ok(to.read())
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(binding = 0) uniform samplerBuffer from;
layout(binding = 1) writeonly buffer To { vec4 to[]; };
void main() { int i = int(gl_GlobalInvocationID.x); to[i] = texelFetch(from, i); }",
    )
}

fn texel_storage() -> Case {
    Case::new("descriptors.texel_buffer.storage", |gpu| {
        let input = noise32(63, 64);
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(256)?);
        let read = gpu.buffer_view(&from, vk::Format::R32_UINT, 0, vk::WHOLE_SIZE)?;
        let write = gpu.buffer_view(&to, vk::Format::R32_UINT, 0, vk::WHOLE_SIZE)?;
        let storage = vk::DescriptorType::STORAGE_TEXEL_BUFFER;
        texels(gpu, storage, Slot::View(read), Slot::View(write), storage)?;
        expect(&to.values::<u32>(), &input.iter().map(|word| word ^ 64).collect::<Vec<_>>())
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(r32ui, binding = 0) readonly uniform uimageBuffer from;
layout(r32ui, binding = 1) writeonly uniform uimageBuffer to;
void main() { int i = int(gl_GlobalInvocationID.x); imageStore(to, i, imageLoad(from, i) ^ imageSize(from)); }",
    )
}

fn texel_part() -> Case {
    Case::new("descriptors.texel_buffer.part", |gpu| {
        let input = noise32(64, 512);
        let (from, to) = (gpu.buffer_of(&input)?, gpu.buffer(256)?);
        let alignment = gpu.limits().min_texel_buffer_offset_alignment;
        if alignment > 256 {
            return skip("texel buffers at 256 bytes");
        }
        let view = gpu.buffer_view(&from, vk::Format::R16G16_UINT, 256, 128)?;
        texels(gpu, UNIFORM_TEXELS, Slot::View(view), Slot::Buffer(to.handle), STORAGE)?;
        let expected: Vec<u32> = (0..64)
            .map(|i| if i < 32 { (input[64 + i] & 65535) + (input[64 + i] >> 16) } else { 32 })
            .collect();
        expect(&to.values::<u32>(), &expected)
    })
    .glsl(
        "layout(local_size_x = 64) in;
layout(binding = 0) uniform usamplerBuffer from;
layout(binding = 1) writeonly buffer To { uint to[]; };
void main() {
    int i = int(gl_GlobalInvocationID.x);
    to[i] = i < textureSize(from) ? texelFetch(from, i).x + texelFetch(from, i).y : textureSize(from);
}",
    )
}

fn non_uniform_texels() -> Case {
    Case::new("descriptors.texel_buffer.nonuniform_array", |gpu| {
        gpu.require(&["shaderUniformTexelBufferArrayNonUniformIndexing", "shaderUniformTexelBufferArrayDynamicIndexing"])?;
        let (from, to) = (numbered(gpu, 4)?, gpu.buffer(256)?);
        let layout = gpu.set_layout(&[(UNIFORM_TEXELS, 4), (STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
        let kernel = kernel(gpu, &[layout], 0)?;
        let sizes = [(UNIFORM_TEXELS, 4), (STORAGE, 1)];
        let set = gpu.empty_set(layout, &sizes, vk::DescriptorPoolCreateFlags::empty())?;
        for (element, buffer) in (0u32..).zip(&from) {
            let view = gpu.buffer_view(buffer, vk::Format::R32_UINT, 0, vk::WHOLE_SIZE)?;
            gpu.fill(set, 0, element, UNIFORM_TEXELS, &[Slot::View(view)]);
        }
        gpu.fill(set, 1, 0, STORAGE, &slots(&[to]));
        gpu.run(|commands| dispatch(gpu, commands, &kernel, set, 1))?;
        expect(&to.values::<u32>(), &(0..64).map(|i| 100 * (i % 4) + i / 4).collect::<Vec<u32>>())
    })
    .glsl(format!(
        "{NONUNIFORM}layout(local_size_x = 64) in;
layout(binding = 0) uniform usamplerBuffer from[4];
layout(binding = 1) writeonly buffer To {{ uint to[]; }};
void main() {{ uint i = gl_GlobalInvocationID.x; to[i] = texelFetch(from[nonuniformEXT(i % 4)], int(i / 4)).x; }}"
    ))
}
