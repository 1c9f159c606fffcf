//! Tests of snapshots on the null driver: a context that is saved and rebuilt yields the same snapshot again.

use super::step::Step;
use super::{Carry, NotMovable, Prelude, Saved};
use crate::Renderer;
use crate::fuzzing::comparable;
use crate::kinds::semaphore::Signal;
use crate::null::world_for_tests::{DEVICE, MAPPED, PAGES, SIZE, World};
use crate::null::{self, NoResources};
use crate::objects::encoding::Kept;
use crate::objects::object::{Object, StateOf};
use crate::objects::origin::Names;
use crate::objects::usage::Usage;
use crate::submit::restore;
use protocol::venus::generated as venus;
use shm::Mapping;
use std::sync::Arc;
use venus::{ChainStruct, Command, ObjectType};

/// Saves a context, rebuilds it and saves that: both snapshots have to be the same. The second context has other addresses, as both are in one
/// process. A third context is rebuilt behind a prelude.
pub(super) fn hand_over(world: &World) -> (Saved, Renderer) {
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let (ahead, prelude) = super::prelude_tests::ahead_of(world, &Prelude::default());
    super::prelude_tests::hand_over_behind(world, &ahead, &prelude).destroy_objects();
    let second = null::renderer(Arc::new(NoResources));
    second.rebuild(&comparable(&saved.steps), &saved.files_here()).unwrap();
    let again = second.save(&Prelude::default(), Carry::Copied).unwrap();
    assert_eq!(comparable(&again.steps), comparable(&saved.steps));
    assert_eq!(again.files.len(), saved.files.len());
    (saved, second)
}

fn refusal(world: &World) -> NotMovable {
    world.renderer.save(&Prelude::default(), Carry::Copied).unwrap_err()
}

pub(super) fn is_there(renderer: &Renderer, id: u64, kind: ObjectType) -> bool {
    renderer.context().objects.read().has(id, kind)
}

fn buffer_view(world: &World, id: u64, buffer: u64) {
    let info = venus::BufferViewCreateInfo {
        buffer: venus::Buffer(buffer),
        format: venus::Format::R8_UNORM,
        range: 16,
        ..Default::default()
    };
    let (view, p_create_info) = (venus::BufferView(id), Some(&info));
    let create = venus::CreateBufferView { device: DEVICE, p_create_info, p_view: Some(&view) };
    world.execute(&Command::CreateBufferView(create));
}

pub(super) fn set_layout(world: &World, id: u64) {
    let (info, layout) = (venus::DescriptorSetLayoutCreateInfo::default(), venus::DescriptorSetLayout(id));
    let (p_create_info, p_set_layout) = (Some(&info), Some(&layout));
    world.execute(&Command::CreateDescriptorSetLayout(venus::CreateDescriptorSetLayout {
        device: DEVICE,
        p_create_info,
        p_set_layout,
    }));
}

pub(super) fn pipeline_layout(world: &World, id: u64, set_layout: u64) {
    let sets = [venus::DescriptorSetLayout(set_layout)];
    let info = venus::PipelineLayoutCreateInfo {
        set_layout_count: 1,
        p_set_layouts: Some(&sets),
        ..Default::default()
    };
    let (layout, p_create_info) = (venus::PipelineLayout(id), Some(&info));
    let p_pipeline_layout = Some(&layout);
    let create = venus::CreatePipelineLayout { device: DEVICE, p_create_info, p_pipeline_layout };
    world.execute(&Command::CreatePipelineLayout(create));
}

pub(super) fn destroy_set_layout(world: &World, id: u64) {
    let descriptor_set_layout = venus::DescriptorSetLayout(id);
    let destroy = venus::DestroyDescriptorSetLayout { device: DEVICE, descriptor_set_layout };
    world.execute(&Command::DestroyDescriptorSetLayout(destroy));
}

pub(super) fn destroy_pipeline_layout(world: &World, id: u64) {
    let pipeline_layout = venus::PipelineLayout(id);
    world.execute(&Command::DestroyPipelineLayout(venus::DestroyPipelineLayout {
        device: DEVICE,
        pipeline_layout,
    }));
}

