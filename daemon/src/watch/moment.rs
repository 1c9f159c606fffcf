//! The state of a broker at one moment, as the rows of a table: VMs, and contexts below them.

use crate::broker::{ContextStatus, Status, VmStatus};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

/// The status, and the part of the last period in which VMs and contexts waited.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Moment {
    pub(super) status: Status,
    /// The part of the time since the earlier status in which each VM and context had work and none of it in the driver.
    waits: BTreeMap<Id, f64>,
}

/// The subject of a row, which an operator chooses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Id {
    /// A VM, by its name.
    Vm(String),
    /// A context, by its VM and its number.
    Context(String, u32),
}

impl Id {
    /// Returns the name of the VM, or of the VM of the context.
    pub(super) fn vm(&self) -> &str {
        match self {
            Self::Vm(vm) | Self::Context(vm, _) => vm,
        }
    }
}

/// A column, by which rows can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    State,
    Class,
    Weight,
    Share,
    DeviceMemory,
    HostMemory,
    Waiting,
    Queue,
    Contexts,
    Kills,
}

impl Column {
    /// All columns, from left to right.
    pub(super) const ALL: [Self; 11] = [
        Self::Name,
        Self::State,
        Self::Class,
        Self::Weight,
        Self::Share,
        Self::DeviceMemory,
        Self::HostMemory,
        Self::Waiting,
        Self::Queue,
        Self::Contexts,
        Self::Kills,
    ];

    /// Returns whether the column has words, which are sorted from A to Z, and not numbers, which are sorted from the largest.
    pub(super) fn has_words(self) -> bool {
        matches!(self, Self::Name | Self::State | Self::Class)
    }
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) id: Id,
    /// The name of the VM, or of the guest's program.
    pub(super) name: String,
    pub(super) state: String,
    /// The class of a VM, and its ceiling.
    pub(super) class: String,
    /// The used part of the GPUs' last second.
    pub(super) share: f64,
    /// The number of GPUs of the VM or context, which is the most that the share can be.
    pub(super) gpus: usize,
    /// The VM's part of its GPUs if all VMs have work.
    pub(super) entitled: Option<f64>,
    pub(super) device_memory: Memory,
    pub(super) host_memory: Memory,
    /// The part of the time in which the VM or context waited, if a second has passed. A VM has the sum of its contexts.
    pub(super) waiting: Option<f64>,
    /// Submissions held back.
    pub(super) queued: u32,
    /// The values that only a VM has.
    pub(super) vm: Option<OfVm>,
}

/// Memory held, and its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Memory {
    pub(super) held: u64,
    pub(super) limit: Option<u64>,
}

/// The values that only the row of a VM shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OfVm {
    pub(super) weight: u32,
    pub(super) contexts: usize,
    pub(super) kills: u64,
    pub(super) is_unfolded: bool,
}

impl Moment {
    /// Makes a moment of a status, and of the earlier status with the time between them, if there was one.
    pub(super) fn new(status: Status, before: Option<(&Status, Duration)>) -> Self {
        let mut waits = BTreeMap::new();
        if let Some((before, time)) = before {
            let then = waiting_seconds(before);
            for (id, seconds) in waiting_seconds(&status) {
                // A context that has begun since the earlier status began at 0.
                let lately = seconds - then.get(&id).copied().unwrap_or(0.0);
                waits.insert(id, (lately / time.as_secs_f64().max(0.001)).max(0.0));
            }
        }
        Self { status, waits }
    }

    /// Returns the rows in order, with the contexts of unfolded VMs.
    pub(super) fn rows(&self, column: Column, reversed: bool, unfolded: impl Fn(&str) -> bool) -> Vec<Row> {
        let order = |one: &Row, other: &Row| {
            let natural = by(column, one, other);
            let wanted = if column.has_words() == reversed { natural.reverse() } else { natural };
            wanted.then_with(|| one.id.cmp(&other.id))
        };
        let mut vms: Vec<_> =
            self.status.vms.iter().map(|vm| (self.vm(vm, unfolded(&vm.name)), vm)).collect();
        vms.sort_by(|(one, _), (other, _)| order(one, other));
        let with_contexts = vms.into_iter().flat_map(|(row, vm)| {
            let is_unfolded = row.vm.is_some_and(|of| of.is_unfolded);
            let shown: &[ContextStatus] = if is_unfolded { &vm.contexts } else { &[] };
            let mut contexts: Vec<_> = shown.iter().map(|context| self.context(vm, context)).collect();
            contexts.sort_by(order);
            std::iter::once(row).chain(contexts)
        });
        with_contexts.collect()
    }

