//! Tests of journals on the null driver: commands done again behind a checkpoint leave the context as it was.

use crate::fuzzing::{Heard, comparable};
use crate::null::world_for_tests::{DEVICE, PAGES, SIZE, World};
use crate::null::{self, NoResources, lose_devices, release, run, stall};
use crate::snapshot::step::Step;
use crate::snapshot::{Carry, Prelude, Saved};
use crate::{Cancel, Journal, Renderer};
use parking_lot::Mutex;
use protocol::cursor::{Arena, Reader, Writer};
use protocol::venus::generated as venus;
use protocol::venus::stream::Header;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use venus::{ChainStruct, Command, CommandFlagsEXT, ObjectType};

const QUEUE: venus::Queue = venus::Queue(4);
const POOL: venus::CommandPool = venus::CommandPool(5);
const BUFFERS: [venus::CommandBuffer; 2] = [venus::CommandBuffer(6), venus::CommandBuffer(7)];
const FENCE: venus::Fence = venus::Fence(8);
const TIMELINE: venus::Semaphore = venus::Semaphore(9);
const BINARY: venus::Semaphore = venus::Semaphore(10);
const QUERIES: venus::QueryPool = venus::QueryPool(11);
const EVENT: venus::Event = venus::Event(12);
const MEMORY: u64 = 13;
const BUFFER: u64 = 14;
const NO_FENCE: venus::Fence = venus::Fence(0);
const ANY: venus::CommandBufferUsageFlags = venus::CommandBufferUsageFlags(0);

/// The result of a creation that fails.
const MEMORY_RESULT: i32 = ash::vk::Result::ERROR_OUT_OF_DEVICE_MEMORY.as_raw();

/// A context with a journal, and the commands that were executed since its checkpoint.
struct Journalled {
    world: World,
    heard: Arc<Heard>,
    checkpoint: Saved,
    entries: RefCell<Vec<Vec<u8>>>,
}

impl Journalled {
    /// A context with a queue, two command buffers, a fence, semaphores and memory, and a checkpoint of this context.
    fn new() -> Self {
        let heard = Arc::<Heard>::default();
        Self::telling(heard.clone(), heard)
    }

    /// A context like that of [`Self::new`], with any journal.
    fn telling(journal: Arc<dyn Journal>, heard: Arc<Heard>) -> Self {
        let (checkpoint, entries) = Default::default();
        let mut made = Self { world: World::journalled(journal), heard, checkpoint, entries };
        made.set_up();
        made.checkpoint = made.save();
        made.heard.take_break();
        made.entries.take();
        made
    }

    fn set_up(&self) {
        let timeline = venus::DeviceQueueTimelineInfoMESA { p_next: &[], ring_idx: 1 };
        let chain = [ChainStruct::DeviceQueueTimelineInfoMESA(&timeline)];
        let info = venus::DeviceQueueInfo2 { p_next: &chain, ..Default::default() };
        let pool = venus::CommandPoolCreateInfo {
            flags: venus::CommandPoolCreateFlags::RESET_COMMAND_BUFFER,
            ..Default::default()
        };
        let buffers = venus::CommandBufferAllocateInfo {
            command_pool: POOL,
            command_buffer_count: BUFFERS.len() as u32,
            ..Default::default()
        };
        self.run(&[
            Command::GetDeviceQueue2(venus::GetDeviceQueue2 {
                device: DEVICE,
                p_queue_info: Some(&info),
                p_queue: Some(&QUEUE),
            }),
            Command::CreateCommandPool(venus::CreateCommandPool {
                device: DEVICE,
                p_create_info: Some(&pool),
                p_command_pool: Some(&POOL),
            }),
            Command::AllocateCommandBuffers(venus::AllocateCommandBuffers {
                device: DEVICE,
                p_allocate_info: Some(&buffers),
                p_command_buffers: Some(&BUFFERS),
            }),
            Command::CreateFence(venus::CreateFence {
                device: DEVICE,
                p_create_info: Some(&venus::FenceCreateInfo::default()),
                p_fence: Some(&FENCE),
            }),
        ]);
        self.semaphore(TIMELINE, venus::SemaphoreType::TIMELINE);
        self.semaphore(BINARY, venus::SemaphoreType::BINARY);
        drop(self.world.allocate_of(MEMORY, &[], SIZE, PAGES));
    }

