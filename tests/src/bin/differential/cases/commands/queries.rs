//! Query pools: timestamps, statistics, availability, resets by host and device, copies; and clocks that are calibrated against each other.

use anyhow::{Result, ensure};
use ash::vk;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::gpu::{Gpu, skip};

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = timestamps();
    cases.extend(statistics());
    cases.push(calibrated());
    cases
}

fn pool(gpu: &Gpu, count: u32) -> Result<vk::QueryPool> {
    if gpu.queues[0].timestamp_bits == 0 {
        return skip("timestamps");
    }
    pool_of(gpu, &vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(count))
}

fn pool_of(gpu: &Gpu, info: &vk::QueryPoolCreateInfo) -> Result<vk::QueryPool> {
    let pool = unsafe { gpu.device.create_query_pool(info, None) }?;
    gpu.later(move |device| unsafe { device.destroy_query_pool(pool, None) });
    Ok(pool)
}

fn stamp(gpu: &Gpu, commands: vk::CommandBuffer, pool: vk::QueryPool, query: u32) {
    unsafe { gpu.device.cmd_write_timestamp(commands, vk::PipelineStageFlags::ALL_COMMANDS, pool, query) };
}

const WIDE: vk::QueryResultFlags = vk::QueryResultFlags::TYPE_64;

fn increasing(stamps: &[u64]) -> Result<()> {
    ensure!(stamps.windows(2).all(|pair| pair[0] <= pair[1]) && stamps[0] > 0, "{stamps:?}");
    Ok(())
}