fn queue(world: &World) -> venus::Queue {
    let timeline = venus::DeviceQueueTimelineInfoMESA { ring_idx: 1, ..Default::default() };
    let chain = [ChainStruct::DeviceQueueTimelineInfoMESA(&timeline)];
    let info = venus::DeviceQueueInfo2 { p_next: &chain, ..Default::default() };
    let queue = venus::Queue(4);
    let get = venus::GetDeviceQueue2 { device: DEVICE, p_queue_info: Some(&info), p_queue: Some(&queue) };
    world.execute(&Command::GetDeviceQueue2(get));
    queue
}

#[test]
fn what_lies_in_memory_is_there_and_bound_before_it_is_viewed() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    // Both buffers are made behind the memory; each is bound before its view is made.
    world.buffer(20);
    world.buffer(21);
    world.bind(20, 10);
    buffer_view(&world, 22, 20);
    world.bind(21, 10);
    buffer_view(&world, 23, 21);
    let file = world.renderer.export(10, SIZE, true).unwrap().file.unwrap();
    Mapping::new(&*file, SIZE).unwrap().copy_in(100, b"stays").unwrap();
    drop(file);
    let (saved, second) = hand_over(&world);
    assert_eq!(saved.files.len(), 1);
    let shown = saved.steps.iter().find_map(|step| match step {
        Step::Memory { shown, size, .. } => Some((*shown, *size)),
        _ => None,
    });
    // Pages that are not counted have no number, by which blobs would be counted.
    assert_eq!(shown, Some((0, SIZE)));
    let file = second.export(10, SIZE, true).unwrap().file.unwrap();
    let mut found = [0; 5];
    Mapping::new(&*file, SIZE).unwrap().copy_out(100, &mut found).unwrap();
    assert_eq!(&found, b"stays");
    assert!([22, 23].iter().all(|id| is_there(&second, *id, ObjectType::BUFFER_VIEW)));
}

#[test]
fn a_buffer_has_the_address_that_the_guest_knows_or_nothing_is_taken_over() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    for buffer in [20, 21] {
        world.buffer(buffer);
        world.bind(buffer, 10);
    }
    let info = venus::BufferDeviceAddressInfo { p_next: &[], buffer: venus::Buffer(20) };
    let ask = venus::GetBufferDeviceAddress { device: DEVICE, p_info: Some(&info) };
    world.execute(&Command::GetBufferDeviceAddress(ask));
    let (saved, _) = hand_over(&world);
    let mut steps = comparable(&saved.steps);
    let addresses = steps.iter_mut().find_map(|step| match step {
        Step::Addresses(all) => Some(all),
        _ => None,
    });
    let addresses = addresses.expect("the guest knows one");
    assert_eq!(addresses.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [20]);
    addresses[0].1 += 1;
    let second = null::renderer(Arc::new(NoResources));
    let refused = second.rebuild(&steps, &saved.files_here()).unwrap_err();
    assert!(refused.to_string().contains("another address"), "{refused}");
}

#[test]
fn memory_is_where_it_was_once_it_is_free_there() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let rebuilt = || {
        let second = null::renderer(Arc::new(NoResources));
        second.rebuild(&saved.steps, &saved.files_here()).map(|()| second)
    };
    assert!(rebuilt().is_err(), "the first has the address");
    world.renderer.destroy_objects();
    assert_eq!(rebuilt().unwrap().save(&Prelude::default(), Carry::Copied).unwrap().steps, saved.steps);
}

fn image_view(world: &World, id: u64, image: u64) {
    let subresource_range = venus::ImageSubresourceRange {
        aspect_mask: venus::ImageAspectFlags::COLOR,
        level_count: 1,
        layer_count: 1,
        ..Default::default()
    };
    let info = venus::ImageViewCreateInfo {
        image: venus::Image(image),
        view_type: venus::ImageViewType::TYPE_2D,
        format: venus::Format::R8_UNORM,
        subresource_range,
        ..Default::default()
    };
    let (view, p_create_info) = (venus::ImageView(id), Some(&info));
    let create = venus::CreateImageView { device: DEVICE, p_create_info, p_view: Some(&view) };
    world.execute(&Command::CreateImageView(create));
}