    fn semaphore(&self, id: venus::Semaphore, semaphore_type: venus::SemaphoreType) {
        let of_type = venus::SemaphoreTypeCreateInfo { p_next: &[], semaphore_type, initial_value: 0 };
        let chain = [ChainStruct::SemaphoreTypeCreateInfo(&of_type)];
        let info = venus::SemaphoreCreateInfo { p_next: &chain, ..Default::default() };
        let (p_create_info, p_semaphore) = (Some(&info), Some(&id));
        self.run(&[Command::CreateSemaphore(venus::CreateSemaphore {
            device: DEVICE,
            p_create_info,
            p_semaphore,
        })]);
    }

    fn signal(&self, semaphore: venus::Semaphore, value: u64) {
        let info = venus::SemaphoreSignalInfo { p_next: &[], semaphore, value };
        let (device, p_signal_info) = (DEVICE, Some(&info));
        self.run(&[Command::SignalSemaphore(venus::SignalSemaphore { device, p_signal_info })]);
    }

    fn save(&self) -> Saved {
        self.world.renderer.save(&Prelude::default(), Carry::Copied).unwrap()
    }

    /// Executes commands, each of which is an entry of the journal.
    fn run(&self, commands: &[Command<'_>]) {
        for command in commands {
            let bytes = encoded(command, CommandFlagsEXT(0));
            execute(&self.world.renderer, &bytes);
            self.entries.borrow_mut().push(bytes);
        }
    }

    /// Builds up a successor from the checkpoint and the journal, which has to be the same context.
    fn succeed(&self) -> (Vec<Step>, Renderer) {
        assert!(!self.heard.take_break());
        self.world.renderer.drain(Duration::from_secs(600)).unwrap();
        let expected = comparable(&self.save().steps);
        let successor = self.rebuilt();
        let entries = self.entries.borrow();
        let entries: Vec<_> = entries.iter().map(|entry| &**entry).collect();
        let before = run();
        assert_eq!(successor.replay(&entries), Ok(()));
        assert_eq!(run(), before, "nothing is computed twice");
        let again = successor.save(&Prelude::default(), Carry::Copied).unwrap();
        assert_eq!(comparable(&again.steps), expected);
        assert_ne!(expected, comparable(&self.checkpoint.steps), "nothing was executed");
        (expected, successor)
    }

    /// A successor that is as the checkpoint was.
    fn rebuilt(&self) -> Renderer {
        let successor = null::renderer(Arc::new(NoResources));
        successor.rebuild(&comparable(&self.checkpoint.steps), &self.checkpoint.files_here()).unwrap();
        successor
    }

    /// Has a command break the journal.
    fn breaks(&self, command: &Command<'_>) {
        assert!(!self.heard.take_break());
        self.run(std::slice::from_ref(command));
        assert!(self.heard.take_break(), "{command:?}");
    }

    fn create_buffer(&self, id: u64) -> Vec<u8> {
        let usage = venus::BufferUsageFlags::STORAGE_BUFFER;
        let info = venus::BufferCreateInfo { size: 4096, usage, ..Default::default() };
        let (p_create_info, p_buffer) = (Some(&info), Some(&venus::Buffer(id)));
        encoded(
            &Command::CreateBuffer(venus::CreateBuffer { device: DEVICE, p_create_info, p_buffer }),
            CommandFlagsEXT(0),
        )
    }

    fn bound_buffer(&self, id: u64) {
        let bytes = self.create_buffer(id);
        execute(&self.world.renderer, &bytes);
        self.entries.borrow_mut().push(bytes);
        let (buffer, memory) = (venus::Buffer(id), venus::DeviceMemory(MEMORY));
        let bind = venus::BindBufferMemory { device: DEVICE, buffer, memory, memory_offset: 0 };
        self.run(&[Command::BindBufferMemory(bind)]);
    }

    /// Records a command into a command buffer.
    fn record(
        &self,
        command_buffer: venus::CommandBuffer,
        flags: venus::CommandBufferUsageFlags,
        command: Command<'_>,
    ) {
        let info = venus::CommandBufferBeginInfo { flags, ..Default::default() };
        let begin = venus::BeginCommandBuffer { command_buffer, p_begin_info: Some(&info) };
        let end = venus::EndCommandBuffer { command_buffer };
        self.run(&[Command::BeginCommandBuffer(begin), command, Command::EndCommandBuffer(end)]);
    }
}

fn encoded(command: &Command<'_>, flags: CommandFlagsEXT) -> Vec<u8> {
    let mut writer = Writer::growing();
    command.encode(flags, &mut writer);
    writer.into_bytes()
}

/// Executes one command; returns its reply if it wants one.
fn execute(renderer: &Renderer, bytes: &[u8]) -> Vec<u8> {
    let (arena, mut reply) = (Arena::new(1 << 20), vec![0; 4096]);
    let mut reader = Reader::new(bytes, &arena);
    let header = Header::decode(&mut reader).unwrap();
    let command = Command::decode(header.number, &mut reader).unwrap();
    let mut writer = Writer::window(&mut reply);
    let wanted = header.wants_reply().then_some(&mut writer);
    renderer.execute(&command, bytes, &arena, &Cancel::default(), wanted).unwrap();
    reply
}

fn barrier(command_buffer: venus::CommandBuffer) -> Command<'static> {
    Command::CmdPipelineBarrier(venus::CmdPipelineBarrier { command_buffer, ..Default::default() })
}

