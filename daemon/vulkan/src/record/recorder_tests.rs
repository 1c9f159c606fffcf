//! Tests of runs of recorded commands on the null driver, whose barriers let a test do other work meanwhile.

use super::*;
use crate::Renderer;
use crate::null::{self, NoResources};
use protocol::cursor::Writer;
use protocol::venus::generated::CommandFlagsEXT;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use venus::Command;

const INSTANCE: venus::Instance = venus::Instance(1);
const GPU: venus::PhysicalDevice = venus::PhysicalDevice(2);
const DEVICE: venus::Device = venus::Device(3);
const POOL: venus::CommandPool = venus::CommandPool(4);
const ONE: venus::CommandBuffer = venus::CommandBuffer(5);
const OTHER: venus::CommandBuffer = venus::CommandBuffer(6);
/// Commands of the longest run.
const ALL: u32 = (PART * PARTS) as u32;

/// A context with two command buffers.
struct World {
    renderer: Renderer,
    _exclusive: null::Exclusive,
}

impl World {
    /// Creates the context, with a seed with which the first creations succeed.
    fn new() -> Self {
        let exclusive = null::begin(0x9e37_79b9_7f4a_7c15);
        let world = Self { renderer: null::renderer(Arc::new(NoResources)), _exclusive: exclusive };
        // The second of the null driver's families copies and nothing else.
        let queues = [0, 1].map(|queue_family_index| venus::DeviceQueueCreateInfo {
            queue_family_index,
            queue_count: 1,
            p_queue_priorities: Some(&[1.0]),
            ..Default::default()
        });
        let info = venus::DeviceCreateInfo {
            queue_create_info_count: queues.len() as u32,
            p_queue_create_infos: Some(&queues),
            ..Default::default()
        };
        let pool = venus::CommandPoolCreateInfo::default();
        let buffers = venus::CommandBufferAllocateInfo {
            command_pool: POOL,
            command_buffer_count: 2,
            ..Default::default()
        };
        world.run(&stream(&[
            Command::CreateInstance(venus::CreateInstance {
                p_create_info: Some(&venus::InstanceCreateInfo::default()),
                p_instance: Some(&INSTANCE),
            }),
            Command::EnumeratePhysicalDevices(venus::EnumeratePhysicalDevices {
                instance: INSTANCE,
                p_physical_device_count: Some(&1),
                p_physical_devices: Some(&[GPU]),
            }),
            Command::CreateDevice(venus::CreateDevice {
                physical_device: GPU,
                p_create_info: Some(&info),
                p_device: Some(&DEVICE),
            }),
            Command::CreateCommandPool(venus::CreateCommandPool {
                device: DEVICE,
                p_create_info: Some(&pool),
                p_command_pool: Some(&POOL),
            }),
            Command::AllocateCommandBuffers(venus::AllocateCommandBuffers {
                device: DEVICE,
                p_allocate_info: Some(&buffers),
                p_command_buffers: Some(&[ONE, OTHER]),
            }),
            begin(ONE),
            begin(OTHER),
        ]));
        world
    }

    /// Executes a stream as a ring does.
    fn run(&self, bytes: &[u8]) {
        self.try_run(bytes).unwrap();
    }

    fn try_run(&self, mut bytes: &[u8]) -> Result<(), ContextLost> {
        let (mut arena, cancel) = (Arena::new(1 << 16), Cancel::default());
        while !bytes.is_empty() {
            let length = match self.renderer.record(bytes, &mut arena, &cancel)? {
                0 => self.execute(bytes, &arena, &cancel)?,
                length => length,
            };
            bytes = &bytes[length..];
            arena.reset();
        }
        Ok(())
    }

    /// Executes the first command by itself.
    fn execute(&self, bytes: &[u8], arena: &Arena, cancel: &Cancel) -> Result<usize, ContextLost> {
        let mut reader = Reader::new(bytes, arena);
        let header = protocol::venus::stream::Header::decode(&mut reader).unwrap();
        let command = Command::decode(header.number, &mut reader).unwrap();
        let length = reader.offset();
        let mut reply = vec![0; 4096];
        let mut writer = Writer::window(&mut reply);
        let wanted = header.wants_reply().then_some(&mut writer);
        self.renderer.execute(&command, &bytes[..length], arena, cancel, wanted).map(|()| length)
    }