#[test]
fn images_are_bound_as_they_were_as_a_whole_and_by_planes() {
    let world = World::reliable();
    let none = venus::ImageCreateFlags(0);
    world.image(20, venus::Format::R8_UNORM, none);
    world.image(21, venus::Format::G8_B8_R8_3PLANE_420_UNORM, venus::ImageCreateFlags::DISJOINT);
    world.image(22, venus::Format::R8_UNORM, none);
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    drop(world.allocate_of(11, &[], SIZE, PAGES));
    let (image, memory) = (venus::Image(20), venus::DeviceMemory(10));
    let bind = venus::BindImageMemory { device: DEVICE, image, memory, memory_offset: 4096 };
    world.execute(&Command::BindImageMemory(bind));
    image_view(&world, 23, 20);
    let planes = [
        venus::ImageAspectFlags::PLANE_0,
        venus::ImageAspectFlags::PLANE_1,
        venus::ImageAspectFlags::PLANE_2,
    ];
    let planes = planes.map(|plane_aspect| venus::BindImagePlaneMemoryInfo { p_next: &[], plane_aspect });
    let chains = planes.each_ref().map(|plane| [ChainStruct::BindImagePlaneMemoryInfo(plane)]);
    let infos = [0, 1, 2].map(|at| venus::BindImageMemoryInfo {
        p_next: &chains[at],
        image: venus::Image(21),
        memory: venus::DeviceMemory(11),
        memory_offset: 4096 * at as u64,
    });
    let bind = venus::BindImageMemory2 { device: DEVICE, bind_info_count: 3, p_bind_infos: Some(&infos) };
    world.execute(&Command::BindImageMemory2(bind));
    let (_, second) = hand_over(&world);
    assert!(is_there(&second, 23, ObjectType::IMAGE_VIEW));
    let table = second.context().objects.read();
    let bound = |id| {
        let bound = *table.get(venus::Image(id)).unwrap().state::<venus::Image>().unwrap().bound.lock();
        bound.map(|bound| bound.map(|bound| (bound.memory.0, bound.offset, bound.plane.0)))
    };
    assert_eq!(bound(20), [Some((10, 4096, 0)), None, None]);
    assert_eq!(bound(21), [Some((11, 0, 16)), Some((11, 4096, 32)), Some((11, 8192, 64))]);
    assert_eq!(bound(22), [None; 3]);
}

#[test]
fn a_view_of_memory_that_was_freed_stays_until_it_is_gone() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    world.buffer(20);
    world.bind(20, 10);
    buffer_view(&world, 21, 20);
    world.free(10);
    assert!(refusal(&world).for_now);
    // The buffer is not bound to other memory of the same id.
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    assert!(refusal(&world).for_now);
    let buffer_view = venus::BufferView(21);
    world.execute(&Command::DestroyBufferView(venus::DestroyBufferView { device: DEVICE, buffer_view }));
    let (_, second) = hand_over(&world);
    let objects = second.context().objects.read();
    assert!(!objects.get(venus::Buffer(20)).unwrap().state::<venus::Buffer>().unwrap().has_memory());
}

#[test]
fn memory_that_the_driver_maps_is_not_moved() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, MAPPED));
    assert!(!refusal(&world).for_now);
    world.free(10);
    hand_over(&world);
}

#[test]
fn what_is_gone_is_made_for_what_was_made_of_it_and_goes_again() {
    let world = World::reliable();
    let kept = || world.renderer.context().objects.described().bytes();
    let before = kept();
    set_layout(&world, 30);
    pipeline_layout(&world, 31, 30);
    destroy_set_layout(&world, 30);
    // Another object takes the id.
    world.buffer(30);
    pipeline_layout(&world, 32, 0);
    let (_, second) = hand_over(&world);
    assert!(is_there(&second, 31, ObjectType::PIPELINE_LAYOUT) && is_there(&second, 30, ObjectType::BUFFER));
    // No byte of the destroyed object is kept when it is needed no more.
    destroy_pipeline_layout(&world, 31);
    destroy_pipeline_layout(&world, 32);
    let buffer = venus::Buffer(30);
    world.execute(&Command::DestroyBuffer(venus::DestroyBuffer { device: DEVICE, buffer }));
    assert_eq!(kept(), before);
    let (_, second) = hand_over(&world);
    assert_eq!(second.context().objects.described().bytes(), before);
}

