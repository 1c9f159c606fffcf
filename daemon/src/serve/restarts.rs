//! Hands contexts over from their workers to successors: does what [`super::handover`] decides, with processes, accounts and pages.
//!
//! The device process reads nothing of what worker and successor write to each other. It believes neither: it obeys the worker until the worker
//! has handed over, and gives the successor no more than the context had.

use super::effects::World;
use super::handover::failure::{Failure, Lasts};
use super::handover::{Asker, Due, GpuMoves, HandOver, Prepared, Purpose, Stage, Took, host_memory};
use super::logging::event::{ContextEvent, Of};
use super::logging::fault;
use super::run::Server;
use super::workers::{SwappedOut, Whose};
use crate::device::Obstacle;
use crate::ipc::{GpuChange, Placement, RestartStage, RestartTook, ToBroker, ToDevice, Unmovable};
use config::MemoryBackEnd;
use outside::Quoted;
use protocol::ids::ContextId;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

impl Server {
    /// Has a context handed over to a successor, and tells the asker the result.
    pub(super) fn restart(&mut self, ctx_id: ContextId, change: Option<GpuChange>, asker: Asker) {
        self.hand_over(ctx_id, change, (asker, Purpose::Restart));
    }

    /// Has a context handed over for any purpose, and tells the asker the result. Returns whether the hand-over has begun.
    pub(super) fn hand_over(
        &mut self,
        ctx_id: ContextId,
        change: Option<GpuChange>,
        wanted: (Asker, Purpose),
    ) -> bool {
        let begun = match wanted.1.holds_the_program_up() {
            false => self.may_hand_over(ctx_id, wanted.1),
            true => self.world.handovers.admit(ctx_id, wanted.1).map_err(Failure::for_now),
        };
        let begun = begun.and_then(|()| self.begin_hand_over(ctx_id, change, wanted));
        let Err(failure) = begun else { return true };
        if failure.lasts != Lasts::ForNow {
            self.stays(ctx_id, wanted);
        } else if wanted.1 == Purpose::SwapOut && matches!(wanted.0, Asker::Itself | Asker::Broker) {
            // The reason does not lie in the context: the next look finds the context again.
            self.world.find_again(ctx_id);
            return false;
        }
        self.world.handovers.failed += 1;
        self.not_handed_over(ctx_id, wanted, failure);
        false
    }

    /// A context could not be swapped out: leaves it alone for a while, unless an operator asked, who may ask again.
    fn stays(&mut self, ctx_id: ContextId, (asker, purpose): (Asker, Purpose)) {
        if purpose == Purpose::SwapOut && asker != Asker::Operator {
            self.world.room.stays(ctx_id, Instant::now());
        }
    }

    /// Says why a context is not handed over. A context that is swapped out and cannot be swapped in is lost.
    fn not_handed_over(&mut self, ctx_id: ContextId, wanted: (Asker, Purpose), failure: Failure) {
        match wanted.1 {
            Purpose::Restart | Purpose::SwapOut => {
                if failure.lasts != Lasts::ForGood {
                    self.world.find_again(ctx_id);
                }
                self.world.handed_over(ctx_id, wanted, Err(failure));
            }
            Purpose::SwapIn => {
                self.lose(
                    ctx_id,
                    &format!("it is swapped out, and cannot go on: {}", Quoted(&failure.reason)),
                );
            }
            Purpose::Recover => {
                let how = self.world.workers.how_it_ended(ctx_id);
                self.lose(
                    ctx_id,
                    &format!("{how}, and no other worker can go on: {}", Quoted(&failure.reason)),
                );
            }
            Purpose::Load if self.transferring.is_under_way() => {
                self.load_fails(&format!("context {ctx_id}: {}", Quoted(&failure.reason)));
            }
            // The load has failed already.
            Purpose::Load => {}
        }
    }

