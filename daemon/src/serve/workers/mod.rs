//! This module starts worker processes, sends them messages and ends them. It kills a worker that does not end in time or does not read.
//!
//! `successors` has the workers that are to take a context over, `inherited` those that a device process of another program has started, `crashes`
//! those that die by themselves, `transfers` those of contexts that are saved or loaded, `backlogs` the bound on the messages that wait for workers.

mod backlogs;
mod crashes;
mod inherited;
mod successors;
mod transfers;

use self::backlogs::Backlogs;
use self::crashes::{Kept, Life};
pub(super) use self::inherited::{Inherited, PassedWorkers};
pub(super) use self::successors::HANDS_OVER_TOKEN;
use self::successors::Successor;
use super::logging::output::{Budget, Heard, Output, Printer};
use crate::device::Owner;
use crate::ipc::{
    Channel, ChildRole, DriverFamily, GpuChange, Outbox, OutboxError, Placement, ReceiveError, ToDevice,
    ToWorker, WorkerSetup,
};
use crate::sandbox::{Ended, FromChildren, Launcher};
use config::{CacheKey, ContextLimits, DeviceLimits, GpuChoice, Passage};
use protocol::ids::ContextId;
use readiness::{self, Events};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGSYS;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use waiting::Heuristic;

/// The time that a worker has to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// The time after which a guest whose worker has not started hears all the same that its memory is mapped.
pub(super) const START_WAIT_MAX: Duration = Duration::from_secs(30);
/// Workers that may be ending at once, at most; beyond that the oldest are killed without grace.
const ENDING_MAX: usize = 64;
/// Messages taken from one worker before others get their turn.
const MESSAGES_PER_TURN: usize = 64;

/// High bits of the epoll values that belong to workers, and to their output; the low 32 bits are a worker's serial number.
pub(super) const CHANNEL_TOKEN: u64 = 1 << 32;
pub(super) const OUTPUT_TOKEN: u64 = 1 << 33;

/// A worker's ends of the pages and the doorbell by which the broker schedules or counts its submissions.
#[derive(Debug)]
pub(super) struct Gate {
    /// The page of grants for each GPU of the worker, by the GPU's index among those of the VM.
    pub pages: BTreeMap<u8, OwnedFd>,
    pub doorbell: OwnedFd,
    pub passage: Passage,
}

impl Gate {
    /// Returns a copy for another worker of the context, with these pages for the GPUs that the context comes to.
    fn again(&self, more: BTreeMap<u8, OwnedFd>) -> io::Result<Self> {
        let mut pages = more;
        for (gpu, page) in &self.pages {
            if !pages.contains_key(gpu) {
                pages.insert(*gpu, page.try_clone()?);
            }
        }
        Ok(Self { pages, doorbell: self.doorbell.try_clone()?, passage: self.passage })
    }
}

/// All workers of the VM.
#[derive(Debug)]
pub(super) struct Workers {
    launcher: Arc<Launcher>,
    family: DriverFamily,
    /// The GPUs of the VM, followed by spare GPUs.
    gpus: Vec<GpuChoice>,
    /// The GPUs of contexts that begin.
    placement: Placement,
    limits: ContextLimits,
    cache_key: CacheKey,
    waiting_off: Vec<Heuristic>,
    backlogs: Backlogs,
    epoll: Arc<OwnedFd>,
    next_serial: u32,
    running: FxHashMap<ContextId, Worker>,
    successors: FxHashMap<ContextId, Successor>,
    /// Contexts that are swapped out, and for which a message waits.
    awaited: Vec<ContextId>,
    /// Contexts whose hand-over was called off here, and the reasons.
    called_off: Vec<(ContextId, String)>,
    /// The numbers of workers that had ended before their contexts were given up.
    ended: Vec<u64>,
    contexts: FxHashMap<u32, ContextId>,
    /// The contexts whose workers have not started yet, each with the time until which the guest waits for that.
    starting: VecDeque<(Instant, ContextId)>,
    ending: VecDeque<Ending>,
    /// The launchers of other programs, whose workers are among the running ones, and the ends of workers whose launcher is gone.
    inherited: Vec<Arc<Launcher>>,
    orphans: Vec<Ended>,
    /// The ends at which the output of workers is read, by their serial numbers; those of workers that have ended are included.
    outputs: FxHashMap<u32, Output>,
    printing: Budget,
}

