//! The ways in which work is dispatched: dimensions, bases, counts from buffers, limits.

use anyhow::Result;
use ash::vk;

use crate::bytes::expect;
use crate::case::Case;
use crate::gpu::Gpu;
use crate::kernel::{STORAGE, Slot};

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    const WHO: &str = "layout(local_size_x = 2, local_size_y = 2) in;
layout(binding = 0) buffer To { uint to[]; };
layout(push_constant) uniform Push { uint mark; };
void main() {
    uvec3 at = gl_WorkGroupID;
    uint i = at.x + at.y * 4 + at.z * 16;
    atomicAdd(to[i], 1 + mark * (gl_NumWorkGroups.x + gl_NumWorkGroups.y * 4 + gl_NumWorkGroups.z * 16));
}";
    fn with(
        name: &str,
        run: impl Fn(&Gpu, vk::CommandBuffer) -> Result<()> + 'static,
        expected: fn([u32; 3]) -> u32,
    ) -> Case {
        Case::new(format!("dispatches.{name}"), move |gpu| {
            let to = gpu.buffer(256)?;
            let kernel = gpu.kernel(0).buffers(1).push(4).build_with(
                &mut vk::ComputePipelineCreateInfo::default().flags(vk::PipelineCreateFlags::DISPATCH_BASE),
                vk::PipelineCache::null(),
            )?;
            let set = gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(to.handle)])?;
            let mut outcome = Ok(());
            gpu.run(|commands| {
                gpu.bind(commands, &kernel, set);
                gpu.push(commands, &kernel, &[256u32]);
                outcome = run(gpu, commands);
            })?;
            outcome?;
            let expected: Vec<u32> = (0..64).map(|i| expected([i % 4, i / 4 % 4, i / 16])).collect();
            expect(&to.values::<u32>(), &expected)
        })
        .glsl(WHO)
    }
    vec![
        with("three_dimensions", |gpu, commands| {
            unsafe { gpu.device.cmd_dispatch(commands, 3, 4, 2) };
            Ok(())
        }, |[x, _, z]| if x < 3 && z < 2 { 4 * (1 + 256 * (3 + 16 + 32)) } else { 0 }),
        with("nothing", |gpu, commands| {
            unsafe { gpu.device.cmd_dispatch(commands, 3, 0, 2) };
            Ok(())
        }, |_| 0),
        with("base", |gpu, commands| {
            unsafe { gpu.device.cmd_dispatch_base(commands, 1, 2, 3, 2, 2, 1) };
            Ok(())
        }, |[x, y, z]| if (1..3).contains(&x) && y >= 2 && z == 3 { 4 * (1 + 256 * (2 + 8 + 16)) } else { 0 }),
        with("indirect", |gpu, commands| {
            let counts = gpu.buffer_of(&[9u32, 2, 1, 3, 9])?;
            unsafe { gpu.device.cmd_dispatch_indirect(commands, counts.handle, 4) };
            Ok(())
        }, |[x, y, z]| if x < 2 && y < 1 && z < 3 { 4 * (1 + 256 * (2 + 4 + 48)) } else { 0 }),
        with("indirect_of_nothing", |gpu, commands| {
            let counts = gpu.buffer_of(&[0u32, 1, 1])?;
            unsafe { gpu.device.cmd_dispatch_indirect(commands, counts.handle, 0) };
            Ok(())
        }, |_| 0),
        Case::new("dispatches.indirect_from_shader", |gpu| {
            let (counts, to) = (gpu.buffer(12)?, gpu.buffer(256)?);
            let writer = gpu.kernel(0).buffers(1).build()?;
            let reader = gpu.kernel(1).buffers(1).build()?;
            let first = gpu.set(&writer, &[STORAGE], &[Slot::Buffer(counts.handle)])?;
            let second = gpu.set(&reader, &[STORAGE], &[Slot::Buffer(to.handle)])?;
            gpu.run(|commands| {
                gpu.bind(commands, &writer, first);
                unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
                gpu.barrier(commands);
                gpu.bind(commands, &reader, second);
                unsafe { gpu.device.cmd_dispatch_indirect(commands, counts.handle, 0) };
            })?;
            expect(&to.values::<u32>(), &(0..64).map(|i| u32::from(i < 40)).collect::<Vec<_>>())
        })
        .glsl("layout(binding = 0) writeonly buffer Counts { uint counts[3]; };\nvoid main() { counts[0] = 5; counts[1] = 8; counts[2] = 1; }")
        .glsl("layout(binding = 0) writeonly buffer To { uint to[]; };\nvoid main() { to[gl_WorkGroupID.x * 8 + gl_WorkGroupID.y] = 1; }"),
        Case::new("dispatches.many_groups", |gpu| {
            let to = gpu.buffer(4)?;
            gpu.compute(0, &[&to], gpu.limits().max_compute_work_group_count[0].min(65535))?;
            expect(&to.values::<u32>(), &[65535 * 65534 / 2])
        })
        .glsl("layout(binding = 0) buffer To { uint to; };\nvoid main() { atomicAdd(to, gl_WorkGroupID.x); }"),
        Case::new("dispatches.largest_group", |gpu| {
            let to = gpu.buffer(4)?;
            let size = gpu.limits().max_compute_work_group_invocations.min(gpu.limits().max_compute_work_group_size[0]);
            let kernel = gpu.kernel(0).buffers(1).constant(0, size).build()?;
            let set = gpu.set(&kernel, &[STORAGE], &[Slot::Buffer(to.handle)])?;
            gpu.run(|commands| {
                gpu.bind(commands, &kernel, set);
                unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
            })?;
            expect(&to.values::<u32>(), &[(0..size).sum()])
        })
        .glsl(
            "layout(local_size_x_id = 0) in;
layout(binding = 0) buffer To { uint to; };
shared uint sum;
void main() {
    if (gl_LocalInvocationIndex == 0) sum = 0;
    barrier();
    atomicAdd(sum, gl_LocalInvocationIndex);
    barrier();
    if (gl_LocalInvocationIndex == 0) to = sum;
}",
        ),
    ]
}