    /// Returns whether a context whose worker has a driver may be handed over.
    fn may_hand_over(&self, ctx_id: ContextId, purpose: Purpose) -> Result<(), Failure> {
        self.world.handovers.admit(ctx_id, purpose).map_err(Failure::for_now)?;
        match self.device.obstacle(ctx_id) {
            Some(Obstacle::Unknown) => return Err(Failure::for_good("no such context")),
            Some(Obstacle::Shell) => {
                return Err(Failure::for_good("it has no worker: it belongs to the guest's kernel"));
            }
            _ => {}
        }
        if let Some(why) = self.unmovable(ctx_id) {
            return Err(Failure::for_good(why.to_string()));
        }
        if self.world.workers.owes_answer(ctx_id) {
            let what = "its worker has not yet answered the restart before: try again in a moment";
            return Err(Failure::for_now(what));
        }
        if purpose == Purpose::SwapOut {
            host_memory::admit(&self.world.host_memory, self.device.credit_of(ctx_id), self.going())?;
        }
        let program = self.world.workers.name_of(ctx_id).unwrap_or_default();
        self.world.may_start(ctx_id, program).map_err(|(_, why)| Failure::until_mended(why))
    }

    pub(super) fn begin_hand_over(
        &mut self,
        ctx_id: ContextId,
        change: Option<GpuChange>,
        (asker, purpose): (Asker, Purpose),
    ) -> Result<(), Failure> {
        let before = self.world.workers.placement_of(ctx_id).cloned().unwrap_or_default();
        let placement = match change {
            Some(change) => before.changed(change).ok_or_else(|| {
                Failure::for_good("the context is not on the GPU that it is to leave, or is on both")
            })?,
            None => before.clone(),
        };
        self.world.workers.admit(&placement).map_err(Failure::for_good)?;
        let moves = GpuMoves {
            comes_to: placement.without(&before).collect(),
            leaves: before.without(&placement).collect(),
        };
        let number = self.device.successor_number();
        let swapped_out = (purpose == Purpose::SwapOut).then(|| self.swapped_out(ctx_id, asker));
        let started = self.world.start_successor(ctx_id, number, (placement, &moves.comes_to), swapped_out);
        if let Err(error) = started {
            self.world.leaves_gpus(ctx_id, &moves.comes_to);
            return Err(Failure::until_mended(format!("a successor cannot be started: {error}")));
        }
        self.world.handovers.begins(ctx_id, (asker, purpose), moves, Instant::now());
        if purpose == Purpose::SwapIn {
            // Done at once: all messages from now on are for the successor alone.
            self.world.workers.swaps_in(ctx_id);
            self.device.driver_holds(ctx_id, number);
            self.show_successor(ctx_id);
        }
        self.world.tell_stage(ctx_id, asker, RestartStage::Starts);
        Ok(())
    }

    /// Returns why a context that has a worker cannot be handed over now, as far as this process knows without asking the worker.
    pub(super) fn unmovable(&self, ctx_id: ContextId) -> Option<Unmovable> {
        let of_files = self.world.workers.gpus().iter().all(|gpu| gpu.memory == MemoryBackEnd::Memfd);
        match self.device.obstacle(ctx_id) {
            Some(Obstacle::Unknown | Obstacle::Shell | Obstacle::Lost) => Some(Unmovable::Lost),
            _ if self.world.room.waits(ctx_id) => Some(Unmovable::Waits),
            _ if self.world.workers.is_swapped_out(ctx_id) => Some(Unmovable::SwappedOut),
            _ if !of_files => Some(Unmovable::BackEnd),
            Some(Obstacle::Lends) => Some(Unmovable::Lends),
            _ if self.world.lenders.is_anchored(ctx_id) => Some(Unmovable::Lends),
            None => None,
        }
    }

    /// Does what is due for hand-overs, and begins those that an operator, the broker or a context wants.
    pub(super) fn hand_overs_due(&mut self, now: Instant) {
        for (ctx_id, reason) in self.world.workers.take_called_off() {
            self.fail(ctx_id, Failure::for_now(reason));
        }
        self.forget_ended();
        self.keep_rings_alive(now);
        // Contexts that are saved rest together, and those that are loaded come back together.
        if !self.transferring.is_under_way() {
            for (ctx_id, change) in std::mem::take(&mut self.world.backlog.restarts) {
                self.restart(ctx_id, change, Asker::Operator);
            }
            self.swaps_due(now);
            self.room_due(now);
            self.checkpoints_due(now);
            self.restart_restlessly(now);
        }
        for (ctx_id, due) in self.world.handovers.due(now) {
            match due {
                Due::Again => self.try_hand_over(ctx_id, now),
                Due::CallOff(reason) => self.fail(ctx_id, Failure::until_mended(reason)),
            }
        }
    }

