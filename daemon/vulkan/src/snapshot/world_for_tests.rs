//! Two contexts on the null driver, for tests of the contents of objects. The second context is built up like the first.

use super::step::Step;
use crate::execution::context::Context;
use crate::null::{self, NoResources};
use crate::{Cancel, Renderer};
use config::ContextLimits;
use protocol::cursor::{Arena, Reader, Writer};
use protocol::venus::generated::{self as venus, Command, CommandFlagsEXT};
use protocol::venus::stream::Header;
use std::sync::Arc;

pub(super) const DEVICE: venus::Device = venus::Device(3);
pub(super) const COMMAND_POOL: venus::CommandPool = venus::CommandPool(4);
/// Primary command buffers.
pub(super) const PRIMARIES: [venus::CommandBuffer; 3] =
    [venus::CommandBuffer(5), venus::CommandBuffer(6), venus::CommandBuffer(7)];
pub(super) const SECONDARY: venus::CommandBuffer = venus::CommandBuffer(8);
pub(super) const QUEUE: venus::Queue = venus::Queue(9);

/// A context with a device, a queue and command buffers.
pub(super) struct World {
    pub(super) renderer: Renderer,
}

impl World {
    /// Creates two contexts; nothing fails in them. The contexts end before the driver is released.
    pub(super) fn two() -> (null::Exclusive, Self, Self) {
        Self::two_within(null::LIMITS)
    }

    pub(super) fn two_within(limits: ContextLimits) -> (null::Exclusive, Self, Self) {
        let exclusive = null::begin_reliable();
        (exclusive, Self::new(limits), Self::new(limits))
    }

    fn new(limits: ContextLimits) -> Self {
        let world = Self { renderer: null::renderer_within(limits, Arc::new(NoResources)) };
        let (instance, gpu) = (venus::Instance(1), venus::PhysicalDevice(2));
        let info = venus::InstanceCreateInfo::default();
        let queue = venus::DeviceQueueCreateInfo {
            queue_count: 1,
            p_queue_priorities: Some(&[1.0]),
            ..Default::default()
        };
        let device = venus::DeviceCreateInfo {
            queue_create_info_count: 1,
            p_queue_create_infos: Some(std::slice::from_ref(&queue)),
            ..Default::default()
        };
        let timeline = venus::DeviceQueueTimelineInfoMESA { ring_idx: 1, ..Default::default() };
        let chain = [venus::ChainStruct::DeviceQueueTimelineInfoMESA(&timeline)];
        let primaries = venus::CommandBufferAllocateInfo {
            command_pool: COMMAND_POOL,
            command_buffer_count: PRIMARIES.len() as u32,
            ..Default::default()
        };
        let secondary = venus::CommandBufferAllocateInfo {
            level: venus::CommandBufferLevel::SECONDARY,
            command_buffer_count: 1,
            ..primaries
        };
        let allocate = |info, ids| {
            let (p_allocate_info, p_command_buffers) = (Some(info), Some(ids));
            Command::AllocateCommandBuffers(venus::AllocateCommandBuffers {
                device: DEVICE,
                p_allocate_info,
                p_command_buffers,
            })
        };
        world.run(&[
            Command::CreateInstance(venus::CreateInstance {
                p_create_info: Some(&info),
                p_instance: Some(&instance),
            }),
            Command::EnumeratePhysicalDevices(venus::EnumeratePhysicalDevices {
                instance,
                p_physical_device_count: Some(&1),
                p_physical_devices: Some(&[gpu]),
            }),
            Command::CreateDevice(venus::CreateDevice {
                physical_device: gpu,
                p_create_info: Some(&device),
                p_device: Some(&DEVICE),
            }),
            Command::GetDeviceQueue2(venus::GetDeviceQueue2 {
                device: DEVICE,
                p_queue_info: Some(&venus::DeviceQueueInfo2 { p_next: &chain, ..Default::default() }),
                p_queue: Some(&QUEUE),
            }),
            Command::CreateCommandPool(venus::CreateCommandPool {
                device: DEVICE,
                p_create_info: Some(&venus::CommandPoolCreateInfo::default()),
                p_command_pool: Some(&COMMAND_POOL),
            }),
            allocate(&primaries, &PRIMARIES),
            allocate(&secondary, &[SECONDARY]),
        ]);
        world
    }

    pub(super) fn context(&self) -> &Context {
        self.renderer.context()
    }

