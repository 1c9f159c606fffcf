//! Tests of reading the file again, with played device processes.

use super::*;
use crate::broker::reload::{How, Reloaded, doubt};
use crate::options::Group;

const PLAIN: How = How { now: false, dry_run: false };
const NOW: How = How { now: true, ..PLAIN };
const DRY_RUN: How = How { dry_run: true, ..PLAIN };

/// Has the broker take over its present settings with a change.
fn adopt(world: &mut World, change: impl FnOnce(&mut Settings)) -> Reloaded {
    adopt_so(world, PLAIN, change)
}

fn adopt_so(world: &mut World, how: How, change: impl FnOnce(&mut Settings)) -> Reloaded {
    let mut settings = world.broker.settings.clone();
    change(&mut settings);
    world.broker.adopt(settings, how, world.now)
}

/// The names of the VMs that wait, and the change that each of them waits for.
fn pending(world: &mut World) -> Vec<(String, String)> {
    let status = world.broker.status(world.now);
    status.vms.into_iter().filter_map(|vm| Some((vm.name, vm.pending?.to_string()))).collect()
}

fn counts(told: &Reloaded) -> [usize; 5] {
    [&told.added, &told.removed, &told.changed, &told.restarted, &told.unchanged].map(Vec::len)
}

fn set(world: &mut World, vm: &str, weight: i64) -> Result<(), String> {
    let change = Change { weight: Some(weight), ..Change::default() };
    world.broker.obey(Request::Set { vm: vm.into(), change }, world.now).map(|_| ())
}

/// Ends the device process of a VM that was asked to end.
fn ends_as_asked(world: &mut World, index: usize) {
    assert!(world.broker.vms[index].ending.is_some(), "no change or operator asked it to");
    world.broker.child_ended(index, world.now);
}

/// Ends the device process of a VM, though the broker did not ask for its end.
fn fails_by_itself(world: &mut World, index: usize) {
    world.broker.vms[index].process.as_mut().unwrap().kill();
    world.broker.child_ended(index, world.now);
}

#[test]
fn a_group_that_has_another_number_now_holds_from_the_next_device_process() {
    let mut world = world();
    (0..2).for_each(|vm| world.say(vm, &ready()));
    let told = adopt(&mut world, |new| new.vms[0].options.socket_group = Some(Group(7)));
    assert_eq!(counts(&told), [0, 0, 0, 0, 2]);
    let vm = &world.broker.vms[0];
    assert!(vm.settings.options.socket_group == Some(Group(7)) && vm.ending.is_none());
}

#[test]
fn a_vm_that_needs_a_new_device_process_gets_it_at_once_and_the_other_notices_nothing() {
    let mut world = world();
    (0..2).for_each(|vm| world.say(vm, &ready()));
    let (_lost, gate) = (world.begin(0, 1), world.begin(1, 1));
    let told = adopt(&mut world, |new| write(&mut new.vms[0], &["queues=all"]));
    assert_eq!((counts(&told), told.restarted.as_slice()), ([0, 0, 0, 1, 1], &["a".to_owned()][..]));
    assert_eq!(world.broker.status(world.now).vms[0].state, "ending");
    world.check_second(&gate);
    ends_as_asked(&mut world, 0);
    let vm = &world.broker.vms[0];
    assert!(vm.contexts.is_empty() && vm.ending.is_none() && vm.past.restarts == 1);
    assert!(vm.start_at.is_some_and(|at| at <= world.now), "it waits as if it had failed");
    assert_eq!(written(&vm.settings), ["queues=all"]);
    world.broker.vms[0].start_at = None;
    gate.tell(Counters { ready: 1, dispatched: 1, completed: 1 });
    world.ring(1);
    assert_eq!(gate.granted(), 2);
}

