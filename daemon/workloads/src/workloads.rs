//! The workloads: the most frequent work of programs, as streams that leave the state unchanged.

use crate::objects::{
    self, ASYNC, BUFFERS, DEVICE, FENCE, LAYOUT, MEMORY_TYPES, QUERIES, QUEUE, READY, RECORDED, REPLY,
    SEMAPHORE, SET, SPARE,
};
use protocol::cursor::Writer;
use protocol::venus::generated::{self as venus, ChainStruct};

/// A kind of workload.
pub(crate) struct Kind {
    /// The name of the workload.
    pub name: &'static str,
    /// Encodes a lap; returns the number of its counted commands.
    pub lap: fn() -> (Vec<u8>, u32),
    /// The commands reach the driver, and do not end at the result of an earlier one.
    pub reach: bool,
}

const fn kind(name: &'static str, lap: fn() -> (Vec<u8>, u32)) -> Kind {
    Kind { name, lap, reach: true }
}

/// All workloads.
pub(crate) const ALL: &[Kind] = &[
    kind("record_dispatches", record_dispatches),
    kind("record_copies", record_copies),
    kind("submit", submit),
    kind("submit_semaphores", submit_semaphores),
    kind("update_descriptor_sets", update_descriptor_sets),
    kind("create_destroy_buffer", create_destroy_buffer),
    Kind { name: "allocate_free_device_memory", lap: || allocate_free(MEMORY_TYPES[0]), reach: false },
    Kind { name: "allocate_free_host_memory", lap: || allocate_free(MEMORY_TYPES[1]), reach: false },
    kind("fence_status", fence_status),
    kind("query_results", query_results),
];

/// The number of times that a lap repeats its work; a recording has four commands each time.
const TIMES: u32 = 64;
const DISPATCHES: u32 = 2500;

