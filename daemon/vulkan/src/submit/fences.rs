//! Fences of the guest's kernel: each is answered when all that was submitted to a queue before has ended.

use super::order::queue_order::Order;
use super::order::submission::Awaited;
use super::threads;
use crate::logical::device::Device;
use crate::logical::timeline::Done;
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use waiting::look::Habit;
use waiting::tunables;

/// The fences of one queue.
pub(super) struct Fences {
    order: Arc<Order>,
    waiter: Mutex<Option<Waiter>>,
}

/// The thread that waits for submissions of one queue in order.
#[derive(Debug)]
struct Waiter {
    fences: Sender<Pending>,
    thread: JoinHandle<()>,
}

struct Pending {
    last: Awaited,
    done: Done,
}

impl Fences {
    /// Begins for a queue of which no fence is asked for.
    pub(super) fn new(order: Arc<Order>) -> Arc<Self> {
        Arc::new(Self { order, waiter: Mutex::new(None) })
    }

    /// Calls `done` when all that the driver has of the queue has ended, in order; at once if the device is gone or lost.
    pub(super) fn answer(&self, done: Done) {
        let Ok(device) = self.order.device() else { return done() };
        let last = match self.order.await_last(&device) {
            Ok(last) => last,
            Err(ended) => {
                done();
                return device.tell_end(self.order.place(ended));
            }
        };
        let mut waiter = self.waiter.lock();
        let waiter =
            waiter.get_or_insert_with(|| Waiter::start(Arc::clone(&device), Arc::clone(&self.order)));
        if let Err(refused) = waiter.fences.send(Pending { last, done }) {
            let Pending { last, done } = refused.into_inner();
            done();
            self.order.let_go(&device, last);
        }
    }

    /// Answers the fences that are pending, in order, and ends the thread.
    pub(super) fn end(&self) {
        let Some(Waiter { fences, thread }) = self.waiter.lock().take() else { return };
        drop(fences);
        threads::join(thread);
    }
}

impl Waiter {
    fn start(device: Arc<Device>, order: Arc<Order>) -> Self {
        let (fences, pending) = unbounded::<Pending>();
        let thread = threads::start("queue", move || wait_in_order(&device, &order, &pending));
        Self { fences, thread }
    }
}

fn wait_in_order(device: &Device, order: &Order, pending: &Receiver<Pending>) {
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
