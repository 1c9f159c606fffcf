//! The words that describe a plan to an operator, the same before and after it is carried out.

use super::super::settings::VmSettings;
use super::plan::{Action, Pending};
use super::{NOW, Reloaded};

/// A VM, and the keys whose earlier values it keeps until its next device process.
type Later = (String, Vec<String>);

impl Reloaded {
    /// Returns the report of these actions, which lead to `vms`. With `divided`, VMs without limits of their own get other parts of the control group
    /// from the next start of their device processes.
    pub(in crate::broker) fn of(actions: &[Action], vms: &[VmSettings], divided: bool) -> Self {
        let (mut told, mut later) = (Self::default(), Vec::new());
        actions.iter().for_each(|action| told.hear(action, &mut later));
        let noticed = [told.added.as_slice(), &told.changed, &told.restarted, &told.pending].concat();
        let names = vms.iter().map(|vm| &vm.name);
        told.unchanged = names.filter(|name| !noticed.contains(name)).cloned().collect();
        if divided {
            later.extend(vms.iter().filter_map(|vm| keeps_its_group(vm, &told)));
        }
        told.notes.extend(notes(&later));
        told
    }

    fn hear(&mut self, action: &Action, later: &mut Vec<Later>) {
        match action {
            Action::Policy(_) | Action::Anticipation(_) => {}
            Action::NextBroker(key) => self.notes.push(format!(
                "{key}: what the file says now holds when the broker is started again, which ends the GPUs of all VMs"
            )),
            Action::Add(vm) => self.added.push(vm.name.clone()),
            Action::Remove(name) => self.removed.push(name.clone()),
            Action::Reshare(name, _) => self.changed.push(name.clone()),
            Action::Replace(vm, ..) => self.restarted.push(vm.name.clone()),
            Action::NextProcess(vm, keys) => later.push((vm.name.clone(), keys.clone())),
            Action::Postpone(name, pending) => {
                self.notes.push(format!(
                    "{name}: {} when the VM is off; `{NOW}` does so at once and ends its GPU",
                    what(pending)
                ));
                self.pending.push(name.clone());
            }
        }
    }
}

/// Returns the fate of a VM, in words.
fn what(pending: &Pending) -> String {
    match pending {
        Pending::Replace(_, keys) if keys.len() == 1 => format!("{} takes effect", keys[0]),
        Pending::Replace(_, keys) => format!("{} take effect", keys.join(", ")),
        Pending::Remove => "the file does not name it any more, and it is removed".into(),
    }
}

/// The keys of the control group whose earlier values a VM keeps, if it notices nothing.
fn keeps_its_group(vm: &VmSettings, told: &Reloaded) -> Option<Later> {
    let own = vm.options.quotas.group_limits();
    let keys = [("max-tasks", own.tasks), ("worker-memory", own.memory)];
    let keys: Vec<_> =
        keys.into_iter().filter(|(_, own)| own.is_none()).map(|(key, _)| key.to_owned()).collect();
    let starts = told.added.contains(&vm.name) || told.restarted.contains(&vm.name);
    (!starts && !keys.is_empty()).then(|| (vm.name.clone(), keys))
}

/// A sentence for each key whose new part some VMs get later.
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
