//! One GPU: its scheduler, and the pages of the contexts that use it.
//!
//! [`Gpu::look`] and [`Gpu::decide`] run between the moment when a submission is ready and its start, so both only read and write pages.

#[cfg(test)]
mod hung_tests;

use super::grant_log::GrantLog;
use super::rates::Rate;
use super::settings::share::HardwareSlices;
use crate::blame::{Running, in_the_way, longest};
use crate::ipc::SharedGpu;
use config::{GpuNames, Likeness, Passage, hexadecimal};
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use sched::{
    Class, ContextKey, Nanos, Order, Scheduler, Seen, Share, Span, Standing, TenantId, Tuning, Usage,
};
use shm::{Counters, MapError, Reached, SchedulerSide, TakenNotes, Work};
use std::os::fd::AsFd;
use std::time::Duration;

/// A GPU that VMs share, or that one VM has.
#[derive(Debug)]
pub(super) struct Gpu {
    /// `VkPhysicalDeviceIDProperties::deviceUUID`.
    pub(super) uuid: [u8; 16],
    /// The GPU's name, as the first device process on it said.
    pub(super) name: String,
    /// The name and the version of its driver, as that process said.
    pub(super) driver: String,
    /// Bytes of its own memory, as that process said.
    pub(super) memory: u64,
    /// The PCI address as `0000:01:00.0`, if the driver tells it, and the GPU's properties for programs; as that process said.
    pci_address: Option<String>,
    pub(super) likeness: Likeness,
    /// An operator wants the GPU to be empty.
    pub(super) is_drained: bool,
    is_software: bool,
    scheduler: Scheduler,
    contexts: FxHashMap<ContextKey, Context>,
    shares: FxHashMap<TenantId, Share>,
    /// Room for the contents of a page.
    spans: Vec<Span>,
    /// A page or a share has changed, or a context or VM has gone, since the last decision.
    changed: bool,
    /// A page has changed since the last sample of rates.
    unsampled: bool,
    /// The last time at which a context ended that had held others up: the time of the others counts from then on.
    cleared: Nanos,
    /// The record for traces since it was last taken out, while a trace is taken.
    recorded: Option<Recorded>,
    /// The hardware's time slices may be set while contexts of class [`Latency`](Class::Latency) have work.
    sets_slices: bool,
    /// The scheduler was in a hurry when the contexts were last told the time slices; none if a context or a share is new since.
    sliced: Option<bool>,
}

/// The record of a GPU's work, for traces.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// The work that contexts have reported, during which the GPU was busy for their VM.
    pub(super) work: Vec<(TenantId, Work)>,
    /// Pieces of work for which there was no room.
    pub(super) dropped: u64,
    /// The notes of contexts that have ended since the record was last taken out.
    pub(super) ended: Vec<(ContextKey, TenantId, TakenNotes)>,
}

/// A context as its worker's page shows it.
#[derive(Debug)]
pub(super) struct Context {
    page: SchedulerSide,
    seen: Counters,
    /// The VM of the context; `ctx_id` is the number of the context in this VM.
    pub(super) tenant: TenantId,
    pub(super) ctx_id: ContextId,
    /// The share of the GPU in the last second.
    pub(super) rate: Rate,
    /// The processor time of the context's worker, which reports it for one of its GPUs; never less than before.
    pub(super) cpu: Duration,
    /// The last time at which the device process was told that the context runs for too long.
    hung: Option<Nanos>,
    leased: bool,
    /// The context's worker records notes for a trace.
    traced: bool,
}

impl Gpu {
    /// Returns a GPU that no VM uses yet. `passage` says whether its time is shared out or only counted.
    pub(super) fn new(
        gpu: SharedGpu,
        anticipation: Option<f64>,
        slices: HardwareSlices,
        passage: Passage,
    ) -> Self {
        let SharedGpu { uuid, name, software, memory, pci_address, likeness, driver, spare: _ } = gpu;
        let tuning = Tuning { leases_for_all: passage == Passage::Counted, ..tuning(software, anticipation) };
        Self {
            uuid,
            name,
            driver,
            memory,
            pci_address,
            likeness,
            is_drained: false,
            is_software: software,
            scheduler: Scheduler::new(tuning),
            contexts: FxHashMap::default(),
            shares: FxHashMap::default(),
            spans: Vec::new(),
            changed: false,
            unsampled: false,
            cleared: 0,
            recorded: None,
            sets_slices: slices == HardwareSlices::Short && !software,
            sliced: None,
        }
    }