#[test]
fn a_vm_that_is_gone_leaves_when_its_device_process_has_ended_and_takes_nothing_along() {
    let mut world = world();
    (0..2).for_each(|vm| world.say(vm, &ready()));
    let (_lost, gate) = (world.begin(0, 1), world.begin(1, 1));
    let tenant = world.broker.vms[0].tenant;
    let told = adopt(&mut world, |new| _ = new.vms.remove(0));
    assert_eq!((counts(&told), told.removed.as_slice()), ([0, 1, 0, 0, 1], &["a".to_owned()][..]));
    assert_eq!(set(&mut world, "a", 3), Err("a: no such VM; there are b".into()));
    ends_as_asked(&mut world, 0);
    assert_eq!(world.broker.vms.indices(), [1]);
    assert_eq!(world.broker.gpus[0].share(tenant), None);
    // All weights on the GPU are the second VM's now.
    assert_eq!(world.broker.status(world.now).vms[0].ceiling, Some(1.0));
    // Late events of the removed VM find no VM.
    for source in [Source::Channel, Source::Child, Source::Doorbell] {
        world.broker.turn(&[Event::new(Events::EPOLLIN | Events::EPOLLOUT, source.token(0))], world.now);
    }
    world.check_second(&gate);
}

#[test]
fn a_vm_that_comes_back_before_its_device_process_has_ended_is_started_again() {
    let mut world = world();
    let before = world.broker.settings.vms[0].clone();
    adopt(&mut world, |new| _ = new.vms.remove(0));
    let told = adopt(&mut world, |new| new.vms.insert(0, before));
    assert_eq!(counts(&told), [1, 0, 0, 0, 1]);
    ends_as_asked(&mut world, 0);
    assert!(world.broker.vms[0].start_at.is_some() && !world.broker.vms[0].is_leaving);
}

#[test]
fn a_new_vm_is_started_and_counts_for_the_others() {
    let mut world = world();
    world.say(0, &ready());
    world.say(1, &ready());
    let new = VmSettings { name: "aa".into(), ..world.broker.settings.vms[0].clone() };
    let told = adopt(&mut world, |settings| settings.vms.push(new));
    assert_eq!(counts(&told), [1, 0, 0, 0, 2]);
    assert!(world.broker.vms[2].start_at.is_some());
    let status = world.broker.status(world.now);
    let names: Vec<_> = status.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["a", "aa", "b"]);
    assert_eq!(world.broker.gpus[0].share(world.broker.vms[1].tenant).unwrap().ceiling, Some(1.0 / 3.0));
}

#[test]
fn what_an_operator_has_set_stays_until_the_file_says_something_else() {
    let mut world = world();
    world.say(0, &ready());
    set(&mut world, "a", 7).unwrap();
    let told = adopt(&mut world, |new| new.vms[0].share.class = Class::Latency);
    assert_eq!(counts(&told), [0, 0, 1, 0, 1]);
    let share = |world: &World| world.broker.vms[0].share;
    assert_eq!((share(&world).weight, share(&world).class), (7, Class::Latency));
    adopt(&mut world, |new| new.vms[0].share.weight = 300);
    assert_eq!(share(&world).weight, 300);
    let on_gpu = world.broker.gpus[0].share(world.broker.vms[0].tenant).unwrap();
    assert_eq!((on_gpu.weight, on_gpu.class), (300, Class::Latency));
    set(&mut world, "b", 9).unwrap();
    adopt(&mut world, |new| {
        new.policy = Policy::Equal;
        new.vms.iter_mut().for_each(|vm| vm.share.weight = 100);
    });
    let weights: Vec<_> = world.broker.vms.iter().map(|vm| vm.share.weight).collect();
    assert_eq!(weights, [100, Share::default().weight], "b had none in the file");
    assert!(!world.is_dying(0) && world.broker.vms.iter().all(|vm| vm.ending.is_none()));
}

