//! The broker takes over a configuration file that was read again: does what `reload::plan` says, and tells whoever asked.

use super::super::backoff::Backoff;
use super::super::connections::Peer;
use super::super::control::Answer;
use super::super::operator::state;
use super::super::reload::plan::{Action, Reshare, merged, plan};
use super::super::reload::{Asker, Reloaded, Removal, doubt};
use super::super::report::counted;
use super::super::run::{Broker, END_PATIENCE, Upkeep};
use super::super::settings::share::Policy;
use super::super::settings::{Settings, VmSettings};
use sched::Nanos;

/// A VM, and the keys that it goes on having as before until its next device process.
type Later = (String, Vec<String>);

/// The answer where there is no file to read again.
const NO_FILE: &str = "this daemon serves one VM and has no file: end it, and start it with other options";

impl Broker {
    /// Has the file read, for this operator if one asks. The service manager learns when that begins, and in [`Self::take_read`] when it is over.
    pub(in crate::broker) fn read_again(&mut self, who: Option<Asker<Peer>>, now: Nanos) {
        let Some(Upkeep { reader, .. }) = &mut self.upkeep else {
            let answer = Answer::Error { error: NO_FILE.into() };
            return who.into_iter().for_each(|asker| self.say(asker.peer, &answer, now));
        };
        if self.manager.knows_ready() && !reader.is_reading() {
            self.manager.reloading();
        }
        reader.ask(who);
    }

    /// Takes over the files that were read since the last call.
    pub(in crate::broker) fn take_read(&mut self, now: Nanos) {
        while let Some((askers, read)) = self.upkeep.as_mut().and_then(|upkeep| upkeep.reader.take()) {
            self.connections.take_over(read.made, &self.epoll);
            let is_meant = askers.iter().any(|asker| asker.removal == Removal::Meant);
            let read = read.settings.map_err(|problem| problem.to_string());
            let read = read.and_then(|settings| match self.doubt(&settings) {
                Some(doubt) if !is_meant => Err(doubt),
                _ => Ok(settings),
            });
            let answer = match read {
                _ if self.is_ending => Answer::Error { error: "the broker ends".into() },
                Ok(settings) => Answer::Reloaded(self.adopt(settings, now)),
                Err(why) => {
                    let error = format!("{why}; nothing has changed");
                    log::error!("the file was read again: {error}");
                    Answer::Error { error }
                }
            };
            askers.into_iter().for_each(|asker| self.say(asker.peer, &answer, now));
            let is_reading = self.upkeep.as_ref().is_some_and(|upkeep| upkeep.reader.is_reading());
            if self.manager.knows_ready() && !is_reading {
                self.manager.ready(counted(self.vms.iter().map(state)));
            }
        }
    }

    /// Returns why the VMs that are missing in `new` are removed only if an operator says that this is meant.
    pub(in crate::broker) fn doubt(&self, new: &Settings) -> Option<String> {
        let is_gone = |vm: &&VmSettings| new.vms.iter().all(|other| other.name != vm.name);
        let is_connected = |name: &str| {
            let process = self.vms.named(name).and_then(|index| self.vms[index].process.as_ref());
            process.is_some_and(|process| process.connected)
        };
        let gone = self.settings.vms.iter().filter(is_gone).map(|vm| vm.name.as_str());
        let gone: Vec<_> = gone.map(|name| (name, is_connected(name))).collect();
        doubt(&gone, new.vms.len())
    }

    /// Has `new` hold instead of the settings so far.
    pub(in crate::broker) fn adopt(&mut self, new: Settings, now: Nanos) -> Reloaded {
        let actions = plan(&self.settings, &new);
        self.settings = merged(&self.settings, new);
        let divided = self.groups.divide(&self.settings.vms);
        let mut told = Reloaded::default();
        let mut later = Vec::new();
        for action in actions {
            self.act(action, &mut told, &mut later, now);
        }
        let noticed = [told.added.as_slice(), &told.changed, &told.restarted].concat();
        let names = self.settings.vms.iter().map(|vm| &vm.name);
        told.unchanged = names.filter(|name| !noticed.contains(name)).cloned().collect();
        if divided {
            later.extend(self.settings.vms.iter().filter_map(|vm| keeps_its_group(vm, &told)));
        }
        told.notes.extend(notes(&later));
        self.set_shares(now);
        told.notes.iter().for_each(|note| log::warn!("{note}"));
        log::info!("the file was read again: {told}");
        told
    }

