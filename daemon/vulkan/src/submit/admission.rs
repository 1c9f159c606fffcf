//! The admission of one queue's submissions to the driver: at once, if the gate lets them pass, or in their turn from the held queue.

use super::fences::Fences;
use super::held_queue::{Entry, Held, HeldQueue, HeldSubmit, Part};
use super::order::batches::Group;
use super::order::host::Host;
use super::order::queue_order::{Calling, Dispatch, QueueOrder, to_destroyed_device};
use super::order::submissions::Few;
use super::watcher::Watcher;
use crate::context::cause::DriverError;
use crate::context::error::{ContextLost, Fault};
use crate::context::ranked::{HELD_QUEUE, Ranked};
use crate::gates::gate::Gate;
use crate::gates::lane::{Lane, Standing, Step};
use crate::logical::device::Device;
use crate::logical::submitted::Place;
use crate::logical::timeline::Done;
use crate::objects::table::Objects;
use ash::vk::Handle as _;
use std::sync::{Arc, Weak};

/// The gate and the held queue before one queue.
pub(super) struct Admission {
    gate: Arc<Gate>,
    order: Arc<QueueOrder>,
    fences: Arc<Fences>,
    /// The held queue, locked while submissions get their numbers, so that they are pending in that order.
    held: Ranked<HELD_QUEUE, HeldQueue>,
    watcher: Watcher,
}

impl Admission {
    /// Begins for a queue whose submissions pass `gate`.
    pub(super) fn new(gate: &Arc<Gate>, order: &Arc<QueueOrder>, fences: &Arc<Fences>) -> Arc<Self> {
        let admission = Arc::new(Self {
            gate: Arc::clone(gate),
            order: Arc::clone(order),
            fences: Arc::clone(fences),
            held: Ranked::default(),
            watcher: Watcher::new(Arc::clone(order)),
        });
        let lane: Weak<dyn Lane> = Arc::<Self>::downgrade(&admission);
        gate.add(lane);
        admission
    }

    /// Returns whether submissions pass this gate.
    pub(super) fn is_through(&self, gate: &Arc<Gate>) -> bool {
        Arc::ptr_eq(&self.gate, gate)
    }

    /// Returns whether an entry waits in the held queue, or has left it and is being dispatched.
    pub(super) fn holds(&self) -> bool {
        !self.held.lock().is_empty()
    }

    /// Returns whether a submission may pass at once, as far as this is known without a look at the submission.
    pub(super) fn is_open(&self) -> bool {
        self.gate.is_open() && !self.holds()
    }

    /// Returns whether the groups of a call may be dispatched at once; if they may, they count as dispatched from now on.
    pub(super) fn lets_pass(&self, device: &Device, objects: &Objects, groups: &[Group]) -> bool {
        let count = Group::counted(groups) as u32;
        if !self.gate.holds() {
            return self.gate.pass(count);
        }
        let host = Host { device, objects };
        let pass = || self.gate.pass(count);
        groups.iter().all(|group| group.is_ready(&host))
            && (pass() || {
                // Submissions that have completed meanwhile may have made room.
                self.order.refresh();
                pass()
            })
    }

    /// Returns whether groups that take no time of the GPU may be dispatched at once: nothing is before them and they are ready, or the gate
    /// never holds anything back.
    pub(super) fn lets_pass_free(&self, device: &Device, objects: &Objects, groups: &[Group]) -> bool {
        let host = Host { device, objects };
        !self.gate.holds() || !self.holds() && groups.iter().all(|group| group.is_ready(&host))
    }

