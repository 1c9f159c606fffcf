//! This file swaps contexts out and in: it hands them over to workers without a driver, and from these to workers with a driver.
//!
//! A context that is swapped out is swapped in as soon as one of its rings has a command for the driver (`worker::swapped_out`), or its VM's kernel
//! sends anything except resources. Such a message waits in the device process until a worker with a driver has the context.

use super::blobs::closing::Waits;
use super::effects::World;
use super::handover::failure::Failure;
use super::handover::idle::Idle;
use super::handover::{Asker, Purpose, Stage};
use super::logging::event::ContextEvent;
use super::run::Server;
use super::workers::SwappedOut;
use crate::device::Lack;
use crate::ipc::{RoomOrder, RoomState, ToBroker};
use config::Wanted;
use protocol::ids::ContextId;
use std::cmp::Reverse;
use std::time::{Duration, Instant};

/// Time for which a context must do nothing to be swapped out before others.
const IDLE: Duration = Duration::from_secs(1);
/// Time after which this module looks again for contexts that can be swapped out.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Server {
    /// Swaps out the contexts that operators want swapped out, and those that have long been idle.
    pub(super) fn swaps_due(&mut self, now: Instant) {
        for ctx_id in std::mem::take(&mut self.world.backlog.swaps) {
            self.hand_over(ctx_id, None, (Asker::Operator, Purpose::SwapOut));
        }
        self.swap_in_awaited();
        let Some(idle) = &mut self.world.idle else { return };
        let (room, workers) = (&self.world.room, &self.world.workers);
        let is_not_due = |ctx_id| {
            room.is_left_alone(ctx_id, now) || workers.has_successor(ctx_id) || workers.is_swapped_out(ctx_id)
        };
        for ctx_id in idle.due(self.world.hangs.activity(), is_not_due, now) {
            self.hand_over(ctx_id, None, (Asker::Itself, Purpose::SwapOut));
        }
    }

    /// Swaps in the contexts for which a message waits. The caller must call this before it handles the next request.
    pub(super) fn swap_in_awaited(&mut self) {
        for ctx_id in self.world.workers.take_awaited() {
            self.swap_in(ctx_id);
        }
    }

    /// A ring of a context that is swapped out has a command for the driver.
    pub(super) fn wakes(&mut self, ctx_id: ContextId) {
        match self.world.workers.is_swapped_out(ctx_id) {
            true if self.transferring.is_under_way() => self.world.workers.is_awaited(ctx_id),
            true => self.swap_in(ctx_id),
            false => self.lose(ctx_id, "its worker asks for a driver that it has"),
        }
    }

    pub(super) fn swap_in(&mut self, ctx_id: ContextId) {
        if !self.world.workers.is_swapped_out(ctx_id) || self.world.workers.has_successor(ctx_id) {
            return;
        }
        if self.device.may_come_back(ctx_id) {
            self.device.is_away(ctx_id, false, &mut self.world);
            self.hand_over(ctx_id, None, (Asker::Itself, Purpose::SwapIn));
        } else {
            self.world.room.wait(ctx_id);
        }
    }

    /// Returns the bytes of contexts that are being swapped out; these may not be in the host's memory yet.
    pub(super) fn going(&self) -> u64 {
        let contexts = self.world.workers.contexts();
        let going = contexts.filter(|ctx_id| self.world.handovers.is_swapping_out(*ctx_id));
        going.map(|ctx_id| self.device.credit_of(ctx_id)).fold(0, u64::saturating_add)
    }

    /// Returns how a context is swapped out.
    pub(super) fn swapped_out(&self, ctx_id: ContextId, asker: Asker) -> SwappedOut {
        SwappedOut { contents_max: self.device.contents_max(ctx_id), is_forced: asker == Asker::Broker }
    }
}

/// The GPU memory that contexts hold and want, as one look found it.
struct Held {
    /// Bytes on the GPUs.
    present: u64,
    /// All requests and contexts that wait for memory.
    lacks: Vec<Lack>,
    /// The contexts that do nothing and have a driver, the longest idle first.
    idle: Vec<ContextId>,
}

