//! Commands that wait and are interrupted: they leave no trace, and do later what they would have done.

use crate::context::cancel::Cancel;
use crate::null::world_for_tests::{DEVICE, PAGES, PRIVATE, SIZE, World};
use crate::null::{release, stall};
use protocol::venus::generated as venus;
use std::ops::Deref;
use std::time::Duration;
use venus::{ChainStruct, Command};

const QUEUE: venus::Queue = venus::Queue(10);
const POOL: venus::CommandPool = venus::CommandPool(11);
const BUFFERS: [venus::CommandBuffer; 2] = [venus::CommandBuffer(12), venus::CommandBuffer(13)];
const FENCES: [venus::Fence; 2] = [venus::Fence(14), venus::Fence(15)];
const TIMELINE: venus::Semaphore = venus::Semaphore(16);

/// A world in which the driver may be stalled. It completes its submissions when it is dropped: otherwise a queue's thread would go on waiting, and
/// ask the driver about a device of a test that is over.
struct Recorded(World);

impl Deref for Recorded {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        release();
        self.0.renderer.destroy_objects();
    }
}

/// A world with two command buffers that were recorded.
fn recorded() -> Recorded {
    let world = Recorded(World::reliable());
    let timeline = venus::DeviceQueueTimelineInfoMESA { p_next: &[], ring_idx: 1 };
    let chain = [ChainStruct::DeviceQueueTimelineInfoMESA(&timeline)];
    let info = venus::DeviceQueueInfo2 { p_next: &chain, ..Default::default() };
    let queue = venus::GetDeviceQueue2 { device: DEVICE, p_queue_info: Some(&info), p_queue: Some(&QUEUE) };
    let pool = venus::CommandPoolCreateInfo {
        flags: venus::CommandPoolCreateFlags::RESET_COMMAND_BUFFER,
        ..Default::default()
    };
    let buffers = venus::CommandBufferAllocateInfo {
        command_pool: POOL,
        command_buffer_count: 2,
        ..Default::default()
    };
    let of_type = venus::SemaphoreTypeCreateInfo {
        p_next: &[],
        semaphore_type: venus::SemaphoreType::TIMELINE,
        initial_value: 0,
    };
    let chain = [ChainStruct::SemaphoreTypeCreateInfo(&of_type)];
    let semaphore = venus::SemaphoreCreateInfo { p_next: &chain, ..Default::default() };
    world.execute(&Command::GetDeviceQueue2(queue));
    world.execute(&Command::CreateCommandPool(venus::CreateCommandPool {
        device: DEVICE,
        p_create_info: Some(&pool),
        p_command_pool: Some(&POOL),
    }));
    world.execute(&Command::AllocateCommandBuffers(venus::AllocateCommandBuffers {
        device: DEVICE,
        p_allocate_info: Some(&buffers),
        p_command_buffers: Some(&BUFFERS),
    }));
    world.execute(&Command::CreateSemaphore(venus::CreateSemaphore {
        device: DEVICE,
        p_create_info: Some(&semaphore),
        p_semaphore: Some(&TIMELINE),
    }));
    for id in &FENCES {
        let info = venus::FenceCreateInfo::default();
        let (p_create_info, p_fence) = (Some(&info), Some(id));
        world.execute(&Command::CreateFence(venus::CreateFence { device: DEVICE, p_create_info, p_fence }));
    }
    for command_buffer in BUFFERS {
        world.execute(&begin(command_buffer));
        world.execute(&Command::EndCommandBuffer(venus::EndCommandBuffer { command_buffer }));
    }
    world
}

fn begin(command_buffer: venus::CommandBuffer) -> Command<'static> {
    const INFO: venus::CommandBufferBeginInfo<'static> = venus::CommandBufferBeginInfo {
        p_next: &[],
        flags: venus::CommandBufferUsageFlags(0),
        p_inheritance_info: None,
    };
    Command::BeginCommandBuffer(venus::BeginCommandBuffer { command_buffer, p_begin_info: Some(&INFO) })
}

fn submit(world: &World, info: venus::SubmitInfo<'_>, fence: venus::Fence) {
    let p_submits = Some(std::slice::from_ref(&info));
    let submit = venus::QueueSubmit { queue: QUEUE, submit_count: 1, p_submits, fence };
    world.execute(&Command::QueueSubmit(submit));
}

/// Both command buffers are pending, with a fence.
fn pending() -> Recorded {
    let world = recorded();
    stall();
    let info = venus::SubmitInfo {
        command_buffer_count: 2,
        p_command_buffers: Some(&BUFFERS),
        ..Default::default()
    };
    submit(&world, info, FENCES[1]);
    world
}

/// Has a command interrupted while it waits, and then executed when nothing holds it up any more.
fn is_interrupted(world: &World, command: &Command<'_>) {
    let cancel = Cancel::default();
    for _ in 0..2 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                cancel.interrupt();
            });
            let lost = world.try_execute(command, &cancel).unwrap_err();
            assert!(lost.is_interruption(), "{lost}");
        });
        let context = world.renderer.context();
        assert!(!context.failures.are_owed());
        for id in BUFFERS {
            assert!(context.objects.read().get(id).is_ok(), "it is gone");
        }
        cancel.resume();
    }
    release();
    world.try_execute(command, &cancel).unwrap();
    assert!(!world.renderer.context().failures.are_owed());
}

