//! A VM in use gets a device process of this program in the place of one of an earlier program: the *successor*, which starts beside it, and
//! to which the other passes the frontend on (`serve::succession`) when no program of the guest uses the GPU.
//!
//! The broker waits for neither of them. A successor that is late, or says what it must not, is ended, and the VM keeps the device process that it has.

use super::super::process::Process;
use super::super::run::Broker;
use super::super::source::Source;
use super::super::vm::{Offer, Successor, Vm};
use crate::ipc::{Channel, FromBroker, ToBroker};
use crate::sandbox::START_AGAIN;
use readiness::{Events, unwatch, watch};
use sched::Nanos;
use std::io;
use std::os::fd::AsFd;

/// Time that a successor has to be ready, and then to take over, in nanoseconds.
const PATIENCE: Nanos = 60_000_000_000;
/// Time until it is tried again where something was in the way that passes, in nanoseconds.
const AGAIN: Nanos = 30_000_000_000;

impl Broker {
    /// Starts successors whose time has come, and ends those that are late.
    pub(in crate::broker) fn renew_due(&mut self, now: Nanos) {
        for index in self.vms.indices() {
            let vm = &mut self.vms[index];
            if vm.successor.as_ref().is_some_and(|successor| successor.until <= now) {
                vm.renew_at = None;
                self.end_successor(index, "it does not take over in time");
            } else if vm.renew_at.is_some_and(|at| at <= now) && self.may_renew(&self.vms[index]) {
                self.start_successor(index, now);
            }
        }
    }

    /// Returns when [`Self::renew_due`] has something to do, whatever happens until then.
    pub(in crate::broker) fn next_renewal(&self) -> Option<Nanos> {
        let starts = self.vms.iter().filter(|vm| self.may_renew(vm)).filter_map(|vm| vm.renew_at);
        let ends = self.vms.iter().filter_map(|vm| vm.successor.as_ref()).map(|successor| successor.until);
        starts.chain(ends.filter(|until| *until < Nanos::MAX)).min()
    }

    /// Returns whether a successor can be started for a VM.
    fn may_renew(&self, vm: &Vm) -> bool {
        let is_alone = vm.successor.is_none() && !vm.awaits_successor;
        is_alone && vm.could_have_successor() && !self.is_ending && self.upgrading.is_none()
    }

    fn start_successor(&mut self, index: usize, now: Nanos) {
        let vm = &self.vms[index];
        let group = match self.groups.arguments(vm) {
            Ok(group) => group,
            Err(error) => return self.take_successor(index, Err(error), now),
        };
        let follows = [FOLLOWS.into()];
        let arguments = [vm.settings.arguments.as_slice(), &vm.settings.parts, &group, &follows].concat();
        let Some(upkeep) = &self.upkeep else { return };
        upkeep.starter.start(index, vm.name(), arguments, true);
        // Again, unless something comes of it.
        (self.vms[index].awaits_successor, self.vms[index].renew_at) =
            (true, Some(now.saturating_add(AGAIN)));
    }

