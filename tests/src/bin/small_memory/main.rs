//! A guest program that takes many small pieces of memory that can be mapped, each with a buffer, and has the device fill them. With the word
//! `limited`, it also checks that as much memory can be allocated in the end as in the beginning.
//!
//! The program runs inside a test guest, where each mapping of the device's window is a line in `/proc/self/maps`. It calls Vulkan as any application
//! does, which is why this file holds `unsafe`: every handle is made and destroyed in it, every pointer comes from `vkMapMemory`.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use anyhow::{Context, Result, ensure};
use ash::vk;
use std::fs;

/// Bytes of each piece in the first part.
const PAGE: u64 = 4096;

/// Bytes of pieces in the second part, in which pieces come and go: below a page, several pages, no multiple of a page, and more than drivers share.
const SIZES: [u64; 6] = [256, PAGE, 3 * PAGE, 65_536, 20_000, 100_000];

/// Pieces that live at a time in the second part.
const LIVING: usize = 300;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let wanted: usize = arguments.next().context("how many?")?.parse()?;
    let is_limited = arguments.next().is_some_and(|word| word == "limited");
    let gpu = Gpu::open()?;
    // The driver allocates the memory that it keeps for waits here, before the room is measured.
    gpu.fill(&mut [])?;
    let room = if is_limited { gpu.room()? } else { 0 };
    let mappings = gpu.many(wanted)?;
    println!("{wanted} pieces of {PAGE} bytes in {mappings} mappings of a render node");
    gpu.come_and_go(wanted)?;
    println!("pieces came and went");
    if is_limited {
        let now = gpu.room()?;
        ensure!(now == room, "there was room for {room} MiB, and now for {now}");
    }
    gpu.close();
    Ok(())
}

/// A device with one queue.
struct Gpu {
    _entry: ash::Entry,
    instance: ash::Instance,
    device: ash::Device,
    queue: vk::Queue,
    commands: vk::CommandBuffer,
    pool: vk::CommandPool,
    visible: vk::MemoryPropertyFlags,
    types: Vec<vk::MemoryType>,
}

/// Memory that is mapped, with a buffer of its size.
struct Piece {
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    at: *mut u32,
    bytes: u64,
    value: u32,
}

impl Gpu {
    fn open() -> Result<Self> {
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
        // SAFETY: the loader is the guest's own; every info lives until its call returns; handles are of this instance.
        unsafe {
            let entry = ash::Entry::load()?;
            let instance = entry.create_instance(&info, None)?;
            let physical = *instance.enumerate_physical_devices()?.first().context("no device")?;
            let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
            let device = instance.create_device(physical, &info, None)?;
            let types = instance.get_physical_device_memory_properties(physical);
            let flags = vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER;
            let pool =
                device.create_command_pool(&vk::CommandPoolCreateInfo::default().flags(flags), None)?;
            let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
            let commands = device.allocate_command_buffers(&info)?[0];
            Ok(Self {
                _entry: entry,
                queue: device.get_device_queue(0, 0),
                instance,
                device,
                commands,
                pool,
                visible: vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT,
                types: types.memory_types_as_slice().to_vec(),
            })
        }
    }

    /// Takes as many pieces as wanted at once, and returns how many mappings of a render node they need.
    fn many(&self, wanted: usize) -> Result<usize> {
        let take = |value| self.piece(PAGE, value as u32).with_context(|| format!("piece {value}"));
        let mut pieces = (0..wanted).map(take).collect::<Result<Vec<_>>>()?;
        let maps = fs::read_to_string("/proc/self/maps")?;
        let mappings = maps.lines().filter(|line| line.contains("/dev/dri/renderD")).count();
        self.fill(&mut pieces)?;
        pieces.into_iter().for_each(|piece| self.free(piece));
        Ok(mappings)
    }

    /// Takes pieces of several sizes, and frees the oldest pieces, or those of half that age.
    fn come_and_go(&self, wanted: usize) -> Result<()> {
        let mut pieces = Vec::new();
        for value in 0..wanted {
            let bytes = SIZES[(value * value / 7) % SIZES.len()];
            pieces.push(self.piece(bytes, value as u32).with_context(|| format!("{bytes} bytes"))?);
            if pieces.len() > LIVING {
                let gone = if value % 3 == 0 { LIVING / 2 } else { 0 };
                self.free(pieces.remove(gone));
            }
            if value % LIVING == 0 {
                self.fill(&mut pieces)?;
            }
        }
        self.fill(&mut pieces)?;
        pieces.into_iter().for_each(|piece| self.free(piece));
        Ok(())
    }

