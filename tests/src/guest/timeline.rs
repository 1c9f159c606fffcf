//! Submissions that wait for a value of a timeline semaphore, which the test signals later.

use super::device::Device;
use super::gpu::Gpu;
use super::ring::{ASYNC, REPLY, Ring};
use anyhow::Result;
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;
use std::sync::Arc;

/// A device that has timelines.
///
/// # Errors
/// The device cannot be made.
pub fn device(gpu: &Arc<Gpu>, name: &str) -> Result<Device> {
    let features =
        venus::PhysicalDeviceTimelineSemaphoreFeatures { timeline_semaphore: 1, ..Default::default() };
    Device::create_with(gpu, name, &[ChainStruct::PhysicalDeviceTimelineSemaphoreFeatures(&features)])
}

/// A timeline semaphore that is 0.
fn semaphore(guest: &mut Device) -> Result<venus::Semaphore> {
    let (device, semaphore) = (guest.device, venus::Semaphore(guest.new_id()));
    let ty = venus::SemaphoreTypeCreateInfo {
        semaphore_type: venus::SemaphoreType::TIMELINE,
        ..Default::default()
    };
    let chain = [ChainStruct::SemaphoreTypeCreateInfo(&ty)];
    let info = venus::SemaphoreCreateInfo { p_next: &chain, ..Default::default() };
    guest.call(|w| {
        venus::CreateSemaphore { device, p_create_info: Some(&info), p_semaphore: Some(&semaphore) }
            .encode(REPLY, w);
    })?;
    Ok(semaphore)
}

/// A timeline semaphore that is 0, and a submission that waits until it is 1.
///
/// # Errors
/// The device refuses it.
pub fn wait_before_signal(guest: &mut Device) -> Result<venus::Semaphore> {
    let (queue, semaphore) = (guest.queue, semaphore(guest)?);
    let values = venus::TimelineSemaphoreSubmitInfo {
        wait_semaphore_value_count: 1,
        p_wait_semaphore_values: Some(&[1]),
        ..Default::default()
    };
    let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
    let submit = venus::SubmitInfo {
        p_next: &chain,
        wait_semaphore_count: 1,
        p_wait_semaphores: Some(&[semaphore]),
        p_wait_dst_stage_mask: Some(&[venus::PipelineStageFlags::ALL_COMMANDS]),
        ..Default::default()
    };
    guest.call(|w| {
        let p_submits = Some(std::slice::from_ref(&submit));
        venus::QueueSubmit { queue, submit_count: 1, p_submits, fence: venus::Fence(0) }.encode(REPLY, w);
    })?;
    Ok(semaphore)
}

/// Makes a semaphore with the value 0, and has the device's ring wait until it is 1.
///
/// # Errors
/// The device refuses it.
pub fn wait_on_ring(guest: &mut Device) -> Result<venus::Semaphore> {
    let (device, semaphore) = (guest.device, semaphore(guest)?);
    let info = venus::SemaphoreWaitInfo {
        semaphore_count: 1,
        p_semaphores: Some(&[semaphore]),
        p_values: Some(&[1]),
        ..Default::default()
    };
    let wait = venus::WaitSemaphores { device, p_wait_info: Some(&info), timeout: u64::MAX };
    guest.ring.command(|w| wait.encode(ASYNC, w))?;
    Ok(semaphore)
}

/// Signals the semaphore of [`wait_on_ring`] by another ring.
///
/// # Errors
/// There is no room in the ring.
pub fn signal_by(ring: &mut Ring, device: venus::Device, semaphore: venus::Semaphore) -> Result<()> {
    let info = venus::SemaphoreSignalInfo { semaphore, value: 1, ..Default::default() };
    let signal = venus::SignalSemaphore { device, p_signal_info: Some(&info) };
    ring.command(|w| signal.encode(ASYNC, w)).map(drop)
}

/// Signals the semaphore that [`wait_before_signal`] made.
///
/// # Errors
/// The device refuses it.
pub fn signal(guest: &mut Device, semaphore: venus::Semaphore) -> Result<()> {
    let device = guest.device;
    let info = venus::SemaphoreSignalInfo { semaphore, value: 1, ..Default::default() };
    guest.call(|w| venus::SignalSemaphore { device, p_signal_info: Some(&info) }.encode(REPLY, w))
}