/// Values that semaphores are signalled to.
fn to_values(values: &[u64]) -> venus::TimelineSemaphoreSubmitInfo<'_> {
    venus::TimelineSemaphoreSubmitInfo {
        p_next: &[],
        wait_semaphore_value_count: 0,
        p_wait_semaphore_values: None,
        signal_semaphore_value_count: values.len() as u32,
        p_signal_semaphore_values: Some(values),
    }
}

fn submit<'s>(batches: &'s [venus::SubmitInfo<'s>], fence: venus::Fence) -> Command<'s> {
    let (submit_count, p_submits) = (batches.len() as u32, Some(batches));
    Command::QueueSubmit(venus::QueueSubmit { queue: QUEUE, submit_count, p_submits, fence })
}

fn batch_of(buffers: &[venus::CommandBuffer]) -> venus::SubmitInfo<'_> {
    venus::SubmitInfo {
        command_buffer_count: buffers.len() as u32,
        p_command_buffers: Some(buffers),
        ..Default::default()
    }
}

#[test]
fn objects_come_and_go_again() {
    let world = Journalled::new();
    world.bound_buffer(BUFFER);
    world.bound_buffer(20);
    world.bound_buffer(21);
    let buffer = venus::Buffer(20);
    world.run(&[Command::DestroyBuffer(venus::DestroyBuffer { device: DEVICE, buffer })]);
    world.semaphore(venus::Semaphore(22), venus::SemaphoreType::TIMELINE);
    world.signal(venus::Semaphore(22), 7);
    let info = venus::EventCreateInfo::default();
    let (p_create_info, p_event) = (Some(&info), Some(&EVENT));
    world.run(&[
        Command::CreateEvent(venus::CreateEvent { device: DEVICE, p_create_info, p_event }),
        Command::SetEvent(venus::SetEvent { device: DEVICE, event: EVENT }),
    ]);
    let (_, successor) = world.succeed();
    let objects = successor.context().objects.read();
    assert!(objects.get(venus::Buffer(21)).is_ok() && objects.get(venus::Buffer(20)).is_err());
}