#[derive(Debug)]
struct Worker {
    serial: u32,
    /// The number by which the device knows the worker.
    number: u64,
    channel: Channel,
    process: Process,
    /// The status page that the worker shares with this process.
    page: OwnedFd,
    /// Messages for which the socket had no room, in order.
    outbox: Outbox<ToWorker>,
    /// The worker's `debug_name` and its gate, for a successor.
    name: String,
    gate: Option<Gate>,
    /// The worker's GPUs.
    placement: Placement,
    /// The worker has been told to hand over, and has not answered.
    owes_answer: bool,
    /// The worker has no driver: it keeps a context that is swapped out. Messages for a driver wait in `held` until a worker has one.
    swapped_out: Option<SwappedOut>,
    held: Outbox<ToWorker>,
    life: Life,
    /// The number of messages that the worker was sent after its set-up, modulo 2^32.
    sent: u32,
    /// The messages that the worker has not executed, once it was asked for a checkpoint.
    kept: Option<Kept>,
}

impl Worker {
    /// Makes a worker that runs, and was sent nothing.
    fn new(
        number: u64,
        (channel, process): (Channel, Process),
        page: OwnedFd,
        name: String,
        (placement, gate): (Placement, Option<Gate>),
    ) -> Self {
        Self {
            serial: process.serial,
            number,
            channel,
            process,
            page,
            outbox: Outbox::default(),
            name,
            gate,
            placement,
            owes_answer: false,
            swapped_out: None,
            held: Outbox::default(),
            life: Life::Runs,
            sent: 0,
            kept: None,
        }
    }
}

/// The settings of a worker without a driver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SwappedOut {
    /// Bytes of contents that the context may have, at most.
    pub contents_max: u64,
    /// The context is swapped out although its program is busy; the program waits.
    pub is_forced: bool,
}

/// A child of the launcher.
#[derive(Debug)]
struct Process {
    launcher: Arc<Launcher>,
    serial: u32,
}

#[derive(Debug)]
struct Ending {
    serial: u32,
    number: u64,
    process: Process,
    kill_at: Instant,
    /// The context whose worker the process was, or was to become.
    ctx_id: ContextId,
    leave: Leave,
    /// The worker's `debug_name`.
    name: String,
    /// The worker did not end by itself.
    killed: bool,
}

/// The reason why a worker leaves its context, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// The device process has told it to end, or has killed it.
    Known,
    /// The worker ended without a message: the way in which its process ended is the reason why its context is lost.
    Unexplained,
    /// The worker was to take a context over, which is not lost: the way in which its process ended is the reason why the hand-over failed.
    Successor,
}

/// The options of the device process with which it starts its workers.
#[derive(Debug)]
pub(super) struct WorkerOptions {
    /// The drivers of the GPUs.
    pub family: DriverFamily,
    /// The GPUs that guests see, in this order, followed by spare GPUs.
    pub gpus: Vec<GpuChoice>,
    /// The number of GPUs that guests see.
    pub seen: usize,
    /// Bounds on each context.
    pub limits: ContextLimits,
    /// The key of pipeline caches.
    pub cache_key: CacheKey,
    /// The heuristics of waiting that are turned off.
    pub waiting_off: Vec<Heuristic>,
}

/// The end of a worker that had not said why its context was lost.
#[derive(Debug)]
pub(super) struct Unexplained {
    /// The context.
    pub ctx_id: ContextId,
    /// The name of its program.
    pub name: String,
    /// The worker's end in words, for the log.
    pub how: String,
    /// The worker was to take the context over, which is not lost.
    pub is_successor: bool,
}

/// The role of a worker in its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The worker serves the context.
    Worker(ContextId),
    /// The worker is to take the context over.
    Successor(ContextId),
}

/// A message from a worker, or its end.
#[derive(Debug)]
pub(super) enum FromWorker {
    /// A message, perhaps with a descriptor.
    Message(ToDevice, Option<OwnedFd>),
    /// No more messages will come.
    Gone(ReceiveError),
}