    fn act(&mut self, action: Action, told: &mut Reloaded, later: &mut Vec<Later>, now: Nanos) {
        match action {
            Action::Policy(policy) => {
                log::info!("VMs share GPUs by another policy: {}", policy.name());
                if policy == Policy::Equal {
                    // Nor has an operator given any weight.
                    for vm in self.vms.iter_mut() {
                        vm.share.weight = vm.settings.share.weight;
                        self.groups.set_weight(vm);
                    }
                }
            }
            Action::Anticipation(part) => {
                self.gpus.iter_mut().for_each(|gpu| gpu.set_anticipation(part));
            }
            Action::NextBroker(key) => told.notes.push(format!(
                "{key}: what the file says now holds when the broker is started again, which ends the GPUs of all VMs"
            )),
            Action::Add(vm) => {
                told.added.push(vm.name.clone());
                self.admit(vm, now);
            }
            Action::Remove(name) => {
                if let Some(index) = self.vms.named(&name) {
                    self.dismiss(index, now);
                }
                told.removed.push(name);
            }
            Action::Reshare(name, reshare) => {
                if let Some(index) = self.vms.named(&name) {
                    self.reshare(index, reshare);
                }
                told.changed.push(name);
            }
            Action::Replace(vm, reshare, keys) => {
                told.restarted.push(vm.name.clone());
                if let Some(index) = self.vms.named(&vm.name) {
                    log::warn!(vm = vm.name.as_str(); "{} changed: the VM gets a new device process, and contexts of its guest are lost", keys.join(", "));
                    self.reshare(index, reshare);
                    self.replace(index, vm, now);
                }
            }
            Action::NextProcess(vm, keys) => {
                later.push((vm.name.clone(), keys));
                if let Some(index) = self.vms.named(&vm.name) {
                    self.vms[index].settings = vm;
                }
            }
        }
    }

    fn admit(&mut self, vm: VmSettings, now: Nanos) {
        log::info!(vm = vm.name.as_str(); "the VM is new in the file");
        match self.vms.named(&vm.name) {
            // It comes back before its device process has ended.
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
        log::info!(vm = vm.name(); "the VM is not in the file any more: its device process is ended");
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

    /// The VM gets a device process with these settings when the one that it has has ended.
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

/// The keys of a VM's control group that it goes on having as before, if it notices nothing.
fn keeps_its_group(vm: &VmSettings, told: &Reloaded) -> Option<Later> {
    let keys = [("max-tasks", vm.group_limits.tasks), ("worker-memory", vm.group_limits.memory)];
    let keys: Vec<_> =
        keys.into_iter().filter(|(_, own)| own.is_none()).map(|(key, _)| key.to_owned()).collect();
    let starts = told.added.contains(&vm.name) || told.restarted.contains(&vm.name);
    (!starts && !keys.is_empty()).then(|| (vm.name.clone(), keys))
}

/// A sentence for each key of which VMs get another part later.
fn notes(later: &[Later]) -> Vec<String> {
    let mut keys: Vec<&String> = later.iter().flat_map(|(_, keys)| keys).collect();
    keys.sort_unstable();
    keys.dedup();
    let of = |key: &String| {
        let vms = later.iter().filter(|(_, keys)| keys.contains(key)).map(|(name, _)| name.as_str());
        format!(
            "{key}: the part changes when the device process is started again, for {}; write {key} into the VM's table to have it changed now",
            vms.collect::<Vec<_>>().join(", ")
        )
    };
    keys.into_iter().map(of).collect()
}