impl World {
    /// Begins to watch which contexts are idle, even if idleness alone swaps none out.
    fn watch_idle(&mut self) {
        self.idle.get_or_insert_with(|| Idle::new(Duration::MAX));
    }

    /// Has an idle context that was found already be found once more, though it does nothing.
    pub(super) fn find_again(&mut self, ctx_id: ContextId) {
        self.idle.iter_mut().for_each(|idle| idle.find_again(ctx_id));
    }
}

/// This part keeps to the GPU memory that the broker lets the VM have, where VMs are promised more than exists. It has contexts swapped out that
/// hold more, lets contexts wait that want to come back, and tells the broker how much is held and wanted.
impl Server {
    /// Nothing of the worker with this number is left.
    pub(super) fn nothing_is_left(&mut self, number: u64) {
        self.device.worker_ended(number, &mut self.world);
        self.closing.nothing_is_left(number, Instant::now());
        let Some(ctx_id) = self.world.room.leaving.remove(&number) else { return };
        let workers = &self.world.workers;
        if workers.is_swapped_out(ctx_id) && !workers.has_successor(ctx_id) && !self.leaves(ctx_id) {
            self.device.is_away(ctx_id, true, &mut self.world);
        }
    }

    /// The process of the worker with this number has ended. Its accounts wait for the descriptors being closed, which may be of its memory.
    pub(super) fn worker_has_ended(&mut self, number: u64) {
        match self.world.closer.is_done() {
            true => self.nothing_is_left(number),
            false => {
                self.closing.await_closed(Waits::Ended(number), self.world.closer.given(), Instant::now());
            }
        }
    }

    /// The driver of a worker finds no memory. Ends a successor whose hand-over can be called off, as it has memory of the context too. The worker
    /// waits for that, for other processes of the context that are ending, and for descriptors being closed, and then tries again.
    pub(super) fn closing_wanted(&mut self, ctx_id: ContextId, request: u32) {
        let hand_over = self.world.handovers.get(ctx_id);
        if hand_over.is_some_and(|it| it.is_at_home && !matches!(it.stage, Stage::Moves { .. })) {
            self.fail(
                ctx_id,
                Failure::for_now("its program needs the memory of the GPU that this would take"),
            );
        }
        let ending = self.world.workers.ending_of(ctx_id);
        let waits = Waits::Worker(ctx_id, request);
        self.closing.await_ended(waits, self.world.closer.given(), ending, Instant::now());
    }

    /// Goes on with the questions and accounts that need not wait any more.
    pub(super) fn closing_due(&mut self, now: Instant) {
        for waits in self.closing.take_done(&self.world.closer, now) {
            match waits {
                Waits::Worker(ctx_id, request) => self.world.tell_caught_up(ctx_id, request),
                Waits::Ended(number) => self.nothing_is_left(number),
            }
        }
    }

    /// A worker asks for memory. Its context may already have waited for it before a hand-over.
    pub(super) fn memory_wanted(&mut self, ctx_id: ContextId, request: u32, wanted: Wanted) {
        if wanted.least_of_gpu().is_some() {
            self.world.room.waits.asks(ctx_id, request);
        }
        self.device.memory_wanted(ctx_id, request, wanted, &mut self.world);
    }

    /// A worker takes a request for memory back. If the reason is that it comes to rest for a hand-over, it asks anew when it goes on.
    pub(super) fn wanted_no_more(&mut self, ctx_id: ContextId, request: u32) {
        if self.device.memory_wanted_no_more(ctx_id, request, &mut self.world)
            && self.world.workers.owes_answer(ctx_id)
        {
            self.world.room.waits.interrupt(ctx_id, request);
        }
    }

    /// Does what is due about the VM's memory of the GPUs.
    pub(super) fn room_due(&mut self, now: Instant) {
        let Some(order) = self.world.room.order else { return };
        if std::mem::take(&mut self.world.room.is_news) {
            self.world.watch_idle();
            self.device.set_room(order.most, &mut self.world);
        }
        // Contexts for which there is no room yet are put back into the list.
        let waiting = std::mem::take(&mut self.world.room.waiting);
        waiting.into_iter().for_each(|ctx_id| self.swap_in(ctx_id));
        let mut held = self.held(now);
        if self.end_waits(order, &held.lacks, now) {
            held = self.held(now);
        }
        if held.present <= order.most && self.call_swaps_off() {
            // The contexts that go on may have been granted the memory for which they waited.
            held = self.held(now);
        }
        self.keep_to_room(order.most, &held, now);
        self.tell_room(order.number, &held, now);
    }

