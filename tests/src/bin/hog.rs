//! A client that takes all that it can get of one kind of resource, prints the amount, and keeps it until its standard input ends.
//!
//! The program calls Vulkan as any application does, which is why this file holds `unsafe`: every handle is made in it and dies with the process,
//! every pointer lives until its call returns. The program ends by itself, with success, whatever the device answers.

#![allow(unsafe_code, reason = "an application's calls into Vulkan")]

use anyhow::{Context, Result};
use ash::vk;
use std::cell::RefCell;
use std::io::{Read, Write};

const MIB: u64 = 1 << 20;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().context("what?")?;
    let most: u32 = arguments.next().context("how many?")?.parse()?;
    let device = Device::open()?;
    let (got, error) = match kind.as_str() {
        "memory" => device.take(most, |device| device.memory(MIB).and_then(|memory| device.map(memory))),
        "allocations" => device.take(most, |device| device.memory(MIB).map(drop)),
        "freed" => device.take_and_free(most),
        "maps" => device.take(most, |device| device.memory(4096).and_then(|memory| device.map(memory))),
        "objects" => device.take(most, Device::event),
        "shaders" => device.take(most, Device::shader),
        "work" => device.take(most, Device::work),
        other => anyhow::bail!("{other} is nothing to take"),
    };
    let (used, most) = device.budget();
    println!("uses {used} of {most} MiB");
    let ending = error.map_or_else(|| "no limit".into(), |error| format!("{error:?}"));
    println!("got {got} of {kind}: {ending}");
    std::io::stdout().flush()?;
    // The process keeps everything meanwhile.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Device {
    device: ash::Device,
    queue: vk::Queue,
    commands: vk::CommandPool,
    visible: u32,
    physical: vk::PhysicalDevice,
    instance: ash::Instance,
    _entry: ash::Entry,
}

impl Device {
    fn open() -> Result<Self> {
        // SAFETY: the library is a Vulkan loader.
        let entry = unsafe { ash::Entry::load() }?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: `info` lives until the call returns, here and below.
        let instance = unsafe { entry.create_instance(&info, None) }?;
        // SAFETY: the instance is live.
        let physical = *unsafe { instance.enumerate_physical_devices() }?.first().context("no device")?;
        let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        // SAFETY: the physical device is live.
        let device = unsafe { instance.create_device(physical, &info, None) }?;
        // SAFETY: as above.
        let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
        let flags = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let visible = memory.memory_types_as_slice().iter().position(|ty| ty.property_flags.contains(flags));
        let heaps = memory.memory_heaps_as_slice().iter().map(|heap| heap.size / MIB);
        println!("heaps of {:?} MiB", heaps.collect::<Vec<_>>());
        // SAFETY: the device is live and has this queue.
        let queue = unsafe { device.get_device_queue(0, 0) };
        // SAFETY: the device is live.
        let commands = unsafe { device.create_command_pool(&vk::CommandPoolCreateInfo::default(), None) }?;
        let visible = visible.context("no host-visible memory")? as u32;
        Ok(Self { device, queue, commands, visible, physical, instance, _entry: entry })
    }

    /// Returns the use and the budget of the first heap, in MiB; 0 without `VK_EXT_memory_budget`.
    fn budget(&self) -> (u64, u64) {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the physical device is live, and the structures live until the call returns.
        unsafe { self.instance.get_physical_device_memory_properties2(self.physical, &mut properties) };
        (budget.heap_usage[0] / MIB, budget.heap_budget[0] / MIB)
    }

    /// Takes until the device refuses, at most `most` times.
    fn take(&self, most: u32, one: impl Fn(&Self) -> Result<(), vk::Result>) -> (u32, Option<vk::Result>) {
        for got in 0..most {
            if let Err(error) = one(self) {
                return (got, Some(error));
            }
        }
        (most, None)
    }

    /// Takes memory, and frees all of it.
    fn take_and_free(&self, most: u32) -> (u32, Option<vk::Result>) {
        let taken = RefCell::new(Vec::new());
        let got = self.take(most, |device| device.memory(MIB).map(|memory| taken.borrow_mut().push(memory)));
        for memory in taken.into_inner() {
            // SAFETY: the memory is live, and nothing uses it.
            unsafe { self.device.free_memory(memory, None) };
        }
        got
    }

    fn memory(&self, bytes: u64) -> Result<vk::DeviceMemory, vk::Result> {
        let info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(self.visible);
        // SAFETY: the device is live.
        unsafe { self.device.allocate_memory(&info, None) }
    }

    fn map(&self, memory: vk::DeviceMemory) -> Result<(), vk::Result> {
        // SAFETY: the memory is live, host-visible and not mapped.
        unsafe { self.device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }.map(drop)
    }

    fn event(&self) -> Result<(), vk::Result> {
        // SAFETY: the device is live.
        unsafe { self.device.create_event(&vk::EventCreateInfo::default(), None) }?;
        // A creation does not wait for the host's answer; the mapping of memory does.
        self.hear()
    }

    /// A shader of a quarter MiB, nearly all of it names.
    fn shader(&self) -> Result<(), vk::Result> {
        let mut words = vec![0x0723_0203, 0x0001_0000, 0, 1, 0];
        words.extend([2 << 16 | 17, 1, 3 << 16 | 14, 0, 1]);
        words.extend(std::iter::repeat_n([2 << 16 | 4, 0], 32 << 10).flatten());
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: the device is live, and the code is a module.
        unsafe { self.device.create_shader_module(&info, None) }?;
        self.hear()
    }

    /// Makes a call that waits for an answer: it maps memory.
    fn hear(&self) -> Result<(), vk::Result> {
        let memory = self.memory(4096)?;
        let heard = self.map(memory);
        // SAFETY: the memory is in no use; freeing unmaps it.
        unsafe { self.device.free_memory(memory, None) };
        heard
    }

    /// Submits work on memory of its own, which is never mapped and stays allocated.
    fn work(&self) -> Result<(), vk::Result> {
        let memory = self.memory(MIB)?;
        let info = vk::BufferCreateInfo::default().size(MIB).usage(vk::BufferUsageFlags::TRANSFER_DST);
        // SAFETY: the device is live, here and below, and so are its objects.
        let buffer = unsafe { self.device.create_buffer(&info, None) }?;
        // SAFETY: as above.
        unsafe { self.device.bind_buffer_memory(buffer, memory, 0) }?;
        let info =
            vk::CommandBufferAllocateInfo::default().command_pool(self.commands).command_buffer_count(1);
        // SAFETY: as above.
        let commands = unsafe { self.device.allocate_command_buffers(&info) }?;
        // SAFETY: as above.
        unsafe { self.device.begin_command_buffer(commands[0], &vk::CommandBufferBeginInfo::default()) }?;
        // SAFETY: as above.
        unsafe { self.device.cmd_fill_buffer(commands[0], buffer, 0, MIB, 7) };
        // SAFETY: as above.
        unsafe { self.device.end_command_buffer(commands[0]) }?;
        // SAFETY: as above.
        let fence = unsafe { self.device.create_fence(&vk::FenceCreateInfo::default(), None) }?;
        let submits = [vk::SubmitInfo::default().command_buffers(&commands)];
        // SAFETY: as above.
        unsafe { self.device.queue_submit(self.queue, &submits, fence) }?;
        // SAFETY: as above.
        unsafe { self.device.wait_for_fences(&[fence], true, u64::MAX) }
    }
}
