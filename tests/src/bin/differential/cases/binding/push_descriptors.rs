//! Descriptors that are part of the recording, and the commands of maintenance 6 that set them and push constants.

use anyhow::Result;
use ash::vk;

use super::descriptors::kernel;
use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::gpu::{Buffer, Gpu};
use crate::kernel::{Kernel, STORAGE};

const POINT: vk::PipelineBindPoint = vk::PipelineBindPoint::COMPUTE;
const STAGE: vk::ShaderStageFlags = vk::ShaderStageFlags::COMPUTE;

const ADD: &str = "layout(local_size_x = 16) in;
layout(binding = 0) readonly buffer A { uint a[]; };
layout(binding = 1) readonly buffer B { uint b[]; };
layout(binding = 2) buffer To { uint to[]; };
layout(push_constant) uniform Push { uint factor; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] += (a[i] * 1000 + b[i]) * factor; }";

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("push_descriptors.pushed", |gpu| run(gpu, pushed)).glsl(ADD),
        Case::new("push_descriptors.from_template", |gpu| run(gpu, from_template)).glsl(ADD),
        Case::new("push_descriptors.pushed_2", |gpu| {
            gpu.require(&["maintenance6"])?;
            run(gpu, pushed_2)
        })
        .glsl(ADD),
        Case::new("push_descriptors.in_parts", |gpu| run(gpu, in_parts)).glsl(ADD),
        bound_2(),
    ]
}

struct Scene<'a> {
    gpu: &'a Gpu,
    kernel: Kernel,
    buffers: Vec<Buffer>,
}

impl Scene<'_> {
    fn infos(&self, order: [usize; 3]) -> [vk::DescriptorBufferInfo; 3] {
        order.map(|index| vk::DescriptorBufferInfo {
            buffer: self.buffers[index].handle,
            offset: 0,
            range: vk::WHOLE_SIZE,
        })
    }
}

fn extension(gpu: &Gpu) -> ash::khr::push_descriptor::Device {
    ash::khr::push_descriptor::Device::new(&gpu.instance, &gpu.device)
}

/// Each way to push descriptors dispatches twice: buffers 0 and 1, then 1 and 0; both into buffer 2.
fn run(gpu: &Gpu, dispatch: fn(&Scene, vk::CommandBuffer) -> Result<()>) -> Result<Vec<u8>> {
    gpu.require_extension(ash::khr::push_descriptor::NAME)?;
    let layout =
        gpu.set_layout(&[(STORAGE, 1); 3], vk::DescriptorSetLayoutCreateFlags::PUSH_DESCRIPTOR_KHR)?;
    let kernel = kernel(gpu, &[layout], 4)?;
    let numbers = |from: u32| (from..from + 16).collect::<Vec<_>>();
    let buffers = vec![gpu.buffer_of(&numbers(0))?, gpu.buffer_of(&numbers(100))?, gpu.buffer(64)?];
    let scene = Scene { gpu, kernel, buffers };
    let mut outcome = Ok(());
    gpu.run(|commands| {
        unsafe { gpu.device.cmd_bind_pipeline(commands, POINT, kernel.pipeline) };
        gpu.push(commands, &kernel, &[1u32]);
        outcome = dispatch(&scene, commands);
    })?;
    outcome?;
    let expected: Vec<u32> = (0..16).map(|i| i * 1000 + 100 + i + (100 + i) * 1000 + i).collect();
    expect(&scene.buffers[2].values::<u32>(), &expected)
}

fn dispatch(scene: &Scene, commands: vk::CommandBuffer) {
    unsafe { scene.gpu.device.cmd_dispatch(commands, 1, 1, 1) };
    scene.gpu.barrier(commands);
}

fn writes(infos: &[vk::DescriptorBufferInfo]) -> Vec<vk::WriteDescriptorSet<'_>> {
    let write = |binding| {
        let info = std::slice::from_ref(&infos[binding]);
        vk::WriteDescriptorSet::default()
            .dst_binding(binding as u32)
            .descriptor_type(STORAGE)
            .buffer_info(info)
    };
    (0..infos.len()).map(write).collect()
}

