//! The broker takes over a configuration file that was read again: it carries out the plan of `reload::plan`, at once or when a VM is off, and
//! answers the operators who asked.

use super::super::backoff::Backoff;
use super::super::connections::Peer;
use super::super::control::Answer;
use super::super::operator::state;
use super::super::reload::plan::{Action, Pending, Reshare, merged, plan, sparing};
use super::super::reload::{Asker, How, Reloaded, doubt};
use super::super::report::counted;
use super::super::run::{Broker, END_PATIENCE, Upkeep};
use super::super::settings::share::Policy;
use super::super::settings::{Settings, VmSettings};
use sched::Nanos;

/// The answer of a daemon that has no file to read again.
const NO_FILE: &str = "this daemon serves one VM and has no file: end it, and start it with other options";

impl Broker {
    /// Has the file read, for this operator if one asks. The service manager is told of the begin, and of the end in [`Self::take_read`].
    pub(in crate::broker) fn read_again(&mut self, asker: Asker<Peer>, now: Nanos) {
        let Some(Upkeep { reader, .. }) = &mut self.upkeep else {
            let answer = Answer::Error { error: NO_FILE.into() };
            return asker.peer.into_iter().for_each(|peer| self.say(peer, &answer, now));
        };
        if self.manager.knows_ready() && !reader.is_reading() {
            self.manager.reloading();
        }
        reader.ask(asker);
    }

    /// Takes over the files that were read since the last call. A dry run is answered first.
    pub(in crate::broker) fn take_read(&mut self, now: Nanos) {
        while let Some((askers, read)) = self.upkeep.as_mut().and_then(|upkeep| upkeep.reader.take()) {
            self.connections.take_over(read.made, &self.epoll);
            let read = read.settings.map_err(|problem| problem.to_string());
            let (looking, wanting): (Vec<_>, Vec<_>) =
                askers.into_iter().partition(|asker| asker.how.dry_run);
            for asker in looking {
                self.answer_reload(&[asker], read.clone(), asker.how, now);
            }
            if !wanting.is_empty() {
                let how = How { now: wanting.iter().any(|asker| asker.how.now), dry_run: false };
                self.answer_reload(&wanting, read, how, now);
            }
            let is_reading = self.upkeep.as_ref().is_some_and(|upkeep| upkeep.reader.is_reading());
            if self.manager.knows_ready() && !is_reading {
                self.manager.ready(counted(self.vms.iter().map(state)));
            }
        }
    }

    fn answer_reload(
        &mut self,
        askers: &[Asker<Peer>],
        read: Result<Settings, String>,
        how: How,
        now: Nanos,
    ) {
        let taken = read.and_then(|settings| match doubt(&self.settings, &settings) {
            Some(doubt) if !how.now => Err(doubt),
            _ => Ok(settings),
        });
        let answer = match taken {
            _ if self.is_ending => Answer::Error { error: "the broker ends".into() },
            Ok(settings) => Answer::Reloaded(self.adopt(settings, how, now)),
            Err(why) => {
                let error =
                    format!("{why}{}nothing has changed", if why.contains('\n') { "\n" } else { "; " });
                if !how.dry_run {
                    error
                        .lines()
                        .for_each(|line| log::error!("the configuration file was read again: {line}"));
                }
                Answer::Error { error }
            }
        };
        askers.iter().filter_map(|asker| asker.peer).for_each(|peer| self.say(peer, &answer, now));
    }

    /// Puts `new` into force instead of the present settings, as far as `how` allows. Returns the changes for the VMs.
    pub(in crate::broker) fn adopt(&mut self, new: Settings, how: How, now: Nanos) -> Reloaded {
        let actions = sparing(plan(&self.settings, &new), |vm| !how.now && self.is_used(vm));
        let settings = merged(&self.settings, new, &actions);
        let told = Reloaded::of(&actions, &settings.vms, self.groups.divides_anew(&settings.vms));
        if how.dry_run {
            return told;
        }
        self.settings = settings;
        self.take_options();
        self.groups.divide(&self.settings.vms);
        self.vms.iter_mut().for_each(|vm| vm.pending = None);
        actions.into_iter().for_each(|action| self.act(action, now));
        self.set_shares(now);
        told.notes.iter().for_each(|note| log::warn!("{note}"));
        log::info!("the configuration file was read again: {told}");
        told
    }

    /// Takes over the new options of VMs. A VM's options may differ though they are written as before: a group of users can have got another number.
    fn take_options(&mut self) {
        for vm in self.vms.iter_mut() {
            let named = |settings: &&VmSettings| settings.name == vm.settings.name;
            if let Some(VmSettings { options, .. }) = self.settings.vms.iter().find(named) {
                vm.settings.options.clone_from(options);
            }
        }
    }

