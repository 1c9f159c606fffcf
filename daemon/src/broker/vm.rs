//! One VM: its device process while it has one, its contexts, and the state that stays when both are gone.

use super::backoff::Backoff;
use super::connections::Peer;
use super::process::Process;
use super::rates::Rate;
use super::reload::plan::Pending;
use super::report::status::{KillCounts, RestartCounts};
use super::report::words::percent;
use super::settings::VmSettings;
use super::settings::share::class_name;
use super::upgrade::passing::UsageForm;
use crate::ipc::{HeldMemory, InForce, Placement, RestartStage, SharedGpu, Unmovable};
use protocol::ids::ContextId;
use rustc_hash::{FxHashMap, FxHashSet};
use sched::{ContextKey, Nanos, Share, TenantId, Usage};
use serde::{Deserialize, Serialize};
use shm::Listener;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// The VMs by index. An index is never used again, so a late event of a removed VM finds no VM.
#[derive(Debug, Default)]
pub(super) struct Vms {
    by_index: BTreeMap<usize, Vm>,
    /// The number of VMs so far.
    added: u32,
}

/// A VM of the configuration, or one that is leaving it.
#[derive(Debug)]
pub(super) struct Vm {
    pub(super) settings: VmSettings,
    /// The VM's number for schedulers.
    pub(super) tenant: TenantId,
    /// The VM's share as an operator has set it.
    pub(super) share: Share,
    /// The GPUs that the VM's guest sees, in the VM's order, and after them spare ones, once a device process of the VM has named them.
    pub(super) gpus: Vec<OnGpu>,
    /// The GPUs on which new contexts begin.
    pub(super) placement: Placement,
    pub(super) process: Option<Process>,
    /// The device process of this program that is to follow one of an earlier program.
    pub(super) successor: Option<Successor>,
    /// The starter has been asked for a successor and has not answered.
    pub(super) awaits_successor: bool,
    /// The earliest time of the next start of a successor; none if the VM keeps its device process.
    pub(super) renew_at: Option<Nanos>,
    /// The pause between the next start of a successor and the one after it.
    pub(super) renew_pause: Nanos,
    pub(super) contexts: FxHashMap<ContextId, VmContext>,
    /// The time at which its device process is to be started.
    pub(super) start_at: Option<Nanos>,
    /// The VM's first device process listens, or has failed.
    pub(super) was_started: bool,
    /// The starter has been asked for a device process and has not answered.
    pub(super) is_starting: bool,
    /// The time at which the device process, or the one that is being started, is killed, if it was told to end.
    pub(super) ending: Option<Nanos>,
    /// The file does not name the VM any more: the broker forgets the VM when its device process has ended.
    pub(super) is_leaving: bool,
    /// The part of the file that takes effect when no frontend is connected any more.
    pub(super) pending: Option<Pending>,
    /// Own paths that the device process, or the one that is being started, may still use.
    pub(super) taken: Vec<PathBuf>,
    pub(super) backoff: Backoff,
    pub(super) memory: Asked,
    /// Totals of contexts and processes that have ended: their usage, and the manner of their ends.
    pub(super) past: Past,
}

/// A device process that is to follow the one that a VM has.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) process: Process,
    /// The device process's `Ready` message; none before that.
    pub(super) offer: Option<Offer>,
    /// The successor has said that it serves the frontend. Its other messages are handled when the earlier process has ended.
    pub(super) serves: bool,
    /// The time at which this process is killed for being late, or the old one if this one serves. [`Nanos::MAX`]: no kill is planned.
    pub(super) until: Nanos,
}

impl Successor {
    /// Kills the process. The broker handles its end later.
    pub(super) fn kill(&mut self) {
        self.process.kill();
        self.until = Nanos::MAX;
    }
}

/// The properties that a successor has reported of itself, as in [`crate::ipc::ToBroker::Ready`].
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) gpus: Vec<SharedGpu>,
    pub(super) limits: HeldMemory,
    pub(super) in_force: InForce,
}

/// A VM and one of its GPUs.
#[derive(Debug)]
pub(super) struct OnGpu {
    /// The GPU's index, which is never out of range, because GPUs are never removed.
    pub(super) gpu: usize,
    /// The number of the VM's contexts on this GPU.
    pub(super) contexts: usize,
    /// The share of the GPU's last second.
    pub(super) rate: Rate,
}

