//! `VkQueue`: submission under one lock, and fences of the guest's kernel that wait for what was submitted.

use super::call::Call;
use super::cancel::Cancel;
use super::command_pool::Recording;
use super::device::Device;
use super::error::{ContextLost, Fault};
use super::objects::{State, Table};
use ash::vk::{self, Handle as _};
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// Longest single wait inside the driver, in nanoseconds; waits are made of such slices so that they can be cancelled.
pub const WAIT_SLICE_NS: u64 = 100_000_000;

/// Called once the queue has completed what was submitted before.
pub type Done = Box<dyn FnOnce() + Send>;

/// A queue of a guest's device.
#[derive(Debug)]
pub struct Queue {
    /// The host's handle, used under the lock only (Vulkan 3.6: queues are externally synchronised).
    handle: Mutex<vk::Queue>,
    /// Fence timeline it is bound to.
    pub ring_idx: u8,
    /// Weak because the device owns its queues.
    device: Weak<Device>,
    waiter: Mutex<Option<Waiter>>,
}

/// The thread that waits for fences of one queue in order.
#[derive(Debug)]
struct Waiter {
    fences: Sender<Pending>,
    thread: JoinHandle<()>,
}

struct Pending {
    fence: vk::Fence,
    done: Done,
}

impl Queue {
    /// Wraps a queue the driver handed out.
    pub fn new(device: &Arc<Device>, handle: vk::Queue, ring_idx: u8) -> Arc<Self> {
        Arc::new(Self {
            handle: Mutex::new(handle),
            ring_idx,
            device: Arc::downgrade(device),
            waiter: Mutex::new(None),
        })
    }

    /// Calls `submit` with the host's handle, alone.
    pub fn with<T>(&self, submit: impl FnOnce(vk::Queue) -> T) -> T {
        submit(*self.handle.lock())
    }

    /// Calls `done` when everything submitted so far has completed, from the queue's waiter thread, in order; at once if the
    /// device is gone or lost.
    pub fn fence(&self, done: Done) {
        let Some(device) = self.device.upgrade() else { return done() };
        let fence = match self.submit_fence(&device) {
            Ok(fence) => fence,
            Err(error) => {
                log::debug!(ring_idx = self.ring_idx; "fence answered at once: {error}");
                return done();
            }
        };
        let mut waiter = self.waiter.lock();
        let waiter = waiter.get_or_insert_with(|| Waiter::start(device));
        if let Err(refused) = waiter.fences.send(Pending { fence, done }) {
            (refused.into_inner().done)();
        }
    }

    fn submit_fence(&self, device: &Device) -> Result<vk::Fence, vk::Result> {
        // SAFETY: the device is live.
        let fence = unsafe { device.ash.create_fence(&vk::FenceCreateInfo::default(), None) }?;
        // SAFETY: queue and fence are live, the queue is locked.
        let submitted = self.with(|queue| unsafe { device.ash.queue_submit(queue, &[], fence) });
        if let Err(error) = submitted {
            // SAFETY: the fence was not accepted by the queue.
            unsafe { device.ash.destroy_fence(fence, None) };
            return Err(error);
        }
        Ok(fence)
    }

    /// Waits until everything submitted so far has completed.
    pub fn wait_idle(&self, cancel: &Cancel) -> Result<(), Fault> {
        let (done, idle) = crossbeam_channel::bounded(1);
        self.fence(Box::new(move || {
            let _ = done.send(());
        }));
        while idle.recv_timeout(std::time::Duration::from_nanos(WAIT_SLICE_NS)).is_err() {
            if cancel.is_cancelled() {
                return Err(vk::Result::ERROR_DEVICE_LOST.into());
            }
        }
        Ok(())
    }

    /// Answers the fences that are pending, in order, and ends the waiter.
    pub fn close(&self) {
        if let Some(Waiter { fences, thread }) = self.waiter.lock().take() {
            drop(fences);
            if thread.join().is_err() {
                log::error!("a queue's waiter panicked");
            }
        }
    }
}

impl Waiter {
    fn start(device: Arc<Device>) -> Self {
        let (fences, pending) = unbounded::<Pending>();
        let thread = std::thread::Builder::new()
            .name("queue".into())
            .spawn(move || wait_in_order(&device, &pending))
            .expect("a worker may start threads, or it cannot serve");
        Self { fences, thread }
    }
}