    /// Executes a stream and returns the barriers that the driver saw.
    fn barriers_of(&self, bytes: &[u8]) -> Vec<u32> {
        let (seen, barriers) = mpsc::channel();
        null::at_barriers(move |at| seen.send(at).unwrap());
        self.run(bytes);
        null::at_barriers(|_| ());
        barriers.iter().collect()
    }
}

fn stream(commands: &[Command<'_>]) -> Vec<u8> {
    let mut writer = Writer::growing();
    commands.iter().for_each(|command| command.encode(CommandFlagsEXT(0), &mut writer));
    writer.into_bytes()
}

fn begin(command_buffer: venus::CommandBuffer) -> Command<'static> {
    Command::BeginCommandBuffer(venus::BeginCommandBuffer {
        command_buffer,
        p_begin_info: Some(&const { DEFAULT_BEGIN }),
    })
}

const DEFAULT_BEGIN: venus::CommandBufferBeginInfo<'static> = venus::CommandBufferBeginInfo {
    p_next: &[],
    flags: venus::CommandBufferUsageFlags(0),
    p_inheritance_info: None,
};

/// A barrier that can be told from others.
fn barrier(command_buffer: venus::CommandBuffer, at: u32) -> Command<'static> {
    Command::CmdPipelineBarrier(venus::CmdPipelineBarrier {
        command_buffer,
        src_stage_mask: venus::PipelineStageFlags(at),
        ..Default::default()
    })
}

fn barriers(command_buffer: venus::CommandBuffer, count: u32) -> Vec<u8> {
    stream(&(0..count).map(|at| barrier(command_buffer, at)).collect::<Vec<_>>())
}

/// Returns whether a thread of this process sleeps.
fn sleeps(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|fields| fields.starts_with('S'))
}

/// Runs `other` on a thread of its own while a run records its first commands; returns whether it ended before the last command, at which the run
/// waits for it for `patience`. The run goes on from its first command when `other` has ended, or waits for the run.
fn meanwhile(world: &World, patience: Duration, other: impl FnOnce() + Send) -> bool {
    let (begun, wait) = mpsc::channel();
    let (done, done_in_time) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_done, is_in_time) = (Arc::clone(&done), Arc::clone(&done_in_time));
    let begins = Arc::new(AtomicI32::new(0));
    let has_begun = Arc::clone(&begins);
    null::at_barriers(move |at| {
        if at == 0 {
            begun.send(()).unwrap();
            let blocked = || match has_begun.load(Ordering::SeqCst) {
                0 => false,
                thread => is_done.load(Ordering::SeqCst) || sleeps(thread),
            };
            while !blocked() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        if at + 1 == ALL {
            let begun = Instant::now();
            while !is_done.load(Ordering::SeqCst) && begun.elapsed() < patience {
                thread::sleep(Duration::from_millis(1));
            }
            is_in_time.store(is_done.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    });
    thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            wait.recv().unwrap();
            begins.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
            other();
            done.store(true, Ordering::SeqCst);
        });
        world.run(&barriers(ONE, ALL));
    });
    null::at_barriers(|_| ());
    assert!(done.load(Ordering::SeqCst));
    done_in_time.load(Ordering::SeqCst)
}

#[test]
fn a_run_is_recorded_at_once_and_in_order() {
    let world = World::new();
    let bytes = barriers(ONE, ALL + 3);
    let length = world.renderer.record(&bytes, &mut Arena::new(1 << 16), &Cancel::default()).unwrap();
    assert_eq!(length, bytes.len() / (ALL as usize + 3) * ALL as usize);
    assert_eq!(world.barriers_of(&bytes), (0..ALL + 3).collect::<Vec<_>>());
}

