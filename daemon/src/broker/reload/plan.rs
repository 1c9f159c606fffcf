//! The plan: the changes of a new configuration, as a list of actions. It follows from the old and the new one, and from the VMs in use.

use super::super::settings::share::Policy;
use super::super::settings::{Settings, VmSettings};
use sched::{Class, Share};
use serde::{Deserialize, Serialize};

/// One action that puts settings of the new file into force.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::broker) enum Action {
    /// VMs share a GPU by another policy.
    Policy(Policy),
    /// Another part of a GPU's time may be left unused.
    Anticipation(Option<f64>),
    /// This key before the tables takes effect only when the broker is started again.
    NextBroker(&'static str),
    /// A new VM.
    Add(VmSettings),
    /// A VM that is not in the file any more.
    Remove(String),
    /// A VM has another share, which can be changed while it runs.
    Reshare(String, Reshare),
    /// A VM needs a new device process, since these keys have changed.
    Replace(VmSettings, Reshare, Vec<String>),
    /// A VM gets another part of the amounts for all VMs (these keys) from the next start of its device process.
    NextProcess(VmSettings, Vec<String>),
    /// A VM in use would lose its GPU: the change is made when the VM's frontend has disconnected.
    Postpone(String, Pending),
}

/// The part of the file that ends the GPU of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::broker) enum Pending {
    /// The VM needs a new device process, since these keys have changed.
    Replace(Box<VmSettings>, Vec<String>),
    /// The VM is not in the file any more.
    Remove,
}

/// The keys of a VM's share that the file changes. An operator's changes stay for the keys that the file leaves as before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::broker) struct Reshare {
    weight: Option<u32>,
    class: Option<Class>,
    ceiling: Option<Option<f64>>,
}

impl Reshare {
    fn between(old: &Share, new: &Share) -> Self {
        Self {
            weight: (old.weight != new.weight).then_some(new.weight),
            class: (old.class != new.class).then_some(new.class),
            ceiling: (old.ceiling != new.ceiling).then_some(new.ceiling),
        }
    }

    /// Returns the new share, given the present one, which an operator may have set.
    pub(in crate::broker) fn apply(&self, share: Share) -> Share {
        Share {
            weight: self.weight.unwrap_or(share.weight),
            class: self.class.unwrap_or(share.class),
            ceiling: self.ceiling.unwrap_or(share.ceiling),
        }
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the actions that make `new` hold instead of `old`. VMs are in the order of their names in both. A VM without an action notices nothing. A
/// VM has at most [`Action::Reshare`] and [`Action::NextProcess`], or one other action.
pub(in crate::broker) fn plan(old: &Settings, new: &Settings) -> Vec<Action> {
    let mut actions = Vec::new();
    if old.policy != new.policy {
        actions.push(Action::Policy(new.policy));
    }
    if old.anticipation != new.anticipation {
        actions.push(Action::Anticipation(new.anticipation));
    }
    let fixed = [
        ("cgroup", old.cgroup == new.cgroup),
        ("control-socket", old.control_socket == new.control_socket),
        ("control-socket-group", old.control_socket_group == new.control_socket_group),
        ("log-grants", old.log_grants == new.log_grants),
        ("metrics", old.metrics == new.metrics),
        ("hardware-slices", old.hardware_slices == new.hardware_slices),
        ("gpu-memory", old.room.gpu_memory == new.room.gpu_memory),
        ("memory-wait", old.room.memory_wait == new.room.memory_wait),
    ];
    let changed = fixed.into_iter().filter(|(_, same)| !same);
    actions.extend(changed.map(|(key, _)| Action::NextBroker(key)));
    let has = |settings: &Settings, name: &str| settings.vms.iter().any(|vm| vm.name == name);
    let gone = old.vms.iter().filter(|vm| !has(new, &vm.name));
    actions.extend(gone.map(|vm| Action::Remove(vm.name.clone())));
    for vm in &new.vms {
        match old.vms.iter().find(|before| before.name == vm.name) {
            None => actions.push(Action::Add(vm.clone())),
            Some(before) => actions.extend(changes(before, vm)),
        }
    }
    actions
}

/// Returns the plan without the actions that end the GPUs of VMs in use: those are postponed.
pub(in crate::broker) fn sparing(actions: Vec<Action>, is_used: impl Fn(&str) -> bool) -> Vec<Action> {
    let spared = |action| match action {
        Action::Remove(name) if is_used(&name) => vec![Action::Postpone(name, Pending::Remove)],
        Action::Replace(vm, reshare, keys) if is_used(&vm.name) => {
            let reshare = (!reshare.is_nothing()).then(|| Action::Reshare(vm.name.clone(), reshare));
            let later = Action::Postpone(vm.name.clone(), Pending::Replace(Box::new(vm), keys));
            reshare.into_iter().chain([later]).collect()
        }
        other => vec![other],
    };
    actions.into_iter().flat_map(spared).collect()
}

/// Returns the settings that hold when the plan is carried out: `new`, apart from the keys of each [`Action::NextBroker`], and from postponed
/// changes.
pub(in crate::broker) fn merged(old: &Settings, new: Settings, actions: &[Action]) -> Settings {
    let Settings { policy, anticipation, vms, .. } = new;
    let mut merged = Settings { policy, anticipation, vms, ..old.clone() };
    for action in actions {
        let Action::Postpone(name, pending) = action else { continue };
        let Some(before) = old.vms.iter().find(|vm| vm.name == *name) else { continue };
        let share = match pending {
            Pending::Replace(new, _) => new.share,
            Pending::Remove => before.share,
        };
        merged.put(VmSettings { share, ..before.clone() });
    }
    merged
}

/// Returns the actions for a VM that is in both configurations.
fn changes(old: &VmSettings, new: &VmSettings) -> Vec<Action> {
    let reshare = Reshare::between(&old.share, &new.share);
    let keys = differing_keys(&old.written, &new.written);
    if !keys.is_empty() {
        return vec![Action::Replace(new.clone(), reshare, keys)];
    }
    let reshare = (!reshare.is_nothing()).then(|| Action::Reshare(new.name.clone(), reshare));
    let mut parts = differing_keys(&old.parts, &new.parts);
    if old.reserved_memory != new.reserved_memory {
        parts.push("reserved-memory".to_owned());
    }
    let parts = (!parts.is_empty()).then(|| Action::NextProcess(new.clone(), parts));
    reshare.into_iter().chain(parts).collect()
}

/// Returns the keys whose values, or the order of them, differ between the two lists of `KEY=VALUE`.
fn differing_keys(old: &[String], new: &[String]) -> Vec<String> {
    fn key(written: &str) -> &str {
        written.split('=').next().unwrap_or_default()
    }
    let mut keys: Vec<&str> = old.iter().chain(new).map(|written| key(written)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|name| {
        let [old, new] = [old, new].map(|list| list.iter().filter(|written| key(written) == *name));
        !old.eq(new)
    });
    keys.into_iter().map(str::to_owned).collect()
}
