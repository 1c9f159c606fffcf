//! Restarts of contexts that operators want: the broker passes the requests on to device processes, and their progress to the waiting operators.
//!
//! A device process is asked once and may answer at any time. Until then, its reports are passed on at a bounded rate, and reports that no operator
//! asked for are dropped. An operator who goes away changes nothing.

use super::super::connections::Peer;
use super::super::control::{self, Answer};
use super::super::run::Broker;
use super::super::vm::{Restart, Restarting};
use crate::ipc::{FromBroker, GpuChange, RestartStage, RestartTook};
use outside::visible;
use protocol::ids::ContextId;
use sched::{Nanos, nanos};

/// Time that a device process has to answer to a restart, in nanoseconds, beside the time for which the VM's submissions may run and its drivers may start.
const PATIENCE: Nanos = 600_000_000_000;
/// Bytes of a reason that a device process gives.
const REASON_BYTES: usize = 512;

impl Broker {
    /// Returns whether a context of a VM may be restarted, as far as the broker knows.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub(in crate::broker) fn admit_restart(&self, index: usize, ctx_id: ContextId) -> Result<(), String> {
        let vm = &self.vms[index];
        if !vm.contexts.contains_key(&ctx_id) {
            return Err(vm.no_such_context(ctx_id));
        }
        if self.requests.restarts.iter().any(|restart| (restart.index, restart.ctx_id) == (index, ctx_id)) {
            return Err(format!("{}: it is being restarted already", vm.context_name(ctx_id)));
        }
        Ok(())
    }

    /// Asks for a restart that was admitted.
    pub(in crate::broker) fn begin_restart(
        &mut self,
        peer: Peer,
        (index, ctx_id): (usize, ContextId),
        what: Restart,
        change: Option<GpuChange>,
        now: Nanos,
    ) {
        let restart = Restarting::new(peer, what, (index, ctx_id), now, self.restart_until(index, now));
        self.tell_restart(peer, &Answer::Restarting { stage: restart.stage.to_string() }, false, now);
        self.requests.restarts.push(restart);
        let wanted = match what {
            Restart::SwapOut => FromBroker::SwapOut { ctx_id },
            Restart::Again | Restart::Move | Restart::Drain => FromBroker::Restart { ctx_id, change },
        };
        self.tell(index, wanted);
    }

    /// Returns the time by which a device process has answered to a restart that is asked for now: each of its own limits for a stage is over then.
    pub(super) fn restart_until(&self, index: usize, now: Nanos) -> Nanos {
        let vm = &self.vms[index];
        let software = vm.gpus.iter().all(|on| self.gpus[on.gpu].is_software());
        let options = &vm.settings.options;
        let times = [options.hangs.limits(software).max_submit_time, options.driver_timeout];
        times.into_iter().map(nanos).fold(now.saturating_add(PATIENCE), Nanos::saturating_add)
    }

    /// Takes in the progress that a device process reports.
    pub(in crate::broker) fn restart_goes_on(
        &mut self,
        index: usize,
        ctx_id: ContextId,
        stage: RestartStage,
    ) {
        let mut restarts = self.requests.restarts.iter_mut();
        if let Some(restart) = restarts.find(|restart| (restart.index, restart.ctx_id) == (index, ctx_id)) {
            restart.stage = stage;
        }
    }

    /// Ends a restart: the device process has answered, or cannot answer any more.
    pub(in crate::broker) fn restart_ends(
        &mut self,
        index: usize,
        ctx_id: ContextId,
        outcome: Result<RestartTook, &str>,
        now: Nanos,
    ) {
        let found = self.requests.restarts.iter().position(|it| (it.index, it.ctx_id) == (index, ctx_id));
        let (Some(found), Some(vm)) = (found, self.vms.get_mut(index)) else { return };
        let Restarting { peer, what, .. } = self.requests.restarts.swap_remove(found);
        let counts = &mut vm.past.context_restarts;
        match outcome {
            Ok(took) => {
                counts.done += 1;
                counts.last_pause_seconds = Some(took.pause_ms as f64 / 1000.0);
            }
            Err(_) => counts.failed += 1,
        }
        let done = match what {
            Restart::Again => "restarted",
            Restart::Move => "moved",
            Restart::SwapOut => "swapped out",
            Restart::Drain => {
                return self.drain_moved((index, ctx_id), outcome.map_err(bounded), now);
            }
        };
        let answer = match outcome {
            Ok(RestartTook { pause_ms, total_ms }) => Answer::Restarted { pause_ms, total_ms },
            Err(reason) => {
                let place = vm.context_name(ctx_id);
                let error = format!("{place}: not {done}, and it goes on as before: {}", bounded(reason));
                Answer::Error { error }
            }
        };
        self.tell_restart(peer, &answer, true, now);
    }

    /// Ends all restarts of a device process that is gone; operators are told why.
    pub(in crate::broker) fn no_restarts_of(&mut self, index: usize, why: &str, now: Nanos) {
        let of_it = self.requests.restarts.iter().filter(|restart| restart.index == index);
        for ctx_id in of_it.map(|restart| restart.ctx_id).collect::<Vec<_>>() {
            self.restart_ends(index, ctx_id, Err(why), now);
        }
    }

    /// Tells operators of the stages that are due.
    pub(in crate::broker) fn restarts_due(&mut self, now: Nanos) {
        let late = self.requests.restarts.iter().filter(|restart| restart.until <= now);
        for (index, ctx_id) in late.map(|restart| (restart.index, restart.ctx_id)).collect::<Vec<_>>() {
            self.restart_ends(index, ctx_id, Err("its device process does not answer (see its log)"), now);
        }
        let mut restarts = std::mem::take(&mut self.requests.restarts);
        for restart in restarts.iter_mut().filter(|restart| restart.next() <= now) {
            (restart.told, restart.told_at) = (restart.stage, now);
            let answer = Answer::Restarting { stage: restart.stage.to_string() };
            self.tell_restart(restart.peer, &answer, false, now);
        }
        self.requests.restarts = restarts;
    }

    /// Returns when [`Self::restarts_due`] is to be called next.
    pub(in crate::broker) fn next_restart(&self) -> Option<Nanos> {
        self.requests.restarts.iter().map(Restarting::next).min()
    }

    fn tell_restart(&mut self, peer: Peer, answer: &Answer, last: bool, now: Nanos) {
        self.connections.stream(peer, &control::line(answer), last, &self.epoll, now);
    }
}

/// Returns the words of a device process for people, made safe and of bounded length.
fn bounded(reason: &str) -> String {
    let mut bytes = 0;
    let fits = |c: &char| {
        bytes += c.len_utf8();
        bytes <= REASON_BYTES
    };
    reason.chars().map(visible).take_while(fits).collect()
}