    /// Takes over a successor that has been started.
    pub(in crate::broker) fn take_successor(
        &mut self,
        index: usize,
        started: io::Result<Process>,
        now: Nanos,
    ) {
        let until = now.saturating_add(PATIENCE);
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
            return watched.into_iter().for_each(|mut process| process.kill());
        };
        vm.awaits_successor = false;
        match watched {
            Ok(process) => {
                log::info!(vm = vm.name(), pid = process.pid(); "a device process of the new program starts");
                vm.successor = Some(Successor { process, offer: None, until });
                if !vm.could_have_successor() {
                    self.end_successor(index, "it is not needed any more");
                }
            }
            Err(error) => {
                vm.renew_at = None;
                log::error!(vm = vm.name(); "cannot start a device process of the new program: {error}");
            }
        }
    }

    /// A successor has said something.
    pub(in crate::broker) fn hear_successor(&mut self, index: usize, now: Nanos) {
        let Some(successor) = self.vms.get_mut(index).and_then(|vm| vm.successor.as_mut()) else { return };
        let heard = match successor.process.receive() {
            Ok(None) => return,
            Ok(Some((ToBroker::Ready { gpus, limits, in_force }, _))) => {
                successor.offer = Some(Offer { gpus, limits, in_force });
                successor.until = now.saturating_add(PATIENCE);
                // What it says from now on is heard when it serves, and its end is heard of otherwise.
                let _ = unwatch(&self.epoll, successor.process.channel());
                self.have_handed_on(index)
            }
            Ok(Some(_)) => Err("it says something before it is ready".to_owned()),
            // Its end tells why.
            Err(_) => {
                let _ = unwatch(&self.epoll, successor.process.channel());
                return;
            }
        };
        if let Err(why) = heard {
            self.vms[index].renew_at = None;
            self.end_successor(index, &why);
        }
    }

    /// Tells both device processes of a VM that the one follows the other.
    fn have_handed_on(&mut self, index: usize) -> Result<(), String> {
        let vm = &mut self.vms[index];
        if !vm.contexts.is_empty() || !vm.could_have_successor() {
            self.end_successor(index, "programs of the guest use the GPU");
            return Ok(());
        }
        let (ours, theirs) = Channel::pair().map_err(|error| error.to_string())?;
        let Some(successor) = &mut vm.successor else { return Ok(()) };
        successor.process.send_with(FromBroker::HandOn, Some(theirs.as_fd()))?;
        let sent =
            vm.process.as_mut().map(|process| process.send_with(FromBroker::HandOn, Some(ours.as_fd())));
        self.sent(index, sent.unwrap_or(Ok(false)));
        Ok(())
    }

    /// Ends the successor of a VM, if there is one.
    pub(in crate::broker) fn end_successor(&mut self, index: usize, why: &str) {
        let vm = &mut self.vms[index];
        let Some(successor) = vm.successor.as_mut().filter(|successor| !successor.process.dying) else {
            return;
        };
        successor.process.kill();
        // It is heard of once more.
        successor.until = Nanos::MAX;
        log::info!(vm = vm.name(); "the device process of the new program is ended: {why}");
    }

    /// A successor has ended.
    pub(in crate::broker) fn successor_ended(&mut self, index: usize, now: Nanos) {
        let Some(vm) = self.vms.get_mut(index) else { return };
        let Some(Successor { mut process, .. }) = vm.successor.take() else { return };
        let cpu = process.cpu_time();
        let _ = unwatch(&self.epoll, process.channel());
        process.pidfd().into_iter().for_each(|pidfd| _ = unwatch(&self.epoll, pidfd));
        let status = process.reap();
        vm.past.device_cpu += cpu;
        let passes =
            process.dying || status.as_ref().is_ok_and(|status| status.code() == Some(START_AGAIN.into()));
        if passes {
            vm.renew_at = vm.renew_at.map(|at| at.max(now.saturating_add(AGAIN)));
        } else {
            vm.renew_at = None;
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            log::error!(
                vm = vm.name();
                "the device process of the new program has ended ({status}): the VM goes on with the old program until it is off"
            );
        }
    }

    /// The device process of a VM has ended. Returns whether its successor serves the VM now.
    pub(super) fn succeed(&mut self, index: usize, now: Nanos) -> bool {
        let vm = &mut self.vms[index];
        vm.renew_at = None;
        let Some(Successor { mut process, offer: Some(offer), .. }) =
            vm.successor.take_if(|successor| successor.offer.is_some() && !successor.process.dying)
        else {
            self.end_successor(index, "the device process that it was to follow has ended");
            return false;
        };
        process.pidfd().into_iter().for_each(|pidfd| _ = unwatch(&self.epoll, pidfd));
        let watched = self.watch_process(index, &process);
        let vm = &mut self.vms[index];
        log::info!(vm = vm.name(), pid = process.pid(); "a device process of the new program serves the VM");
        // As the other was, until it says otherwise.
        process.connected = true;
        vm.process = Some(process);
        let Offer { gpus, limits, in_force } = offer;
        let ready =
            watched.map_err(|error| error.to_string()).and_then(|()| self.ready(index, &gpus, limits, now));
        self.settled(index, in_force);
        if let Err(why) = ready {
            self.disown(index, &why);
        }
        self.channel(index, Events::EPOLLIN, now);
        true
    }
}

/// The option of a device process that is to follow another.
const FOLLOWS: &str = "--take-over";
