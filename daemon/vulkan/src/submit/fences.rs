//! Fences of the guest's kernel: each is answered when all earlier submissions to its queue have ended.

use super::order::queue_order::QueueOrder;
use super::order::submission::Awaited;
use super::threads::{self, Waiting};
use crate::logical::device::Device;
use crate::logical::timeline::Done;
use crossbeam_channel::Receiver;
use std::sync::Arc;
use waiting::look::Habit;
use waiting::tunables;

/// The fences of one queue.
pub(super) struct Fences {
    order: Arc<QueueOrder>,
    waiting: Waiting<Pending>,
}

struct Pending {
    last: Awaited,
    done: Done,
}

impl Fences {
    /// Creates the fences of a queue.
    pub(super) fn new(order: Arc<QueueOrder>) -> Arc<Self> {
        Arc::new(Self { order, waiting: Waiting::new() })
    }

    /// Calls `done`, in order, when all submissions of the queue that the driver has have ended; at once if the device is gone or lost.
    pub(super) fn answer(&self, done: Done) {
        let Ok(device) = self.order.device() else { return done() };
        let last = match self.order.await_last(&device) {
            Ok(last) => last,
            Err(ended) => {
                done();
                return device.tell_end(self.order.place(ended));
            }
        };
        let refused = self.waiting.send(Pending { last, done }, |arriving| {
            let (device, order) = (Arc::clone(&device), Arc::clone(&self.order));
            threads::start("queue", move || wait_in_order(&device, &order, &arriving))
        });
        if let Some(Pending { last, done }) = refused {
            done();
            self.order.let_go(&device, last);
        }
    }

    /// Answers the fences that are pending, in order, and ends the thread.
    pub(super) fn end(&self) {
        self.waiting.end();
    }
}

fn wait_in_order(device: &Device, order: &QueueOrder, pending: &Receiver<Pending>) {
    let mut habit = Habit::new(tunables().look.queue_max, tunables().look);
    for Pending { last, done } in pending {
        if let Some(marker) = order.marker_of(device, &last) {
            let is_over = || device.markers.is_signalled(&device.ash, marker);
            habit.wait(is_over, |limit| match limit {
                Some(limit) => _ = device.markers.wait_for(&device.ash, marker, limit),
                None => device.markers.wait(&device.ash, marker),
            });
        }
        done();
        device.tell_end(order.place(last.number));
        order.let_go(device, last);
    }
}