    /// The names by which operators refer to the GPU.
    pub(super) fn names(&self) -> GpuNames<'_> {
        GpuNames { uuid: &self.uuid, pci_address: self.pci_address.as_deref(), name: &self.name }
    }

    /// Returns the number of contexts here.
    pub(super) fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// The name and the UUID, for operators.
    pub(super) fn label(&self) -> String {
        format!("{} ({})", self.name, hexadecimal(&self.uuid))
    }

    /// Changes the part of the GPU's time that may be left unused.
    pub(super) fn set_anticipation(&mut self, anticipation: Option<f64>) {
        self.scheduler.set_anticipation(tuning(self.is_software, anticipation).anticipation);
    }

    /// A VM uses this GPU, or its share has changed.
    pub(super) fn set_tenant(&mut self, tenant: TenantId, share: Share, now: Nanos) {
        self.scheduler.set_tenant(tenant, share, now);
        self.shares.insert(tenant, share);
        (self.changed, self.sliced) = (true, None);
    }

    /// Returns the share that a VM is to get here, if it is here.
    #[cfg(test)]
    pub(super) fn share(&self, tenant: TenantId) -> Option<Share> {
        self.shares.get(&tenant).copied()
    }

    /// Removes a VM that no longer uses this GPU. Returns its usage here.
    pub(super) fn remove_tenant(&mut self, tenant: TenantId) -> Usage {
        let usage = self.scheduler.remove_tenant(tenant);
        self.shares.remove(&tenant);
        self.changed = true;
        usage.unwrap_or_default()
    }

    /// Adds a context to this GPU.
    pub(super) fn begin(
        &mut self,
        key: ContextKey,
        (tenant, ctx_id): (TenantId, ContextId),
        page: SchedulerSide,
        now: Nanos,
    ) {
        self.scheduler.begin(key, tenant, now);
        let mut rate = Rate::default();
        rate.sample(now, 0);
        let context = Context {
            page,
            seen: Counters::default(),
            tenant,
            ctx_id,
            rate,
            cpu: Duration::ZERO,
            hung: None,
            leased: false,
            traced: false,
        };
        self.contexts.insert(key, context);
        (self.changed, self.sliced) = (true, None);
        // The worker may have changed its counters before this broker had the page.
        self.look(key, now, None);
    }

    /// Goes on with a context that another program had here, up to the counters that it had `reached`.
    ///
    /// # Errors
    ///
    /// The file is not a scheduler page.
    pub(super) fn resume(
        &mut self,
        key: ContextKey,
        (tenant, ctx_id): (TenantId, ContextId),
        page: impl AsFd,
        (reached, standing): (Reached, Standing),
        now: Nanos,
    ) -> Result<(), MapError> {
        let page = SchedulerSide::resume(page, reached)?;
        self.scheduler.resume(key, tenant, standing, now);
        self.begin(key, (tenant, ctx_id), page, now);
        Ok(())
    }

    /// Returns a context as [`Self::resume`] takes it over.
    pub(super) fn standing(&self, key: ContextKey) -> Option<(Reached, Standing)> {
        Some((self.contexts.get(&key)?.page.reached(), self.scheduler.standing(key)?))
    }

    /// Returns the usage of this GPU by the ended contexts of a VM.
    pub(super) fn ended(&self, tenant: TenantId) -> Usage {
        self.scheduler.ended(tenant).unwrap_or_default()
    }

    /// Takes over the usage of this GPU by the ended contexts of a VM.
    pub(super) fn resume_tenant(&mut self, tenant: TenantId, ended: Usage) {
        self.scheduler.resume_tenant(tenant, ended);
    }

    /// Returns the GPU as device processes name it.
    pub(super) fn shared(&self) -> SharedGpu {
        SharedGpu {
            uuid: self.uuid,
            name: self.name.clone(),
            software: self.is_software,
            memory: self.memory,
            pci_address: self.pci_address.clone(),
            likeness: self.likeness,
            spare: false,
            driver: self.driver.clone(),
        }
    }

    /// Reads the pages of all workers, after which the log has all their charges.
    pub(super) fn look_at_every(&mut self, now: Nanos, mut log: Option<&mut GrantLog>) {
        self.look_at_all(now, log.as_deref_mut(), |_, _, _| true);
        let Some(log) = log else { return };
        // The page of one worker may have corrected the charge of another, whose page was read before.
        for (key, context) in &self.contexts {
            if let Some(usage) = self.scheduler.usage(*key) {
                log.note(now, context.who(), *key, &usage);
            }
        }
    }

    /// Ends a context, whose charge is not corrected afterwards. Returns its record.
    pub(super) fn end(
        &mut self,
        key: ContextKey,
        now: Nanos,
        mut log: Option<&mut GrantLog>,
    ) -> Option<Context> {
        self.look(key, now, log.as_deref_mut());
        let mut context = self.contexts.remove(&key)?;
        context.update_cpu();
        if let Some(recorded) = &mut self.recorded
            && context.traced
            && recorded.ended.len() < ENDED_MAX
        {
            let notes = context.page.take_notes(u32::MAX);
            recorded.ended.push((key, context.tenant, notes));
        }
        if context.hung.is_some() {
            self.cleared = now;
        }
        let charged = self.scheduler.end(key, now);
        if let (Some(log), Some(charged)) = (log, charged) {
            log.note(now, context.who(), key, &charged);
            log.forget(key);
        }
        self.changed = true;
        Some(context)
    }

    /// Reads the page of a worker.
    pub(super) fn look(&mut self, key: ContextKey, now: Nanos, log: Option<&mut GrantLog>) {
        let Some(context) = self.contexts.get_mut(&key) else { return };
        let counters = context.page.counters();
        let work = context.page.take_work();
        if counters == context.seen && work.is_empty() {
            return;
        }
        context.seen = counters;
        if let Some(recorded) = &mut self.recorded {
            recorded.add(context.tenant, &work);
        }
        self.spans.clear();
        self.spans.extend(work.iter().map(|work| Span {
            begin: work.begin,
            end: work.end,
            busy: work.busy,
            count: work.count,
            copy: work.copy,
        }));
        let Counters { ready, dispatched, completed } = counters;
        self.scheduler.see(key, Seen { ready, dispatched, completed }, &self.spans, now);
        (self.changed, self.unsampled) = (true, true);
        if let Some(log) = log
            && let Some(usage) = self.scheduler.usage(key)
        {
            log.note(now, context.who(), key, &usage);
        }
    }

    /// Decides which contexts may use the GPU next, if anything has changed or it is time to, and tells the workers.
    pub(super) fn decide(&mut self, now: Nanos, log: Option<&mut GrantLog>) {
        if !self.changed && self.scheduler.next_look().is_none_or(|at| at > now) {
            return;
        }
        // This charges a context whose lease ends now for all its work.
        self.look_at_all(now, log, |_, _, context| context.leased);
        self.changed = false;
        for order in self.scheduler.decide(now) {
            let (key, lease) = match order {
                Order::Grant { context, total } => {
                    if let Some(context) = self.contexts.get_mut(&context) {
                        context.page.grant(total);
                    }
                    continue;
                }
                Order::Lease(key) => (key, true),
                Order::Revoke(key) => (key, false),
            };
            if let Some(context) = self.contexts.get_mut(&key) {
                context.leased = lease;
                context.page.lease(lease);
            }
        }
        self.tell_slices();
    }

    /// Tells the contexts the time slices in which the hardware is to run their work, if these are others than before. While contexts of class
    /// [`Latency`](Class::Latency) have work, the hardware turns to them after a short slice of another, and from them only after a long one.
    fn tell_slices(&mut self) {
        let hurries = self.sets_slices && self.scheduler.is_in_a_hurry();
        if self.sliced.replace(hurries) == Some(hurries) {
            return;
        }
        for context in self.contexts.values_mut() {
            let class = self.shares.get(&context.tenant).map(|share| share.class);
            context.page.slice(match class {
                _ if !hurries => 0,
                Some(Class::Latency) => LONG_SLICE,
                _ => SHORT_SLICE,
            });
        }
    }

    /// Returns when [`Self::decide`] is to be called even if no event comes.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        self.scheduler.next_look()
    }

    /// Reads the pages of all workers that may have work. A worker does not ring for a dispatch, which shows that a grant was used, nor while it has
    /// a lease, nor where submissions are only counted.
    pub(super) fn look_at_busy(&mut self, now: Nanos, log: Option<&mut GrantLog>) {
        self.look_at_all(now, log, Self::has_work);
    }

    fn look_at_all(
        &mut self,
        now: Nanos,
        mut log: Option<&mut GrantLog>,
        which: impl Fn(&Self, ContextKey, &Context) -> bool,
    ) {
        let keys = self.contexts.iter().filter(|(key, context)| which(self, **key, context));
        for key in keys.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.look(key, now, log.as_deref_mut());
        }
    }

    /// Returns whether this GPU is a processor of the host.
    pub(super) fn is_software(&self) -> bool {
        self.is_software
    }

    /// Returns whether some context may have work, so that the pages have to be read now and then.
    pub(super) fn is_busy(&self) -> bool {
        self.unsampled || self.contexts.iter().any(|(key, context)| self.has_work(*key, context))
    }

    fn has_work(&self, key: ContextKey, context: &Context) -> bool {
        let usage = self.scheduler.usage(key);
        let rings = self.scheduler.shares_out() && !context.leased;
        !rings || usage.is_some_and(|usage| usage.in_driver > 0 || usage.ready > 0)
    }

    /// Takes samples for the shares of the last second. The caller calls this function before it reads pages.
    pub(super) fn sample(&mut self, now: Nanos) {
        self.unsampled = false;
        for (key, context) in &mut self.contexts {
            let used = self.scheduler.usage(*key).map_or(0, |usage| usage.gpu);
            context.rate.sample(now, used);
        }
    }

    /// Returns the context whose submission runs longer than `limit` while others wait, unless it was returned in the last second: the context that
    /// blocks others, or the one that runs longest. If contexts of several VMs are equal, none is returned, as nothing shows which is at fault: each
    /// may run as long as alone. Equal contexts of one VM do not wait for each other, but another VM may wait for them.
    pub(super) fn hung(
        &mut self,
        now: Nanos,
        limit: impl Fn(TenantId) -> Duration,
    ) -> Option<(TenantId, ContextId)> {
        let running: Vec<_> = self.contexts.keys().filter_map(|key| self.running_of(*key, now)).collect();
        let guilty = in_the_way(&running);
        let first = guilty.or_else(|| longest(&running))?;
        let tenant = self.contexts.get(&first.id)?.tenant;
        let is_equal =
            |other: &&Running<_>| other.id == first.id || (guilty.is_none() && first.is_equal_to(other));
        let equals: Vec<_> = running.iter().filter(is_equal).map(|other| other.id).collect();
        let is_of_it = |key| self.contexts.get(key).is_some_and(|context| context.tenant == tenant);
        let may_go =
            first.ran > limit(tenant) && equals.iter().all(is_of_it) && self.others_wait(&equals, now);
        let context = self.contexts.get_mut(&first.id)?;
        let told = context.hung.is_some_and(|told| now.saturating_sub(told) < HUNG_AGAIN);
        if told || !may_go {
            return None;
        }
        context.hung = Some(now);
        Some((context.tenant, context.ctx_id))
    }

    /// Returns the times of a context that has a submission in the driver. The worker can say since when the GPU executes the submission. If the
    /// worker says less, the time counts from [`SILENT`] after the driver got the submission: the context that was granted first need not be the one
    /// that the GPU is busy with.
    fn running_of(&self, key: ContextKey, now: Nanos) -> Option<Running<ContextKey>> {
        let in_driver = self.in_driver(key, now)?;
        let said = self.contexts.get(&key)?.page.running().unwrap_or_default();
        let ran = said.max(in_driver.saturating_sub(SILENT)).min(in_driver);
        let usage = self.usage(key);
        let usual = usage.gpu.checked_div(usage.submissions).map(Duration::from_nanos);
        // When a submission of the context ends, the time of its next one begins.
        Some(Running { id: key, ran, charged: ran, usual, served: None })
    }

    /// The time for which the driver has had the first submission of a context, less half of the time in which others overtook it; none if the driver
    /// has none.
    fn in_driver(&self, key: ContextKey, now: Nanos) -> Option<Duration> {
        let since = self.scheduler.usage(key)?.running_since?.max(self.cleared);
        Some(Duration::from_nanos(now.saturating_sub(since)))
    }

    /// Returns whether contexts other than these wait for the GPU.
    fn others_wait(&self, these: &[ContextKey], now: Nanos) -> bool {
        let is_held_up = |other| self.in_driver(other, now).is_some_and(|time| time >= HELD_UP);
        let mut others = self.contexts.iter().filter(|(key, _)| !these.contains(key));
        others.any(|(key, context)| is_held_up(*key) || self.is_kept_out(*key, context))
    }

    /// Returns whether others keep a waiting context off the GPU. A context of the background class, or with a ceiling, does not count: it may have
    /// to wait though no other blocks it.
    fn is_kept_out(&self, key: ContextKey, context: &Context) -> bool {
        let share = self.shares.get(&context.tenant);
        let may_wait = share.is_none_or(|share| share.class == Class::Background || share.ceiling.is_some());
        let usage = self.usage(key);
        !may_wait && usage.ready > 0 && usage.in_driver == 0
    }

    /// Starts or stops the record for traces.
    pub(super) fn record(&mut self, wanted: bool) {
        match wanted {
            true => _ = self.recorded.get_or_insert_default(),
            false => self.recorded = None,
        }
    }

    /// Takes out the record for traces.
    pub(super) fn take_recorded(&mut self) -> Recorded {
        self.recorded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Has the worker of a context begin or stop to record notes for a trace.
    pub(super) fn trace(&mut self, key: ContextKey, wanted: bool) {
        if let Some(context) = self.contexts.get_mut(&key) {
            context.traced = wanted;
            context.page.trace(wanted);
        }
    }

    /// Takes up to `most` notes of a context.
    pub(super) fn take_notes(&mut self, key: ContextKey, most: u32) -> TakenNotes {
        self.contexts.get_mut(&key).map(|context| context.page.take_notes(most)).unwrap_or_default()
    }

    /// Returns the VMs and contexts whose work is in the driver, and since when.
    pub(super) fn running(&self) -> impl Iterator<Item = (TenantId, ContextKey, Nanos)> {
        self.contexts.iter().filter_map(|(key, context)| {
            Some((context.tenant, *key, self.scheduler.usage(*key)?.running_since?))
        })
    }

    /// Returns the usage of a context.
    pub(super) fn usage(&self, key: ContextKey) -> Usage {
        self.scheduler.usage(key).unwrap_or_default()
    }

    /// Returns the usage of a VM here, contexts that have ended included.
    pub(super) fn tenant_usage(&self, tenant: TenantId) -> Usage {
        self.scheduler.tenant_usage(tenant).unwrap_or_default()
    }

    /// A context, with the processor time that its worker says it has used by now.
    pub(super) fn context(&mut self, key: ContextKey) -> Option<&mut Context> {
        let context = self.contexts.get_mut(&key)?;
        context.update_cpu();
        Some(context)
    }
}