    fn vm(&self, vm: &VmStatus, is_unfolded: bool) -> Row {
        let id = Id::Vm(vm.name.clone());
        let of = OfVm { weight: vm.weight, contexts: vm.contexts.len(), kills: vm.kills.sum(), is_unfolded };
        Row {
            waiting: self.waits.get(&id).copied(),
            id,
            name: vm.name.clone(),
            state: vm.state.clone(),
            class: class(vm),
            share: vm.share,
            gpus: vm.gpus.len().max(1),
            entitled: entitled(&self.status, vm),
            device_memory: Memory { held: vm.used.device_memory, limit: vm.device_memory_limit },
            host_memory: Memory { held: vm.used.host_memory, limit: vm.host_memory_limit },
            queued: vm.queued,
            vm: Some(of),
        }
    }

    fn context(&self, vm: &VmStatus, context: &ContextStatus) -> Row {
        let id = Id::Context(vm.name.clone(), context.context);
        Row {
            waiting: self.waits.get(&id).copied(),
            id,
            name: context.name.clone(),
            state: context.state.clone(),
            class: String::new(),
            share: context.share,
            gpus: vm.gpus.len().max(1),
            entitled: None,
            device_memory: Memory { held: context.used.device_memory, limit: vm.device_memory_limit },
            host_memory: Memory { held: context.used.host_memory, limit: vm.host_memory_limit },
            queued: context.queued,
            vm: None,
        }
    }
}

fn class(vm: &VmStatus) -> String {
    match vm.ceiling {
        Some(ceiling) => format!("{} ≤{:.0}%", vm.class, ceiling * 100.0),
        None => vm.class.clone(),
    }
}

fn waiting_seconds(status: &Status) -> BTreeMap<Id, f64> {
    let of_vm = |vm: &VmStatus| (Id::Vm(vm.name.clone()), vm.used.waiting_seconds);
    let of_context = |vm: &VmStatus, context: &ContextStatus| {
        (Id::Context(vm.name.clone(), context.context), context.used.waiting_seconds)
    };
    let all = status.vms.iter().flat_map(|vm| {
        let contexts = vm.contexts.iter().map(move |context| of_context(vm, context));
        std::iter::once(of_vm(vm)).chain(contexts)
    });
    all.collect()
}

/// Returns the part of its GPUs that a VM gets if all VMs on them have work: its weight's part, and no more than its ceiling. Returns none for a VM
/// in the background, which is entitled to nothing, and for a VM whose GPUs are not known yet.
fn entitled(status: &Status, vm: &VmStatus) -> Option<f64> {
    let competes = |vm: &VmStatus| vm.class != "background";
    let part = |uuid: &str, ceiling: Option<f64>| {
        let on_it = status.vms.iter().filter(|other| other.gpus.iter().any(|on| on.uuid == uuid));
        let all: f64 = on_it.filter(|other| competes(other)).map(|other| f64::from(other.weight)).sum();
        (f64::from(vm.weight) / all.max(1.0)).min(ceiling.unwrap_or(1.0))
    };
    let parts = vm.gpus.iter().map(|on| part(&on.uuid, on.ceiling));
    (competes(vm) && !vm.gpus.is_empty()).then(|| parts.sum())
}