    /// Executes commands as a ring does.
    pub(super) fn run(&self, commands: &[Command<'_>]) {
        self.run_bytes(&stream(commands, CommandFlagsEXT(0)));
    }

    /// Executes commands that want replies, one by one.
    pub(super) fn run_heard(&self, commands: &[Command<'_>]) {
        self.run_bytes(&stream(commands, CommandFlagsEXT::GENERATE_REPLY));
    }

    pub(super) fn run_bytes(&self, mut bytes: &[u8]) {
        let (mut arena, cancel) = (Arena::new(1 << 20), Cancel::default());
        while !bytes.is_empty() {
            let length = match self.renderer.record(bytes, &mut arena, &cancel).unwrap() {
                0 => self.execute(bytes, &arena).0,
                length => length,
            };
            bytes = &bytes[length..];
            arena.reset();
        }
    }

    /// Executes the first command by itself; returns its length and its reply.
    pub(super) fn execute(&self, bytes: &[u8], arena: &Arena) -> (usize, Vec<u8>) {
        let mut reader = Reader::new(bytes, arena);
        let header = Header::decode(&mut reader).unwrap();
        let command = Command::decode(header.number, &mut reader).unwrap();
        let length = reader.offset();
        let mut reply = vec![0; 4096];
        let mut writer = Writer::window(&mut reply);
        let wanted = header.wants_reply().then_some(&mut writer);
        self.renderer.execute(&command, &bytes[..length], arena, &Cancel::default(), wanted).unwrap();
        (length, reply)
    }

    /// Executes the commands among steps.
    pub(super) fn replay(&self, steps: &[Step]) {
        for step in steps {
            if let Step::Commands(commands) = step {
                self.run_bytes(commands);
            }
        }
    }

    /// Submits a command buffer.
    pub(super) fn submit(&self, command_buffer: venus::CommandBuffer) {
        let batch = venus::SubmitInfo {
            command_buffer_count: 1,
            p_command_buffers: Some(std::slice::from_ref(&command_buffer)),
            ..Default::default()
        };
        let (submit_count, p_submits) = (1, Some(std::slice::from_ref(&batch)));
        self.run(&[Command::QueueSubmit(venus::QueueSubmit {
            queue: QUEUE,
            submit_count,
            p_submits,
            fence: venus::Fence(0),
        })]);
    }

    /// Creates a buffer with memory of its own.
    pub(super) fn create_buffer(&self, buffer: venus::Buffer) {
        let usage = venus::BufferUsageFlags::STORAGE_BUFFER;
        let info = venus::BufferCreateInfo { size: 4096, usage, ..Default::default() };
        let memory = venus::DeviceMemory(1000 + buffer.0);
        let allocation = venus::MemoryAllocateInfo { allocation_size: 4096, ..Default::default() };
        self.run(&[
            Command::CreateBuffer(venus::CreateBuffer {
                device: DEVICE,
                p_create_info: Some(&info),
                p_buffer: Some(&buffer),
            }),
            Command::AllocateMemory(venus::AllocateMemory {
                device: DEVICE,
                p_allocate_info: Some(&allocation),
                p_memory: Some(&memory),
            }),
            Command::BindBufferMemory(venus::BindBufferMemory {
                device: DEVICE,
                buffer,
                memory,
                memory_offset: 0,
            }),
        ]);
    }

    pub(super) fn destroy_buffer(&self, buffer: venus::Buffer) {
        self.run(&[Command::DestroyBuffer(venus::DestroyBuffer { device: DEVICE, buffer })]);
    }
}

/// Encodes commands.
pub(super) fn stream(commands: &[Command<'_>], flags: CommandFlagsEXT) -> Vec<u8> {
    let mut writer = Writer::growing();
    commands.iter().for_each(|command| command.encode(flags, &mut writer));
    writer.into_bytes()
}

pub(super) fn begin(
    command_buffer: venus::CommandBuffer,
    flags: venus::CommandBufferUsageFlags,
    run: impl FnOnce(&[Command<'_>]),
) {
    let inheritance = venus::CommandBufferInheritanceInfo::default();
    let p_inheritance_info = (command_buffer == SECONDARY).then_some(&inheritance);
    let info = venus::CommandBufferBeginInfo { p_next: &[], flags, p_inheritance_info };
    run(&[Command::BeginCommandBuffer(venus::BeginCommandBuffer {
        command_buffer,
        p_begin_info: Some(&info),
    })]);
}

pub(super) fn end(command_buffer: venus::CommandBuffer) -> Command<'static> {
    Command::EndCommandBuffer(venus::EndCommandBuffer { command_buffer })
}