    /// Puts the groups of a call into the held queue.
    ///
    /// # Errors
    ///
    /// The call is refused as a whole.
    pub(super) fn hold(
        &self,
        call: Calling<'_, impl Fn(&Group, Place) -> Result<(), Fault>>,
        submit: HeldSubmit,
    ) -> Result<(), Fault> {
        if call.groups.is_empty() {
            // A call without groups has no fence either.
            return Ok(());
        }
        let mut held = self.held.lock();
        if held.is_closed() {
            return Err(to_destroyed_device());
        }
        let begun = self.order.begin_held(&call)?;
        let Calling { groups, fence, .. } = call;
        fence.iter().for_each(|fence| fence.hold(true));
        let part = |(group, begun)| Part { group, begun, ready: None };
        let parts = groups.into_iter().zip(begun).map(part).collect();
        held.push(Box::new(Held { parts, fence, submit }));
        drop(held);
        self.gate.arrived();
        Ok(())
    }

    /// Puts a fence of the guest's kernel into the held queue. Returns the fence instead if the held queue is empty or closed.
    pub(super) fn hold_fence(&self, done: Done) -> Option<Done> {
        self.held.lock().push_fence(done)
    }

    /// Has the driver watched if the gate wants completions: if the lease ended while a submission passed at once, no thread would notice its end.
    pub(super) fn submitted_at_once(&self) {
        if self.gate.wants_completions() {
            self.watcher.watch();
        }
    }

    /// Closes the held queue, from which nothing is dispatched any more: submissions are given up, fences answered in their turn.
    pub(super) fn close(&self) {
        let waiting = self.held.lock().close();
        for entry in waiting {
            match (entry, self.order.device()) {
                (Entry::Fence(done), _) => self.fences.answer(done),
                (Entry::Held(held), Ok(device)) => self.give_up(&device, &held),
                (Entry::Held(_), Err(_)) => {}
            }
        }
        self.watcher.end();
    }

    /// Dispatches the next part of a call; returns the rest of the call.
    fn dispatch(&self, device: &Device, mut held: Box<Held>) -> Result<Option<Box<Held>>, ContextLost> {
        let is_last = held.parts.len() <= 1;
        let guests = held.fence.clone().filter(|_| is_last);
        let Some(part) = held.parts.pop_front() else { return Ok(None) };
        let dispatch = Dispatch {
            group: &part.group,
            begun: &part.begun,
            ready: part.ready.unwrap_or(u64::MAX),
            fence: guests.as_ref().map_or(0, |fence| fence.raw.as_raw()),
        };
        let refused = match self.order.submit_held(device, &dispatch, &mut held.submit) {
            Some(result) if result >= 0 => {
                guests.iter().for_each(|fence| fence.hold(false));
                return Ok((!is_last).then_some(held));
            }
            refused => refused,
        };
        held.parts.push_front(part);
        self.give_up(device, &held);
        match refused {
            // The device is destroyed.
            None => Ok(None),
            Some(result) => {
                Err(DriverError::Fails { what: "the driver refused a submission", result }.into())
            }
        }
    }

    /// Gives up the parts of a call that have not reached the driver.
    fn give_up(&self, device: &Device, held: &Held) {
        let left: Few<_> = held.parts.iter().map(|part| part.begun.number).collect();
        self.order.withdraw(device, &left);
        held.fence.iter().for_each(|fence| fence.hold(false));
    }
}

impl Lane for Admission {
    fn advance(&self, gate: &Gate) -> Step {
        let Some((device, objects)) = self.order.live() else { return Step::Empty };
        let taken = {
            let _turn = gate.turn();
            self.held.lock().take(&Host { device: &device, objects: &objects }, || gate.pass_held())
        };
        let entry = match taken {
            Ok(entry) => entry,
            Err(step) => return step,
        };
        let rest = match entry {
            Entry::Fence(done) => {
                self.fences.answer(done);
                None
            }
            Entry::Held(held) => self.dispatch(&device, held).unwrap_or_else(|lost| {
                gate.fail(&lost);
                None
            }),
        };
        let refused = self.held.lock().finish(rest);
        refused.iter().for_each(|held| self.give_up(&device, held));
        Step::Done
    }

    fn standing(&self) -> Standing {
        let Some((device, objects)) = self.order.live() else { return Standing::default() };
        self.held.lock().standing(&Host { device: &device, objects: &objects })
    }

    fn watch_driver(&self) {
        self.watcher.watch();
    }
}
