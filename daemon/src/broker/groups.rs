//! The VMs' control groups, where the system lets the broker make groups: each VM's workers have limits and a weight of their own.

use super::backoff::Backoff;
use super::settings::{Settings, VmSettings};
use super::vm::Vm;
use crate::options::VmGroup;
use crate::sandbox::{Delegated, GroupLimits, set_weight};
use sched::{Nanos, nanos};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// The control groups of all VMs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Groups {
    delegated: Option<Delegated>,
    /// The limits of VMs that have none of their own, from their next start.
    part: GroupLimits,
    /// Names of groups whose VMs are gone. Their launchers may live for some more time.
    left: Vec<String>,
    /// The time at which the broker next tries to remove these groups.
    sweep_at: Option<Nanos>,
    pauses: Backoff,
}

impl Groups {
    /// Takes over the control group that the broker was started in, and divides it.
    ///
    /// # Errors
    ///
    /// The settings require a group, and the broker cannot take it over.
    pub(super) fn claim(settings: &Settings) -> io::Result<Self> {
        let delegated = Delegated::claim_or_say(settings.cgroup, "broker")?;
        let mut groups = Self { delegated, ..Self::default() };
        groups.divide(&settings.vms);
        Ok(groups)
    }

    /// Divides the available memory and tasks among these VMs. The parts hold for processes that are started from now on, because a lower limit would
    /// end workers that hold more memory.
    pub(super) fn divide(&mut self, vms: &[VmSettings]) {
        self.part = self.part_among(vms);
    }

    /// Returns whether [`Self::divide`] would give VMs without limits of their own other parts than before.
    pub(super) fn divides_anew(&self, vms: &[VmSettings]) -> bool {
        self.part_among(vms) != self.part
    }

    fn part_among(&self, vms: &[VmSettings]) -> GroupLimits {
        let own: Vec<_> = vms.iter().map(|vm| vm.options.quotas.group_limits()).collect();
        self.delegated.as_ref().map(|delegated| delegated.part_of_each(&own)).unwrap_or_default()
    }

    /// Makes the group of a VM, if VMs have some.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn group(&mut self, vm: &Vm) -> io::Result<Option<VmGroup>> {
        let Some(delegated) = &self.delegated else { return Ok(None) };
        let name = name(&vm.settings);
        self.left.retain(|left| *left != name);
        let path = delegated.group(&name)?;
        self.set_weight(vm);
        Ok(Some(VmGroup { path, part: self.part }))
    }

    /// Gives a VM's processes their part of the processors, in proportion to its part of the GPU.
    pub(super) fn set_weight(&self, vm: &Vm) {
        let Some(delegated) = &self.delegated else { return };
        let weighed =
            delegated.group(&name(&vm.settings)).and_then(|group| set_weight(&group, vm.share.weight));
        // If the controller is missing, the log has said this at the start.
        let _ = weighed.inspect_err(|error| log::debug!(vm = vm.name(), error:%; "no weight of processors"));
    }

    /// A VM is gone: its group is removed as soon as it is empty.
    pub(super) fn leave(&mut self, vm: &Vm, now: Nanos) {
        if self.delegated.is_some() {
            self.left.push(name(&vm.settings));
            self.pauses = Backoff::default();
            self.sweep(now);
        }
    }

    /// Returns when [`Self::sweep_due`] is to be called next.
    pub(super) fn next_sweep(&self) -> Option<Nanos> {
        self.sweep_at
    }

    /// Removes groups of VMs that are gone, if it is time to try.
    pub(super) fn sweep_due(&mut self, now: Nanos) {
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.sweep(now);
        }
    }

    fn sweep(&mut self, now: Nanos) {
        let Some(delegated) = &self.delegated else { return };
        self.left.retain(|name| !delegated.remove(name));
        let pause = (!self.left.is_empty()).then(|| self.pauses.pause_after(Duration::ZERO));
        self.sweep_at = pause.map(|pause| now.saturating_add(nanos(pause)));
    }

    /// Removes the groups of VMs whose processes have ended, and of those that are gone.
    pub(super) fn remove_all<'a>(&self, vms: impl Iterator<Item = &'a Vm>) {
        let names = vms.map(|vm| name(&vm.settings)).chain(self.left.iter().cloned());
        let Some(delegated) = &self.delegated else { return };
        names.for_each(|name| _ = delegated.remove(&name));
    }
}

fn name(vm: &VmSettings) -> String {
    format!("vm-{}", vm.name)
}