    fn restart_restlessly(&mut self, now: Instant) {
        let Some(restless) = &mut self.world.restless else { return };
        // A context's time begins anew after each restart: otherwise the context might do nothing but restart.
        let workers = &self.world.workers;
        let can = |ctx_id: &ContextId| !workers.has_successor(*ctx_id) && !workers.is_swapped_out(*ctx_id);
        let alone = workers.contexts().filter(can);
        let purpose = restless.purpose;
        for ctx_id in restless.due(alone, now) {
            let change = self.world.workers.next_change(ctx_id).filter(|_| purpose == Purpose::Restart);
            self.hand_over(ctx_id, change, (Asker::Test, purpose));
        }
    }

    /// A successor has started: shows it the context's resources, unless it has been shown them, and has it make objects ahead if there is time.
    fn successor_ready(&mut self, ctx_id: ContextId) {
        match self.world.handovers.get(ctx_id).map(|it| (it.stage, it.purpose)) {
            Some((Stage::Starts, Purpose::Recover)) => return self.hand_checkpoint(ctx_id),
            Some((Stage::Starts, Purpose::Load)) => return self.loaded_is_ready(ctx_id),
            Some((Stage::Starts, Purpose::SwapIn)) => return self.try_hand_over(ctx_id, Instant::now()),
            Some((Stage::Starts, Purpose::SwapOut)) => {
                if self.show_successor(ctx_id) {
                    self.try_hand_over(ctx_id, Instant::now());
                }
                return;
            }
            _ => {}
        }
        if !self.world.handovers.prepares(ctx_id, Instant::now()) {
            return self.fail(ctx_id, Failure::for_good("the successor says twice that it has started"));
        }
        if self.show_successor(ctx_id) {
            self.prepare(ctx_id, false);
            self.tell_stage(ctx_id, RestartStage::Prepares);
        }
    }

    /// Shows a successor the resources of its context, and each later one. Returns whether it is still there: one that does not read is ended.
    pub(super) fn show_successor(&mut self, ctx_id: ContextId) -> bool {
        let Some(number) = self.world.workers.successor_number(ctx_id) else { return false };
        self.world.workers.is_shown(ctx_id);
        self.device.show_to_successor(ctx_id, number, &mut self.world);
        self.world.workers.has_successor(ctx_id)
    }

    /// Has a successor make the first part of the prelude, or the next.
    fn prepare(&mut self, ctx_id: ContextId, goes_on: bool) {
        let is_at_home = self.world.handovers.get(ctx_id).is_some_and(|it| it.is_at_home);
        if let Err(reason) = self.world.workers.prepare(ctx_id, goes_on, is_at_home) {
            self.fail(ctx_id, Failure::until_mended(reason));
        }
    }

    /// A successor has made its part of the prelude: has it make the next part, or has the worker hand over to it.
    fn prelude_built(&mut self, ctx_id: ContextId, is_at_home: bool) {
        let now = Instant::now();
        match self.world.handovers.prepared(ctx_id, is_at_home, now) {
            Ok(Prepared::Enough) => self.try_hand_over(ctx_id, now),
            Ok(Prepared::More) => self.prepare(ctx_id, true),
            Err(reason) => self.fail(ctx_id, Failure::for_good(reason)),
        }
    }

    /// Tells the asker of a context's hand-over which stage is reached.
    pub(super) fn tell_stage(&self, ctx_id: ContextId, stage: RestartStage) {
        if let Some(asker) = self.world.handovers.get(ctx_id).map(|it| it.asker) {
            self.world.tell_stage(ctx_id, asker, stage);
        }
    }

    /// Tells the worker to hand over, if the context can be handed over now.
    fn try_hand_over(&mut self, ctx_id: ContextId, now: Instant) {
        let hand_over = self.world.handovers.get(ctx_id);
        let is_swap_in = hand_over.is_some_and(|it| it.purpose == Purpose::SwapIn);
        let copies = hand_over.is_none_or(|it| !it.is_at_home);
        // This successor has only the objects of its own prelude, not those of an earlier successor that was called off.
        let has_prelude =
            hand_over.is_some_and(|it| !matches!(it.purpose, Purpose::SwapIn | Purpose::SwapOut));
        // Messages for a context that is swapped out wait for its successor.
        match self.unmovable(ctx_id).filter(|_| !is_swap_in) {
            None => match self.world.workers.hand_over(ctx_id, copies, has_prelude) {
                Ok(()) => {
                    self.world.handovers.rests(ctx_id, now);
                    self.tell_stage(ctx_id, RestartStage::Rests);
                }
                Err(reason) => self.fail(ctx_id, Failure::until_mended(reason)),
            },
            Some(why) => self.fail(ctx_id, Failure::for_good(why.to_string())),
        }
    }