#[test]
fn a_framebuffer_outlives_its_views() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    world.image(20, venus::Format::R8_UNORM, venus::ImageCreateFlags(0));
    let (image, memory) = (venus::Image(20), venus::DeviceMemory(10));
    world.execute(&Command::BindImageMemory(venus::BindImageMemory {
        device: DEVICE,
        image,
        memory,
        memory_offset: 0,
    }));
    image_view(&world, 21, 20);
    let (info, pass) = (venus::RenderPassCreateInfo::default(), venus::RenderPass(22));
    let (p_create_info, p_render_pass) = (Some(&info), Some(&pass));
    world.execute(&Command::CreateRenderPass(venus::CreateRenderPass {
        device: DEVICE,
        p_create_info,
        p_render_pass,
    }));
    let views = [venus::ImageView(21)];
    let info = venus::FramebufferCreateInfo {
        render_pass: pass,
        attachment_count: 1,
        p_attachments: Some(&views),
        width: 16,
        height: 16,
        layers: 1,
        ..Default::default()
    };
    let (framebuffer, p_create_info) = (venus::Framebuffer(23), Some(&info));
    let create =
        venus::CreateFramebuffer { device: DEVICE, p_create_info, p_framebuffer: Some(&framebuffer) };
    world.execute(&Command::CreateFramebuffer(create));
    let image_view = views[0];
    world.execute(&Command::DestroyImageView(venus::DestroyImageView { device: DEVICE, image_view }));
    world
        .execute(&Command::DestroyRenderPass(venus::DestroyRenderPass { device: DEVICE, render_pass: pass }));
    let (_, second) = hand_over(&world);
    assert!(is_there(&second, 23, ObjectType::FRAMEBUFFER) && !is_there(&second, 21, ObjectType::IMAGE_VIEW));
    world.execute(&Command::DestroyImage(venus::DestroyImage { device: DEVICE, image }));
    assert!(refusal(&world).for_now);
}

#[test]
fn of_what_one_command_made_only_what_is_left_is_there() {
    let world = World::reliable();
    let (info, pool) = (venus::CommandPoolCreateInfo::default(), venus::CommandPool(40));
    let (p_create_info, p_command_pool) = (Some(&info), Some(&pool));
    world.execute(&Command::CreateCommandPool(venus::CreateCommandPool {
        device: DEVICE,
        p_create_info,
        p_command_pool,
    }));
    let ids = [41, 42, 43].map(venus::CommandBuffer);
    let info = venus::CommandBufferAllocateInfo {
        command_pool: pool,
        command_buffer_count: 3,
        ..Default::default()
    };
    let (p_allocate_info, p_command_buffers) = (Some(&info), Some(&ids[..]));
    world.execute(&Command::AllocateCommandBuffers(venus::AllocateCommandBuffers {
        device: DEVICE,
        p_allocate_info,
        p_command_buffers,
    }));
    let gone = [ids[1]];
    world.execute(&Command::FreeCommandBuffers(venus::FreeCommandBuffers {
        device: DEVICE,
        command_pool: pool,
        command_buffer_count: 1,
        p_command_buffers: Some(&gone),
    }));
    let (_, second) = hand_over(&world);
    let there = ids.map(|id| is_there(&second, id.0, ObjectType::COMMAND_BUFFER));
    assert_eq!(there, [true, false, true]);
}

#[test]
fn failures_are_the_same() {
    let world = World::reliable();
    let objects = &world.renderer.context().objects;
    objects.insert_failed(50, ObjectType::IMAGE, -2).unwrap();
    world.buffer(51);
    objects.fail(venus::Buffer(51), -1);
    world.renderer.context().failures.restore((-3, true, true));
    let (_, second) = hand_over(&world);
    let (state, table) = (second.context().failures.state(), second.context().objects.read());
    assert_eq!(state, (-3, true, true));
    assert!(table.get(venus::Image(50)).is_err() && table.get(venus::Buffer(51)).is_err());
    assert!(table.has(51, ObjectType::BUFFER));
}