    /// Looks at the memory that contexts hold and want.
    fn held(&self, now: Instant) -> Held {
        let lacks = self.device.lacks(&self.world.room.waiting);
        Held { present: self.device.present_memory(), lacks, idle: self.idle_contexts(now) }
    }

    /// Ends the waits that have lasted for too long, and those for more than there is. Returns whether it ended any.
    fn end_waits(&mut self, order: RoomOrder, lacks: &[Lack], now: Instant) -> bool {
        let workers = &self.world.workers;
        let rests = |ctx_id| workers.owes_answer(ctx_id) || workers.rests(ctx_id);
        self.world.room.waits.look(lacks, rests, now);
        let mut some_ended = false;
        for lack in lacks {
            let room = &self.world.room;
            let is_over = room.end_of_wait(room.waits.since(lack, now)).is_some_and(|end| end <= now);
            // A context that is swapped out may come back to another GPU than the smallest.
            let is_too_much = lack.request.is_some() && self.exceeds(lack, order.total);
            some_ended |= is_over || is_too_much;
            if is_too_much {
                let event = ContextEvent::WantsTooMuch { gpu_memory: order.total };
                self.world.log_of(lack.ctx_id, event);
                self.device.refuse_waiting(lack, &mut self.world);
            } else if is_over {
                self.refuse(lack, Duration::from_millis(order.wait_ms));
            }
        }
        some_ended
    }

    /// Returns the bytes of GPU memory that a waiting context holds: none if it is swapped out, as it then waits for all its memory.
    fn holds(&self, lack: &Lack) -> u64 {
        lack.request.map_or(0, |_| self.device.device_memory_of(lack.ctx_id))
    }

    /// Returns whether a context that waits would hold more than all VMs may hold together.
    fn exceeds(&self, lack: &Lack, total: u64) -> bool {
        self.holds(lack).saturating_add(lack.bytes) > total
    }

    /// Refuses a context the memory for which it has waited too long.
    fn refuse(&mut self, lack: &Lack, wait: Duration) {
        let ctx_id = lack.ctx_id;
        self.world.log_of(ctx_id, ContextEvent::WaitedForMemory(wait));
        if self.device.refuse_waiting(lack, &mut self.world) || lack.request.is_some() {
            return;
        }
        self.world.room.waiting.retain(|waiting| *waiting != ctx_id);
        self.lose(
            ctx_id,
            "it is swapped out, and cannot go on: limit memory-wait reached by its wait for the GPU's memory (the log has the remedy)",
        );
    }

    /// Has contexts swapped out until the VM holds no more than it may.
    fn keep_to_room(&mut self, most: u64, held: &Held, now: Instant) {
        let goes = |ctx_id: &ContextId| self.world.handovers.is_swapping_out(*ctx_id) || self.leaves(*ctx_id);
        let going = self.world.workers.contexts().filter(goes);
        let going: u64 = going.map(|ctx_id| self.device.device_memory_of(ctx_id)).sum();
        let going = going.saturating_add(self.device.dying_memory());
        self.world.room.forced &= held.present > most;
        let mut over = held.present.saturating_sub(going).saturating_sub(most);
        if over == 0 {
            self.world.room.again = None;
            return;
        }
        if self.world.room.again.is_some_and(|again| now < again) {
            return;
        }
        self.world.room.again = Some(now + AGAIN_AFTER);
        for (ctx_id, asker) in self.expendable(&held.idle, now) {
            if over == 0 || self.world.handovers.admit(ctx_id, Purpose::SwapOut).is_err() {
                return;
            }
            let bytes = self.device.device_memory_of(ctx_id);
            if self.hand_over(ctx_id, None, (asker, Purpose::SwapOut)) {
                over = over.saturating_sub(bytes);
            }
        }
    }