    fn put_off(&mut self, ctx_id: ContextId, reason: &str, now: Instant) {
        if let Err(reason) = self.world.handovers.waits(ctx_id, reason, now) {
            self.fail(ctx_id, Failure::for_now(reason));
        }
    }

    /// A worker has written something that is for its successor.
    pub(super) fn worker_writes(&mut self, ctx_id: ContextId) {
        match self.world.handovers.get(ctx_id).map(|it| it.stage) {
            Some(Stage::Rests) => self.begin_to_move(ctx_id),
            Some(Stage::Starts | Stage::Prepares { .. } | Stage::Waits) => {
                let why = "its worker writes although it has not been told to hand over";
                self.fail(ctx_id, Failure::for_good(why));
            }
            // The worker's answer was read before, and has begun the move already.
            Some(Stage::Moves { .. }) | None => {}
        }
    }

    /// Has the successor read, if it does not yet.
    fn begin_to_move(&mut self, ctx_id: ContextId) {
        if !self.world.workers.take_over(ctx_id) {
            return;
        }
        self.world.handovers.moves(ctx_id, Instant::now());
        self.tell_stage(ctx_id, RestartStage::Moves);
    }

    /// A worker has answered that it has handed over.
    pub(super) fn worker_handed_over(&mut self, ctx_id: ContextId) {
        if !self.world.workers.answers(ctx_id) {
            return self.lose(ctx_id, "an answer without a request");
        }
        // A worker that lends memory was not told to hand over.
        if self.world.lenders.is_anchored(ctx_id) {
            return self.lose(ctx_id, "its worker lends memory while it hands over");
        }
        if self.has_saved(ctx_id) {
            return;
        }
        // If the hand-over was called off meanwhile, the worker has been told to go on.
        if self.world.workers.holds_back(ctx_id) {
            // This thread may not have heard yet that the worker has written.
            self.begin_to_move(ctx_id);
            self.world.workers.handed_over(ctx_id);
            self.device.context_rests(ctx_id);
            if self.world.handovers.handed_over(ctx_id) {
                self.succeed(ctx_id);
            }
        }
    }

    /// A worker has answered that it goes on.
    pub(super) fn worker_stays(&mut self, ctx_id: ContextId, reason: &str, for_now: bool) {
        if !self.world.workers.answers(ctx_id) {
            return self.lose(ctx_id, "an answer without a request");
        }
        if self.does_not_save(ctx_id, reason, for_now) {
            return;
        }
        if self.world.workers.holds_back(ctx_id) {
            // A context that is swapped out goes on without the messages that wait for a driver.
            if !self.world.workers.is_swapped_out(ctx_id) {
                self.world.workers.resume(ctx_id);
            }
            // A successor that has read something, or is about to, cannot begin anew.
            let may_wait = self.world.handovers.get(ctx_id).is_some_and(|it| it.stage == Stage::Rests)
                && !self.world.workers.has_written(ctx_id);
            match (for_now, may_wait) {
                (true, true) => self.put_off(ctx_id, reason, Instant::now()),
                (true, false) => self.fail(ctx_id, Failure::until_mended(reason)),
                (false, _) => self.fail(ctx_id, Failure::for_good(reason)),
            }
        }
    }

