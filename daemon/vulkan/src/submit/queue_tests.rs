//! Queues of the null driver: submissions that are refused, and queues that have no name.

use super::super::order::batches::{Group, Groups};
use super::super::order::queue_order::Calling;
use crate::Cancel;
use crate::context::error::Fault;
use crate::gates::gate::Gate;
use crate::kinds::semaphore::Signal;
use crate::null::world_for_tests::{DEVICE, World};
use crate::null::{LIMITS, release, stall};
use config::{ContextLimits, Passage};
use protocol::venus::generated as venus;
use shm::{Counters, Doorbell, GateSide, SchedulerSide, grant_page};
use std::sync::Arc;
use venus::{ChainStruct, Command};

const QUEUE: venus::Queue = venus::Queue(7);
const OTHER: venus::Device = venus::Device(8);
const SEMAPHORE: venus::Semaphore = venus::Semaphore(9);

fn ask_for_queue(world: &World, device: venus::Device, ring_idx: u32) {
    let timeline = venus::DeviceQueueTimelineInfoMESA { p_next: &[], ring_idx };
    let chain = [ChainStruct::DeviceQueueTimelineInfoMESA(&timeline)];
    let info = venus::DeviceQueueInfo2 { p_next: &chain, ..Default::default() };
    let (p_queue_info, p_queue) = (Some(&info), Some(&QUEUE));
    world.execute(&Command::GetDeviceQueue2(venus::GetDeviceQueue2 { device, p_queue_info, p_queue }));
}

fn create_fence(world: &World, id: venus::Fence) {
    let info = venus::FenceCreateInfo::default();
    let (p_create_info, p_fence) = (Some(&info), Some(&id));
    world.execute(&Command::CreateFence(venus::CreateFence { device: DEVICE, p_create_info, p_fence }));
}

#[test]
fn a_refused_submission_is_not_taken_for_work_in_the_driver() {
    let page = grant_page().unwrap();
    let scheduler = SchedulerSide::open(&page).unwrap();
    let doorbell = Arc::new(Doorbell::new().unwrap());
    let gate = Gate::new(GateSide::open(&page).unwrap(), doorbell, Passage::Counted);
    let world = World::gated(vec![gate]);
    ask_for_queue(&world, DEVICE, 1);
    let fence = venus::Fence(20);
    create_fence(&world, fence);
    let batch = venus::SubmitInfo::default();
    let p_submits = Some(std::slice::from_ref(&batch));
    let submit = Command::QueueSubmit(venus::QueueSubmit { queue: QUEUE, submit_count: 1, p_submits, fence });
    stall();
    world.execute(&submit);
    assert_eq!(scheduler.counters(), Counters { ready: 0, dispatched: 1, completed: 0 });
    // The fence is in use.
    let _ = world.try_execute(&submit, &Cancel::default());
    assert_eq!(scheduler.counters(), Counters { ready: 0, dispatched: 2, completed: 1 });
    release();
    world.renderer.destroy_objects();
}

#[test]
fn a_device_whose_queue_has_no_name_does_not_take_that_of_another() {
    let world = World::limited(ContextLimits { objects: 8, ..LIMITS });
    let info = venus::SemaphoreCreateInfo::default();
    let (p_create_info, p_semaphore) = (Some(&info), Some(&SEMAPHORE));
    world.execute(&Command::CreateSemaphore(venus::CreateSemaphore {
        device: DEVICE,
        p_create_info,
        p_semaphore,
    }));
    let fences: Vec<_> = (20..28).map(venus::Fence).collect();
    fences.iter().for_each(|id| create_fence(&world, *id));
    // The table has no room for the queue.
    ask_for_queue(&world, DEVICE, 1);
    assert!(world.renderer.context().objects.read().get(QUEUE).is_err());
    for fence in fences {
        world.execute(&Command::DestroyFence(venus::DestroyFence { device: DEVICE, fence }));
    }
    world.create_device(OTHER);
    ask_for_queue(&world, OTHER, 2);
    assert!(world.renderer.context().objects.read().get(QUEUE).is_ok());
    let info = venus::ImportSemaphoreResourceInfoMESA { p_next: &[], semaphore: SEMAPHORE, resource_id: 0 };
    let import =
        venus::ImportSemaphoreResourceMESA { device: DEVICE, p_import_semaphore_resource_info: Some(&info) };
    world.execute(&Command::ImportSemaphoreResourceMESA(import));
    let semaphore = world.renderer.context().objects.shared(SEMAPHORE).unwrap();
    assert!(matches!(*semaphore.lock(), Signal::Binary(None)), "another device's queue signals it");
}

#[test]
fn nothing_is_submitted_behind_the_end_of_a_device() {
    let world = World::reliable();
    ask_for_queue(&world, DEVICE, 1);
    let (queue, device) = {
        let objects = world.renderer.context().objects.read();
        let device = objects.get(DEVICE).unwrap().shared::<venus::Device>().unwrap();
        (objects.get(QUEUE).unwrap().shared::<venus::Queue>().unwrap(), device)
    };
    world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
    let other = Arc::clone(&queue);
    assert!(device.add_queue(2, other).is_err(), "it would not be closed");
    let groups: Groups = [Group::default()].into_iter().collect();
    let mark = |_: &Group, _| Ok(());
    let call = Calling { context: world.renderer.context(), device: &device, groups, fence: None, mark };
    let mut submit = |_, _: &_, _, _| panic!("the driver is called");
    assert!(matches!(queue.submit_now(&call, &mut submit), Err(Fault::Failed(_))));
}
