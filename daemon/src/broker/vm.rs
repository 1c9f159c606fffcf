//! One VM: its device process while there is one, its contexts, and what stays when both are gone.

use super::backoff::Backoff;
use super::process::Process;
use super::rates::Rate;
use super::report::status::KillCounts;
use super::settings::VmSettings;
use crate::ipc::HeldMemory;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use sched::{ContextKey, Nanos, Share, TenantId, Usage};
use shm::Listener;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::path::PathBuf;
use std::time::Duration;

/// The VMs by index. An index is never used again, so what is still under way about a VM that is gone finds nothing.
#[derive(Debug, Default)]
pub(super) struct Vms {
    by_index: BTreeMap<usize, Vm>,
    /// VMs so far.
    added: u32,
}

/// A VM of the configuration, or one that is about to be gone from it.
#[derive(Debug)]
pub(super) struct Vm {
    pub(super) settings: VmSettings,
    /// The VM's number for schedulers.
    pub(super) tenant: TenantId,
    /// The VM's share as an operator has set it.
    pub(super) share: Share,
    /// The GPUs it is on, in its order, since a device process of it said so.
    pub(super) gpus: Vec<OnGpu>,
    pub(super) process: Option<Process>,
    pub(super) contexts: FxHashMap<ContextId, VmContext>,
    /// The time at which its device process is to be started.
    pub(super) start_at: Option<Nanos>,
    /// The VM's first device process listens, or has failed.
    pub(super) was_started: bool,
    /// The starter has been asked for a device process and has not answered.
    pub(super) is_starting: bool,
    /// The device process, or the one that is being started, is to end: the time at which it is killed.
    pub(super) ending: Option<Nanos>,
    /// The VM is gone from the file: it is forgotten when its device process has ended.
    pub(super) is_leaving: bool,
    /// Paths that the device process, or the one that is being started, may have to itself.
    pub(super) taken: Vec<PathBuf>,
    pub(super) backoff: Backoff,
    pub(super) memory: Asked,
    /// Totals of what has ended: what that had used, and how it ended.
    pub(super) past: Past,
}

/// A VM on one of its GPUs.
#[derive(Debug)]
pub(super) struct OnGpu {
    /// The GPU's index, which is never out of range, for GPUs stay.
    pub(super) gpu: usize,
    /// Share of its last second.
    pub(super) rate: Rate,
}

/// A context of a VM. It is one for its scheduler on each GPU.
#[derive(Debug)]
pub(super) struct VmContext {
    /// The context's number on each GPU that it has begun on, in the VM's order.
    pub(super) keys: Vec<ContextKey>,
    pub(super) name: String,
    /// The memory that the context holds, as its device process said last.
    pub(super) memory: HeldMemory,
    /// The doorbell of the context's worker, when it has come.
    pub(super) doorbell: Option<Listener>,
    /// The time at which an operator wanted the context ended.
    pub(super) killed: Option<Nanos>,
}

impl VmContext {
    pub(super) fn named(name: String) -> Self {
        Self { keys: Vec::new(), name, memory: HeldMemory::default(), doorbell: None, killed: None }
    }

    /// The GPUs it has begun on, of those of its VM, and its number there.
    pub(super) fn places(&self, gpus: &[OnGpu]) -> impl Iterator<Item = (usize, ContextKey)> {
        gpus.iter().map(|on| on.gpu).zip(self.keys.iter().copied())
    }
}

/// Memory that is asked for only when somebody wants to know.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) held: HeldMemory,
    /// The most memory that the VM may hold, as its device process said when it was ready.
    pub(super) limits: Option<HeldMemory>,
    /// The time at which the memory was asked for, while that is not answered.
    pub(super) asked: Option<Nanos>,
    /// The time at which the last answer came.
    pub(super) answered: Option<Nanos>,
}

/// Totals of what is over, for metrics that only rise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Past {
    /// Processor time of workers that have ended.
    pub(super) workers_cpu: Duration,
    /// Processor time of device processes that have ended.
    pub(super) device_cpu: Duration,
    /// Times a device process was started again.
    pub(super) restarts: u64,
    pub(super) kills: KillCounts,
    /// Usage of GPUs that the VM is not on any more.
    pub(super) usage: Usage,
}