fn timestamps() -> Vec<Case> {
    vec![
        Case::new("queries.timestamps.waited_for", |gpu| {
            let pool = pool(gpu, 8)?;
            gpu.run(|commands| {
                unsafe { gpu.device.cmd_reset_query_pool(commands, pool, 0, 8) };
                (0..8).for_each(|query| stamp(gpu, commands, pool, query));
            })?;
            let mut found = [0u64; 8];
            unsafe {
                gpu.device.get_query_pool_results(pool, 0, &mut found, WIDE | vk::QueryResultFlags::WAIT)
            }?;
            increasing(&found)?;
            Ok(Vec::new())
        }),
        Case::new("queries.timestamps.narrow", |gpu| {
            let pool = pool(gpu, 2)?;
            gpu.run(|commands| {
                unsafe { gpu.device.cmd_reset_query_pool(commands, pool, 0, 2) };
                (0..2).for_each(|query| stamp(gpu, commands, pool, query));
            })?;
            let (mut wide, mut narrow) = ([0u64; 2], [0u32; 2]);
            unsafe {
                gpu.device.get_query_pool_results(pool, 0, &mut wide, WIDE | vk::QueryResultFlags::WAIT)
            }?;
            unsafe { gpu.device.get_query_pool_results(pool, 0, &mut narrow, vk::QueryResultFlags::WAIT) }?;
            // A value that does not fit may wrap or stay at the largest number.
            let fits = |(narrow, wide): (u32, u64)| {
                narrow == wide as u32 || (narrow == u32::MAX && wide >= narrow.into())
            };
            ensure!(narrow.into_iter().zip(wide).all(fits), "{narrow:?} of {wide:?}");
            Ok(Vec::new())
        }),
        Case::new("queries.timestamps.available", |gpu| {
            gpu.require(&["hostQueryReset"])?;
            let pool = pool(gpu, 4)?;
            unsafe { gpu.device.reset_query_pool(pool, 0, 4) };
            let read = || -> Result<[u64; 4]> {
                let mut found = [[0u64; 2]; 4];
                let flags = WIDE | vk::QueryResultFlags::WITH_AVAILABILITY;
                match unsafe { gpu.device.get_query_pool_results(pool, 0, &mut found, flags) } {
                    Ok(()) | Err(vk::Result::NOT_READY) => Ok(found.map(|query| query[1])),
                    Err(error) => Err(error.into()),
                }
            };
            expect(&read()?, &[0; 4])?;
            gpu.run(|commands| [1, 2].into_iter().for_each(|query| stamp(gpu, commands, pool, query)))?;
            expect(&read()?, &[0, 1, 1, 0])?;
            unsafe { gpu.device.reset_query_pool(pool, 1, 1) };
            expect(&read()?, &[0, 0, 1, 0])
        }),
        Case::new("queries.timestamps.not_ready", |gpu| {
            gpu.require(&["hostQueryReset"])?;
            let pool = pool(gpu, 2)?;
            unsafe { gpu.device.reset_query_pool(pool, 0, 2) };
            let mut found = [0x5555u64; 2];
            let outcome = unsafe { gpu.device.get_query_pool_results(pool, 0, &mut found, WIDE) };
            ensure!(outcome == Err(vk::Result::NOT_READY), "{outcome:?}");
            expect(&found, &[0x5555; 2])
        }),
        Case::new("queries.timestamps.copied", |gpu| {
            let (pool, to) = (pool(gpu, 4)?, gpu.buffer(128)?);
            gpu.run(|commands| {
                unsafe { gpu.device.cmd_reset_query_pool(commands, pool, 0, 4) };
                (0..4).for_each(|query| stamp(gpu, commands, pool, query));
                gpu.barrier(commands);
                let flags = WIDE | vk::QueryResultFlags::WAIT | vk::QueryResultFlags::WITH_AVAILABILITY;
                unsafe {
                    gpu.device.cmd_copy_query_pool_results(commands, pool, 0, 4, to.handle, 0, 32, flags)
                };
            })?;
            let found = to.values::<[u64; 4]>();
            increasing(&found.iter().map(|query| query[0]).collect::<Vec<_>>())?;
            expect(&found.iter().map(|query| query[1]).collect::<Vec<_>>(), &[1; 4])?;
            let mut read = [0u64; 4];
            unsafe { gpu.device.get_query_pool_results(pool, 0, &mut read, WIDE) }?;
            expect(&found.iter().map(|query| query[0]).collect::<Vec<_>>(), &read)?;
            Ok(Vec::new())
        }),
        Case::new("queries.timestamps.synchronization_2", |gpu| {
            gpu.require(&["synchronization2"])?;
            let (pool, to) = (pool(gpu, 2)?, gpu.buffer(1 << 20)?);
            gpu.run(|commands| unsafe {
                gpu.device.cmd_reset_query_pool(commands, pool, 0, 2);
                gpu.device.cmd_write_timestamp2(commands, vk::PipelineStageFlags2::NONE, pool, 0);
                gpu.device.cmd_fill_buffer(commands, to.handle, 0, vk::WHOLE_SIZE, 1);
                gpu.device.cmd_write_timestamp2(commands, vk::PipelineStageFlags2::CLEAR, pool, 1);
            })?;
            let mut found = [0u64; 2];
            unsafe {
                gpu.device.get_query_pool_results(pool, 0, &mut found, WIDE | vk::QueryResultFlags::WAIT)
            }?;
            increasing(&found)?;
            Ok(Vec::new())
        }),
        Case::new("queries.timestamps.of_secondary", |gpu| {
            let pool = pool(gpu, 3)?;
            let secondary = gpu.secondaries(1)?;
            gpu.record_into(secondary[0], vk::CommandBufferUsageFlags::empty(), |commands| {
                stamp(gpu, commands, pool, 1)
            })?;
            gpu.run(|commands| {
                unsafe { gpu.device.cmd_reset_query_pool(commands, pool, 0, 3) };
                stamp(gpu, commands, pool, 0);
                unsafe { gpu.device.cmd_execute_commands(commands, &secondary) };
                stamp(gpu, commands, pool, 2);
            })?;
            let mut found = [0u64; 3];
            unsafe {
                gpu.device.get_query_pool_results(pool, 0, &mut found, WIDE | vk::QueryResultFlags::WAIT)
            }?;
            increasing(&found)?;
            Ok(Vec::new())
        }),
        Case::new("queries.timestamps.thousand", |gpu| {
            let pool = pool(gpu, 1000)?;
            gpu.run(|commands| {
                unsafe { gpu.device.cmd_reset_query_pool(commands, pool, 0, 1000) };
                (0..1000).for_each(|query| stamp(gpu, commands, pool, query));
            })?;
            let mut found = vec![0u64; 1000];
            unsafe {
                gpu.device.get_query_pool_results(pool, 0, &mut found, WIDE | vk::QueryResultFlags::WAIT)
            }?;
            increasing(&found)?;
            Ok(Vec::new())
        }),
    ]
}