impl Workers {
    /// Makes a table without workers.
    pub(super) fn new(
        launcher: Arc<Launcher>,
        epoll: Arc<OwnedFd>,
        device_limits: &DeviceLimits,
        options: WorkerOptions,
    ) -> Self {
        let WorkerOptions { family, gpus, seen, limits, cache_key, waiting_off } = options;
        Self {
            launcher,
            family,
            gpus,
            placement: Placement::own(seen),
            limits,
            cache_key,
            waiting_off,
            backlogs: Backlogs::new(device_limits),
            epoll,
            next_serial: 0,
            running: FxHashMap::default(),
            successors: FxHashMap::default(),
            awaited: Vec::new(),
            called_off: Vec::new(),
            ended: Vec::new(),
            contexts: FxHashMap::default(),
            starting: VecDeque::new(),
            ending: VecDeque::new(),
            inherited: Vec::new(),
            orphans: Vec::new(),
            outputs: FxHashMap::default(),
            printing: Budget::new(device_limits.log_lines),
        }
    }

    /// Has the worker of a context started, which gets the status page `page`, and `gate` if its submissions pass a gate. It can be
    /// sent messages at once; if it does not start, it is reported as gone. [`Self::reap`] returns its `number`.
    pub(super) fn start(
        &mut self,
        ctx_id: ContextId,
        debug_name: String,
        number: u64,
        page: BorrowedFd<'_>,
        gate: Option<Gate>,
    ) -> io::Result<()> {
        let placement = self.placement.clone();
        let worker = self.launch(ctx_id, debug_name, number, page, (placement, gate), None)?;
        self.running.insert(ctx_id, worker);
        self.starting.push_back((Instant::now() + START_WAIT_MAX, ctx_id));
        Ok(())
    }

    /// Has a worker started for a context, and sends it the messages that it needs to begin.
    fn launch(
        &mut self,
        ctx_id: ContextId,
        name: String,
        number: u64,
        page: BorrowedFd<'_>,
        (placement, gate): (Placement, Option<Gate>),
        swapped_out: Option<SwappedOut>,
    ) -> io::Result<Worker> {
        let (channel, theirs) = Channel::pair()?;
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        self.watch(channel.as_fd(), CHANNEL_TOKEN | u64::from(serial))?;
        let (output, printed) = Output::new(Printer::Worker(ctx_id, name.clone()))?;
        self.watch(output.as_fd(), OUTPUT_TOKEN | u64::from(serial))?;
        self.launcher.launch(serial, ChildRole::Worker, self.family, &theirs.into_socket(), &printed)?;
        self.outputs.insert(serial, output);
        let process = Process { launcher: Arc::clone(&self.launcher), serial };
        let page_of_worker = page.try_clone_to_owned()?;
        let mut worker = Worker::new(number, (channel, process), page_of_worker, name, (placement, gate));
        worker.swapped_out = swapped_out;
        self.contexts.insert(serial, ctx_id);
        log::debug!(context = ctx_id.0; "the worker of context {ctx_id} is started");
        if let Err(limit) = self.set_up(ctx_id, &mut worker, page) {
            self.put_away(ctx_id, worker, Leave::Known);
            return Err(io::Error::other(limit));
        }
        Ok(worker)
    }

