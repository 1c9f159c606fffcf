//! A guest program: maps as many pieces of device memory as it is told, and checks which it gets.
//!
//! Runs inside a test guest, where each mapping is a blob in the device's window. It calls Vulkan as any application does, which is
//! why this file holds `unsafe`: every handle is made and destroyed in it, every pointer comes from `vkMapMemory`.

#![allow(unsafe_code, reason = "an application's calls into Vulkan")]

use anyhow::{Context, Result, ensure};
use ash::vk;

const BYTES: u64 = 64 * 1024;

fn main() -> Result<()> {
    let wanted: u32 = std::env::args().nth(1).context("how many?")?.parse()?;
    // SAFETY: the loader is the guest's own.
    let entry = unsafe { ash::Entry::load() }?;
    let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
    let info = vk::InstanceCreateInfo::default().application_info(&application);
    // SAFETY: `info` lives until the call returns.
    let instance = unsafe { entry.create_instance(&info, None) }?;
    // SAFETY: the instance is live.
    let physical = *unsafe { instance.enumerate_physical_devices() }?.first().context("no device")?;
    let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
    let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
    // SAFETY: the physical device is live, `info` lives until the call returns.
    let device = unsafe { instance.create_device(physical, &info, None) }?;
    // SAFETY: the physical device is live.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    let visible = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
    let ty = memory.memory_types_as_slice().iter().position(|ty| ty.property_flags.contains(visible));
    let ty = ty.context("no host-visible memory")? as u32;

    let first = map_many(&device, ty, wanted)?;
    println!("mapped {first} of {wanted}");
    ensure!(first < wanted, "nothing limits the number of blobs");
    let again = map_many(&device, ty, 10)?;
    println!("mapped {again} of 10 afterwards");
    ensure!(again == 10, "the window did not come back");
    // SAFETY: all memory was freed, and the device has no other objects.
    unsafe { device.destroy_device(None) };
    // SAFETY: the device is gone.
    unsafe { instance.destroy_instance(None) };
    Ok(())
}

/// Allocates and maps `count` times, checks that no two mappings share a page, and frees everything. Returns the number of successful allocations.
fn map_many(device: &ash::Device, ty: u32, count: u32) -> Result<u32> {
    let mut mapped = Vec::new();
    for number in 0..count {
        let info = vk::MemoryAllocateInfo::default().allocation_size(BYTES).memory_type_index(ty);
        // SAFETY: the device is live.
        let Ok(memory) = (unsafe { device.allocate_memory(&info, None) }) else { break };
        // SAFETY: the memory is live, host-visible and not mapped.
        match unsafe { device.map_memory(memory, 0, BYTES, vk::MemoryMapFlags::empty()) } {
            Ok(at) => {
                let at = at.cast::<u32>();
                // The first access, which has to reach the memory (`tests/README.md`).
                // SAFETY: the mapping is `BYTES` long and aligned to a page.
                unsafe { at.write_volatile(number + 1) };
                mapped.push((memory, at));
            }
            Err(error) => {
                println!("mapping {number} was refused: {error}");
                // SAFETY: the memory is live and in no use.
                unsafe { device.free_memory(memory, None) };
                break;
            }
        }
    }
    for (number, (memory, at)) in mapped.iter().enumerate() {
        // SAFETY: as above, and still mapped.
        let found = unsafe { at.read_volatile() };
        ensure!(found == number as u32 + 1, "mapping {number} holds {found}, not the word written first");
        // SAFETY: the memory is live and in no other use; freeing unmaps it.
        unsafe { device.free_memory(*memory, None) };
    }
    Ok(mapped.len() as u32)
}
