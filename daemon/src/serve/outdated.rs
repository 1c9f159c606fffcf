//! This file notes that files on which this process depends were replaced: its GPU's driver, its socket file, or the program.
//!
//! Contexts that run keep the files that they have loaded. A new context would load another driver than the one that was tried out when the process
//! started. The new driver's kernel module, memory types or GPUs may differ, so the context is refused. The remedy is another device process. Where
//! a broker or a service manager would start it, this process ends as soon as no frontend is connected.

use super::effects::World;
use crate::ipc::{Replaced, ToBroker};

/// The reason why a device process has ended in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The broker, an operator or a signal ended it, or the only frontend has gone.
    Asked,
    /// Files that the process depends on were replaced: it is to be started again.
    Outdated,
}

/// The replacements so far.
#[derive(Debug, Default)]
pub(super) struct Outdated {
    driver: Option<Replaced>,
    /// No frontend can connect any more.
    pub(super) has_lost_socket: bool,
    /// The process should end when no frontend needs it.
    is_old: bool,
}

/// The remedy where no broker or service manager starts the process again.
const BY_HAND: &str = "restart the daemon when the VM is off";
/// A further remedy for a driver that has a part in the kernel.
const KERNEL: &str = "where a driver's kernel module has another version than its libraries, as NVIDIA's after an upgrade, load the new module or start the machine anew (vhost-user-vulkan doctor says whether it is so)";

impl Outdated {
    /// Returns the replaced driver that keeps new contexts from starting.
    pub(super) fn driver(&self) -> Option<&Replaced> {
        self.driver.as_ref()
    }
}

impl World {
    /// Returns whether a broker or a service manager starts this process again when it ends.
    fn is_started_again(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| broker.is_parent) || self.told.is_managed()
    }

    /// Notes that a file was replaced, and logs the consequence.
    pub(super) fn replaced(&mut self, what: Replaced) {
        let again = match self.is_started_again() {
            true => "the device process is started anew as soon as no frontend is connected",
            false => BY_HAND,
        };
        if let Some(broker) = &self.broker {
            broker.tell(&ToBroker::Replaced { what: what.clone() }, None);
        }
        match &what {
            Replaced::Driver(_) => {
                log::warn!(
                    "{what}: contexts that run go on with the old one, new ones are refused; {again}; {KERNEL}"
                );
                self.outdated.driver = Some(what);
            }
            // Workers are started from the old program too, so nothing is missing. A broker that is another process logs the change for all VMs.
            Replaced::Program(_) if self.broker.as_ref().is_some_and(|broker| broker.is_parent) => return,
            Replaced::Program(_) => {
                log::info!("{what}: the daemon goes on with the old one; to upgrade it, {BY_HAND}");
                return;
            }
            Replaced::Socket(_) => {
                self.outdated.has_lost_socket = true;
                log::error!(
                    "{what}: a frontend that is connected is still served, but no other can connect; {again}"
                );
            }
        }
        self.outdated.is_old = true;
    }

    /// Returns whether the process should end now, so that another can replace it.
    pub(super) fn should_end(&self) -> Option<End> {
        let ends = self.outdated.is_old && self.session.is_none() && self.is_started_again();
        ends.then_some(End::Outdated)
    }
}