/// A context of a VM. On each GPU it is a context of that GPU's scheduler.
#[derive(Debug)]
pub(super) struct VmContext {
    /// The context's number on each GPU that it is on, by the GPU's index among those of the VM.
    pub(super) keys: BTreeMap<u8, ContextKey>,
    /// The files of the context's pages on these GPUs, for the program that may follow this one.
    pub(super) pages: BTreeMap<u8, OwnedFd>,
    pub(super) name: String,
    /// The memory that the context holds, as its device process said last.
    pub(super) memory: HeldMemory,
    /// The last report of the device process on whether the context can be restarted, with the reason if it cannot.
    pub(super) movable: Option<Result<(), Unmovable>>,
    /// The context would survive the death of its worker, as its device process said last.
    pub(super) recoverable: bool,
    /// The doorbell of the context's worker, to which the broker listens as long as this value exists.
    pub(super) doorbell: Listener,
    /// The time at which an operator wanted the context ended.
    pub(super) killed: Option<Nanos>,
}

impl VmContext {
    pub(super) fn new(name: String, doorbell: Listener) -> Self {
        let (keys, pages, memory) = (BTreeMap::new(), BTreeMap::new(), HeldMemory::default());
        Self { keys, pages, name, memory, movable: None, recoverable: false, doorbell, killed: None }
    }

    /// Returns those of its VM's `gpus` that the context is on, and its number on each.
    pub(super) fn places(&self, gpus: &[OnGpu]) -> impl Iterator<Item = (usize, ContextKey)> {
        self.keys.iter().filter_map(|(place, key)| Some((gpus.get(usize::from(*place))?.gpu, *key)))
    }
}

/// Memory that the broker asks for only when a report needs it.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) held: HeldMemory,
    /// The most memory that the VM may hold, as its device process said when it was ready.
    pub(super) limits: Option<HeldMemory>,
    /// The time at which the memory was asked for, until the answer comes.
    pub(super) asked: Option<Nanos>,
    /// The time at which the last answer came.
    pub(super) answered: Option<Nanos>,
}

/// Totals of ended contexts and processes, for metrics that only rise.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Past {
    /// Processor time of workers that have ended.
    pub(super) workers_cpu: Duration,
    /// Processor time of device processes that have ended.
    pub(super) device_cpu: Duration,
    /// The number of times that a device process was started again.
    pub(super) restarts: u64,
    pub(super) kills: KillCounts,
    pub(super) context_restarts: RestartCounts,
    /// Contexts whose workers died by themselves, and which went on.
    pub(super) context_recoveries: u64,
    /// Usage of GPUs that the VM is not on any more.
    #[serde(with = "UsageForm")]
    pub(super) usage: Usage,
}

/// Nanoseconds after which the operator gets another line, so that the connection is known to be alive.
const TELL: Nanos = 3_000_000_000;
/// The time after which a new stage is told to the operator, in nanoseconds.
const TELL_SOON: Nanos = 100_000_000;
/// Time that a device process has to end a context, in nanoseconds.
const KILL_PATIENCE: Nanos = 20_000_000_000;
/// Pause before the next try after a passing obstacle, in nanoseconds. It doubles up to `RENEW_LONGEST`.
pub(super) const RENEW_FIRST: Nanos = 30_000_000_000;
const RENEW_LONGEST: Nanos = 3_600_000_000_000;
/// The age up to which an answer is fresh enough, in nanoseconds.
const FRESH: Nanos = 250_000_000;

/// A restart or a move that a device process was asked for.
#[derive(Debug)]
pub(super) struct Restarting {
    pub(super) peer: Peer,
    /// The action on the context.
    pub(super) what: Restart,
    /// The VM's index.
    pub(super) index: usize,
    pub(super) ctx_id: ContextId,
    /// The stage that the device process reported last, and the stage that the operator was told last.
    pub(super) stage: RestartStage,
    pub(super) told: RestartStage,
    pub(super) told_at: Nanos,
    /// The time at which the operator is told that the device process does not answer.
    pub(super) until: Nanos,
}

/// The action that a restart is for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    /// The context gets another worker.
    Again,
    /// The context goes to another GPU.
    Move,
    /// The context goes to another GPU, because its present one is being drained.
    Drain,
    /// The context is swapped out.
    SwapOut,
}