fn pushed(scene: &Scene, commands: vk::CommandBuffer) -> Result<()> {
    for order in [[0, 1, 2], [1, 0, 2]] {
        let infos = scene.infos(order);
        let (writes, layout) = (writes(&infos), scene.kernel.layout);
        unsafe { extension(scene.gpu).cmd_push_descriptor_set(commands, POINT, layout, 0, &writes) };
        dispatch(scene, commands);
    }
    Ok(())
}

fn in_parts(scene: &Scene, commands: vk::CommandBuffer) -> Result<()> {
    let extension = extension(scene.gpu);
    let layout = scene.kernel.layout;
    let infos = scene.infos([0, 1, 2]);
    let all = writes(&infos);
    unsafe { extension.cmd_push_descriptor_set(commands, POINT, layout, 0, &all[2..]) };
    unsafe { extension.cmd_push_descriptor_set(commands, POINT, layout, 0, &all[..2]) };
    dispatch(scene, commands);
    // The result's descriptor stays.
    let infos = scene.infos([1, 0, 2]);
    unsafe { extension.cmd_push_descriptor_set(commands, POINT, layout, 0, &writes(&infos)[..2]) };
    dispatch(scene, commands);
    Ok(())
}

fn from_template(scene: &Scene, commands: vk::CommandBuffer) -> Result<()> {
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
        .template_type(vk::DescriptorUpdateTemplateType::PUSH_DESCRIPTORS_KHR)
        .pipeline_bind_point(POINT)
        .pipeline_layout(scene.kernel.layout)
        .set(0);
    let template = unsafe { scene.gpu.device.create_descriptor_update_template(&info, None) }?;
    scene.gpu.later(move |device| unsafe { device.destroy_descriptor_update_template(template, None) });
    for order in [[0, 1, 2], [1, 0, 2]] {
        let infos = scene.infos(order);
        let (layout, data) = (scene.kernel.layout, infos.as_ptr().cast());
        unsafe {
            let extension = extension(scene.gpu);
            (extension.fp().cmd_push_descriptor_set_with_template_khr)(commands, template, layout, 0, data);
        }
        dispatch(scene, commands);
    }
    Ok(())
}

fn pushed_2(scene: &Scene, commands: vk::CommandBuffer) -> Result<()> {
    let extension = ash::khr::maintenance6::Device::new(&scene.gpu.instance, &scene.gpu.device);
    for order in [[0, 1, 2], [1, 0, 2]] {
        let infos = scene.infos(order);
        let writes = writes(&infos);
        let info = vk::PushDescriptorSetInfoKHR::default()
            .stage_flags(STAGE)
            .layout(scene.kernel.layout)
            .set(0)
            .descriptor_writes(&writes);
        unsafe { extension.cmd_push_descriptor_set2(commands, &info) };
        dispatch(scene, commands);
    }
    Ok(())
}

fn bound_2() -> Case {
    Case::new("push_descriptors.bound_and_pushed_by_maintenance_6", |gpu| {
        gpu.require(&["maintenance6"])?;
        let kernel = gpu.kernel(0).buffers(3).push(4).build()?;
        let (a, b, to) = (gpu.buffer_of(&[2u32; 16])?, gpu.buffer_of(&[5u32; 16])?, gpu.buffer(64)?);
        let slots = [&a, &b, &to].map(|buffer| crate::kernel::Slot::Buffer(buffer.handle));
        let sets = [gpu.set(&kernel, &[STORAGE; 3], &slots)?];
        let extension = ash::khr::maintenance6::Device::new(&gpu.instance, &gpu.device);
        gpu.run(|commands| unsafe {
            gpu.device.cmd_bind_pipeline(commands, POINT, kernel.pipeline);
            let info = vk::BindDescriptorSetsInfoKHR::default()
                .stage_flags(STAGE)
                .layout(kernel.layout)
                .descriptor_sets(&sets);
            extension.cmd_bind_descriptor_sets2(commands, &info);
            let values = bytes_of(&[3u32]);
            let info =
                vk::PushConstantsInfoKHR::default().layout(kernel.layout).stage_flags(STAGE).values(&values);
            extension.cmd_push_constants2(commands, &info);
            gpu.device.cmd_dispatch(commands, 1, 1, 1);
        })?;
        expect(&to.values::<u32>(), &[6015; 16])
    })
    .glsl(ADD)
}