#[test]
fn fences_semaphores_and_events_are_as_they_were() {
    let world = World::reliable();
    let queue = queue(&world);
    for id in [60, 61] {
        let (info, fence) = (venus::FenceCreateInfo::default(), venus::Fence(id));
        let (p_create_info, p_fence) = (Some(&info), Some(&fence));
        world.execute(&Command::CreateFence(venus::CreateFence { device: DEVICE, p_create_info, p_fence }));
    }
    let fence = venus::Fence(61);
    let submit = venus::QueueSubmit { queue, submit_count: 0, p_submits: None, fence };
    world.execute(&Command::QueueSubmit(submit));
    let timeline = venus::SemaphoreTypeCreateInfo {
        semaphore_type: venus::SemaphoreType::TIMELINE,
        initial_value: 5,
        ..Default::default()
    };
    let timeline = [ChainStruct::SemaphoreTypeCreateInfo(&timeline)];
    for (id, p_next) in [(70, &[][..]), (71, &[]), (72, &timeline), (73, &timeline)] {
        let info = venus::SemaphoreCreateInfo { p_next, ..Default::default() };
        let (semaphore, p_create_info) = (venus::Semaphore(id), Some(&info));
        let create = venus::CreateSemaphore { device: DEVICE, p_create_info, p_semaphore: Some(&semaphore) };
        world.execute(&Command::CreateSemaphore(create));
    }
    let info =
        venus::ImportSemaphoreResourceInfoMESA { semaphore: venus::Semaphore(71), ..Default::default() };
    let p_import_semaphore_resource_info = Some(&info);
    world.execute(&Command::ImportSemaphoreResourceMESA(venus::ImportSemaphoreResourceMESA {
        device: DEVICE,
        p_import_semaphore_resource_info,
    }));
    let info = venus::SemaphoreSignalInfo { semaphore: venus::Semaphore(73), value: 9, ..Default::default() };
    let signal = venus::SignalSemaphore { device: DEVICE, p_signal_info: Some(&info) };
    world.execute(&Command::SignalSemaphore(signal));
    for id in [80, 81] {
        let (info, event) = (venus::EventCreateInfo::default(), venus::Event(id));
        let (p_create_info, p_event) = (Some(&info), Some(&event));
        world.execute(&Command::CreateEvent(venus::CreateEvent { device: DEVICE, p_create_info, p_event }));
    }
    world.execute(&Command::SetEvent(venus::SetEvent { device: DEVICE, event: venus::Event(81) }));
    let before = null::live();
    let (saved, second) = hand_over(&world);
    let has = |step: Step| assert!(saved.steps.contains(&step), "{step:?}");
    has(Step::Fence { id: 60, signalled: false });
    has(Step::Fence { id: 61, signalled: true });
    has(Step::Signalled { id: 71 });
    assert!(!saved.steps.contains(&Step::Signalled { id: 70 }));
    second.destroy_objects();
    assert_eq!(null::live(), before);
}

/// A driver may report a submission as complete a moment before its timeline has the value that the submission signals.
#[test]
fn a_timeline_has_the_value_that_complete_submissions_signal() {
    let world = World::reliable();
    let timeline = venus::SemaphoreTypeCreateInfo {
        semaphore_type: venus::SemaphoreType::TIMELINE,
        initial_value: 5,
        ..Default::default()
    };
    let (p_next, semaphore) = (&[ChainStruct::SemaphoreTypeCreateInfo(&timeline)], venus::Semaphore(72));
    let info = venus::SemaphoreCreateInfo { p_next, ..Default::default() };
    let (p_create_info, p_semaphore) = (Some(&info), Some(&semaphore));
    let create = venus::CreateSemaphore { device: DEVICE, p_create_info, p_semaphore };
    world.execute(&Command::CreateSemaphore(create));
    let value = |renderer: &Renderer, promise: Option<u64>| {
        let objects = renderer.context().objects.read();
        let object = objects.get(semaphore).unwrap();
        let signal = object.get::<venus::Semaphore>().unwrap();
        if let Some(promised) = promise {
            *signal.lock() = Signal::Timeline { promised };
        }
        match restore::semaphore(object, signal, object.device.as_ref().unwrap()) {
            restore::Semaphore::Timeline(value) => value,
            _ => None,
        }
    };
    assert_eq!(value(&world.renderer, Some(4)), Some(5));
    assert_eq!(value(&world.renderer, Some(8)), Some(8));
    let (_, second) = hand_over(&world);
    assert_eq!(value(&second, None), Some(8));
}