    /// Returns whether a frontend is connected to a VM whose device process is not being ended.
    fn is_used(&self, name: &str) -> bool {
        let vm = self.vms.named(name).map(|index| &self.vms[index]);
        let process = vm.filter(|vm| vm.ending.is_none()).and_then(|vm| vm.process.as_ref());
        process.is_some_and(|process| process.connected && !process.dying)
    }

    fn act(&mut self, action: Action, now: Nanos) {
        match action {
            Action::Policy(policy) => {
                log::info!("VMs share GPUs by another policy: {}", policy.name());
                if policy == Policy::Equal {
                    // Under this policy, weights that operators have set do not count either.
                    for vm in self.vms.iter_mut() {
                        vm.share.weight = vm.settings.share.weight;
                        self.groups.set_weight(vm);
                    }
                }
            }
            Action::Anticipation(part) => {
                self.gpus.iter_mut().for_each(|gpu| gpu.set_anticipation(part));
            }
            Action::NextBroker(_) => {}
            Action::Add(vm) => self.admit(vm, now),
            Action::Remove(name) => self.of_vm(&name, |broker, index| broker.dismiss(index, now)),
            Action::Reshare(name, reshare) => {
                self.of_vm(&name, |broker, index| broker.reshare(index, reshare));
            }
            Action::Replace(vm, reshare, keys) => self.of_vm(&vm.name.clone(), |broker, index| {
                log::warn!(vm = vm.name.as_str(); "{} changed: the VM gets a new device process, and contexts of its guest are lost", keys.join(", "));
                broker.reshare(index, reshare);
                broker.replace(index, vm, now);
            }),
            Action::NextProcess(vm, _) => {
                self.of_vm(&vm.name.clone(), |broker, index| broker.vms[index].settings = vm);
            }
            Action::Postpone(name, pending) => {
                self.of_vm(&name, |broker, index| broker.vms[index].pending = Some(pending));
            }
        }
    }

    /// Calls `act` for the VM of this name, if it exists.
    fn of_vm(&mut self, name: &str, act: impl FnOnce(&mut Self, usize)) {
        if let Some(index) = self.vms.named(name) {
            act(self, index);
        }
    }

    /// Has postponed changes take effect when a frontend is gone. Ends the device process for them, or if it runs an earlier program.
    pub(in crate::broker) fn frontend_gone(&mut self, index: usize, now: Nanos) {
        let is_older = self.vms[index].process.as_ref().is_some_and(|process| process.is_older);
        if self.take_effect(index) || is_older {
            let vm = &mut self.vms[index];
            vm.backoff = Backoff::default();
            vm.end_process(now + END_PATIENCE);
        }
    }

    /// Puts the postponed change of a VM into force. Returns whether the VM had one.
    pub(in crate::broker) fn take_effect(&mut self, index: usize) -> bool {
        let vm = &mut self.vms[index];
        match vm.pending.take() {
            None => return false,
            Some(Pending::Replace(settings, keys)) => {
                log::info!(vm = vm.name(); "the VM is off: the new {} of the configuration file apply when its device process starts again", keys.join(", "));
                vm.settings = *settings;
                self.settings.put(vm.settings.clone());
            }
            Some(Pending::Remove) => {
                log::info!(vm = vm.name(); "the VM is off and is removed: the configuration file does not name it any more");
                vm.is_leaving = true;
                self.settings.take_out(vm.name());
            }
        }
        self.groups.divide(&self.settings.vms);
        true
    }

    fn admit(&mut self, vm: VmSettings, now: Nanos) {
        log::info!(vm = vm.name.as_str(); "the VM is new in the configuration file");
        match self.vms.named(&vm.name) {
            // The VM has come back before its device process has ended.
            Some(index) => {
                self.vms[index].is_leaving = false;
                self.vms[index].share = vm.share;
                self.replace(index, vm, now);
            }
            None => _ = self.add(vm, now),
        }
    }

    fn dismiss(&mut self, index: usize, now: Nanos) {
        let vm = &mut self.vms[index];
        log::info!(vm = vm.name(); "the VM is not in the configuration file any more: its device process is ended");
        vm.is_leaving = true;
        vm.end_process(now + END_PATIENCE);
        if vm.is_idle() {
            self.forget(index, now);
        }
    }

    fn reshare(&mut self, index: usize, reshare: Reshare) {
        let vm = &mut self.vms[index];
        vm.share = reshare.apply(vm.share);
        vm.settings.share = reshare.apply(vm.settings.share);
        self.groups.set_weight(&self.vms[index]);
        let vm = &self.vms[index];
        vm.log_share("the file changes the VM's share:");
    }

    /// Gives the VM a device process with these settings when its present one has ended.
    fn replace(&mut self, index: usize, settings: VmSettings, now: Nanos) {
        let vm = &mut self.vms[index];
        vm.settings = settings;
        vm.backoff = Backoff::default();
        vm.end_process(now + END_PATIENCE);
        if vm.is_idle() {
            vm.start_at = Some(now);
        }
    }
}