    fn set_up(
        &mut self,
        ctx_id: ContextId,
        worker: &mut Worker,
        page: BorrowedFd<'_>,
    ) -> Result<(), &'static str> {
        let Self { limits, cache_key, .. } = *self;
        let gpu = |index: &u8| self.gpus.get(usize::from(*index)).copied();
        let gpus = worker.placement.0.iter().filter_map(gpu).collect();
        let swapped_out = worker.swapped_out.map(|it| it.contents_max);
        let gate = worker.gate.as_ref().filter(|_| swapped_out.is_none());
        let passage = gate.map(|gate| gate.passage);
        let (waiting_off, debug_name) = (self.waiting_off.clone(), worker.name.clone());
        let setup =
            WorkerSetup { ctx_id, debug_name, gpus, limits, cache_key, passage, waiting_off, swapped_out };
        worker.post(&self.epoll, &mut self.backlogs, ToWorker::Setup(Box::new(setup)), Some(page))?;
        if passage.is_none() {
            worker.sent = 0;
            return Ok(());
        }
        // The gate's ends are also kept for a successor.
        let Some(gate) = worker.gate.take() else { return Ok(()) };
        let placement = worker.placement.clone();
        for page in placement.0.iter().filter_map(|gpu| gate.pages.get(gpu)) {
            worker.post(&self.epoll, &mut self.backlogs, ToWorker::Grants, Some(page.as_fd()))?;
        }
        worker.post(&self.epoll, &mut self.backlogs, ToWorker::Doorbell, Some(gate.doorbell.as_fd()))?;
        worker.gate = Some(gate);
        worker.sent = 0;
        Ok(())
    }

    /// Returns the GPUs that workers can use.
    pub(super) fn gpus(&self) -> &[GpuChoice] {
        &self.gpus
    }

    /// Returns the GPUs of contexts that begin now.
    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Sets the GPUs of contexts that begin from now on.
    ///
    /// # Errors
    ///
    /// There are no such GPUs.
    pub(super) fn place(&mut self, placement: Placement) -> Result<(), String> {
        self.admit(&placement)?;
        self.placement = placement;
        Ok(())
    }

    /// Returns the GPUs of a context that has a worker.
    pub(super) fn placement_of(&self, ctx_id: ContextId) -> Option<&Placement> {
        self.running.get(&ctx_id).map(|worker| &worker.placement)
    }

    /// Returns, for tests, the change of a context's first GPU to the next that the context does not use; none if it uses all GPUs.
    pub(super) fn next_change(&self, ctx_id: ContextId) -> Option<GpuChange> {
        let Placement(placed) = self.placement_of(ctx_id)?;
        let from = *placed.first()?;
        let count = u8::try_from(self.gpus.len()).ok()?;
        let mut others = (1..count).map(|step| (from + step) % count);
        others.find(|gpu| !placed.contains(gpu)).map(|to| GpuChange { from, to })
    }

    /// Checks that a context can have this placement.
    ///
    /// # Errors
    ///
    /// A GPU does not exist or is named twice, or the placement has not as many GPUs as guests see.
    pub(super) fn admit(&self, placement: &Placement) -> Result<(), String> {
        let known =
            |(at, gpu): (usize, &u8)| usize::from(*gpu) < self.gpus.len() && !placement.0[..at].contains(gpu);
        let fits = placement.0.len() == self.placement.0.len();
        match fits && placement.0.iter().enumerate().all(known) {
            true => Ok(()),
            false => Err(format!("{} places among {} GPUs do not fit", placement.0.len(), self.gpus.len())),
        }
    }

    /// Returns whether the context has a worker that was not told to end.
    pub(super) fn is_running(&self, ctx_id: ContextId) -> bool {
        self.running.contains_key(&ctx_id)
    }

    /// Returns the owner for which a context's worker is counted.
    pub(super) fn owner_of(&self, ctx_id: ContextId) -> Option<Owner> {
        self.running.get(&ctx_id).map(Worker::owner)
    }

    /// Returns the name of the program of a context that has a worker, as the guest gives it.
    pub(super) fn name_of(&self, ctx_id: ContextId) -> Option<&str> {
        self.running.get(&ctx_id).map(|worker| worker.name.as_str())
    }

    /// Returns whether a context's worker has no driver.
    pub(super) fn is_swapped_out(&self, ctx_id: ContextId) -> bool {
        self.running.get(&ctx_id).is_some_and(|worker| worker.swapped_out.is_some())
    }

    /// Takes the contexts that are swapped out, and for which a message waits.
    pub(super) fn take_awaited(&mut self) -> Vec<ContextId> {
        std::mem::take(&mut self.awaited)
    }

    /// Returns the contexts that have a worker.
    pub(super) fn contexts(&self) -> impl Iterator<Item = ContextId> {
        self.running.keys().copied()
    }

    /// Returns how many contexts have a worker.
    pub(super) fn count(&self) -> usize {
        self.running.len()
    }

    /// Returns the context of a worker with this serial number, and whether it is the context's worker or the successor.
    pub(super) fn whose(&self, serial: u32) -> Option<Whose> {
        let ctx_id = self.contexts.get(&serial).copied()?;
        let is_worker = self.running.get(&ctx_id).is_some_and(|worker| worker.serial == serial);
        Some(if is_worker { Whose::Worker(ctx_id) } else { Whose::Successor(ctx_id) })
    }

    /// Sends a message, now or as soon as the worker reads, or when a hand-over has ended. A worker that fails here is reported as gone; the
    /// error names the limit for which it was killed.
    pub(super) fn send(
        &mut self,
        ctx_id: ContextId,
        message: ToWorker,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), &'static str> {
        let Some(message) = self.hold_back(ctx_id, message, fd) else { return Ok(()) };
        self.send_now(ctx_id, message, fd)
    }

    fn send_now(
        &mut self,
        ctx_id: ContextId,
        message: ToWorker,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), &'static str> {
        let Some(worker) = self.running.get_mut(&ctx_id) else { return Ok(()) };
        worker.keep(&message, fd, &mut self.backlogs);
        worker.post(&self.epoll, &mut self.backlogs, message, fd)
    }

    /// A worker's socket has room again: sends the messages that waited.
    pub(super) fn flush(&mut self, whose: Whose) {
        let worker = match whose {
            Whose::Worker(ctx_id) => self.running.get_mut(&ctx_id),
            Whose::Successor(ctx_id) => {
                self.successors.get_mut(&ctx_id).map(|successor| &mut successor.worker)
            }
        };
        if let Some(worker) = worker {
            worker.flush(&self.epoll, &mut self.backlogs);
        }
    }

    /// Takes a bounded number of a worker's messages; epoll reports the rest again.
    pub(super) fn receive(&self, whose: Whose) -> Vec<FromWorker> {
        let worker = match whose {
            Whose::Worker(ctx_id) => self.running.get(&ctx_id),
            Whose::Successor(ctx_id) => self.successors.get(&ctx_id).map(|successor| &successor.worker),
        };
        let Some(worker) = worker else { return Vec::new() };
        let mut received = Vec::new();
        while received.len() < MESSAGES_PER_TURN {
            match worker.channel.try_receive() {
                Ok(Some((message, fd))) => received.push(FromWorker::Message(message, fd)),
                Ok(None) => break,
                Err(error) => {
                    received.push(FromWorker::Gone(error));
                    break;
                }
            }
        }
        received
    }

    /// Logs the output of a worker.
    pub(super) fn hear_output(&mut self, serial: u32) {
        let Some(output) = self.outputs.get_mut(&serial) else { return };
        if output.hear(&mut self.printing) == Heard::End {
            let _ = readiness::unwatch(&self.epoll, &*output);
            self.outputs.remove(&serial);
        }
    }

    /// Ends a context's worker: closes its channel, and kills it if it has not ended after the grace period.
    pub(super) fn end(&mut self, ctx_id: ContextId) {
        self.end_worker(ctx_id, Leave::Known);
    }

    /// Does the same as [`Self::end`], for a worker that ended without a message: [`Self::reap`] tells how it ended, unless it was killed
    /// for a known reason.
    pub(super) fn end_unexplained(&mut self, ctx_id: ContextId) {
        self.end_worker(ctx_id, Leave::Unexplained);
    }

    /// Ends a context's worker at once.
    pub(super) fn kill(&mut self, ctx_id: ContextId) {
        if let Some(worker) = self.running.get_mut(&ctx_id) {
            worker.kill();
            self.end(ctx_id);
        }
    }

    fn end_worker(&mut self, ctx_id: ContextId, leave: Leave) {
        self.end_successor(ctx_id, false);
        self.has_started(ctx_id);
        if let Some(worker) = self.running.remove(&ctx_id) {
            self.put_away(ctx_id, worker, leave);
        }
    }

    /// A worker of a context is to end, or has ended: forgets the messages that wait for it.
    fn put_away(&mut self, ctx_id: ContextId, mut worker: Worker, leave: Leave) {
        worker.forget_backlog(&mut self.backlogs);
        self.contexts.remove(&worker.serial);
        let _ = readiness::unwatch(&self.epoll, &worker.channel);
        let killed = match worker.life {
            Life::Ended(_) => return self.ended.push(worker.number),
            Life::Killed => true,
            Life::Runs | Life::Gone => false,
        };
        let Worker { serial, number, process, name, .. } = worker;
        self.ending.push_back(Ending {
            serial,
            number,
            process,
            kill_at: Instant::now() + GRACE,
            ctx_id,
            leave: if killed { Leave::Known } else { leave },
            name,
            killed,
        });
        let surplus = self.ending.len().saturating_sub(ENDING_MAX);
        self.ending.iter_mut().take(surplus).for_each(Ending::kill);
    }

    /// Returns the launcher's next message, if there is one, for example the report that a worker process has ended.
    ///
    /// # Errors
    ///
    /// No worker is left, and none can be started any more.
    pub(super) fn heard(&mut self) -> io::Result<Option<FromChildren>> {
        let heard = self.launcher.heard()?;
        Ok(heard.or_else(|| self.heard_of_inherited()))
    }

    /// Returns the key that pipeline caches are authenticated with.
    pub(super) fn cache_key(&self) -> CacheKey {
        self.cache_key
    }

    /// Goes on with the key of another process, so that the pipeline caches that its guest keeps stay valid.
    pub(super) fn keep_key(&mut self, cache_key: CacheKey) {
        self.cache_key = cache_key;
    }

    /// Returns the launcher, which starts the workers.
    pub(super) fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// Forgets a worker process that was told to end and has ended. Returns its number, as nothing of it is left.
    pub(super) fn reap(
        &mut self,
        serial: u32,
        status: Result<ExitStatus, String>,
        out_of_memory: bool,
    ) -> Option<(u64, Option<Unexplained>)> {
        // The worker's last output may say why it ended.
        self.hear_output(serial);
        if let Some(life) = self.life_of_gone(serial) {
            *life = Life::Ended(how_it_ended(status, out_of_memory, false));
            return None;
        }
        let at = self.ending.iter().position(|ending| ending.serial == serial)?;
        let ending = self.ending.remove(at)?;
        let how = how_it_ended(status, out_of_memory, ending.killed);
        let Ending { ctx_id, number, name, leave, .. } = ending;
        let is_successor = leave == Leave::Successor;
        let unexplained = (leave != Leave::Known).then_some(Unexplained { ctx_id, name, how, is_successor });
        self.retire_launchers();
        Some((number, unexplained))
    }

    /// Returns the numbers of the processes of a context that are ending: its former workers, and successors that did not become its worker.
    pub(super) fn ending_of(&self, ctx_id: ContextId) -> Vec<u64> {
        let of_context = self.ending.iter().filter(|ending| ending.ctx_id == ctx_id);
        of_context.map(|ending| ending.number).collect()
    }

    /// Returns when [`Self::kill_late`] has something to do next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.ending.front().map(|ending| ending.kill_at)
    }

    /// A context's worker has started, or ends.
    pub(super) fn has_started(&mut self, ctx_id: ContextId) {
        self.starting.retain(|(_, starts)| *starts != ctx_id);
    }

    /// Returns when [`Self::late_start`] has something to return next.
    pub(super) fn next_late_start(&self) -> Option<Instant> {
        self.starting.front().map(|(until, _)| *until)
    }

    /// Returns a context whose worker should have started by now: each only once.
    pub(super) fn late_start(&mut self, now: Instant) -> Option<ContextId> {
        let (_, ctx_id) = *self.starting.front().filter(|(until, _)| *until <= now)?;
        self.starting.pop_front();
        Some(ctx_id)
    }

    /// Kills the workers whose grace period is over.
    pub(super) fn kill_late(&mut self, now: Instant) {
        for ending in self.ending.iter_mut().take_while(|ending| ending.kill_at <= now) {
            ending.kill();
            // Killed processes end soon, but not before the kernel has freed their memory.
            ending.kill_at = now + GRACE;
        }
        self.ending.make_contiguous().sort_by_key(|ending| ending.kill_at);
    }

    /// Waits until every worker has ended, and then the launcher; kills workers that do not end in time.
    pub(super) fn end_all(mut self) {
        let running: Vec<_> = self.running.keys().copied().collect();
        running.into_iter().for_each(|ctx_id| self.end(ctx_id));
        let patience = Instant::now() + GRACE;
        // Each launcher kills its remaining workers when it ends; one of another program ends when this process has let go of it.
        for launcher in std::mem::take(&mut self.inherited).iter().chain([&Arc::clone(&self.launcher)]) {
            while self.ending.iter().any(|ending| Arc::ptr_eq(&ending.process.launcher, launcher)) {
                let left = patience.saturating_duration_since(Instant::now());
                let Ok(ended) = launcher.ended_within(left) else { break };
                self.hear_output(ended.child);
                self.ending.retain(|ending| ending.serial != ended.child);
            }
        }
        let Self { launcher, ending, .. } = self;
        drop(ending);
        if let Some(launcher) = Arc::into_inner(launcher) {
            launcher.finish();
        }
    }
}

