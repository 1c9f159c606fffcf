//! The thread that waits for submissions of one queue while the gate wants to know of their ends at once.

use super::order::queue_order::QueueOrder;
use super::order::submission::Awaited;
use super::order::submissions::Watched;
use super::threads::{self, Waiting};
use crate::logical::device::Device;
use crossbeam_channel::Receiver;
use std::sync::Arc;

/// The watcher of one queue.
pub(super) struct Watcher {
    order: Arc<QueueOrder>,
    waiting: Waiting<Awaited>,
}

impl Watcher {
    /// Begins for a queue that has no submission to watch.
    pub(super) fn new(order: Arc<QueueOrder>) -> Self {
        Self { order, waiting: Waiting::new() }
    }

    /// Starts to watch a submission that the driver has, unless one is watched already. The thread goes on with further submissions as long as the
    /// gate wants to know of their ends.
    pub(super) fn watch(&self) {
        let Ok(device) = self.order.device() else { return };
        let Some(awaited) = next(&self.order) else { return };
        let refused = self.waiting.send(awaited, |arriving| {
            let (device, order) = (Arc::clone(&device), Arc::clone(&self.order));
            threads::start("watch", move || watch_all(&device, &order, &arriving))
        });
        refused.into_iter().for_each(|awaited| _ = self.order.let_go(&device, awaited));
    }

    /// Lets the thread wait for the remaining submissions, and ends the thread.
    pub(super) fn end(&self) {
        self.waiting.end();
    }
}

/// Waits for the submissions that arrive, and for those that have to be watched after them. Only one is watched at a time: a guest's fence cannot
/// be reset while its submission is watched.
fn watch_all(device: &Device, order: &QueueOrder, arriving: &Receiver<Awaited>) {
    let mut following = None;
    while let Some(awaited) = following.take().or_else(|| arriving.recv().ok()) {
        if let Some(marker) = order.marker_of(device, &awaited) {
            device.markers.wait(&device.ash, marker);
        }
        let has_ended = order.let_go(device, awaited);
        let wants_next = order.gate().is_some_and(|gate| gate.wants_completions());
        // A submission that has not ended would be the next again, without a pause.
        following = (has_ended && wants_next).then(|| next(order)).flatten();
    }
}

/// Returns the submission to be watched next, if the driver has any and none is watched.
fn next(order: &QueueOrder) -> Option<Awaited> {
    let gate = order.gate()?;
    // With a lease, the driver has more than a moment's work, and there is room for more when some of that is over.
    let which = match (gate.is_traced(), gate.is_open()) {
        (true, _) => Watched::First,
        (false, true) => Watched::Half,
        (false, false) => Watched::Last,
    };
    order.watch(which)
}
