//! The VMs' control groups, where the system lets the broker make some: each VM's workers have limits and a weight of their own.

use super::settings::{Settings, VmSettings};
use super::vm::Vm;
use crate::sandbox::{Delegated, GroupLimits, set_weight};
use std::ffi::OsString;
use std::io;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Groups {
    delegated: Option<Delegated>,
    /// For VMs that have no limits of their own.
    part: GroupLimits,
}

impl Groups {
    /// Divides the group that the broker was started in.
    ///
    /// # Errors
    ///
    /// The settings want that, and it cannot be done.
    pub(super) fn claim(settings: &Settings) -> io::Result<Self> {
        let delegated = Delegated::claim_or_say(settings.cgroup, "broker")?;
        let own: Vec<_> = settings.vms.iter().map(|vm| vm.group_limits).collect();
        let part = delegated.as_ref().map(|delegated| delegated.part_of_each(&own)).unwrap_or_default();
        Ok(Self { delegated, part })
    }

    /// Makes the group of a VM, and answers what its device process has to know of it.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn arguments(&self, vm: &Vm) -> io::Result<Vec<OsString>> {
        let Some(delegated) = &self.delegated else { return Ok(Vec::new()) };
        let group = delegated.group(&name(&vm.settings))?;
        self.set_weight(vm);
        let mut arguments = vec!["--vm-cgroup".into(), group.into_os_string()];
        let (own, part) = (vm.settings.group_limits, self.part);
        if let (None, Some(memory)) = (own.memory, part.memory) {
            arguments.push(format!("--worker-memory={memory}").into());
        }
        if let (None, Some(tasks)) = (own.tasks, part.tasks) {
            arguments.push(format!("--max-tasks={tasks}").into());
        }
        Ok(arguments)
    }

    /// Gives a VM's processes their part of the processors, in proportion to its part of the GPU.
    pub(super) fn set_weight(&self, vm: &Vm) {
        let Some(delegated) = &self.delegated else { return };
        let weighed =
            delegated.group(&name(&vm.settings)).and_then(|group| set_weight(&group, vm.share.weight));
        // Said at the start if the controller lacks.
        let _ = weighed.inspect_err(|error| log::debug!(vm = vm.name(), error:%; "no weight of processors"));
    }

    /// Removes the groups of VMs whose processes have ended.
    pub(super) fn remove(&self, vms: &[Vm]) {
        for vm in vms {
            self.delegated.iter().for_each(|delegated| delegated.remove(&name(&vm.settings)));
        }
    }
}

fn name(vm: &VmSettings) -> String {
    format!("vm-{}", vm.name)
}
