//! A program whose thread uses Vulkan, and ends after the loader has unloaded the driver with the last instance.
//!
//! The program calls Vulkan as any application does, which is why this file holds `unsafe`: every handle is made and destroyed in it.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use anyhow::{Context, Result, ensure};
use ash::vk;
use std::fs;
use std::sync::mpsc::sync_channel;
use std::thread;

/// The word by which the driver's library is found among the mappings of this process.
const DRIVER: &str = "libvulkan_virtio";

fn main() -> Result<()> {
    let (done, wait_for_use) = sync_channel(0);
    let (unloaded, wait_for_end) = sync_channel::<()>(0);
    let user = thread::spawn(move || -> Result<()> {
        done.send(use_vulkan())?;
        Ok(wait_for_end.recv()?)
    });
    wait_for_use.recv()??;
    ensure!(!is_loaded()?, "the driver is still loaded");
    unloaded.send(())?;
    user.join().ok().context("the thread panicked")??;
    println!("the thread has ended");
    Ok(())
}

/// Makes a device and its objects, and destroys all of them.
fn use_vulkan() -> Result<()> {
    let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
    // SAFETY: the library is a Vulkan loader; every info lives until its call returns; handles are of this instance, and nothing uses them when they
    // are destroyed.
    unsafe {
        let entry = ash::Entry::load()?;
        let instance = entry.create_instance(&vk::InstanceCreateInfo::default(), None)?;
        let physical = *instance.enumerate_physical_devices()?.first().context("no device")?;
        ensure!(is_loaded()?, "{DRIVER} is not loaded");
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        let device = instance.create_device(physical, &info, None)?;
        device.destroy_device(None);
        instance.destroy_instance(None);
    }
    Ok(())
}

/// Returns whether the driver's library is mapped.
fn is_loaded() -> Result<bool> {
    Ok(fs::read_to_string("/proc/self/maps")?.contains(DRIVER))
}