#[test]
fn submissions_signal_again_and_compute_nothing() {
    let world = Journalled::new();
    let [first, second] = BUFFERS;
    world.record(first, ANY, barrier(first));
    world.record(second, venus::CommandBufferUsageFlags::ONE_TIME_SUBMIT, barrier(second));
    // Each round as a program's: submitted, waited for, reset.
    for round in 1..=3 {
        let values = [round, 0];
        let values = to_values(&values);
        let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
        let signals = venus::SubmitInfo {
            p_next: &chain,
            signal_semaphore_count: 2,
            p_signal_semaphores: Some(&[TIMELINE, BINARY]),
            ..batch_of(&BUFFERS[..1])
        };
        let waits = venus::SubmitInfo {
            wait_semaphore_count: 1,
            p_wait_semaphores: Some(&[BINARY]),
            p_wait_dst_stage_mask: Some(&[venus::PipelineStageFlags::ALL_COMMANDS]),
            ..batch_of(if round == 2 { &BUFFERS[1..] } else { &[] })
        };
        let (fence_count, p_fences) = (1, Some(&[FENCE][..]));
        let (wait_all, timeout) = (1, u64::MAX);
        world.run(&[
            submit(&[signals], NO_FENCE),
            submit(if round == 3 { &[] } else { std::slice::from_ref(&waits) }, FENCE),
            Command::WaitForFences(venus::WaitForFences {
                device: DEVICE,
                fence_count,
                p_fences,
                wait_all,
                timeout,
            }),
        ]);
        if round < 3 {
            world.run(&[Command::ResetFences(venus::ResetFences { device: DEVICE, fence_count, p_fences })]);
        }
    }
    assert_eq!(run(), 4);
    let (steps, successor) = world.succeed();
    assert!(steps.contains(&Step::Fence { id: FENCE.0, signalled: true }));
    assert!(steps.contains(&Step::Signalled { id: BINARY.0 }));
    // The recording that was for one submission is over; the other is not.
    let command_buffer = successor.context().objects.shared(second).unwrap();
    let mut recordings = command_buffer.pool.lock();
    assert!(recordings.find(&command_buffer).unwrap().state.was_submitted);
}

#[test]
fn second_form_of_submissions_is_done_again_too() {
    let world = Journalled::new();
    let [first, _] = BUFFERS;
    world.record(first, ANY, barrier(first));
    let buffer = venus::CommandBufferSubmitInfo { command_buffer: first, ..Default::default() };
    let signal = venus::SemaphoreSubmitInfo { semaphore: TIMELINE, value: 5, ..Default::default() };
    let batch = venus::SubmitInfo2 {
        command_buffer_info_count: 1,
        p_command_buffer_infos: Some(std::slice::from_ref(&buffer)),
        signal_semaphore_info_count: 1,
        p_signal_semaphore_infos: Some(std::slice::from_ref(&signal)),
        ..Default::default()
    };
    let (submit_count, p_submits) = (1, Some(std::slice::from_ref(&batch)));
    world.run(&[Command::QueueSubmit2(venus::QueueSubmit2 {
        queue: QUEUE,
        submit_count,
        p_submits,
        fence: FENCE,
    })]);
    assert_eq!(run(), 1);
    let (steps, _) = world.succeed();
    assert!(steps.contains(&Step::Fence { id: FENCE.0, signalled: true }));
}