#[test]
fn a_vm_waits_for_its_socket_until_whoever_has_it_has_ended() {
    let mut world = world();
    let path = |name: &str| vec![std::path::PathBuf::from(name)];
    for (index, name) in ["/a", "/b"].into_iter().enumerate() {
        world.broker.vms[index].taken = path(name);
    }
    let swapped = adopt(&mut world, |new| {
        for (vm, name) in new.vms.iter_mut().zip(["/b", "/a"]) {
            write(vm, &[&format!("socket-path={name}")]);
            vm.own_paths = path(name);
        }
    });
    assert_eq!(counts(&swapped), [0, 0, 0, 2, 0]);
    ends_as_asked(&mut world, 0);
    world.broker.start_due(world.now);
    let vm = &world.broker.vms[0];
    assert!(vm.is_idle(), "the other still listens there");
    ends_as_asked(&mut world, 1);
    assert!(world.broker.vms.iter().all(|vm| vm.start_at.is_some() && vm.taken.is_empty()));
}

#[test]
fn one_that_does_not_end_when_it_is_asked_to_is_killed() {
    let mut world = world();
    adopt(&mut world, |new| _ = new.vms.remove(0));
    let deadline = world.broker.vms[0].end_deadline().unwrap();
    assert!(deadline > world.now && !world.is_dying(0));
    world.broker.vms[0].ending = Some(world.now);
    world.broker.turn(&[], world.now);
    assert!(world.is_dying(0) && !world.is_dying(1));
    assert_eq!(world.broker.vms[0].end_deadline(), None, "it is killed once");
}

#[test]
fn what_ends_the_gpu_of_a_vm_in_use_waits_until_its_frontend_is_gone() {
    let mut world = world();
    (0..2).for_each(|vm| world.say(vm, &ready()));
    world.say(0, &ToBroker::Frontend { connected: true });
    let change = |new: &mut Settings| {
        write(&mut new.vms[0], &["queues=all"]);
        new.vms[0].share.weight = 300;
        write(&mut new.vms[1], &["queues=all"]);
    };
    let before = world.broker.settings.clone();
    let dry = adopt_so(&mut world, DRY_RUN, change);
    assert_eq!(pending(&mut world), []);
    assert_eq!(world.broker.settings, before);
    assert!(world.broker.vms.iter().all(|vm| vm.ending.is_none()), "a dry run ends nothing");
    let told = adopt(&mut world, change);
    assert_eq!(dry, told, "in the same words");
    let restarted = told.to_string();
    assert_eq!(restarted, "0 added, 0 removed, 1 changed, 1 restarted, 0 unchanged, 1 pending");
    let waits = "a: queues takes effect when the VM is off; `vhost-user-vulkan reload --now` does so at once and ends its GPU";
    assert_eq!(told.notes, [waits]);
    let [a, b] = [0, 1].map(|vm| &world.broker.vms[vm]);
    assert!(a.ending.is_none() && b.ending.is_some(), "{a:?}");
    assert_eq!((a.share.weight, written(&a.settings).len()), (300, 0), "the share does not wait");
    let shown = [("a".to_owned(), "restart pending when the VM is off: queues".to_owned())];
    assert_eq!(pending(&mut world), shown);
    world.say(0, &ToBroker::Frontend { connected: false });
    assert_eq!(
        (world.broker.status(world.now).vms[0].state.as_str(), pending(&mut world)),
        ("ending", Vec::new())
    );
    ends_as_asked(&mut world, 0);
    let vm = &world.broker.vms[0];
    assert!(vm.start_at.is_some_and(|at| at <= world.now) && written(&vm.settings) == ["queues=all"]);
    assert_eq!(counts(&adopt(&mut world, |_| {})), [0, 0, 0, 0, 2], "the file holds");
}