    /// Returns how many MiB can be allocated of the memory type of pieces.
    fn room(&self) -> Result<usize> {
        let ty = self.types.iter().position(|ty| ty.property_flags.contains(self.visible));
        let info = vk::MemoryAllocateInfo::default().allocation_size(1 << 20);
        let info = info.memory_type_index(ty.context("no memory that can be mapped")? as u32);
        // SAFETY: the device is live.
        let take = || unsafe { self.device.allocate_memory(&info, None) };
        let taken: Vec<_> = std::iter::from_fn(|| take().ok()).collect();
        // SAFETY: the memory was taken above, and is in no use.
        taken.iter().for_each(|memory| unsafe { self.device.free_memory(*memory, None) });
        Ok(taken.len())
    }

    /// Takes mapped memory of its own for a new buffer, and writes `value` to its first and last word.
    fn piece(&self, bytes: u64, value: u32) -> Result<Piece> {
        let info = vk::BufferCreateInfo::default().size(bytes).usage(vk::BufferUsageFlags::TRANSFER_DST);
        // SAFETY: the device is live, every info lives until its call returns, buffer and memory are new; the mapping is at least `bytes` long.
        unsafe {
            let buffer = self.device.create_buffer(&info, None)?;
            let needs = self.device.get_buffer_memory_requirements(buffer);
            let fits = |&(place, ty): &(usize, &vk::MemoryType)| {
                needs.memory_type_bits & (1 << place) != 0 && ty.property_flags.contains(self.visible)
            };
            let (ty, _) = self.types.iter().enumerate().find(fits).context("no memory that can be mapped")?;
            let info = vk::MemoryAllocateInfo::default();
            let info = info.allocation_size(needs.size).memory_type_index(ty as u32);
            let memory = self.device.allocate_memory(&info, None)?;
            let at = self.device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())?;
            let piece = Piece { buffer, memory, at: at.cast(), bytes, value };
            for word in piece.ends() {
                ensure!(word.read_volatile() == 0, "new memory of {bytes} bytes is not zero");
                word.write_volatile(value);
            }
            self.device.bind_buffer_memory(buffer, memory, 0)?;
            Ok(piece)
        }
    }

    /// Checks that each piece still has its value, and has the device fill it with another.
    fn fill(&self, pieces: &mut [Piece]) -> Result<()> {
        pieces.iter().try_for_each(Piece::check)?;
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let commands = [self.commands];
        let submit = [vk::SubmitInfo::default().command_buffers(&commands)];
        // SAFETY: the commands are not pending; all that they use lives until the queue is idle.
        unsafe {
            self.device.begin_command_buffer(self.commands, &begin)?;
            for piece in &mut *pieces {
                piece.value = !piece.value;
                self.device.cmd_fill_buffer(self.commands, piece.buffer, 0, piece.bytes, piece.value);
            }
            let barrier = [vk::MemoryBarrier::default()
                .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
                .dst_access_mask(vk::AccessFlags::HOST_READ)];
            let (copies, host) = (vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::HOST);
            let flags = vk::DependencyFlags::empty();
            self.device.cmd_pipeline_barrier(self.commands, copies, host, flags, &barrier, &[], &[]);
            self.device.end_command_buffer(self.commands)?;
            self.device.queue_submit(self.queue, &submit, vk::Fence::null())?;
            self.device.queue_wait_idle(self.queue)?;
        }
        pieces.iter().try_for_each(Piece::check)
    }

    fn free(&self, piece: Piece) {
        // SAFETY: nothing uses the piece any more; freeing unmaps its memory.
        unsafe {
            self.device.destroy_buffer(piece.buffer, None);
            self.device.free_memory(piece.memory, None);
        }
    }

    fn close(self) {
        // SAFETY: all that was made of them is gone.
        unsafe {
            self.device.destroy_command_pool(self.pool, None);
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

impl Piece {
    /// Returns the first and the last word.
    fn ends(&self) -> [*mut u32; 2] {
        [self.at, self.at.wrapping_add((self.bytes / 4 - 1) as usize)]
    }

    /// Fails if the first or the last word is not the piece's value.
    fn check(&self) -> Result<()> {
        for word in self.ends() {
            // SAFETY: the word lies in the mapping, and no submission is pending.
            let found = unsafe { word.read_volatile() };
            ensure!(found == self.value, "{} bytes hold {found} in the place of {}", self.bytes, self.value);
        }
        Ok(())
    }
}