/// Compares the cells of two rows in a column, from A to Z and from the smallest.
fn by(column: Column, one: &Row, other: &Row) -> Ordering {
    let of_vm = |value: fn(OfVm) -> u64| one.vm.map(value).cmp(&other.vm.map(value));
    match column {
        Column::Name => one.name.cmp(&other.name),
        Column::State => one.state.cmp(&other.state),
        Column::Class => one.class.cmp(&other.class),
        Column::Weight => of_vm(|vm| vm.weight.into()),
        Column::Share => one.share.total_cmp(&other.share),
        Column::DeviceMemory => one.device_memory.held.cmp(&other.device_memory.held),
        Column::HostMemory => one.host_memory.held.cmp(&other.host_memory.held),
        Column::Waiting => one.waiting.unwrap_or(0.0).total_cmp(&other.waiting.unwrap_or(0.0)),
        Column::Queue => one.queued.cmp(&other.queued),
        Column::Contexts => of_vm(|vm| vm.contexts as u64),
        Column::Kills => of_vm(|vm| vm.kills),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::broker::{GpuStatus, Used, VmGpuStatus};

    /// Returns the status of three VMs on one GPU, one of them in the background; `web` has two contexts.
    pub(in super::super) fn status() -> Status {
        let on = |share| vec![VmGpuStatus { uuid: "ff".into(), share, ..VmGpuStatus::default() }];
        let vm = |name: &str, class: &str, weight, share| VmStatus {
            name: name.into(),
            state: "connected".into(),
            class: class.into(),
            weight,
            share,
            gpus: on(share),
            used: Used { device_memory: 3 << 30, host_memory: 64 << 20, ..Used::default() },
            device_memory_limit: Some(6 << 30),
            ..VmStatus::default()
        };
        let context = |context, name: &str, share| ContextStatus {
            context,
            name: name.into(),
            state: "running".into(),
            share,
            ..ContextStatus::default()
        };
        let mut web = vm("web", "latency", 300, 0.5);
        web.contexts = vec![context(3, "llama-server", 0.4), context(4, "whisper", 0.1)];
        web.queued = 2;
        let vms = vec![vm("nightly", "background", 100, 0.25), vm("training", "normal", 100, 0.125), web];
        let gpus = vec![GpuStatus {
            uuid: "ff".into(),
            name: "A GPU".into(),
            utilisation: 0.875,
            device_memory: 80 << 30,
            ..GpuStatus::default()
        }];
        Status { gpus, vms, policy: "best-effort".into(), ..Status::default() }
    }

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn words_are_sorted_from_a_and_numbers_from_the_largest() {
        let moment = Moment::new(status(), None);
        let sorted = |column, reversed| moment.rows(column, reversed, |_| false);
        assert_eq!(names(&sorted(Column::Name, false)), ["nightly", "training", "web"]);
        assert_eq!(names(&sorted(Column::Name, true)), ["web", "training", "nightly"]);
        assert_eq!(names(&sorted(Column::Share, false)), ["web", "nightly", "training"]);
        assert_eq!(names(&sorted(Column::Share, true)), ["training", "nightly", "web"]);
        assert_eq!(names(&sorted(Column::Queue, false)), ["web", "nightly", "training"]);
    }

    #[test]
    fn contexts_stay_below_their_vm() {
        let moment = Moment::new(status(), None);
        let rows = moment.rows(Column::Share, true, |vm| vm == "web");
        assert_eq!(names(&rows), ["training", "nightly", "web", "whisper", "llama-server"]);
    }

    #[test]
    fn the_entitlement_is_the_weights_part_of_those_that_compete() {
        let mut status = status();
        let of = |status: &Status| -> Vec<_> { status.vms.iter().map(|vm| entitled(status, vm)).collect() };
        assert_eq!(of(&status), [None, Some(0.25), Some(0.75)]);
        status.vms[2].gpus[0].ceiling = Some(0.5);
        assert_eq!(of(&status), [None, Some(0.25), Some(0.5)]);
        status.vms[1].gpus.clear();
        assert_eq!(of(&status), [None, None, Some(0.5)]);
    }

    #[test]
    fn waiting_is_what_came_since_the_status_before() {
        let (before, mut now) = (status(), status());
        now.vms[2].used.waiting_seconds = 0.5;
        now.vms[2].contexts[0].used.waiting_seconds = 0.25;
        let moment = Moment::new(now, Some((&before, Duration::from_secs(2))));
        let rows = moment.rows(Column::Name, false, |_| true);
        let waits: Vec<_> = rows.iter().map(|row| row.waiting).collect();
        assert_eq!(waits, [0.0, 0.0, 0.25, 0.125, 0.0].map(Some));
    }
}
