//! Tests of each way in which one configuration can differ from another.

use super::super::settings::share::{HardwareSlices, Policy};
use super::super::settings::{MetricsAddress, Settings, VmSettings};
use super::model;
use super::plan::{Action, Pending, Reshare, merged, plan, sparing};
use crate::options::VmOptions;
use crate::sandbox::CgroupMode;
use config::Amount;
use sched::{Class, Share};
use std::time::Duration;

fn vm(name: &str) -> VmSettings {
    vm_with(name, &["gpu=x", "gpu=y", &format!("socket-path=/run/{name}")])
}

fn vm_with(name: &str, written: &[&str]) -> VmSettings {
    let vm = VmSettings {
        name: name.into(),
        share: Share { weight: 100, class: Class::Normal, ceiling: None },
        options: VmOptions::default(),
        written: written.iter().map(|option| (*option).to_owned()).collect(),
        parts: vec!["device-memory=4096".into()],
        own_paths: vec![format!("/run/{name}").into()],
        reserved_memory: 0,
    };
    vm.read_anew()
}

fn settings() -> Settings {
    Settings {
        policy: Policy::BestEffort,
        anticipation: None,
        hardware_slices: HardwareSlices::Driver,
        control_socket: "/run/control".into(),
        control_socket_group: None,
        metrics: None,
        log_grants: None,
        room: Default::default(),
        cgroup: CgroupMode::Auto,
        vms: ["a", "b", "c"].map(vm).into(),
    }
}

/// The actions that follow from one change, which a model has carried out.
fn after(change: impl FnOnce(&mut Settings)) -> Vec<Action> {
    let mut new = settings();
    change(&mut new);
    model::check(&settings(), &new);
    model::check(&new, &settings());
    plan(&settings(), &new)
}

