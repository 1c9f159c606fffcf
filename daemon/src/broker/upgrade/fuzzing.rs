//! The state of a broker, which another program reads and goes on from.

use super::super::fuzzing::{World, broker, reset};
use super::super::run::Broker;
use super::super::vm::Vms;
use super::super::vms::state::{BrokerState, PassedVm};
use super::passing::{Inherited, PassedProcess};
use crate::ipc::Channel;
use rustix::event::{EventfdFlags, eventfd};
use shm::{Doorbell, grant_page};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

/// Reads a text. A state that is read is the same after it is written and read again, and a broker goes on from it. A missing part of a VM costs that
/// VM only. Descriptors are of the kinds that the state names, as far as they exist. Returns the number of VMs.
pub fn fuzz_state(bytes: &[u8]) -> usize {
    thread_local! {
        // As in `fuzz_vm`.
        static BROKER: RefCell<Broker> = RefCell::new(broker());
    }
    let Ok((state, descriptors)) = BrokerState::of_text(bytes) else { return 0 };
    let text = state.to_text(descriptors.clone()).expect("a state that was read can be written");
    let (again, same) = BrokerState::of_text(&text).expect("a state that was written can be read");
    assert_eq!(again.to_text(same).expect("it can be written"), text);
    let mut inherited = Inherited::played(played(&state.vms).expect("descriptors"));
    let vms = state.vms.len();
    BROKER.with_borrow_mut(|broker| {
        let now = state.stopped;
        broker.resume_vms(state.gpus, state.vms, &mut inherited, now);
        assert_eq!(broker.vms.iter().count(), vms);
        broker.turn(&[], now);
        assert_eq!(broker.status(now).vms.len(), vms);
        // No process is left to wait for.
        broker.vms = Vms::default();
        reset(broker);
    });
    vms
}

/// Makes descriptors for the VMs, by the numbers in their text. None reports the end of a process.
fn played(vms: &[PassedVm]) -> io::Result<BTreeMap<RawFd, OwnedFd>> {
    let mut made = BTreeMap::new();
    for vm in vms {
        if let Some(PassedProcess { pidfd, channel, .. }) = &vm.process {
            made.insert(*pidfd, eventfd(0, EventfdFlags::CLOEXEC)?);
            made.insert(*channel, Channel::pair()?.0.into_socket());
        }
        for context in vm.contexts.iter().take(MADE_MAX) {
            made.insert(context.doorbell, Doorbell::new()?.into());
            for place in context.places.iter().take(MADE_MAX) {
                made.insert(place.page, grant_page()?);
            }
        }
    }
    Ok(made)
}

/// The most contexts of a VM, and places of a context, for which descriptors are made.
const MADE_MAX: usize = 8;

/// States to begin with: that of a broker with two VMs and one context, whole, and with the number of a descriptor in two places.
#[must_use]
pub fn states() -> Vec<Vec<u8>> {
    let mut broker = broker();
    let world = World::new(&mut broker);
    let mut number = 2;
    let mut state = world.state(&mut |_| {
        number += 1;
        Ok(number)
    });
    // These values are the same in every run.
    state.version = "1".into();
    (state.settings.control_socket, state.listeners) = ("/run/control".into(), Vec::new());
    for process in state.vms.iter_mut().filter_map(|vm| vm.process.as_mut()) {
        (process.pid, process.age) = (2, Duration::ZERO);
    }
    let text = |state: &BrokerState| state.to_text((3..=number).collect()).unwrap_or_default();
    let whole = text(&state);
    for context in state.vms.iter_mut().flat_map(|vm| &mut vm.contexts) {
        context.doorbell = 3;
    }
    let twice = text(&state);
    world.end();
    vec![whole, twice]
}
