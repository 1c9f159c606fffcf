//! A VM in use gets a device process of this program in place of one of an earlier program. This *successor* starts beside the earlier process, which
//! passes the frontend and the workers of its programs on to it (`serve::succession`). Contexts stay as they are: their grants and doorbells are
//! between the broker and the workers.
//!
//! The broker waits for neither process. A successor that is late, or sends a forbidden message, is ended, and the VM keeps its device process.

use super::super::process::Process;
use super::super::run::Broker;
use super::super::source::Source;
use super::super::vm::{Offer, RENEW_FIRST, Successor, Vm};
use crate::ipc::{Channel, FromBroker, ToBroker};
use crate::sandbox::START_AGAIN;
use readiness::{Events, unwatch, watch};
use sched::{Nanos, nanos};
use std::io;
use std::os::fd::AsFd;

/// Time that a successor has to be ready once its GPUs' driver has started, and then to take over, in nanoseconds.
const PATIENCE: Nanos = 60_000_000_000;
/// The time that the earlier device process has to end when the successor serves, in nanoseconds: longer than the 10 s that its launcher has to end.
const LEAVE_PATIENCE: Nanos = 15_000_000_000;

impl Broker {
    /// Starts a successor whose time has come, one at a time because each tries its GPUs, and ends late ones.
    pub(in crate::broker) fn renew_due(&mut self, now: Nanos) {
        if !self.renews() {
            return;
        }
        for index in self.vms.indices() {
            let vm = &mut self.vms[index];
            if let Some(successor) = vm.successor.as_mut().filter(|successor| successor.until <= now) {
                match successor.serves {
                    true => {
                        successor.until = Nanos::MAX;
                        self.disown(
                            index,
                            "a device process of the new program serves the VM, and this one does not end within 15 s",
                        );
                    }
                    false => self.end_successor(index, "it does not take over in time"),
                }
            } else if vm.renew_at.is_some_and(|at| at <= now)
                && self.vms[index].could_have_successor()
                && self.may_renew()
            {
                self.start_successor(index, now);
            }
        }
    }

    /// Returns when [`Self::renew_due`] is to be called next, even if no event comes until then.
    pub(in crate::broker) fn next_renewal(&self) -> Option<Nanos> {
        if !self.renews() {
            return None;
        }
        let may_renew = self.may_renew();
        let starts = self.vms.iter().filter(|vm| may_renew && vm.could_have_successor());
        let starts = starts.filter_map(|vm| vm.renew_at);
        let ends = self.vms.iter().filter_map(|vm| vm.successor.as_ref()).map(|successor| successor.until);
        starts.chain(ends.filter(|until| *until < Nanos::MAX)).min()
    }

    /// Returns whether a VM has a successor, or is to have one.
    fn renews(&self) -> bool {
        self.vms.iter().any(|vm| vm.renew_at.is_some() || vm.successor.is_some())
    }

    /// Returns whether a successor can be started now.
    fn may_renew(&self) -> bool {
        let is_alone = self.vms.iter().all(|vm| vm.successor.is_none() && !vm.awaits_successor);
        is_alone && !self.is_ending && self.requests.upgrading.is_none()
    }

    fn start_successor(&mut self, index: usize, now: Nanos) {
        let vm = &self.vms[index];
        let group = match self.groups.group(vm) {
            Ok(group) => group,
            Err(error) => {
                self.vms[index].renews(now);
                return self.take_successor(index, Err(error), now);
            }
        };
        let start = self.settings.start(&vm.settings, group, true);
        let Some(upkeep) = &self.upkeep else { return };
        upkeep.starter.start(index, vm.name(), start);
        self.vms[index].renews(now);
    }