    /// Calls off the swaps that were to make room for others, unless the contents are being moved. Returns whether it called any off.
    fn call_swaps_off(&mut self) -> bool {
        let is_needless = |ctx_id: &ContextId| {
            self.world.handovers.get(*ctx_id).is_some_and(|it| {
                (it.asker, it.purpose) == (Asker::Broker, Purpose::SwapOut)
                    && !matches!(it.stage, Stage::Moves { .. })
            })
        };
        let needless: Vec<_> = self.world.workers.contexts().filter(is_needless).collect();
        for ctx_id in &needless {
            // This failure is no reason to leave the context alone, or for longer than before.
            let before = self.world.room.stays.remove(ctx_id);
            self.fail(*ctx_id, Failure::for_now("others do not need its memory any more"));
            self.world.room.stays.remove(ctx_id);
            self.world.room.stays.extend(before.map(|stay| (*ctx_id, stay)));
        }
        !needless.is_empty()
    }

    /// Returns the contexts that can be swapped out: first the idle ones, the longest idle first, and then others, if the broker forces it.
    fn expendable(&self, idle: &[ContextId], now: Instant) -> Vec<(ContextId, Asker)> {
        let room = &self.world.room;
        let busy = self.world.workers.contexts().filter(|ctx_id| room.forced && !idle.contains(ctx_id));
        let mut busy: Vec<_> = busy.map(|ctx_id| (ctx_id, Asker::Broker)).collect();
        // Contexts that wait for more memory come last: others of the VM may have to make room for them.
        busy.sort_unstable_by_key(|(ctx_id, _)| {
            (self.device.awaits_memory(*ctx_id), Reverse(self.device.device_memory_of(*ctx_id)))
        });
        let idle = idle.iter().map(|ctx_id| (*ctx_id, Asker::Itself));
        let can = |(ctx_id, _): &(ContextId, Asker)| {
            self.device.device_memory_of(*ctx_id) > 0
                && !self.world.workers.has_successor(*ctx_id)
                && self.could_go(*ctx_id, now)
        };
        idle.chain(busy).filter(can).collect()
    }

    /// Returns whether a context can be swapped out, as far as this process knows.
    fn could_go(&self, ctx_id: ContextId, now: Instant) -> bool {
        !self.world.room.is_left_alone(ctx_id, now) && self.unmovable(ctx_id).is_none()
    }

    /// Returns the contexts that do nothing and have a driver, the longest idle first.
    fn idle_contexts(&self, now: Instant) -> Vec<ContextId> {
        let longest = |idle: &Idle| idle.longest(self.world.hangs.activity(), IDLE, now);
        let idle = self.world.idle.as_ref().map(longest).unwrap_or_default();
        let workers = &self.world.workers;
        let has_driver = |ctx_id: &ContextId| workers.is_running(*ctx_id) && !workers.is_swapped_out(*ctx_id);
        idle.into_iter().filter(has_driver).collect()
    }

    /// Returns whether a context that is swapped out still has a worker with a driver that has not ended.
    fn leaves(&self, ctx_id: ContextId) -> bool {
        self.world.room.leaving.values().any(|leaving| *leaving == ctx_id)
    }

    /// Tells the broker how much memory is held and wanted, if it is to hear of this state.
    fn tell_room(&mut self, order: u64, held: &Held, now: Instant) {
        let room = &self.world.room;
        let can_be_had = |lack: &Lack| room.order.is_none_or(|order| !self.exceeds(lack, order.total));
        let first = held.lacks.iter().min_by_key(|lack| (!can_be_had(lack), room.waits.since(lack, now)));
        let idle = held.idle.iter().filter(|ctx_id| self.could_go(**ctx_id, now));
        let state = RoomState {
            order,
            held: held.present,
            lacks: first.map_or(0, |lack| lack.bytes),
            holds: first.map_or(0, |lack| self.holds(lack)),
            idle: idle.map(|ctx_id| self.device.device_memory_of(*ctx_id)).sum(),
            back_ms: room.back_ms,
        };
        if self.world.room.is_to_tell(state, now) {
            self.world.room.told = Some((state, now));
            self.world.broker.iter().for_each(|broker| broker.tell(&ToBroker::Room(state), None));
        }
    }
}