/// Time that a device process has to end a context, in nanoseconds.
const KILL_PATIENCE: Nanos = 20_000_000_000;
/// An answer that is not older is good enough, in nanoseconds.
const FRESH: Nanos = 250_000_000;

impl Vms {
    /// Adds a VM, whose device process is to be started at once. Returns its index.
    pub(super) fn add(&mut self, settings: VmSettings, now: Nanos) -> usize {
        let (index, tenant) = (self.added as usize, TenantId(self.added));
        self.added += 1;
        self.by_index.insert(index, Vm::new(settings, tenant, now));
        index
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Vm> {
        self.by_index.remove(&index)
    }

    pub(super) fn get(&self, index: usize) -> Option<&Vm> {
        self.by_index.get(&index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Vm> {
        self.by_index.get_mut(&index)
    }

    /// The index of the VM with this name, even if it is leaving.
    pub(super) fn named(&self, name: &str) -> Option<usize> {
        self.by_index.iter().find(|(_, vm)| vm.name() == name).map(|(index, _)| *index)
    }

    /// All indices, so that VMs can change meanwhile.
    pub(super) fn indices(&self) -> Vec<usize> {
        self.by_index.keys().copied().collect()
    }

    /// Indices in the order of the VMs' names.
    pub(super) fn by_name(&self) -> Vec<usize> {
        let mut indices = self.indices();
        indices.sort_unstable_by_key(|index| self[*index].name());
        indices
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Vm> {
        self.by_index.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Vm> {
        self.by_index.values_mut()
    }
}

/// By the index of a VM that is there.
impl Index<usize> for Vms {
    type Output = Vm;

    fn index(&self, index: usize) -> &Vm {
        &self.by_index[&index]
    }
}

impl IndexMut<usize> for Vms {
    fn index_mut(&mut self, index: usize) -> &mut Vm {
        self.by_index.get_mut(&index).expect("this VM is there")
    }
}

impl Vm {
    fn new(settings: VmSettings, tenant: TenantId, now: Nanos) -> Self {
        Self {
            share: settings.share,
            settings,
            tenant,
            gpus: Vec::new(),
            process: None,
            contexts: FxHashMap::default(),
            start_at: Some(now),
            was_started: false,
            is_starting: false,
            ending: None,
            is_leaving: false,
            taken: Vec::new(),
            backoff: Backoff::default(),
            memory: Asked::default(),
            past: Past::default(),
        }
    }

    /// Returns the VM's name, for logs.
    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    /// Returns whether nothing of a device process is there, and none will be by itself.
    pub(super) fn is_idle(&self) -> bool {
        self.process.is_none() && !self.is_starting && self.start_at.is_none()
    }

    /// Has the device process end, or the one that is being started when it is there: asked now, killed at `deadline`.
    pub(super) fn end_process(&mut self, deadline: Nanos) {
        self.start_at = None;
        match &self.process {
            Some(process) => process.terminate(),
            None if self.is_starting => {}
            None => return,
        }
        self.ending.get_or_insert(deadline);
    }

    /// Returns when a device process that was asked to end must have done so.
    pub(super) fn end_deadline(&self) -> Option<Nanos> {
        self.process.as_ref().filter(|process| !process.dying).and(self.ending)
    }

    /// Notes what memory the VM's device process has said that it holds.
    pub(super) fn hold(&mut self, contexts: &[(ContextId, HeldMemory)], held: HeldMemory, now: Nanos) {
        self.memory = Asked { held, asked: None, answered: Some(now), ..self.memory };
        for (ctx_id, held) in contexts {
            if let Some(context) = self.contexts.get_mut(ctx_id) {
                context.memory = *held;
            }
        }
    }

    /// Returns when its device process must have ended what an operator wants ended.
    pub(super) fn kill_deadline(&self) -> Option<Nanos> {
        let since = self.contexts.values().filter_map(|context| context.killed).min()?;
        self.process.as_ref().filter(|process| !process.dying).map(|_| since.saturating_add(KILL_PATIENCE))
    }

    /// Returns whether its memory should be asked for before somebody is told of it.
    pub(super) fn wants_to_be_asked(&self, now: Nanos) -> bool {
        let able = self.process.as_ref().is_some_and(|process| process.ready && !process.dying);
        let fresh = self.memory.answered.is_some_and(|at| now.saturating_sub(at) < FRESH);
        able && !fresh && self.memory.asked.is_none()
    }
}