fn tuning(software: bool, anticipation: Option<f64>) -> Tuning {
    let tuning = if software { Tuning::software() } else { Tuning::default() };
    Tuning { anticipation: anticipation.unwrap_or(tuning.anticipation), ..tuning }
}

impl Recorded {
    fn add(&mut self, tenant: TenantId, work: &[Work]) {
        let room = WORK_MAX.saturating_sub(self.work.len());
        self.dropped += work.len().saturating_sub(room) as u64;
        self.work.extend(work.iter().take(room).map(|work| (tenant, *work)));
    }
}

impl Context {
    /// Returns the VM of the context, and the number of the context in this VM.
    fn who(&self) -> (TenantId, ContextId) {
        (self.tenant, self.ctx_id)
    }

    fn update_cpu(&mut self) {
        self.cpu = self.cpu.max(self.page.cpu());
    }
}

/// The time slices of other contexts while some of class [`Latency`](Class::Latency) have work, in microseconds. On an H200, without the daemon, the median
/// wait was 0.06 ms shorter with 100, and 0.16 ms longer with 500.
const SHORT_SLICE: u32 = 200;
/// The time slices of contexts of class [`Latency`](Class::Latency) meanwhile, in microseconds: longer than most of their work, which is then not interrupted.
const LONG_SLICE: u32 = 3000;
/// The time after which a submission that was dispatched and has not completed counts as held up by the running one.
const HELD_UP: Duration = Duration::from_millis(250);
/// The time that a worker has for reporting that a submission runs.
const SILENT: Duration = Duration::from_secs(1);
/// Time until a device process is told again that a context runs for too long, in nanoseconds.
const HUNG_AGAIN: Nanos = 1_000_000_000;