fn wait_in_order(device: &Device, pending: &Receiver<Pending>) {
    for Pending { fence, done } in pending {
        // A lost device completes nothing any more: any answer but a time-out ends the wait.
        // SAFETY: device and fence are live.
        while unsafe { device.ash.wait_for_fences(&[fence], true, WAIT_SLICE_NS) } == Err(vk::Result::TIMEOUT)
        {
        }
        done();
        // SAFETY: the wait above is over and nobody else knows this fence.
        unsafe { device.ash.destroy_fence(fence, None) };
    }
}

/// Result of a submission: a lost device ends the context, since the guest waits for no result.
fn submitted(result: i32) -> Result<venus::VkResult, Fault> {
    if result == vk::Result::ERROR_DEVICE_LOST.as_raw() {
        return Err(ContextLost::new("the device was lost").into());
    }
    Ok(venus::VkResult(result))
}

/// A command buffer that names a tombstone must not run: its work is lost, and with it the device as the guest sees it.
fn refuse_spoilt(objects: &Table, command_buffer: venus::CommandBuffer) -> Result<(), Fault> {
    match objects.get(command_buffer)?.state {
        State::Pooled(Recording::Spoilt(result)) => Err(Fault::lost(format!(
            "a submitted command buffer uses an object whose creation failed ({result})"
        ))),
        _ => Ok(()),
    }
}

/// `vkQueueSubmit`.
pub fn queue_submit<'a>(
    call: &Call<'a>,
    c: &venus::QueueSubmit<'a>,
) -> Result<venus::QueueSubmitReply, Fault> {
    let queue = call.queue(c.queue)?;
    let (device, submits, fence) = {
        let l = call.lowering();
        for submit in c.p_submits.unwrap_or(&[]) {
            for command_buffer in submit.p_command_buffers.unwrap_or(&[]) {
                refuse_spoilt(&l.objects, *command_buffer)?;
            }
        }
        (queue.device.upgrade(), l.array(c.p_submits)?, l.handle(c.fence)?)
    };
    let Some(device) = device else { return Err(Fault::lost("the queue's device is gone")) };
    let Some(function) = device.table.queue_submit else { return Err(Fault::missing("vkQueueSubmit")) };
    // SAFETY: all handles are live, `submits` has `submit_count` elements in the arena, the queue is locked.
    let result = queue.with(|raw| unsafe { function(raw.as_raw(), c.submit_count, submits, fence) });
    Ok(venus::QueueSubmitReply { result: submitted(result)? })
}

/// `vkQueueSubmit2`.
pub fn queue_submit2<'a>(
    call: &Call<'a>,
    c: &venus::QueueSubmit2<'a>,
) -> Result<venus::QueueSubmit2Reply, Fault> {
    let queue = call.queue(c.queue)?;
    let (device, submits, fence) = {
        let l = call.lowering();
        for submit in c.p_submits.unwrap_or(&[]) {
            for info in submit.p_command_buffer_infos.unwrap_or(&[]) {
                refuse_spoilt(&l.objects, info.command_buffer)?;
            }
        }
        (queue.device.upgrade(), l.array(c.p_submits)?, l.handle(c.fence)?)
    };
    let Some(device) = device else { return Err(Fault::lost("the queue's device is gone")) };
    let Some(function) = device.table.queue_submit2 else { return Err(Fault::missing("vkQueueSubmit2")) };
    // SAFETY: all handles are live, `submits` has `submit_count` elements in the arena, the queue is locked.
    let result = queue.with(|raw| unsafe { function(raw.as_raw(), c.submit_count, submits, fence) });
    Ok(venus::QueueSubmit2Reply { result: submitted(result)? })
}

/// `vkQueueWaitIdle`. Mesa never sends it.
pub fn queue_wait_idle(
    call: &Call<'_>,
    c: &venus::QueueWaitIdle,
) -> Result<venus::QueueWaitIdleReply, Fault> {
    call.queue(c.queue)?.wait_idle(call.cancel)?;
    Ok(venus::QueueWaitIdleReply { result: venus::VkResult::SUCCESS })
}