fn reshare(old: Share, new: Share) -> Reshare {
    let mut changed = settings();
    let mut before = settings();
    (before.vms[0].share, changed.vms[0].share) = (old, new);
    match plan(&before, &changed).as_slice() {
        [] => Reshare::default(),
        [Action::Reshare(name, reshare)] if name == "a" => *reshare,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_follows_from_the_same_file() {
    assert_eq!(after(|_| {}), []);
}

#[test]
fn what_can_be_changed_before_the_tables_is() {
    assert_eq!(after(|new| new.policy = Policy::Fixed), [Action::Policy(Policy::Fixed)]);
    assert_eq!(after(|new| new.anticipation = Some(0.01)), [Action::Anticipation(Some(0.01))]);
}

#[test]
fn what_needs_another_broker_is_named_again_and_again_and_does_not_hold() {
    type Change = fn(&mut Settings);
    let changes: [(&str, Change); 8] = [
        ("cgroup", |new| new.cgroup = CgroupMode::Off),
        ("control-socket", |new| new.control_socket = "/run/other".into()),
        ("control-socket-group", |new| new.control_socket_group = Some(7)),
        ("hardware-slices", |new| new.hardware_slices = HardwareSlices::Short),
        ("log-grants", |new| new.log_grants = Some("/tmp/log".into())),
        ("metrics", |new| new.metrics = Some(MetricsAddress::Unix("/run/metrics".into()))),
        ("gpu-memory", |new| new.room.gpu_memory = Some(Amount::Part(9000))),
        ("memory-wait", |new| new.room.memory_wait = Duration::from_secs(1)),
    ];
    for (key, change) in changes {
        assert_eq!(after(change), [Action::NextBroker(key)]);
        let mut new = settings();
        change(&mut new);
        let holds = merged(&settings(), new.clone(), &[]);
        assert_eq!((&holds, plan(&holds, &new)), (&settings(), vec![Action::NextBroker(key)]));
    }
}

#[test]
fn vms_come_and_go() {
    assert_eq!(after(|new| new.vms.push(vm("d"))), [Action::Add(vm("d"))]);
    assert_eq!(after(|new| _ = new.vms.remove(1)), [Action::Remove("b".into())]);
    // A VM with another name is another VM, even with all else equal.
    let renamed = VmSettings { name: "bb".into(), ..vm("b") };
    assert_eq!(after(|new| new.vms[1] = renamed.clone()), [Action::Remove("b".into()), Action::Add(renamed)]);
}

#[test]
fn each_key_of_a_share_is_changed_alone_and_leaves_what_an_operator_has_set() {
    let share = vm("a").share;
    let set = Share { weight: 7, class: Class::Latency, ceiling: Some(0.5) };
    assert_eq!(reshare(share, share).apply(set), set);
    let changes = [
        (Share { weight: 300, ..share }, Share { weight: 300, ..set }),
        (Share { class: Class::Background, ..share }, Share { class: Class::Background, ..set }),
        (Share { ceiling: Some(0.1), ..share }, Share { ceiling: Some(0.1), ..set }),
    ];
    for (new, result) in changes {
        assert_eq!(reshare(share, new).apply(set), result);
    }
    let bounded = Share { ceiling: Some(0.1), ..share };
    assert_eq!(reshare(bounded, share).apply(set), Share { ceiling: None, ..set });
}

#[test]
fn other_keys_of_a_vm_need_a_new_device_process_and_are_named() {
    let changes: [(&[&str], &[&str]); 5] = [
        (&["gpu=x", "gpu=y", "socket-path=/run/other"], &["socket-path"]),
        (&["gpu=y", "gpu=x", "socket-path=/run/b"], &["gpu"]),
        (&["gpu=x", "socket-path=/run/b"], &["gpu"]),
        (&["movable", "gpu=x", "gpu=y", "socket-path=/run/b"], &["movable"]),
        (&["max-maps=3", "socket-path=/run/b"], &["gpu", "max-maps"]),
    ];
    for (words, keys) in changes {
        let changed = vm_with("b", words);
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let actions = after(|new| new.vms[1] = changed.clone());
        assert_eq!(actions, [Action::Replace(changed, Reshare::default(), keys)]);
    }
}

#[test]
fn another_part_of_what_there_is_for_all_waits_for_the_next_device_process() {
    let changed = VmSettings { parts: vec!["device-memory=2048".into()], ..vm("b") }.read_anew();
    let keys = vec!["device-memory".to_owned()];
    let actions = after(|new| new.vms[1] = changed.clone());
    assert_eq!(actions, [Action::NextProcess(changed.clone(), keys.clone())]);
    // The change of the share does not wait for the other change.
    let share = Share { weight: 1, ..changed.share };
    let both = VmSettings { share, ..changed };
    let actions = after(|new| new.vms[1] = both.clone());
    let [Action::Reshare(name, change), later] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((name.as_str(), change.apply(vm("b").share)), ("b", share));
    assert_eq!(*later, Action::NextProcess(both, keys));
}

#[test]
fn a_new_device_process_takes_a_new_share_and_new_parts_along() {
    let share = Share { weight: 1, ..vm("b").share };
    let changed = VmSettings { written: Vec::new(), parts: Vec::new(), share, ..vm("b") }.read_anew();
    let actions = after(|new| new.vms[1] = changed.clone());
    let [Action::Replace(all, reshare, _)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((all, reshare.apply(vm("b").share)), (&changed, share));
}

#[test]
fn what_ends_the_gpu_of_a_vm_in_use_waits_and_the_rest_does_not() {
    let mut new = settings();
    let share = Share { weight: 1, ..vm("b").share };
    let changed = VmSettings { share, ..vm_with("b", &["max-maps=3"]) };
    new.vms = vec![vm_with("a", &[]), changed.clone(), vm("d")];
    new.policy = Policy::Fixed;
    let actions = sparing(plan(&settings(), &new), |name| name != "a");
    let [policy, gone, replaced, share_of_b, later, added] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert_eq!(*policy, Action::Policy(Policy::Fixed));
    assert_eq!(*gone, Action::Postpone("c".into(), Pending::Remove));
    assert!(matches!(replaced, Action::Replace(vm, ..) if vm.name == "a"), "it is not in use: {replaced:?}");
    assert!(
        matches!(share_of_b, Action::Reshare(name, reshare) if name == "b" && reshare.apply(share) == share)
    );
    let keys = ["gpu", "max-maps", "socket-path"].map(str::to_owned).into();
    assert_eq!(*later, Action::Postpone("b".into(), Pending::Replace(Box::new(changed), keys)));
    assert_eq!(*added, Action::Add(vm("d")));
    let holds = merged(&settings(), new.clone(), &actions);
    let b = VmSettings { share, ..vm("b") };
    assert_eq!(holds.vms, [new.vms[0].clone(), b, vm("c"), vm("d")]);
    // With the earlier file again, no change waits any more.
    let back = Settings { vms: holds.vms.clone(), ..new };
    assert_eq!(plan(&holds, &back), []);
}

#[test]
fn all_at_once_is_the_sum_of_its_parts() {
    let actions = after(|new| {
        new.policy = Policy::Equal;
        new.cgroup = CgroupMode::On;
        new.vms[0].share.weight = 5;
        new.vms[1] = VmSettings { written: Vec::new(), ..new.vms[1].clone() }.read_anew();
        new.vms[2] = vm("d");
    });
    assert_eq!(actions.len(), 6, "{actions:?}");
}