    /// Takes over a successor that has been started.
    pub(in crate::broker) fn take_successor(
        &mut self,
        index: usize,
        started: io::Result<Process>,
        now: Nanos,
    ) {
        let watched = started.and_then(|mut process| {
            let watched =
                watch(&self.epoll, process.channel(), Source::Successor.token(index), Events::EPOLLIN);
            let end = |pidfd| watch(&self.epoll, pidfd, Source::SuccessorEnd.token(index), Events::EPOLLIN);
            if let Err(error) = watched.and_then(|()| process.pidfd().map_or(Ok(()), end)) {
                process.kill();
                let _ = process.reap();
                return Err(error);
            }
            Ok(process)
        });
        let Some(vm) = self.vms.get_mut(index) else {
            return watched.into_iter().for_each(|mut process| {
                process.kill();
                let _ = process.reap();
            });
        };
        vm.awaits_successor = false;
        match watched {
            Ok(process) => {
                let driver = nanos(vm.settings.options.driver_timeout);
                let until = now.saturating_add(driver).saturating_add(PATIENCE);
                log::info!(vm = vm.name(), pid = process.pid(); "a device process of the new program starts");
                vm.successor = Some(Successor { process, offer: None, serves: false, until });
                if !self.vms[index].could_have_successor() || self.comes_to_rest() {
                    self.end_successor(index, NOT_NEEDED);
                }
            }
            Err(error) => {
                log::error!(vm = vm.name(); "cannot start a device process of the new program: {error}; the start is tried again later");
                self.forget_left(index, now);
            }
        }
    }

    /// Handles the messages of a successor.
    pub(in crate::broker) fn hear_successor(&mut self, index: usize, now: Nanos) {
        let Some(successor) = self.vms.get_mut(index).and_then(|vm| vm.successor.as_mut()) else { return };
        if successor.serves || successor.process.dying {
            // A closed channel would wake the broker again and again.
            let _ = unwatch(&self.epoll, successor.process.channel());
            return;
        }
        let is_ready = successor.offer.is_some();
        match successor.process.receive() {
            Ok(None) => {}
            Ok(Some((ToBroker::Frontend { connected: true }, _))) if is_ready => {
                (successor.serves, successor.until) = (true, now.saturating_add(LEAVE_PATIENCE));
                // The earlier process ends soon, and further messages of the successor are handled then.
                let _ = unwatch(&self.epoll, successor.process.channel());
                self.repeat_orders(index, now);
            }
            Ok(Some((ToBroker::Ready { gpus, limits, in_force }, _))) if !is_ready => {
                successor.offer = Some(Offer { gpus, limits, in_force });
                successor.until = now.saturating_add(PATIENCE);
                self.have_handed_on(index);
            }
            Ok(Some(_)) => {
                self.vms[index].renew_at = None;
                self.end_successor(index, "it says something before it serves");
            }
            // The reason is logged when the successor's end is handled.
            Err(_) => {
                let _ = unwatch(&self.epoll, successor.process.channel());
            }
        }
    }

    /// Repeats to a serving successor the orders that the earlier process may not have read when it passed the VM on. Unread restarts have not begun.
    fn repeat_orders(&mut self, index: usize, now: Nanos) {
        let killed = self.vms[index].contexts.iter().filter(|(_, context)| context.killed.is_some());
        for ctx_id in killed.map(|(ctx_id, _)| *ctx_id).collect::<Vec<_>>() {
            self.tell(index, FromBroker::Kill { ctx_id });
        }
        self.no_restarts_of(index, "the VM has just got a device process of a new program: try again", now);
    }

    /// Tells both device processes of a VM that the successor follows, or ends the successor, in which case the VM gets another one later.
    fn have_handed_on(&mut self, index: usize) {
        let vm = &self.vms[index];
        if !vm.could_have_successor() {
            return self.end_successor(index, NOT_NEEDED);
        }
        if !vm.contexts.is_empty() && !self.has_the_same_gpus(vm) {
            let why = "it finds other GPUs than those that programs of the guest use";
            return self.end_successor(index, why);
        }
        let vm = &mut self.vms[index];
        let Some(successor) = &mut vm.successor else { return };
        let pair = Channel::pair().map_err(|error| error.to_string());
        let told = pair.and_then(|(ours, theirs)| {
            successor.process.send_with(FromBroker::HandOn, Some(theirs.as_fd()))?;
            Ok(ours)
        });
        let ours = match told {
            Ok(ours) => ours,
            Err(why) => return self.end_successor(index, &why),
        };
        let sent =
            vm.process.as_mut().map(|process| process.send_with(FromBroker::HandOn, Some(ours.as_fd())));
        self.sent(index, sent.unwrap_or(Ok(false)));
    }