#[test]
fn a_submission_that_waits_for_the_host_goes_on_when_the_host_signals_again() {
    let world = Journalled::new();
    let values = venus::TimelineSemaphoreSubmitInfo {
        wait_semaphore_value_count: 1,
        p_wait_semaphore_values: Some(&[1]),
        ..to_values(&[2])
    };
    let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
    let waits = venus::SubmitInfo {
        p_next: &chain,
        wait_semaphore_count: 1,
        p_wait_semaphores: Some(&[TIMELINE]),
        p_wait_dst_stage_mask: Some(&[venus::PipelineStageFlags::ALL_COMMANDS]),
        signal_semaphore_count: 1,
        p_signal_semaphores: Some(&[TIMELINE]),
        ..Default::default()
    };
    let (fence_count, p_fences, wait_all, timeout) = (1, Some(&[FENCE][..]), 1, u64::MAX);
    let wait = venus::WaitForFences { device: DEVICE, fence_count, p_fences, wait_all, timeout };
    world.run(&[submit(&[waits], FENCE)]);
    world.signal(TIMELINE, 1);
    world.run(&[Command::WaitForFences(wait)]);
    world.world.renderer.drain(Duration::from_secs(600)).unwrap();
    world.signal(TIMELINE, 3);
    world.succeed();
}

#[test]
fn submissions_are_counted_until_they_have_completed() {
    let world = Journalled::new();
    for id in BUFFERS {
        world.record(id, ANY, barrier(id));
    }
    assert_eq!(world.heard.pending(), 0);
    stall();
    for id in BUFFERS {
        world.run(&[submit(&[batch_of(&[id])], NO_FENCE)]);
    }
    world.world.renderer.look(false);
    assert_eq!(world.heard.pending(), 2);
    release();
    world.world.renderer.drain(Duration::from_secs(600)).unwrap();
    assert_eq!(world.heard.pending(), 0);
    world.succeed();
}