#[test]
fn an_event_that_only_the_gpu_sees_is_not_moved() {
    let world = World::reliable();
    let flags = venus::EventCreateFlags::DEVICE_ONLY;
    let (info, event) = (venus::EventCreateInfo { flags, ..Default::default() }, venus::Event(80));
    let (p_create_info, p_event) = (Some(&info), Some(&event));
    world.execute(&Command::CreateEvent(venus::CreateEvent { device: DEVICE, p_create_info, p_event }));
    assert!(!refusal(&world).for_now);
}

#[test]
fn what_cannot_be_made_again_is_named() {
    let world = World::reliable();
    let mut saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    for step in &mut saved.steps {
        if let Step::Objects(all) = step {
            all.push((99, ObjectType::BUFFER.0));
        }
    }
    let second = null::renderer(Arc::new(NoResources));
    let lost = second.rebuild(&saved.steps, &saved.files_here()).unwrap_err();
    assert!(lost.to_string().contains("object 99"), "{lost}");
}

#[test]
fn steps_that_make_no_sense_end_the_context() {
    let world = World::reliable();
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let memory = Step::Memory { id: 10, file: 7, size: SIZE, address: 0, shown: 0 };
    let (kind, result) = (ObjectType::BUFFER.0, 0);
    for wrong in [
        memory,
        Step::Commands(vec![0xff; 16]),
        Step::Failed { id: 10, kind, result },
        Step::Failed { id: 1, kind, result: -1 },
        Step::Unusable { id: 10, kind, result: -1 },
        Step::Fence { id: 10, signalled: true },
        Step::Signalled { id: 1 },
        Step::Objects(vec![]),
    ] {
        let second = null::renderer(Arc::new(NoResources));
        let steps = [saved.steps.clone(), vec![wrong.clone()]].concat();
        assert!(second.rebuild(&steps, &saved.files_here()).is_err(), "{wrong:?}");
    }
}

/// The most bytes that are kept of an object, beside shaders and recordings.
const KEPT_MAX: usize = 1 << 10;

#[test]
fn no_more_than_a_kibibyte_is_kept_of_an_object() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    world.buffer(20);
    world.bind(20, 10);
    buffer_view(&world, 21, 20);
    world.image(22, venus::Format::R8_UNORM, venus::ImageCreateFlags(0));
    let (image, memory) = (venus::Image(22), venus::DeviceMemory(10));
    let bind = venus::BindImageMemory { device: DEVICE, image, memory, memory_offset: 0 };
    world.execute(&Command::BindImageMemory(bind));
    image_view(&world, 23, 22);
    set_layout(&world, 24);
    pipeline_layout(&world, 25, 24);
    destroy_set_layout(&world, 24);
    queue(&world);
    let (info, fence) = (venus::FenceCreateInfo::default(), venus::Fence(26));
    let (p_create_info, p_fence) = (Some(&info), Some(&fence));
    world.execute(&Command::CreateFence(venus::CreateFence { device: DEVICE, p_create_info, p_fence }));
    let objects = world.renderer.context().objects.read();
    for (id, object, failed) in objects.objects().filter(|(id, ..)| *id >= 10) {
        let kept = object.kept_bytes();
        assert!(failed.is_none() && kept <= KEPT_MAX, "{kept} bytes of {id}, of kind {}", object.kind().0);
    }
    assert_eq!((10..=26).filter(|id| objects.objects().any(|(known, ..)| known == *id)).count(), 7);
}

#[test]
fn beside_its_command_no_more_than_a_quarter_of_that_is_kept_of_a_pipeline() {
    let (kept, names) = (Kept::default(), Names::default());
    // Two stages, a layout and a render pass.
    let made_of: [Arc<Usage>; 4] = Default::default();
    made_of.iter().for_each(|usage| names.uses().add(usage));
    let pipeline = Object::new::<venus::Pipeline>(1, None, StateOf::none(), names.origin(kept.keep(&[])));
    assert!(pipeline.kept_bytes() <= KEPT_MAX / 4, "{} bytes", pipeline.kept_bytes());
}