    /// Acts upon a message of a successor that is not its context's worker yet.
    pub(super) fn successor_says(&mut self, ctx_id: ContextId, message: ToDevice) {
        match message {
            ToDevice::Ready => self.successor_ready(ctx_id),
            ToDevice::PreludeBuilt { is_at_home } => self.prelude_built(ctx_id, is_at_home),
            ToDevice::TakesOver { pieces } => self.device.takes_over(ctx_id, &pieces),
            ToDevice::TakenOver { pieces, credit } => {
                self.device.takes_over(ctx_id, &pieces);
                self.device.takes_credit_over(ctx_id, credit);
                match self.world.handovers.taken_over(ctx_id) {
                    Ok(true) => self.succeed(ctx_id),
                    Ok(false) => {}
                    Err(reason) => self.fail(ctx_id, Failure::for_good(reason)),
                }
            }
            ToDevice::MemoryReturned { memory } => {
                self.device.returned_by_successor(ctx_id, memory, &mut self.world);
            }
            ToDevice::CreditReturned { heap, bytes } => {
                self.device.credit_returned_by_successor(ctx_id, heap, bytes);
            }
            // These rings are counted already, and their places are known.
            ToDevice::RingBegins { .. } | ToDevice::RingEnds { .. } => {}
            ToDevice::LimitReached { .. }
            | ToDevice::ShaderRefused { .. }
            | ToDevice::Undrawn
            | ToDevice::Overdue { .. } => {
                self.worker_says(ctx_id, message, None);
            }
            ToDevice::Lost { at_fault, reason } => {
                let why = format!("the successor cannot take it over: {}", fault::told(at_fault, reason));
                self.fail(ctx_id, Failure::until_mended(why));
            }
            ToDevice::FenceSignalled(_)
            | ToDevice::CheckpointWritten { .. }
            | ToDevice::NoCheckpoint { .. }
            | ToDevice::JournalFills
            | ToDevice::Deposits { .. }
            | ToDevice::TakesBack { .. }
            | ToDevice::Wakes
            | ToDevice::BlobExported { .. }
            | ToDevice::BlobRefused { .. }
            | ToDevice::Anchor { .. }
            | ToDevice::MemoryWanted { .. }
            | ToDevice::MemoryWantedNoMore { .. }
            | ToDevice::BudgetWanted { .. }
            | ToDevice::CatchUpWanted { .. }
            | ToDevice::ClosingWanted { .. }
            | ToDevice::HandedOver
            | ToDevice::Stays { .. }
            | ToDevice::Hung { .. } => {
                let why = "the successor says what only a context's worker may say";
                self.fail(ctx_id, Failure::for_good(why));
            }
        }
    }

    /// A successor's process has ended, or its channel is closed.
    pub(super) fn successor_gone(&mut self, ctx_id: ContextId) {
        self.world.workers.call_off(ctx_id, true);
        self.fail(ctx_id, Failure::until_mended("the successor has ended (the daemon's log says how)"));
    }

    /// The successor is the context's worker from now on.
    fn succeed(&mut self, ctx_id: ContextId) {
        if !self.world.workers.has_read_all(ctx_id) {
            let why = "the successor says that it has taken over before it has read everything";
            return self.fail(ctx_id, Failure::for_good(why));
        }
        let how = self.world.workers.how_it_ended(ctx_id);
        let old_number = self.world.workers.successor_number(ctx_id);
        let Some(page) = self.world.workers.succeed(ctx_id) else { return };
        self.world.checkpoints.begins(ctx_id, Instant::now());
        self.world.forget_deposits(ctx_id);
        self.world.hangs.succeeds(ctx_id, page);
        self.device.handed_over(ctx_id, &mut self.world);
        let Some((hand_over, took)) = self.world.handovers.succeeds(ctx_id, Instant::now()) else { return };
        self.world.leaves_gpus(ctx_id, &hand_over.moves.leaves);
        match hand_over.purpose {
            Purpose::Recover => self.world.recovered(ctx_id, &how, took),
            Purpose::Load => self.loaded(ctx_id),
            Purpose::SwapOut => {
                self.world.room.leaves(ctx_id, old_number);
                old_number.into_iter().for_each(|number| self.device.driver_holds(ctx_id, number));
                self.world.handed_over(ctx_id, (hand_over.asker, Purpose::SwapOut), Ok(took));
            }
            purpose => {
                if purpose == Purpose::SwapIn {
                    self.world.room.back_ms = u64::try_from(took.total.as_millis()).unwrap_or(u64::MAX);
                }
                self.world.handed_over(ctx_id, (hand_over.asker, purpose), Ok(took));
            }
        }
    }

    /// Calls a hand-over off: the context stays with its worker.
    pub(super) fn fail(&mut self, ctx_id: ContextId, failure: Failure) {
        self.world.workers.call_off(ctx_id, false);
        // The hand-over made the worker execute something, so the checkpoint counts no more.
        self.world.checkpoints.is_used(ctx_id, Instant::now());
        self.device.hand_over_ends(ctx_id, &mut self.world);
        if let Some(hand_over) = self.world.handovers.fails(ctx_id) {
            self.world.leaves_gpus(ctx_id, &hand_over.moves.comes_to);
            let wanted = (hand_over.asker, hand_over.purpose);
            self.stays(ctx_id, wanted);
            self.not_handed_over(ctx_id, wanted, failure);
        }
    }