impl Worker {
    /// Sends a message, now or as soon as the worker reads.
    ///
    /// # Errors
    ///
    /// The name of the limit for which the worker is killed.
    fn post(
        &mut self,
        epoll: &OwnedFd,
        backlogs: &mut Backlogs,
        message: ToWorker,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), &'static str> {
        if !matches!(self.life, Life::Runs) {
            return Ok(());
        }
        let was_empty = self.outbox.is_empty();
        let mut bound = backlogs.of(self.owner());
        match self.outbox.send(&self.channel, message, fd, &mut bound) {
            Ok(()) => {
                self.sent = self.sent.wrapping_add(1);
                if was_empty && !self.outbox.is_empty() {
                    watch_again(epoll, self, Events::EPOLLIN | Events::EPOLLOUT);
                }
            }
            Err(OutboxError::Send(error)) => {
                log::debug!(serial = self.serial, error:%; "cannot send to a worker");
                // A worker that has died got nothing: the kept messages are for its successor.
                if !error.is_gone() {
                    self.keep_no_more(backlogs, self.owner());
                }
            }
            Err(OutboxError::Limit(limit)) => {
                self.forget_backlog(backlogs);
                self.kill();
                return Err(limit);
            }
        }
        Ok(())
    }

    fn flush(&mut self, epoll: &OwnedFd, backlogs: &mut Backlogs) {
        if self.is_gone() {
            return;
        }
        let mut bound = backlogs.of(self.owner());
        // Each error costs one message. The event loop hears of a worker that is gone.
        let mut is_complete = true;
        while let Err(error) = self.outbox.flush(&self.channel, &mut bound) {
            if !error.is_gone() {
                self.sent = self.sent.wrapping_sub(1);
                is_complete = false;
            }
        }
        if !is_complete {
            self.keep_no_more(backlogs, self.owner());
        }
        let out = if self.outbox.is_empty() { Events::empty() } else { Events::EPOLLOUT };
        watch_again(epoll, self, Events::EPOLLIN | out);
    }

    /// Ends the worker's process at once, for a reason that is logged elsewhere.
    fn kill(&mut self) {
        self.process.kill();
        if !matches!(self.life, Life::Ended(_)) {
            self.life = Life::Killed;
        }
    }

    fn forget_backlog(&mut self, backlogs: &mut Backlogs) {
        self.outbox.clear();
        self.held.clear();
        self.kept = None;
        backlogs.forget(self.owner());
    }

    fn owner(&self) -> Owner {
        Owner(self.number)
    }
}