fn statistics() -> Vec<Case> {
    const COUNT: &str = "layout(local_size_x = 32) in;
layout(binding = 0) buffer To { uint to; };
void main() { atomicAdd(to, 1); }";
    vec![
        Case::new("queries.statistics.invocations", |gpu| {
            gpu.require(&["pipelineStatisticsQuery"])?;
            let info = vk::QueryPoolCreateInfo::default()
                .query_type(vk::QueryType::PIPELINE_STATISTICS)
                .pipeline_statistics(vk::QueryPipelineStatisticFlags::COMPUTE_SHADER_INVOCATIONS)
                .query_count(2);
            let (pool, to) = (pool_of(gpu, &info)?, gpu.buffer(4)?);
            let kernel = gpu.kernel(0).buffers(1).build()?;
            let set =
                gpu.set(&kernel, &[crate::kernel::STORAGE], &[crate::kernel::Slot::Buffer(to.handle)])?;
            gpu.run(|commands| unsafe {
                gpu.device.cmd_reset_query_pool(commands, pool, 0, 2);
                gpu.bind(commands, &kernel, set);
                for (query, groups) in [(0, 3), (1, 10)] {
                    gpu.device.cmd_begin_query(commands, pool, query, vk::QueryControlFlags::empty());
                    gpu.device.cmd_dispatch(commands, groups, 1, 1);
                    gpu.device.cmd_end_query(commands, pool, query);
                }
            })?;
            let mut found = [0u64; 2];
            unsafe {
                gpu.device.get_query_pool_results(pool, 0, &mut found, WIDE | vk::QueryResultFlags::WAIT)
            }?;
            expect(&to.values::<u32>(), &[13 * 32])?;
            Ok(bytes_of(&found))
        })
        .glsl(COUNT),
    ]
}

fn calibrated() -> Case {
    Case::new("queries.calibrated_timestamps", |gpu| {
        let khr = ash::khr::calibrated_timestamps::NAME;
        if !gpu.features.has_extension(khr) {
            gpu.require_extension(ash::ext::calibrated_timestamps::NAME)?;
        }
        let entry = crate::gpu::entry()?;
        let instance = ash::ext::calibrated_timestamps::Instance::new(&entry, &gpu.instance);
        let device = ash::ext::calibrated_timestamps::Device::new(&gpu.instance, &gpu.device);
        let domains = unsafe { instance.get_physical_device_calibrateable_time_domains(gpu.physical) }?;
        ensure!(domains.contains(&vk::TimeDomainEXT::DEVICE), "no device domain");
        let infos: Vec<_> = domains
            .iter()
            .map(|domain| vk::CalibratedTimestampInfoEXT::default().time_domain(*domain))
            .collect();
        let (first, _) = unsafe { device.get_calibrated_timestamps(&infos) }?;
        let (second, deviation) = unsafe { device.get_calibrated_timestamps(&infos) }?;
        ensure!(
            first.iter().zip(&second).all(|(first, second)| first <= second),
            "{first:?} then {second:?}"
        );
        ensure!(deviation < 1_000_000_000, "a deviation of {deviation} ns");
        Ok(Vec::new())
    })
}