/// A GPU that is being drained.
#[derive(Debug)]
pub(super) struct Draining {
    /// The operator's connection.
    pub(super) peer: Peer,
    pub(super) gpu: usize,
    /// The contexts that are to be moved, by the indices of their VMs.
    pub(super) queue: VecDeque<(usize, ContextId)>,
    pub(super) moved: u32,
}

impl Restarting {
    /// Returns a restart or a move that is asked for now, and that the device process answers by `until`.
    pub(super) fn new(
        peer: Peer,
        what: Restart,
        (index, ctx_id): (usize, ContextId),
        now: Nanos,
        until: Nanos,
    ) -> Self {
        let stage = RestartStage::Starts;
        Self { peer, what, index, ctx_id, stage, told: stage, told_at: now, until }
    }

    /// Returns when the operator is to be told the stage next, or that there is no answer.
    pub(super) fn next(&self) -> Nanos {
        let pause = if self.stage == self.told { TELL } else { TELL_SOON };
        self.told_at.saturating_add(pause).min(self.until)
    }
}

impl Vms {
    /// Adds a VM, whose device process is to be started at once. Returns its index.
    pub(super) fn add(&mut self, settings: VmSettings, now: Nanos) -> usize {
        let (index, tenant) = (self.added as usize, TenantId(self.added));
        self.added += 1;
        self.by_index.insert(index, Vm::new(settings, tenant, now));
        index
    }

    /// Takes over a VM that an earlier program has served by this index.
    pub(super) fn resume(&mut self, index: usize, settings: VmSettings, now: Nanos) -> &mut Vm {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        self.added = self.added.max(number.saturating_add(1));
        self.by_index.entry(index).or_insert_with(|| Vm::new(settings, TenantId(number), now))
    }