#[test]
fn what_waits_is_done_at_once_or_not_at_all_if_the_file_or_the_operator_says_so() {
    let mut world = world();
    world.say(0, &ready());
    world.say(0, &ToBroker::Frontend { connected: true });
    let change = |new: &mut Settings| write(&mut new.vms[0], &["queues=all"]);
    adopt(&mut world, change);
    assert_eq!(pending(&mut world).len(), 1);
    adopt(&mut world, |new| write(&mut new.vms[0], &[]));
    assert_eq!(pending(&mut world), [], "the file is as it was");
    world.say(0, &ToBroker::Frontend { connected: false });
    assert!(world.broker.vms[0].ending.is_none());
    world.say(0, &ToBroker::Frontend { connected: true });
    adopt(&mut world, change);
    let told = adopt_so(&mut world, NOW, change);
    assert_eq!((counts(&told), told.pending.len()), ([0, 0, 0, 1, 1], 0));
    assert!(world.broker.vms[0].ending.is_some() && pending(&mut world).is_empty());
    // The device process of the first VM is being ended already.
    let told = adopt(&mut world, |new| write(&mut new.vms[0], &["queues=nominal"]));
    assert_eq!((counts(&told), told.pending.len()), ([0, 0, 0, 1, 1], 0));
}

#[test]
fn a_vm_in_use_that_is_gone_from_the_file_leaves_when_it_is_off_or_its_device_process_fails() {
    for fails in [false, true] {
        let mut world = world();
        world.say(0, &ready());
        world.say(0, &ToBroker::Frontend { connected: true });
        let told = adopt(&mut world, |new| _ = new.vms.remove(0));
        assert_eq!(told.to_string(), "0 added, 0 removed, 0 changed, 0 restarted, 1 unchanged, 1 pending");
        assert_eq!(set(&mut world, "a", 3), Ok(()), "it goes on");
        assert_eq!(pending(&mut world), [("a".to_owned(), "removal pending when the VM is off".to_owned())]);
        match fails {
            true => fails_by_itself(&mut world, 0),
            false => {
                world.say(0, &ToBroker::Frontend { connected: false });
                ends_as_asked(&mut world, 0);
            }
        }
        assert_eq!(world.broker.vms.indices(), [1]);
        let names: Vec<_> = world.broker.settings.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["b"]);
    }
}

#[test]
fn a_device_process_that_fails_is_started_again_as_the_file_says() {
    let mut world = world();
    world.say(0, &ready());
    world.say(0, &ToBroker::Frontend { connected: true });
    adopt(&mut world, |new| write(&mut new.vms[0], &["queues=all"]));
    fails_by_itself(&mut world, 0);
    let vm = &world.broker.vms[0];
    assert!(vm.start_at.is_some() && vm.pending.is_none() && written(&vm.settings) == ["queues=all"]);
}

#[test]
fn a_file_that_names_no_vm_any_more_is_doubted() {
    let world = world();
    let settings = world.broker.settings.clone();
    let none = Settings { vms: Vec::new(), ..settings.clone() };
    assert_eq!(doubt(&none, &none), None, "as before");
    let one = Settings { vms: settings.vms[..1].to_vec(), ..settings.clone() };
    assert_eq!(doubt(&settings, &one), None);
    let why = "the file names no VM any more, but a, b are served; put them back, or remove them by `vhost-user-vulkan reload --now`";
    assert_eq!(doubt(&settings, &none).as_deref(), Some(why));
}

#[test]
fn a_part_that_has_to_wait_is_told_with_the_remedy() {
    let mut world = world();
    let told = adopt(&mut world, |new| {
        new.vms.iter_mut().for_each(|vm| vm.parts = vec!["host-memory=7".into()]);
        new.log_grants = Some("/tmp/grants".into());
    });
    assert_eq!(counts(&told), [0, 0, 0, 0, 2]);
    assert_eq!(
        told.notes,
        [
            "log-grants: what the file says now holds when the broker is started again, which ends the GPUs of all VMs",
            "host-memory: the part changes when the device process is started again, for a, b; write host-memory into the VM's table to have it changed now",
        ]
    );
    assert_eq!((world.broker.vms[0].settings.parts.len(), &world.broker.settings.log_grants), (1, &None));
}