    /// Acts upon the messages of a worker or a successor.
    pub(super) fn receive_from(&mut self, serial: u32) {
        let Some(whose) = self.world.workers.whose(serial) else { return };
        for received in self.world.workers.receive(whose) {
            // Each message may give the sender another role.
            match self.world.workers.whose(serial) {
                Some(Whose::Worker(ctx_id)) => self.hear_worker(ctx_id, received),
                Some(Whose::Successor(ctx_id)) => self.hear_successor(ctx_id, received),
                None => return,
            }
        }
    }
}

impl World {
    /// Has a successor started, after telling the broker which GPUs the context comes to.
    fn start_successor(
        &mut self,
        ctx_id: ContextId,
        number: u64,
        (placement, comes_to): (Placement, &[u8]),
        swapped_out: Option<SwappedOut>,
    ) -> io::Result<()> {
        let mut pages = BTreeMap::new();
        if let Some(broker) = &self.broker {
            for gpu in comes_to {
                pages.insert(*gpu, broker.comes(ctx_id, *gpu)?);
            }
        }
        self.workers.start_successor(ctx_id, number, self.hangs.limit(), (placement, pages), swapped_out)
    }

    /// Tells the broker that a context does not use these GPUs any more.
    fn leaves_gpus(&self, ctx_id: ContextId, gpus: &[u8]) {
        self.broker.iter().for_each(|broker| broker.leaves(ctx_id, gpus));
    }

    /// The context of a hand-over has ended, and with it the hand-over.
    pub(super) fn hand_over_ends(&mut self, ctx_id: ContextId) {
        let Some(HandOver { asker, .. }) = self.handovers.fails(ctx_id) else { return };
        log::debug!(context = ctx_id.0; "context {ctx_id} has ended while it was to be restarted");
        self.tell_outcome(ctx_id, asker, Err("the context has ended".to_owned()));
    }

    fn tell_stage(&self, ctx_id: ContextId, asker: Asker, stage: RestartStage) {
        if let Some(broker) = self.broker.as_ref().filter(|_| asker == Asker::Operator) {
            broker.tell(&ToBroker::Restarting { ctx_id, stage }, None);
        }
    }

    /// Logs how a hand-over ended, and tells the asker.
    fn handed_over(
        &mut self,
        ctx_id: ContextId,
        (asker, purpose): (Asker, Purpose),
        outcome: Result<Took, Failure>,
    ) {
        let done = match purpose {
            Purpose::Restart => "restarted",
            Purpose::SwapOut => "swapped out",
            Purpose::SwapIn => "swapped in",
            Purpose::Recover => "recovered",
            Purpose::Load => "loaded",
        };
        match &outcome {
            Ok(took) => self.log_hand_over(ctx_id, (asker, purpose), *took),
            Err(failure) if !failure.concerns_operators(asker) => {
                log::debug!(context = ctx_id.0; "context {ctx_id} is not {done}: {:?}", failure.reason);
            }
            Err(Failure { reason, .. }) => {
                self.log_of(ctx_id, ContextEvent::NotHandedOver { done, reason });
            }
        }
        self.tell_outcome(ctx_id, asker, outcome.map_err(|Failure { reason, .. }| reason));
    }

    fn log_hand_over(
        &mut self,
        ctx_id: ContextId,
        (asker, purpose): (Asker, Purpose),
        Took { pause, total }: Took,
    ) {
        let now = match purpose {
            Purpose::Restart | Purpose::Recover | Purpose::Load => "has a new worker",
            Purpose::SwapOut => "is swapped out",
            Purpose::SwapIn => "is swapped in",
        };
        let event = ContextEvent::HandedOver { now, pause, total };
        match asker {
            // Tests count the lines, so they have no limit.
            Asker::Test => log::info!(context = ctx_id.0; "{}", Of(ctx_id, event)),
            Asker::Operator | Asker::Itself | Asker::Broker => self.log_of(ctx_id, event),
        }
    }

    fn tell_outcome(&self, ctx_id: ContextId, asker: Asker, outcome: Result<Took, String>) {
        let Some(broker) = self.broker.as_ref().filter(|_| asker == Asker::Operator) else { return };
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let outcome = outcome.map(|Took { pause, total }| RestartTook {
            pause_ms: milliseconds(pause),
            total_ms: milliseconds(total),
        });
        broker.tell(&ToBroker::Restarted { ctx_id, outcome }, None);
    }
}