#[test]
fn command_buffers_that_are_pending_stay_until_they_are_freed_and_reset() {
    let device = DEVICE;
    let free = venus::FreeCommandBuffers {
        device,
        command_pool: POOL,
        command_buffer_count: 2,
        p_command_buffers: Some(&BUFFERS),
    };
    let world = pending();
    is_interrupted(&world, &Command::FreeCommandBuffers(free));
    assert!(BUFFERS.iter().all(|id| world.renderer.context().objects.read().get(*id).is_err()));
    drop(world);
    let (command_pool, flags) = (POOL, venus::CommandPoolResetFlags(0));
    let of_pool = venus::ResetCommandPool { device, command_pool, flags };
    is_interrupted(&pending(), &Command::ResetCommandPool(of_pool));
    let of_one =
        venus::ResetCommandBuffer { command_buffer: BUFFERS[0], flags: venus::CommandBufferResetFlags(0) };
    is_interrupted(&pending(), &Command::ResetCommandBuffer(of_one));
    is_interrupted(&pending(), &begin(BUFFERS[1]));
}

#[test]
fn waits_for_fences_and_queues_are_interrupted() {
    let (device, p_fences) = (DEVICE, Some(&FENCES[..]));
    let reset = venus::ResetFences { device, fence_count: 2, p_fences };
    is_interrupted(&pending(), &Command::ResetFences(reset));
    let wait = venus::WaitForFences { device, fence_count: 2, p_fences, wait_all: 1, timeout: u64::MAX };
    is_interrupted(&pending(), &Command::WaitForFences(wait));
    is_interrupted(&pending(), &Command::QueueWaitIdle(venus::QueueWaitIdle { queue: QUEUE }));
    is_interrupted(&pending(), &Command::DeviceWaitIdle(venus::DeviceWaitIdle { device }));
    is_interrupted(&pending(), &Command::DestroyDevice(venus::DestroyDevice { device }));
}

#[test]
fn an_allocation_that_waits_for_memory_leaves_no_tombstone() {
    let world = World::reliable();
    for (id, memory_type_index) in [(20, PRIVATE), (21, PAGES), (22, PAGES)] {
        let memory = venus::DeviceMemory(id);
        // The last one imports memory that is on its way.
        let import = venus::ImportMemoryResourceInfoMESA { p_next: &[], resource_id: 5 };
        let chain = [ChainStruct::ImportMemoryResourceInfoMESA(&import)];
        let p_next = if id == 22 { &chain[..] } else { &[] };
        let info = venus::MemoryAllocateInfo { p_next, allocation_size: SIZE, memory_type_index };
        let (p_allocate_info, p_memory) = (Some(&info), Some(&memory));
        let allocate = venus::AllocateMemory { device: DEVICE, p_allocate_info, p_memory };
        let cancel = Cancel::default();
        cancel.interrupt();
        let lost = world.try_execute(&Command::AllocateMemory(allocate), &cancel).unwrap_err();
        assert!(lost.is_interruption(), "{lost}");
        assert!(!world.renderer.context().failures.are_owed());
        // An id that stood for a failure could not be used again by another kind of object.
        assert!(world.renderer.context().objects.remove(venus::DeviceMemory(id)).is_err(), "a tombstone");
        cancel.resume();
        world.try_execute(&Command::AllocateMemory(allocate), &cancel).unwrap();
    }
}

#[test]
fn a_context_comes_to_rest_when_everything_is_complete() {
    let world = pending();
    let drain = |milliseconds| world.renderer.drain(Duration::from_millis(milliseconds));
    let stays = drain(30).unwrap_err();
    assert!(stays.for_now && stays.reason.contains("does not end"), "{stays}");
    release();
    assert_eq!(drain(600_000), Ok(()));
}

#[test]
fn a_context_that_waits_for_its_program_does_not_come_to_rest_and_says_so_at_once() {
    let world = recorded();
    stall();
    let values = venus::TimelineSemaphoreSubmitInfo {
        p_next: &[],
        wait_semaphore_value_count: 1,
        p_wait_semaphore_values: Some(&[1]),
        signal_semaphore_value_count: 0,
        p_signal_semaphore_values: None,
    };
    let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
    let info = venus::SubmitInfo {
        p_next: &chain,
        wait_semaphore_count: 1,
        p_wait_semaphores: Some(&[TIMELINE]),
        p_wait_dst_stage_mask: Some(&[venus::PipelineStageFlags::ALL_COMMANDS]),
        ..Default::default()
    };
    submit(&world, info, FENCES[0]);
    let stays = world.renderer.drain(Duration::from_secs(1000)).unwrap_err();
    assert!(stays.for_now && stays.reason.contains("is not signalled yet"), "{stays}");
}

#[test]
fn nobody_waits_any_more_when_a_test_is_over() {
    let (world, cancel) = (pending(), Cancel::default());
    cancel.interrupt();
    let wait = Command::DeviceWaitIdle(venus::DeviceWaitIdle { device: DEVICE });
    assert!(world.try_execute(&wait, &cancel).unwrap_err().is_interruption());
    drop(world);
    // The driver knows nothing of the other device any more, and would abort.
    let _next = World::reliable();
    std::thread::sleep(Duration::from_millis(20));
}