#[test]
fn a_submission_counts_before_the_driver_has_it() {
    /// A journal that checks how much the driver has when the worker announces a submission.
    #[derive(Default)]
    struct Ahead(Mutex<Vec<u64>>);

    impl Journal for Ahead {
        fn breaks(&self, _: &'static str) {}

        fn submits(&self) {
            self.0.lock().push(run());
        }

        fn completed(&self, _: u32) {}
    }

    let ahead = Arc::<Ahead>::default();
    let world = Journalled::telling(ahead.clone(), Arc::default());
    let [first, _] = BUFFERS;
    world.record(first, ANY, barrier(first));
    world.run(&[submit(&[batch_of(&[first])], NO_FENCE)]);
    assert_eq!((&**ahead.0.lock(), run()), (&[0][..], 1));
}

#[test]
fn a_failure_breaks_the_journal() {
    let world = Journalled::new();
    world.bound_buffer(BUFFER);
    // The buffer is bound already.
    let (buffer, memory) = (venus::Buffer(BUFFER), venus::DeviceMemory(MEMORY));
    let bind = venus::BindBufferMemory { device: DEVICE, buffer, memory, memory_offset: 0 };
    world.breaks(&Command::BindBufferMemory(bind));
    let context = world.world.renderer.context();
    context.objects.insert_failed(50, ObjectType::BUFFER, MEMORY_RESULT).unwrap();
    let info = venus::BufferViewCreateInfo { buffer: venus::Buffer(50), ..Default::default() };
    let (p_create_info, p_view) = (Some(&info), Some(&venus::BufferView(51)));
    let create = venus::CreateBufferView { device: DEVICE, p_create_info, p_view };
    world.breaks(&Command::CreateBufferView(create));
    // A program learns of a failure with an answer that it waits for.
    context.failures.note(MEMORY_RESULT);
    let ask = Command::GetFenceStatus(venus::GetFenceStatus { device: DEVICE, fence: FENCE });
    world.run(&[ask]);
    assert!(!world.heard.take_break());
    execute(&world.world.renderer, &encoded(&ask, CommandFlagsEXT::GENERATE_REPLY));
    assert!(world.heard.take_break());
}

#[test]
fn results_of_queries_and_events_that_the_gpu_writes_break_the_journal() {
    let world = Journalled::new();
    let [first, second] = BUFFERS;
    let info = venus::QueryPoolCreateInfo {
        query_type: venus::QueryType::TIMESTAMP,
        query_count: 1,
        ..Default::default()
    };
    let (p_create_info, p_query_pool) = (Some(&info), Some(&QUERIES));
    let event = venus::EventCreateInfo::default();
    world.run(&[
        Command::CreateQueryPool(venus::CreateQueryPool { device: DEVICE, p_create_info, p_query_pool }),
        Command::CreateEvent(venus::CreateEvent {
            device: DEVICE,
            p_create_info: Some(&event),
            p_event: Some(&EVENT),
        }),
    ]);
    let (query_pool, first_query, query_count) = (QUERIES, 0, 1);
    let reset = venus::CmdResetQueryPool { command_buffer: first, query_pool, first_query, query_count };
    world.record(first, ANY, Command::CmdResetQueryPool(reset));
    let stage_mask = venus::PipelineStageFlags::ALL_COMMANDS;
    let set = venus::CmdSetEvent { command_buffer: second, event: EVENT, stage_mask };
    world.record(second, ANY, Command::CmdSetEvent(set));
    world.succeed();
    for id in BUFFERS {
        world.breaks(&submit(&[batch_of(&[id])], NO_FENCE));
    }
}

#[test]
fn a_lost_device_breaks_the_journal() {
    let world = Journalled::new();
    let [first, second] = BUFFERS;
    world.world.renderer.context().objects.insert_failed(50, ObjectType::EVENT, MEMORY_RESULT).unwrap();
    let stage_mask = venus::PipelineStageFlags::ALL_COMMANDS;
    let set = venus::CmdSetEvent { command_buffer: first, event: venus::Event(50), stage_mask };
    world.record(first, ANY, Command::CmdSetEvent(set));
    world.record(second, ANY, barrier(second));
    assert!(world.heard.take_break(), "a recording that is spoilt cannot be ended");
    for id in [first, second] {
        world.breaks(&submit(&[batch_of(&[id])], NO_FENCE));
    }
}

#[test]
fn work_of_a_device_that_the_driver_has_lost_is_not_taken_for_complete() {
    let world = Journalled::new();
    let [first, _] = BUFFERS;
    world.record(first, ANY, barrier(first));
    stall();
    world.run(&[submit(&[batch_of(&[first])], FENCE)]);
    assert!(!world.heard.take_break());
    lose_devices();
    world.world.renderer.look(false);
    assert!(world.heard.take_break());
    let saved = world.world.renderer.save(&Prelude::default(), Carry::Copied);
    let refused = saved.map(drop).expect_err("what the guest takes for done is not done");
    assert!(format!("{refused:?}").contains("lost a device"), "{refused:?}");
}

#[test]
fn recordings_that_copy_results_of_queries_break_the_journal() {
    let world = Journalled::new();
    let [first, _] = BUFFERS;
    let info = venus::QueryPoolCreateInfo {
        query_type: venus::QueryType::TIMESTAMP,
        query_count: 1,
        ..Default::default()
    };
    let usage = venus::BufferUsageFlags::TRANSFER_DST;
    let buffer = venus::BufferCreateInfo { size: 4096, usage, ..Default::default() };
    let begin = venus::CommandBufferBeginInfo::default();
    let (memory, memory_offset) = (venus::DeviceMemory(MEMORY), 0);
    world.run(&[
        Command::CreateQueryPool(venus::CreateQueryPool {
            device: DEVICE,
            p_create_info: Some(&info),
            p_query_pool: Some(&QUERIES),
        }),
        Command::CreateBuffer(venus::CreateBuffer {
            device: DEVICE,
            p_create_info: Some(&buffer),
            p_buffer: Some(&venus::Buffer(BUFFER)),
        }),
        Command::BindBufferMemory(venus::BindBufferMemory {
            device: DEVICE,
            buffer: venus::Buffer(BUFFER),
            memory,
            memory_offset,
        }),
        Command::BeginCommandBuffer(venus::BeginCommandBuffer {
            command_buffer: first,
            p_begin_info: Some(&begin),
        }),
    ]);
    world.breaks(&Command::CmdCopyQueryPoolResults(venus::CmdCopyQueryPoolResults {
        command_buffer: first,
        query_pool: QUERIES,
        first_query: 0,
        query_count: 1,
        dst_buffer: venus::Buffer(BUFFER),
        dst_offset: 0,
        stride: 8,
        flags: venus::QueryResultFlags::TYPE_64,
    }));
}

#[test]
fn memory_that_is_shown_breaks_the_journal() {
    let world = Journalled::new();
    let exported = world.world.renderer.export(MEMORY, SIZE, true).unwrap();
    assert!(world.heard.take_break() && exported.file.is_some());
    world.world.renderer.blob_gone(config::MemoryId(1));
    assert!(world.heard.take_break());
}

#[test]
fn a_command_that_is_refused_for_a_submission_that_waits_breaks_the_journal() {
    let world = Journalled::new();
    stall();
    let values = [1];
    let values = venus::TimelineSemaphoreSubmitInfo {
        wait_semaphore_value_count: 1,
        p_wait_semaphore_values: Some(&values),
        ..Default::default()
    };
    let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
    let waits = venus::SubmitInfo {
        p_next: &chain,
        wait_semaphore_count: 1,
        p_wait_semaphores: Some(&[TIMELINE]),
        p_wait_dst_stage_mask: Some(&[venus::PipelineStageFlags::ALL_COMMANDS]),
        ..Default::default()
    };
    world.run(&[submit(&[waits], FENCE)]);
    let (fence_count, p_fences) = (1, Some(&[FENCE][..]));
    world.breaks(&Command::ResetFences(venus::ResetFences { device: DEVICE, fence_count, p_fences }));
    release();
}

#[test]
fn a_journal_that_makes_no_sense_ends_the_context() {
    let world = Journalled::new();
    let (buffer, memory) = (venus::Buffer(BUFFER), venus::DeviceMemory(MEMORY));
    let free = Command::FreeMemory(venus::FreeMemory { device: DEVICE, memory });
    let bind = venus::BindBufferMemory { device: DEVICE, buffer, memory, memory_offset: 0 };
    let bind = encoded(&Command::BindBufferMemory(bind), CommandFlagsEXT(0));
    let create = world.create_buffer(BUFFER);
    let none = [batch_of(&BUFFERS)];
    let journals: [(&[&[u8]], &str); 6] = [
        (&[&[0xff; 16]], "command"),
        (&[&create[..create.len() - 4]], "vkCreateBuffer"),
        (&[&encoded(&free, CommandFlagsEXT(0))], "breaks a journal"),
        (&[&create, &bind, &bind], "has failed"),
        (&[&bind], "does not exist"),
        (&[&encoded(&submit(&none, NO_FENCE), CommandFlagsEXT(0))], "not executable"),
    ];
    for (journal, reason) in journals {
        let lost = world.rebuilt().replay(journal).unwrap_err();
        assert!(lost.to_string().contains(reason), "{lost}");
    }
    // A command that changes nothing is skipped, whatever it names.
    let ask = Command::GetFenceStatus(venus::GetFenceStatus { device: DEVICE, fence: venus::Fence(99) });
    let ask = encoded(&ask, CommandFlagsEXT::GENERATE_REPLY);
    assert_eq!(world.rebuilt().replay(&[&[&ask[..], &create, &ask].concat(), &[], &bind]), Ok(()));
    // A reply stream may have room for more results than a decoder takes by default.
    let (room, flags) = (vec![0; 2 << 20], venus::QueryResultFlags(0));
    let results = venus::GetQueryPoolResults {
        device: DEVICE,
        query_pool: QUERIES,
        first_query: 0,
        query_count: 1,
        data_size: room.len() as u64,
        p_data: Some(&room),
        stride: 8,
        flags,
    };
    let results = encoded(&Command::GetQueryPoolResults(results), CommandFlagsEXT::GENERATE_REPLY);
    assert_eq!(world.rebuilt().replay(&[&results]), Ok(()));
}