impl Ending {
    fn kill(&mut self) {
        self.killed = true;
        self.process.kill();
    }
}

impl Process {
    fn kill(&self) {
        self.launcher.kill(self.serial);
    }
}

/// Says how a worker process has ended, for the log.
fn how_it_ended(status: Result<ExitStatus, String>, out_of_memory: bool, killed: bool) -> String {
    match status {
        // This holds even if the worker was killed once more because its memory took long to free.
        Ok(status) if out_of_memory => {
            format!("its worker ended ({status}): the VM's workers have no memory left (--worker-memory)")
        }
        _ if killed => "its worker closed its channel, did not end, and was killed".to_owned(),
        Ok(status) if status.signal() == Some(SIGSYS) => {
            format!("its worker ended ({status}): a system call not on its list, which --seccomp=log names")
        }
        Ok(status) => format!("its worker ended ({status})"),
        Err(reason) => format!("its worker could not be started: {reason}"),
    }
}

fn watch_again(epoll: &OwnedFd, worker: &mut Worker, events: Events) {
    let token = CHANNEL_TOKEN | u64::from(worker.serial);
    if let Err(error) = readiness::watch_for(epoll, &worker.channel, token, events) {
        log::error!("cannot watch a worker, which is killed: {error}");
        worker.kill();
    }
}
