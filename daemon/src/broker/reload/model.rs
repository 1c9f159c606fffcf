//! A model of the broker that carries a plan out, to check the result.

use super::super::settings::{Settings, VmSettings};
use super::plan::{Action, Pending, merged, plan, sparing};
use crate::options::Quotas;

/// Checks the plan from one configuration to another: carried out on the first it results in the second, and it has only the actions for a VM that
/// the VM's differences require.
pub(in crate::broker) fn check(old: &Settings, new: &Settings) {
    let actions = plan(old, new);
    assert_eq!(actions.is_empty(), old == new, "{actions:?}");
    assert_eq!(carried_out(old.clone(), actions.clone()), merged(old, new.clone(), &[]), "{actions:?}");
    check_spared(old, new, &|_| true);
    check_spared(old, new, &|name| name.len() % 2 == 0);
    for vm in &new.vms {
        let before = old.vms.iter().find(|before| before.name == vm.name);
        let about = actions.iter().filter(|action| concerns(action) == Some(&vm.name));
        let about: Vec<_> = about.collect();
        match before {
            None => assert_eq!(about, [&Action::Add(vm.clone())]),
            Some(before) if before == vm => assert_eq!(about, [] as [&Action; 0]),
            Some(before) if before.written == vm.written => {
                let ends = |action: &&&Action| matches!(action, Action::Replace(..) | Action::Remove(_));
                assert_eq!(about.iter().find(ends), None, "its process need not end");
            }
            Some(_) => assert!(matches!(about[..], [Action::Replace(..)]), "{about:?}"),
        }
    }
}

/// Checks that a plan ends no VM in use, and that its postponed changes lead to the settings that would hold otherwise.
fn check_spared(old: &Settings, new: &Settings, is_used: &dyn Fn(&str) -> bool) {
    let actions = sparing(plan(old, new), is_used);
    let ends = |action: &&Action| matches!(action, Action::Replace(vm, ..) if is_used(&vm.name));
    assert_eq!(actions.iter().find(ends), None, "a VM in use");
    let mut holds = carried_out(old.clone(), actions.clone());
    assert_eq!(holds, merged(old, new.clone(), &actions), "{actions:?}");
    assert_eq!(sparing(plan(&holds, new), is_used), later(&actions), "read again, it waits for the same");
    for action in later(&actions) {
        match action {
            Action::Postpone(_, Pending::Replace(vm, _)) => holds.put(*vm),
            Action::Postpone(name, Pending::Remove) => holds.take_out(&name),
            _ => {}
        }
    }
    assert_eq!(holds, merged(old, new.clone(), &[]), "{actions:?}");
}

/// The actions that are still to come after a plan was carried out.
fn later(actions: &[Action]) -> Vec<Action> {
    let waits = |action: &&Action| matches!(action, Action::NextBroker(_) | Action::Postpone(..));
    actions.iter().filter(waits).cloned().collect()
}

fn concerns(action: &Action) -> Option<&String> {
    match action {
        Action::Policy(_) | Action::Anticipation(_) | Action::NextBroker(_) => None,
        Action::Remove(name) | Action::Reshare(name, _) | Action::Postpone(name, _) => Some(name),
        Action::Add(vm) | Action::Replace(vm, ..) | Action::NextProcess(vm, _) => Some(&vm.name),
    }
}

/// Returns the settings that hold when all actions are done.
fn carried_out(old: Settings, actions: Vec<Action>) -> Settings {
    let mut settings = old;
    for action in actions {
        let vm = |settings: &mut Settings, name: &str| -> usize {
            settings.vms.iter().position(|vm| vm.name == name).expect("there is such a VM")
        };
        match action {
            Action::Policy(policy) => settings.policy = policy,
            Action::Anticipation(part) => settings.anticipation = part,
            // The present broker and its processes keep the old value.
            Action::NextBroker(_) | Action::Postpone(..) => {}
            Action::Add(new) => {
                let at = settings.vms.partition_point(|vm| vm.name < new.name);
                assert!(settings.vms.get(at).is_none_or(|vm| vm.name != new.name), "it is there");
                settings.vms.insert(at, new);
            }
            Action::Remove(name) => {
                let at = vm(&mut settings, &name);
                settings.vms.remove(at);
            }
            Action::Reshare(name, reshare) => {
                let at = vm(&mut settings, &name);
                settings.vms[at].share = reshare.apply(settings.vms[at].share);
            }
            Action::Replace(new, reshare, keys) => {
                assert!(!keys.is_empty(), "for no reason");
                let at = vm(&mut settings, &new.name);
                assert_eq!(reshare.apply(settings.vms[at].share), new.share);
                settings.vms[at] = new;
            }
            Action::NextProcess(new, keys) => {
                let at = vm(&mut settings, &new.name);
                let mut with_parts = VmSettings {
                    parts: new.parts.clone(),
                    reserved_memory: new.reserved_memory,
                    ..settings.vms[at].clone()
                };
                let Quotas { device_memory, host_memory, .. } = new.options.quotas;
                let quotas = &mut with_parts.options.quotas;
                (quotas.device_memory, quotas.host_memory) = (device_memory, host_memory);
                assert!(with_parts == new && !keys.is_empty(), "more than its parts has changed");
                settings.vms[at] = new;
            }
        }
    }
    settings
}