/// Pieces of work that are kept for traces between two looks: 51 200 a second, more than a GPU can do.
const WORK_MAX: usize = 512;
/// The number of contexts that end between two looks and whose last notes are kept.
const ENDED_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use shm::{GateSide, grant_page};

    const VM: TenantId = TenantId(0);
    const KEY: ContextKey = ContextKey(7);
    const MS: Nanos = 1_000_000;

    fn gpu() -> (Gpu, GateSide) {
        let mut gpu = Gpu::new(
            SharedGpu { uuid: [1; 16], name: "GPU".into(), ..SharedGpu::default() },
            None,
            HardwareSlices::Short,
            Passage::ByGrant,
        );
        gpu.set_tenant(VM, Share { weight: 100, class: Class::Normal, ceiling: None }, 0);
        let file = grant_page().unwrap();
        let gate = GateSide::open(&file).unwrap();
        gpu.begin(KEY, (VM, ContextId(3)), SchedulerSide::open(&file).unwrap(), 0);
        (gpu, gate)
    }

    #[test]
    fn what_is_ready_is_granted_and_what_completes_is_charged() {
        let (mut gpu, gate) = gpu();
        gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
        gpu.look(KEY, MS, None);
        gpu.decide(MS, None);
        assert_eq!(gate.granted(), 1);
        gate.tell(Counters { ready: 0, dispatched: 1, completed: 0 });
        gpu.look(KEY, 2 * MS, None);
        assert!(gpu.is_busy());
        assert!(gate.tell_work(&shm::Work { begin: MS, end: 4 * MS, busy: 3 * MS, count: 1, copy: false }));
        gate.tell(Counters { ready: 0, dispatched: 1, completed: 1 });
        gate.tell_cpu(Duration::from_millis(5));
        gpu.look(KEY, 5 * MS, None);
        gpu.decide(5 * MS, None);
        let usage = gpu.usage(KEY);
        assert_eq!((usage.submissions, usage.in_driver, usage.gpu), (1, 0, 3 * MS));
        let ended = gpu.end(KEY, 6 * MS, None).unwrap();
        assert_eq!((ended.ctx_id, ended.cpu), (ContextId(3), Duration::from_millis(5)));
        assert_eq!(gpu.tenant_usage(VM).gpu, 3 * MS, "the VM's account stays");
    }

    /// Two programs on one GPU at the same time: the second report shows that the first was charged too much.
    #[test]
    fn the_log_adds_up_to_the_charges_also_of_who_is_corrected_and_then_silent() {
        const OTHER: ContextKey = ContextKey(8);
        for upgrades in [false, true] {
            let (mut gpu, gate) = gpu();
            let page = grant_page().unwrap();
            let other = GateSide::open(&page).unwrap();
            gpu.begin(OTHER, (VM, ContextId(4)), SchedulerSide::open(&page).unwrap(), 0);
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut log = GrantLog::create(file.path()).unwrap();
            let both = [(KEY, &gate), (OTHER, &other)];
            for (key, gate) in both {
                gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
                gpu.look(key, 0, None);
            }
            gpu.decide(0, None);
            for (key, gate) in both {
                gate.tell(Counters { ready: 0, dispatched: 1, completed: 0 });
                gpu.look(key, MS, Some(&mut log));
                let work = shm::Work { begin: MS, end: 4 * MS, busy: 3 * MS, count: 1, copy: false };
                assert!(gate.tell_work(&work));
                gate.tell(Counters { ready: 0, dispatched: 1, completed: 1 });
            }
            for key in [KEY, OTHER] {
                gpu.look(key, 5 * MS, Some(&mut log));
            }
            if upgrades {
                gpu.look_at_every(6 * MS, Some(&mut log));
            } else {
                gpu.end(KEY, 6 * MS, Some(&mut log)).unwrap();
                gpu.end(OTHER, 6 * MS, Some(&mut log)).unwrap();
            }
            log.flush();
            let text = std::fs::read_to_string(file.path()).unwrap();
            let charges =
                text.lines().skip(1).map(|line| line.split(' ').nth(4).unwrap().parse::<i64>().unwrap());
            let charges: Vec<i64> = charges.collect();
            assert!(charges.iter().any(|charge| *charge < 0), "nothing was corrected: {text}");
            assert_eq!(
                charges.iter().sum::<i64>(),
                i64::try_from(gpu.tenant_usage(VM).gpu).unwrap(),
                "{text}"
            );
        }
    }

    #[test]
    fn contexts_have_slices_of_their_class_while_one_of_the_latency_class_has_work() {
        const URGENT: (TenantId, ContextKey) = (TenantId(1), ContextKey(8));
        let share = |class| Share { weight: 100, class, ceiling: None };
        let (mut gpu, gate) = gpu();
        gpu.set_tenant(URGENT.0, share(Class::Latency), 0);
        let file = grant_page().unwrap();
        let urgent = GateSide::open(&file).unwrap();
        gpu.begin(URGENT.1, (URGENT.0, ContextId(1)), SchedulerSide::open(&file).unwrap(), 0);
        let slices = || (gate.slice(), urgent.slice());
        let works = |gpu: &mut Gpu, at: Nanos, count| {
            urgent.tell(Counters { ready: 1, dispatched: count - 1, completed: count - 1 });
            gpu.look(URGENT.1, at, None);
            gpu.decide(at, None);
            urgent.tell(Counters { ready: 0, dispatched: count, completed: count });
            gpu.look(URGENT.1, at + MS, None);
            gpu.decide(at + MS, None);
        };
        gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
        gpu.look(KEY, 0, None);
        gpu.decide(0, None);
        assert_eq!(slices(), (0, 0), "no context of the class has work");
        works(&mut gpu, MS, 1);
        assert_eq!(slices(), (SHORT_SLICE, LONG_SLICE));
        // A context that is new meanwhile, and one whose class is another now.
        let file = grant_page().unwrap();
        let new = GateSide::open(&file).unwrap();
        gpu.begin(ContextKey(9), (VM, ContextId(4)), SchedulerSide::open(&file).unwrap(), 3 * MS);
        gpu.decide(3 * MS, None);
        assert_eq!(new.slice(), SHORT_SLICE);
        gpu.set_tenant(VM, share(Class::Latency), 4 * MS);
        gpu.decide(4 * MS, None);
        assert_eq!(slices(), (LONG_SLICE, LONG_SLICE));
        gpu.set_tenant(VM, share(Class::Background), 5 * MS);
        gpu.decide(5 * MS, None);
        assert_eq!(slices(), (SHORT_SLICE, LONG_SLICE));
        // The hurry is over when the class has had no work for a while.
        gate.tell(Counters { ready: 1, dispatched: 1, completed: 1 });
        gpu.look(KEY, 3000 * MS, None);
        gpu.decide(3000 * MS, None);
        assert_eq!((slices(), new.slice()), ((0, 0), 0));
        works(&mut gpu, 4000 * MS, 2);
        assert_eq!(slices(), (SHORT_SLICE, LONG_SLICE));
    }

    #[test]
    fn slices_stay_as_the_driver_has_them_where_they_are_not_to_be_set() {
        let hardware = SharedGpu { uuid: [1; 16], name: "GPU".into(), ..SharedGpu::default() };
        let software = SharedGpu { software: true, ..hardware.clone() };
        for (gpu, slices, passage) in [
            (hardware.clone(), HardwareSlices::Driver, Passage::ByGrant),
            (hardware, HardwareSlices::Short, Passage::Counted),
            (software, HardwareSlices::Short, Passage::ByGrant),
        ] {
            let mut gpu = Gpu::new(gpu, None, slices, passage);
            gpu.set_tenant(VM, Share { weight: 100, class: Class::Latency, ceiling: None }, 0);
            let file = grant_page().unwrap();
            let gate = GateSide::open(&file).unwrap();
            gpu.begin(KEY, (VM, ContextId(3)), SchedulerSide::open(&file).unwrap(), 0);
            gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
            gpu.look(KEY, MS, None);
            gpu.decide(MS, None);
            assert_eq!(gate.slice(), 0, "{slices:?}, {passage:?}");
        }
    }

    #[test]
    fn a_dispatch_for_which_nobody_rings_is_seen() {
        let (mut gpu, gate) = gpu();
        gate.tell(Counters { ready: 1, dispatched: 0, completed: 0 });
        gpu.look(KEY, MS, None);
        gpu.decide(MS, None);
        gate.tell(Counters { ready: 0, dispatched: 1, completed: 0 });
        assert_eq!(gpu.usage(KEY).in_driver, 0);
        gpu.look_at_busy(50 * MS, None);
        assert_eq!((gpu.usage(KEY).in_driver, gpu.usage(KEY).ready), (1, 0));
        assert!(gpu.usage(KEY).running_since.is_some());
    }

    #[test]
    fn a_page_that_says_nothing_new_changes_nothing() {
        let (mut gpu, _gate) = gpu();
        gpu.decide(0, None);
        gpu.look(KEY, MS, None);
        assert!(!gpu.changed && !gpu.is_busy());
    }
}