    /// Returns whether the successor has the same GPUs as the VM, in the same order.
    fn has_the_same_gpus(&self, vm: &Vm) -> bool {
        let offer = vm.successor.as_ref().and_then(|successor| successor.offer.as_ref());
        let offered = offer.into_iter().flat_map(|offer| &offer.gpus).map(|gpu| gpu.uuid);
        offered.eq(vm.gpus.iter().map(|on| self.gpus[on.gpu].shared().uuid))
    }

    /// Ends the successor of a VM, if the VM has one.
    pub(in crate::broker) fn end_successor(&mut self, index: usize, why: &str) {
        let vm = &mut self.vms[index];
        let Some(successor) = vm.successor.as_mut().filter(|successor| !successor.process.dying) else {
            return;
        };
        successor.kill();
        log::info!(vm = vm.name(); "the device process of the new program is ended: {why}");
    }

    /// Handles the end of a successor.
    pub(in crate::broker) fn successor_ended(&mut self, index: usize, now: Nanos) {
        let Some(vm) = self.vms.get_mut(index) else { return };
        let Some(Successor { mut process, serves, .. }) = vm.successor.take() else { return };
        let cpu = process.cpu_time();
        self.unwatch(&process);
        let status = process.reap();
        let vm = &mut self.vms[index];
        vm.past.device_cpu += cpu;
        let passes =
            process.dying || status.as_ref().is_ok_and(|status| status.code() == Some(START_AGAIN.into()));
        if passes {
            vm.renew_at = vm.renew_at.map(|at| at.max(now.saturating_add(RENEW_FIRST)));
        } else {
            vm.renew_at = None;
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            let then = match serves {
                true => "it served the VM, which gets another one",
                false => "the VM goes on with the old program until it is off",
            };
            log::error!(vm = vm.name(); "the device process of the new program has ended ({status}): {then}");
        }
        if serves {
            self.disown(index, "it has passed the VM to another device process, which has ended");
        }
        self.forget_left(index, now);
    }

    /// Puts a ready successor in the place of an ended device process. Unless it serves already, all contexts end. Returns whether it took the place.
    pub(super) fn succeed(&mut self, index: usize, now: Nanos) -> bool {
        let vm = &mut self.vms[index];
        vm.renew_at = None;
        let Some(Successor { mut process, offer: Some(offer), serves, .. }) =
            vm.successor.take_if(|successor| successor.offer.is_some() && !successor.process.dying)
        else {
            self.all_ends(index, now);
            self.end_successor(index, "the device process that it was to follow has ended");
            return false;
        };
        if !serves {
            self.all_ends(index, now);
        }
        self.unwatch(&process);
        let watched = self.watch_process(index, &process);
        let vm = &mut self.vms[index];
        let state = if serves { "serves the VM" } else { "is there in its place" };
        log::info!(vm = vm.name(), pid = process.pid(); "a device process of the new program {state}");
        // The frontend counts as connected, as to the earlier process, until this one says otherwise.
        process.connected = true;
        vm.process = Some(process);
        let Offer { gpus, limits, in_force } = offer;
        let ready =
            watched.map_err(|error| error.to_string()).and_then(|()| self.ready(index, &gpus, limits, now));
        // The earlier process may have been told of a new placement when it did nothing any more.
        let placement = self.vms[index].placement.clone();
        self.tell(index, FromBroker::Place { placement });
        self.settled(index, in_force);
        if let Err(why) = ready {
            self.disown(index, &why);
        }
        self.channel(index, Events::EPOLLIN, now);
        true
    }
}

/// The reason why a successor is ended if its VM has no device process that it could follow.
const NOT_NEEDED: &str = "it is not needed any more";