fn lap(times: u32, commands: u32, around: u32, encode: impl FnOnce(&mut Writer<'_>)) -> (Vec<u8>, u32) {
    let mut writer = Writer::growing();
    encode(&mut writer);
    (writer.into_bytes(), times * commands + around)
}

/// Records constants, a set, a dispatch and a barrier, as llama.cpp does.
fn record_dispatches() -> (Vec<u8>, u32) {
    let command_buffer = RECORDED;
    let constants = [7; 64];
    lap(DISPATCHES, 4, 3, |w| {
        objects::begin(w, command_buffer);
        for _ in 0..DISPATCHES {
            venus::CmdPushConstants {
                command_buffer,
                layout: LAYOUT,
                stage_flags: venus::ShaderStageFlags::COMPUTE,
                offset: 0,
                size: constants.len() as u32,
                p_values: Some(&constants),
            }
            .encode(ASYNC, w);
            venus::CmdBindDescriptorSets {
                command_buffer,
                pipeline_bind_point: venus::PipelineBindPoint::COMPUTE,
                layout: LAYOUT,
                first_set: 0,
                descriptor_set_count: 1,
                p_descriptor_sets: Some(&[SET]),
                dynamic_offset_count: 0,
                p_dynamic_offsets: None,
            }
            .encode(ASYNC, w);
            venus::CmdDispatch { command_buffer, group_count_x: 4, group_count_y: 1, group_count_z: 1 }
                .encode(ASYNC, w);
            barrier(w, command_buffer);
        }
        venus::EndCommandBuffer { command_buffer }.encode(ASYNC, w);
    })
}

fn barrier(w: &mut Writer<'_>, command_buffer: venus::CommandBuffer) {
    let written = venus::MemoryBarrier {
        src_access_mask: venus::AccessFlags::SHADER_WRITE,
        dst_access_mask: venus::AccessFlags::SHADER_READ,
        ..venus::MemoryBarrier::default()
    };
    venus::CmdPipelineBarrier {
        command_buffer,
        src_stage_mask: venus::PipelineStageFlags::COMPUTE_SHADER,
        dst_stage_mask: venus::PipelineStageFlags::COMPUTE_SHADER,
        memory_barrier_count: 1,
        p_memory_barriers: Some(&[written]),
        ..venus::CmdPipelineBarrier::default()
    }
    .encode(ASYNC, w);
}

fn record_copies() -> (Vec<u8>, u32) {
    let command_buffer = RECORDED;
    lap(DISPATCHES, 1, 3, |w| {
        objects::begin(w, command_buffer);
        for _ in 0..DISPATCHES {
            let region = venus::BufferCopy { src_offset: 0, dst_offset: 256, size: 1024 };
            venus::CmdCopyBuffer {
                command_buffer,
                src_buffer: BUFFERS[0],
                dst_buffer: BUFFERS[1],
                region_count: 1,
                p_regions: Some(&[region]),
            }
            .encode(ASYNC, w);
        }
        venus::EndCommandBuffer { command_buffer }.encode(ASYNC, w);
    })
}

/// Submits one command buffer and a fence, which is then reset.
fn submit() -> (Vec<u8>, u32) {
    let batch = venus::SubmitInfo {
        command_buffer_count: 1,
        p_command_buffers: Some(&[READY]),
        ..venus::SubmitInfo::default()
    };
    lap(TIMES, 2, 0, |w| {
        for _ in 0..TIMES {
            venus::QueueSubmit { queue: QUEUE, submit_count: 1, p_submits: Some(&[batch]), fence: FENCE }
                .encode(ASYNC, w);
            venus::ResetFences { device: DEVICE, fence_count: 1, p_fences: Some(&[FENCE]) }.encode(ASYNC, w);
        }
    })
}

/// Submits one command buffer that waits for a value of a timeline and signals the next.
fn submit_semaphores() -> (Vec<u8>, u32) {
    let values = venus::TimelineSemaphoreSubmitInfo {
        wait_semaphore_value_count: 1,
        p_wait_semaphore_values: Some(&[0]),
        signal_semaphore_value_count: 1,
        p_signal_semaphore_values: Some(&[1]),
        ..venus::TimelineSemaphoreSubmitInfo::default()
    };
    let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
    let batch = venus::SubmitInfo {
        p_next: &chain,
        wait_semaphore_count: 1,
        p_wait_semaphores: Some(&[SEMAPHORE]),
        p_wait_dst_stage_mask: Some(&[venus::PipelineStageFlags::ALL_COMMANDS]),
        command_buffer_count: 1,
        p_command_buffers: Some(&[READY]),
        signal_semaphore_count: 1,
        p_signal_semaphores: Some(&[SEMAPHORE]),
    };
    lap(TIMES, 1, 0, |w| {
        for _ in 0..TIMES {
            let (p_submits, fence) = (Some(&[batch][..]), venus::Fence(0));
            venus::QueueSubmit { queue: QUEUE, submit_count: 1, p_submits, fence }.encode(ASYNC, w);
        }
    })
}

/// Updates the four buffers of a set.
fn update_descriptor_sets() -> (Vec<u8>, u32) {
    let infos = BUFFERS.map(|buffer| [venus::DescriptorBufferInfo { buffer, offset: 0, range: 4096 }]);
    let write = |at: usize| venus::WriteDescriptorSet {
        dst_set: SET,
        dst_binding: at as u32,
        descriptor_count: 1,
        descriptor_type: venus::DescriptorType::STORAGE_BUFFER,
        p_buffer_info: Some(&infos[at]),
        ..venus::WriteDescriptorSet::default()
    };
    let writes: [_; BUFFERS.len()] = std::array::from_fn(write);
    lap(TIMES, 1, 0, |w| {
        for _ in 0..TIMES {
            venus::UpdateDescriptorSets {
                device: DEVICE,
                descriptor_write_count: writes.len() as u32,
                p_descriptor_writes: Some(&writes),
                ..venus::UpdateDescriptorSets::default()
            }
            .encode(ASYNC, w);
        }
    })
}

fn create_destroy_buffer() -> (Vec<u8>, u32) {
    lap(TIMES, 2, 0, |w| {
        for _ in 0..TIMES {
            let buffer = venus::Buffer(SPARE);
            objects::create_buffer(w, buffer);
            venus::DestroyBuffer { device: DEVICE, buffer }.encode(ASYNC, w);
        }
    })
}

fn allocate_free(memory_type: u32) -> (Vec<u8>, u32) {
    lap(TIMES, 2, 0, |w| {
        for _ in 0..TIMES {
            let memory = venus::DeviceMemory(SPARE);
            objects::allocate(w, memory, memory_type);
            venus::FreeMemory { device: DEVICE, memory }.encode(ASYNC, w);
        }
    })
}

/// Encodes a lap whose replies all go to one place, as in Mesa.
fn with_replies(encode: impl Fn(&mut Writer<'_>)) -> (Vec<u8>, u32) {
    lap(TIMES, 1, 0, |w| {
        venus::SeekReplyCommandStreamMESA { position: 0 }.encode(ASYNC, w);
        (0..TIMES).for_each(|_| encode(w));
    })
}

fn fence_status() -> (Vec<u8>, u32) {
    with_replies(|w| venus::GetFenceStatus { device: DEVICE, fence: FENCE }.encode(REPLY, w))
}

fn query_results() -> (Vec<u8>, u32) {
    let room = [0; 64];
    with_replies(|w| {
        venus::GetQueryPoolResults {
            device: DEVICE,
            query_pool: QUERIES,
            first_query: 0,
            query_count: 8,
            data_size: room.len() as u64,
            p_data: Some(&room),
            stride: 8,
            flags: venus::QueryResultFlags(1),
        }
        .encode(REPLY, w);
    })
}
