//! Requests that take a lot of memory in the device and wait.

use crate::guest::ring::{ASYNC, encode};
use crate::guest::{Gpu, GpuError};
use protocol::ids::{BlobId, ContextId};
use protocol::venus::generated as venus;
use protocol::venus::generated::ChainStruct;
use protocol::virtio_gpu::{BlobFlags, Command};

/// Values without a waiter, in a submission of more than a MiB.
const VALUES: usize = 100_000;

/// A submission without work; its command takes more than a MiB in every process that keeps it.
pub fn large_submission(queue: venus::Queue) -> Vec<u8> {
    let values = venus::TimelineSemaphoreSubmitInfo {
        wait_semaphore_value_count: VALUES as u32,
        p_wait_semaphore_values: Some(&[1; VALUES]),
        ..Default::default()
    };
    let chain = [ChainStruct::TimelineSemaphoreSubmitInfo(&values)];
    let submit = venus::SubmitInfo { p_next: &chain, ..Default::default() };
    let p_submits = Some(std::slice::from_ref(&submit));
    encode(|w| {
        venus::QueueSubmit { queue, submit_count: 1, p_submits, fence: venus::Fence(0) }.encode(ASYNC, w)
    })
}

/// Blobs of a page each, as many as the device makes; returns how many.
pub fn small_blobs(guest: &Gpu, name: &str) -> Result<usize, GpuError> {
    let context = guest.create_context(name)?;
    let blob = || guest.create_blob(context, BlobId(0), BlobFlags::empty(), 4096).ok();
    Ok((0..20_000).map_while(|_| blob()).count())
}

/// Sends `count` submissions of 8 KiB to each of these contexts, and does not wait for the answers.
pub fn unread_submissions(guest: &Gpu, contexts: &[ContextId], count: usize) {
    let payload = vec![0u8; 8 << 10];
    for _ in 0..count {
        for context in contexts {
            guest.send(&Command::Submit3d { data: &payload }, Some(*context), None, Box::new(|_| ()));
        }
    }
}