#[test]
fn a_run_that_is_interrupted_ends_between_two_parts_and_is_gone_on_with() {
    let world = World::new();
    let bytes = barriers(ONE, 20);
    let of_two_parts = bytes.len() / 20 * 2 * PART;
    let (cancel, seen) = (Cancel::default(), mpsc::channel());
    let interrupts = cancel.clone();
    null::at_barriers(move |at| {
        seen.0.send(at).unwrap();
        if at == 9 {
            interrupts.interrupt();
        }
    });
    let mut arena = Arena::new(1 << 16);
    let length = world.renderer.record(&bytes, &mut arena, &cancel).unwrap();
    assert_eq!(length, of_two_parts);
    assert_eq!(world.renderer.record(&bytes[length..], &mut arena, &cancel), Ok(0));
    cancel.resume();
    assert_eq!(world.renderer.record(&bytes[length..], &mut arena, &cancel), Ok(bytes.len() - length));
    null::at_barriers(|_| ());
    assert_eq!(seen.1.iter().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_run_ends_where_something_else_begins() {
    let world = World::new();
    let asked = |at| {
        let mut writer = Writer::growing();
        barrier(ONE, at).encode(CommandFlagsEXT::GENERATE_REPLY, &mut writer);
        writer.into_bytes()
    };
    let end = venus::EndCommandBuffer { command_buffer: ONE };
    let parts = [
        stream(&[barrier(ONE, 1), barrier(ONE, 2), barrier(OTHER, 3), barrier(ONE, 4)]),
        asked(5),
        // Nothing can be recorded between these two.
        stream(&[Command::EndCommandBuffer(end), barrier(ONE, 6), begin(ONE), barrier(ONE, 7)]),
    ];
    assert_eq!(world.barriers_of(&parts.concat()), [1, 2, 3, 4, 5, 7]);
}

#[test]
fn a_recording_that_names_what_was_never_made_is_left_alone_from_there_on() {
    let world = World::new();
    let info = venus::EventCreateInfo::default();
    let create = |event| {
        let event = Some(event);
        Command::CreateEvent(venus::CreateEvent {
            device: DEVICE,
            p_create_info: Some(&info),
            p_event: event,
        })
    };
    // One creation in sixteen fails.
    let events: Vec<_> = (100..200).map(venus::Event).collect();
    world.run(&stream(&events.iter().map(create).collect::<Vec<_>>()));
    let is_failed = |event: &&venus::Event| matches!(world.renderer.context().objects.read().get(**event), Err(Fault::Failed(result)) if result != INVALID);
    let failed = *events.iter().find(is_failed).unwrap();
    let set = |event| {
        let stage_mask = venus::PipelineStageFlags::default();
        Command::CmdSetEvent(venus::CmdSetEvent { command_buffer: ONE, event, stage_mask })
    };
    let bytes = stream(&[barrier(ONE, 1), set(failed), barrier(ONE, 2), barrier(OTHER, 3)]);
    assert_eq!(world.barriers_of(&bytes), [1, 3]);
    assert_eq!(world.barriers_of(&stream(&[begin(ONE), barrier(ONE, 4)])), [4]);
    // An object that never existed ends the context, and the error names the command.
    let lost = world.try_run(&stream(&[barrier(ONE, 5), set(venus::Event(99))])).unwrap_err();
    assert!(lost.to_string().starts_with("vkCmdSetEvent"), "{lost}");
}

/// Drivers hang or crash at commands that their hardware cannot do: blits on a family that does not draw occupied the GPU until they were stopped.
#[test]
fn what_no_queue_of_the_family_can_execute_is_left_out() {
    let world = World::new();
    let (pool, event) = (
        venus::CommandPoolCreateInfo { queue_family_index: 1, ..Default::default() },
        venus::EventCreateInfo::default(),
    );
    let make = |number: u64| {
        let (pool_id, buffer, event_id) =
            (venus::CommandPool(number), venus::CommandBuffer(number + 1), venus::Event(number + 2));
        let buffers = venus::CommandBufferAllocateInfo {
            command_pool: pool_id,
            command_buffer_count: 1,
            ..Default::default()
        };
        world.run(&stream(&[
            Command::CreateCommandPool(venus::CreateCommandPool {
                device: DEVICE,
                p_create_info: Some(&pool),
                p_command_pool: Some(&pool_id),
            }),
            Command::AllocateCommandBuffers(venus::AllocateCommandBuffers {
                device: DEVICE,
                p_allocate_info: Some(&buffers),
                p_command_buffers: Some(&[buffer]),
            }),
            Command::CreateEvent(venus::CreateEvent {
                device: DEVICE,
                p_create_info: Some(&event),
                p_event: Some(&event_id),
            }),
            begin(buffer),
        ]));
        (buffer, event_id)
    };
    // One creation in sixteen fails.
    let is_made = |&(buffer, event): &(venus::CommandBuffer, venus::Event)| {
        let objects = world.renderer.context().objects.read();
        objects.get(buffer).is_ok() && objects.get(event).is_ok()
    };
    let (copies, event) = (10..20).map(|at| make(10 * at)).find(is_made).unwrap();
    // A command that wants a reply comes by itself, and is kept only if it was recorded.
    let set = |command_buffer| {
        let stage_mask = venus::PipelineStageFlags::default();
        let mut writer = Writer::growing();
        Command::CmdSetEvent(venus::CmdSetEvent { command_buffer, event, stage_mask })
            .encode(CommandFlagsEXT::GENERATE_REPLY, &mut writer);
        writer.into_bytes()
    };
    let recorded = |command_buffer: venus::CommandBuffer| {
        let found = world.renderer.context().objects.shared(command_buffer).unwrap();
        found.pool.lock().find(&found).unwrap().commands.bytes().unwrap().len()
    };
    for (command_buffer, is_recorded) in [(ONE, true), (copies, false)] {
        let before = recorded(command_buffer);
        world.run(&set(command_buffer));
        assert_eq!(recorded(command_buffer) > before, is_recorded);
        // The recording goes on.
        assert_eq!(world.barriers_of(&stream(&[barrier(command_buffer, 3)])), [3]);
    }
}

/// A command buffer of a family that computes, on a queue that copies and nothing else.
#[test]
fn a_queue_gets_nothing_that_was_recorded_for_queues_that_can_do_more() {
    let (world, queue) = (World::new(), venus::Queue(7));
    let timeline = venus::DeviceQueueTimelineInfoMESA { ring_idx: 1, ..Default::default() };
    let chain = [venus::ChainStruct::DeviceQueueTimelineInfoMESA(&timeline)];
    let info = venus::DeviceQueueInfo2 { p_next: &chain, queue_family_index: 1, ..Default::default() };
    let submit = |command_buffers: &[venus::CommandBuffer]| {
        let batch = venus::SubmitInfo {
            command_buffer_count: command_buffers.len() as u32,
            p_command_buffers: Some(command_buffers),
            ..Default::default()
        };
        let p_submits = Some(std::slice::from_ref(&batch));
        let fence = venus::Fence(0);
        stream(&[Command::QueueSubmit(venus::QueueSubmit { queue, submit_count: 1, p_submits, fence })])
    };
    world.run(&stream(&[
        Command::GetDeviceQueue2(venus::GetDeviceQueue2 {
            device: DEVICE,
            p_queue_info: Some(&info),
            p_queue: Some(&queue),
        }),
        Command::EndCommandBuffer(venus::EndCommandBuffer { command_buffer: ONE }),
    ]));
    world.run(&submit(&[]));
    let lost = world.try_run(&submit(&[ONE])).unwrap_err();
    assert!(lost.to_string().contains("a queue that can do less"), "{lost}");
}

#[test]
fn nobody_frees_or_resets_a_command_buffer_between_two_commands_of_a_run() {
    let free = venus::FreeCommandBuffers {
        device: DEVICE,
        command_pool: POOL,
        command_buffer_count: 1,
        p_command_buffers: Some(&[ONE]),
    };
    let reset = venus::ResetCommandBuffer { command_buffer: ONE, ..Default::default() };
    let reset_pool = venus::ResetCommandPool { device: DEVICE, command_pool: POOL, ..Default::default() };
    let destroy = venus::DestroyCommandPool { device: DEVICE, command_pool: POOL };
    for command in [
        Command::FreeCommandBuffers(free),
        Command::ResetCommandBuffer(reset),
        Command::ResetCommandPool(reset_pool),
        Command::DestroyCommandPool(destroy),
        begin(ONE),
    ] {
        let world = World::new();
        // The driver would panic at a command buffer that is gone.
        let patience = Duration::from_millis(100);
        assert!(!meanwhile(&world, patience, || world.run(&stream(&[command]))), "{command:?}");
        let gone = matches!(command, Command::FreeCommandBuffers(_) | Command::DestroyCommandPool(_));
        assert_eq!(world.try_run(&barriers(ONE, 1)).is_err(), gone, "{command:?}");
    }
}

#[test]
fn who_changes_the_table_does_not_wait_for_the_end_of_a_run() {
    let world = World::new();
    let info = venus::EventCreateInfo::default();
    let (p_create_info, p_event) = (Some(&info), Some(&venus::Event(100)));
    let create = Command::CreateEvent(venus::CreateEvent { device: DEVICE, p_create_info, p_event });
    // The thread that is let in ends before the run, unless it gets no processor.
    assert!(meanwhile(&world, Duration::from_secs(600), || world.run(&stream(&[create]))));
}
