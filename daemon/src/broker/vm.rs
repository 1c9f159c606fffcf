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
use std::time::Duration;

/// A VM of the configuration.
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

impl Vm {
    pub(super) fn new(settings: VmSettings, tenant: TenantId, now: Nanos) -> Self {
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
            backoff: Backoff::default(),
            memory: Asked::default(),
            past: Past::default(),
        }
    }

    /// Returns the VM's name, for logs.
    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    /// Notes what memory the VM's device process has said that it holds.
    pub(super) fn hold(&mut self, contexts: &[(ContextId, HeldMemory)], held: HeldMemory, now: Nanos) {
        self.memory = Asked { held, asked: None, answered: Some(now) };
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