    /// Returns the number of VMs so far; every index is lower.
    pub(super) fn added(&self) -> u32 {
        self.added
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

    /// Returns all indices, so that the caller can change VMs meanwhile.
    pub(super) fn indices(&self) -> Vec<usize> {
        self.by_index.keys().copied().collect()
    }

    /// Indices in the order of the VMs' names.
    pub(super) fn by_name(&self) -> Vec<usize> {
        let mut indices = self.indices();
        indices.sort_unstable_by_key(|index| self[*index].name());
        indices
    }

    /// All VMs with their indices.
    pub(super) fn indexed(&self) -> impl Iterator<Item = (usize, &Vm)> {
        self.by_index.iter().map(|(index, vm)| (*index, vm))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Vm> {
        self.by_index.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Vm> {
        self.by_index.values_mut()
    }
}

/// Access by the index of a VM that exists.
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
            placement: Placement::default(),
            process: None,
            successor: None,
            awaits_successor: false,
            renew_at: None,
            renew_pause: RENEW_FIRST,
            contexts: FxHashMap::default(),
            start_at: Some(now),
            was_started: false,
            is_starting: false,
            ending: None,
            is_leaving: false,
            pending: None,
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

    /// Logs the share that the VM has now, and the reason for the change.
    pub(super) fn log_share(&self, why: &str) {
        let Share { weight, class, ceiling } = self.share;
        let (class, ceiling) = (class_name(class), ceiling.map_or("none".to_owned(), percent));
        log::info!(vm = self.name(), weight, class, ceiling; "{why}");
    }

    /// The GPUs that the VM is on, each with its index among the VM's: those on which contexts begin, and those that have contexts.
    pub(super) fn places(&self) -> impl Iterator<Item = (u8, &OnGpu)> {
        (0..).zip(&self.gpus).filter(|(place, on)| on.contexts > 0 || self.placement.0.contains(place))
    }

    /// Returns whether the VM is on this GPU, by the GPU's index among all.
    pub(super) fn is_on(&self, gpu: usize) -> bool {
        self.places().any(|(_, on)| on.gpu == gpu)
    }

    /// Returns a context as operators name it.
    pub(super) fn context_name(&self, ctx_id: ContextId) -> String {
        format!("{}/{}", self.name(), ctx_id.0)
    }

    /// Returns whether the VM has no device process, and gets none without a new event.
    pub(super) fn is_idle(&self) -> bool {
        self.process.is_none() && !self.is_starting && self.start_at.is_none()
    }

    /// Returns whether the device process can get a successor while a frontend is connected.
    pub(super) fn could_have_successor(&self) -> bool {
        let serves = |process: &Process| process.connected && process.ready && !process.dying;
        self.process.as_ref().is_some_and(serves) && self.ending.is_none()
    }

    /// Notes that a successor is started, and plans the next try in case this one fails.
    pub(super) fn renews(&mut self, now: Nanos) {
        self.awaits_successor = true;
        self.renew_at = Some(now.saturating_add(self.renew_pause));
        self.renew_pause = self.renew_pause.saturating_mul(2).min(RENEW_LONGEST);
    }

    /// Has the device process end: it is asked now, and killed at `deadline`. A process that is being started is asked when it exists.
    pub(super) fn end_process(&mut self, deadline: Nanos) {
        self.start_at = None;
        self.renew_at = None;
        self.successor.iter_mut().for_each(Successor::kill);
        match &self.process {
            Some(process) => process.terminate(),
            None if self.is_starting => {}
            None => return,
        }
        self.ending.get_or_insert(deadline);
    }

    /// Returns by when a device process that was asked to end must have ended.
    pub(super) fn end_deadline(&self) -> Option<Nanos> {
        self.process.as_ref().filter(|process| !process.dying).and(self.ending)
    }

    /// Notes the memory that the VM holds, as its device process reports.
    pub(super) fn hold(&mut self, contexts: &[(ContextId, HeldMemory)], held: HeldMemory, now: Nanos) {
        self.memory = Asked { held, asked: None, answered: Some(now), ..self.memory };
        for (ctx_id, held) in contexts {
            if let Some(context) = self.contexts.get_mut(ctx_id) {
                context.memory = *held;
            }
        }
    }

    /// Notes which of the VM's contexts its device process can restart.
    pub(super) fn can_move(
        &mut self,
        contexts: &[(ContextId, HeldMemory)],
        unmovable: Vec<(ContextId, Unmovable)>,
    ) {
        let unmovable: FxHashMap<_, _> = unmovable.into_iter().collect();
        for (ctx_id, _) in contexts {
            if let Some(context) = self.contexts.get_mut(ctx_id) {
                context.movable = Some(unmovable.get(ctx_id).map_or(Ok(()), |why| Err(*why)));
            }
        }
    }

    /// Notes which of the VM's contexts would survive the death of their workers.
    pub(super) fn can_be_recovered(
        &mut self,
        contexts: &[(ContextId, HeldMemory)],
        recoverable: &[ContextId],
    ) {
        let recoverable: FxHashSet<_> = recoverable.iter().collect();
        for (ctx_id, _) in contexts {
            if let Some(context) = self.contexts.get_mut(ctx_id) {
                context.recoverable = recoverable.contains(ctx_id);
            }
        }
    }

    /// Notes that a context has another worker, which has no checkpoint yet.
    pub(super) fn recovered(&mut self, ctx_id: ContextId) {
        if let Some(context) = self.contexts.get_mut(&ctx_id) {
            context.recoverable = false;
            self.past.context_recoveries += 1;
        }
    }

    /// Returns the error for an operator who names a context that does not exist.
    pub(super) fn no_such_context(&self, ctx_id: ContextId) -> String {
        let mut known: Vec<_> = self.contexts.keys().map(|ctx_id| ctx_id.0).collect();
        known.sort_unstable();
        let known: Vec<_> = known.iter().map(u32::to_string).collect();
        format!("{}: no such context; {} has [{}]", self.context_name(ctx_id), self.name(), known.join(", "))
    }

    /// Returns by when the device process must have ended the contexts that an operator ends, if the broker can kill that process.
    pub(super) fn kill_deadline(&self) -> Option<Nanos> {
        let since = self.contexts.values().filter_map(|context| context.killed).min()?;
        let process = self.process.as_ref().filter(|process| !process.dying && process.is_child());
        process.map(|_| since.saturating_add(KILL_PATIENCE))
    }

    /// Returns whether to ask for the VM's memory before a report about it.
    pub(super) fn wants_to_be_asked(&self, now: Nanos) -> bool {
        let able = self.process.as_ref().is_some_and(|process| process.ready && !process.dying);
        let fresh = self.memory.answered.is_some_and(|at| now.saturating_sub(at) < FRESH);
        able && !fresh && self.memory.asked.is_none()
    }
}
