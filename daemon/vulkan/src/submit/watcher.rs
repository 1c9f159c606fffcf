//! The thread that waits for submissions of one queue while the gate wants to know of their ends at once.

use super::order::queue_order::Order;
use super::order::submission::Awaited;
use super::order::submissions::Watched;
use super::threads;
use crate::logical::device::Device;
use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The watcher of one queue.
pub(super) struct Watcher {
    order: Arc<Order>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Nothing was to be watched so far.
    Idle,
    /// The thread watches what it is sent.
    Runs { watched: Sender<Awaited>, thread: JoinHandle<()> },
    /// The device is destroyed, and nothing is watched any more.
    Ended,
}

impl Watcher {
    /// Begins for a queue that has nothing to watch.
    pub(super) fn new(order: Arc<Order>) -> Self {
        Self { order, state: Mutex::new(State::Idle) }
    }

    /// Watches a submission that the driver has, and then others as long as the gate wants to know of their ends. Does nothing if one is watched.
    pub(super) fn watch(&self) {
        let Ok(device) = self.order.device() else { return };
        let Some(awaited) = next(&self.order) else { return };
        let mut state = self.state.lock();
        if matches!(*state, State::Idle) {
            *state = self.start(&device);
        }
        let refused = match &*state {
            State::Runs { watched, .. } => watched.send(awaited).err().map(|refused| refused.into_inner()),
            State::Idle | State::Ended => Some(awaited),
        };
        drop(state);
        refused.into_iter().for_each(|awaited| self.order.let_go(&device, awaited));
    }

    /// Lets the thread wait for what is left, and ends it.
    pub(super) fn end(&self) {
        let state = std::mem::replace(&mut *self.state.lock(), State::Ended);
        if let State::Runs { watched, thread } = state {
            drop(watched);
            threads::join(thread);
        }
    }

    fn start(&self, device: &Arc<Device>) -> State {
        let (watched, arriving) = unbounded::<Awaited>();
        let (device, order) = (Arc::clone(device), Arc::clone(&self.order));
        State::Runs {
            watched,
            thread: threads::start("watch", move || watch_all(&device, &order, &arriving)),
        }
    }
}

/// Waits for the submissions that arrive, and for those that have to be watched behind them.
fn watch_all(device: &Device, order: &Order, arriving: &Receiver<Awaited>) {
    let mut following = None;
    while let Some(awaited) = following.take().or_else(|| arriving.recv().ok()) {
        if let Some(marker) = order.marker_of(device, &awaited) {
            device.markers.wait(&device.ash, marker);
        }
        order.let_go(device, awaited);
        let wants_next = order.gate().is_some_and(|gate| gate.wants_completions());
        // What has arrived comes first: a guest's fence cannot be reset while its submission is awaited.
        let follows = || wants_next.then(|| next(order)).flatten();
        following = arriving.try_recv().ok().or_else(follows);
    }
}

/// Returns the submission to be watched next, if the driver has any and none is watched.
fn next(order: &Order) -> Option<Awaited> {
    let gate = order.gate()?;
    // With a lease there is more in the driver than a moment's work, of which some has to be over before more gets there.
    let which = match (gate.is_traced(), gate.is_open()) {
        (true, _) => Watched::First,
        (false, true) => Watched::Half,
        (false, false) => Watched::Last,
    };
    order.watch(which)
}
