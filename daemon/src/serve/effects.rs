//! Performs the device's effects.

use super::blobs::Blobs;
use super::blobs::closer::Closer;
use super::blobs::deposits::Deposits;
use super::blobs::lenders::{Lenders, Order};
use super::blobs::rings::Rings;
use super::broker::Broker;
use super::checkpoints::Checkpoints;
use super::handover::HandOvers;
use super::handover::idle::Idle;
use super::handover::restless::Restless;
use super::handover::room::Room;
use super::hangs::Hangs;
use super::hangs::progress::Progress;
use super::hangs::strikes::{Barred, Strikes};
use super::logging::event::{ContextEvent, DeviceEvent};
use super::logging::event_log::EventLog;
use super::manager::Told;
use super::outdated::Outdated;
use super::succession::Succession;
use super::window::Window;
use super::workers::{Gate, Workers};
use crate::device::{EffectFailed, Effects, GuestError, Shown};
use crate::ipc::{Fence, GpuChange, INLINE_SUBMIT_MAX, Placement, ResourceKind, ToBroker, ToWorker};
use crate::transport::{PendingResponse, QUEUES, Session, SessionError};
use config::{MEMORY_REGIONS_MAX, MemoryCount, MemoryId, PerHeap};
use outside::HostMemory;
use protocol::ids::{BlobId, ContextId, FenceId, ResourceId, RingIdx};
use protocol::virtio_gpu::{Header, Response};
use shm::{self, StatusPage};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Everything the device acts upon.
pub(super) struct World {
    /// The frontend, while there is one.
    pub session: Option<Session>,
    pub workers: Workers,
    pub blobs: Blobs,
    pub lenders: Lenders,
    pub closer: Closer,
    pub rings: Rings,
    pub hangs: Hangs,
    pub handovers: HandOvers,
    /// The work of the next turn.
    pub backlog: Backlog,
    /// The memory that holds the contents of contexts that are swapped out.
    pub host_memory: HostMemory,
    /// Has contexts handed over again and again, for tests.
    pub restless: Option<Restless>,
    /// Has contexts swapped out that have long been idle.
    pub idle: Option<Idle>,
    /// The GPU memory that the broker lets the VM hold.
    pub room: Room,
    /// The checkpoints of contexts, and the time at which the rings of dead workers are to be marked ALIVE.
    pub checkpoints: Checkpoints,
    pub deposits: Deposits,
    pub alive_at: Option<Instant>,
    pub strikes: Strikes,
    /// The broker, which schedules the GPU, if there is one.
    pub broker: Option<Broker>,
    /// The log of what happens.
    pub events: EventLog,
    pub window: Window,
    /// The time that the frontend has for an answer.
    pub frontend_timeout: Duration,
    pub progress: Progress,
    /// The service manager, and the last message to it.
    pub told: Told,
    /// The files that were replaced under this process.
    pub outdated: Outdated,
    /// A device process of another program that is to serve the frontend, or that this one is to follow.
    pub succession: Succession,
    /// The time at which this process listens for the next frontend, if it had to refuse one.
    pub listen_at: Option<Instant>,
}

/// The work that the device thread finds while it waits for the frontend, and does in its next turn.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Contexts that operators want handed over, each with the change of its GPUs.
    pub restarts: Vec<(ContextId, Option<GpuChange>)>,
    /// Contexts that operators want swapped out.
    pub swaps: Vec<ContextId>,
    /// Contexts whose workers were killed: the guest is to be told.
    pub lost: Vec<ContextId>,
    /// The broker wants a report of the held memory.
    pub reports: bool,
}

impl Backlog {
    /// Returns whether there is work for a context.
    pub(super) fn has_contexts(&self) -> bool {
        !(self.restarts.is_empty() && self.swaps.is_empty() && self.lost.is_empty())
    }
}

impl World {
    /// Tells the driver about all answers that were given so far.
    pub(super) fn signal(&self) {
        if let Some(session) = &self.session {
            (0..QUEUES).for_each(|index| session.vring(index).signal());
        }
    }

    /// Returns when the driver is to be told about answers that no thread of the guest waits for.
    pub(super) fn next_call(&self) -> Option<Instant> {
        let session = self.session.as_ref()?;
        (0..QUEUES).filter_map(|index| session.vring(index).deadline()).min()
    }

    /// Begins a context: `note` gets the page and the gate of its worker.
    ///
    /// # Errors
    ///
    /// The system refuses what the worker needs, or `note` fails.
    pub(super) fn begin_context(
        &mut self,
        ctx_id: ContextId,
        name: &str,
        placement: &Placement,
        note: impl FnOnce(&mut Workers, OwnedFd, Option<Gate>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (page, file) = StatusPage::create()?;
        let gate = self.broker.as_ref().map(|broker| broker.begins(ctx_id, name, placement)).transpose()?;
        note(&mut self.workers, file, gate)?;
        self.hangs.begins(ctx_id, page);
        self.checkpoints.begins(ctx_id, Instant::now());
        Ok(())
    }

    /// Logs an event of the device.
    pub(super) fn log(&mut self, event: DeviceEvent<'_>) {
        self.events.of_device(event);
    }

    /// Logs an event of a context, and names its program if it has a worker.
    pub(super) fn log_of(&mut self, ctx_id: ContextId, event: ContextEvent<'_>) {
        self.events.of_context(ctx_id, self.workers.name_of(ctx_id), event);
    }

    /// Logs that a program asks for queues that `--queues` denies: once for each VM, as most such programs run without these queues.
    pub(super) fn advise_on_queues(&mut self, ctx_id: ContextId) {
        if std::mem::replace(&mut self.events.advised.on_queues, true) {
            return;
        }
        let say_so = self.workers.gpus().iter().any(|gpu| gpu.queues.say_that_they_draw());
        let what = match say_so {
            true => {
                "asks for graphics, which --queues nominal refuses: programs that draw fail or do without (--queues all lets them draw)"
            }
            false => {
                "looks for a queue that draws, and --queues compute offers none: some programs compute on no other (--queues nominal offers one)"
            }
        };
        log::info!(context = ctx_id.0, program = self.workers.name_of(ctx_id); "context {ctx_id} {what}");
    }

    /// Tells the launcher which descriptors of lending workers it is to keep. Returns whether all these orders are sent.
    pub(super) fn order_keeper(&mut self) -> bool {
        let mut is_sent = true;
        for order in self.lenders.take_orders() {
            let launcher = self.workers.launcher();
            let told = match &order {
                Order::Keep(set, fd) => launcher.keep(*set, fd),
                Order::LetGo(set) => launcher.let_go(*set),
                Order::KeepOn(set) => launcher.keep_on(*set),
            };
            // The launcher is gone; the loop hears of that.
            is_sent &= told
                .inspect_err(|error| {
                    log::debug!("cannot send the launcher an order about descriptors: {error}")
                })
                .is_ok();
        }
        is_sent
    }

    /// Returns advice on maps that have run out, which depends on the frontend.
    fn advice_on_maps(&self) -> String {
        let session = self.session.as_ref().filter(|session| session.announces_maps());
        let bound = session.map_or("raise --max-maps".to_owned(), |session| {
            let regions = session.regions();
            format!(
                "raise --max-maps (the VM has {regions} memory regions of {MEMORY_REGIONS_MAX}, its other devices' among them; QEMU aborts beyond \
                 512), or use crosvm, which has no such bound"
            )
        });
        format!(
            "guests' programs cannot map more memory: {bound}. Each mapped VkDeviceMemory is one, and each thread's ring, which \
             VN_PERF=no_multi_ring in the guest saves"
        )
    }

    fn send(&mut self, ctx_id: ContextId, message: ToWorker, file: Option<BorrowedFd<'_>>) {
        if let Some(idle) = &mut self.idle {
            idle.is_used(ctx_id);
        }
        self.checkpoints.is_used(ctx_id, Instant::now());
        let sent = self.workers.send(ctx_id, message, file);
        self.note_overflow(ctx_id, sent);
    }

    /// Tells a worker that the requests about which it asked are done.
    pub(super) fn tell_caught_up(&mut self, ctx_id: ContextId, request: u32) {
        self.send(ctx_id, ToWorker::CaughtUp { request }, None);
    }

    pub(super) fn note_overflow(&mut self, ctx_id: ContextId, sent: Result<(), &'static str>) {
        if let Err(limit) = sent {
            self.log_of(ctx_id, ContextEvent::Overflow(limit));
        }
    }

    /// The context has another worker now, or none: closes the deposits of the worker before.
    pub(super) fn forget_deposits(&mut self, ctx_id: ContextId) {
        self.closer.close(self.deposits.forget(ctx_id));
    }

    /// Tells the broker that a context is over, and the reason if it was lost.
    pub(super) fn tell_end(&mut self, ctx_id: ContextId, lost: Option<String>, hung: bool) {
        self.hand_over_ends(ctx_id);
        self.checkpoints.ends(ctx_id);
        self.forget_deposits(ctx_id);
        if let Some(broker) = &self.broker {
            broker.tell(&ToBroker::ContextEnds { ctx_id, lost, hung }, None);
        }
    }

    /// Returns whether a worker may be started for a context of a program now.
    ///
    /// # Errors
    ///
    /// The reason why no worker may be started: a name for the log, and the text.
    pub(super) fn may_start(&self, ctx_id: ContextId, program: &str) -> Result<(), (&'static str, String)> {
        if let Some(barred) = self.strikes.held(program, Instant::now()) {
            return Err(("strikes", self.barred(ctx_id, barred)));
        }
        self.outdated.driver().map_or(Ok(()), |what| {
            let until = "until the device process is started anew";
            Err(("driver replaced", format!("{what}: context {ctx_id} is refused, {until}")))
        })
    }

    /// Says why a context is refused after too many strikes, and names a remedy.
    fn barred(&self, ctx_id: ContextId, barred: Barred) -> String {
        let free = self.strikes.free().unwrap_or_default();
        format!(
            "context {ctx_id} is refused: limit strikes ({free}) reached, {barred}; raise strikes, or max-submit-time if the \
             submissions that were too long are to run"
        )
    }

    /// Returns whether the frontend has met a request, and logs a failure. A request that was not sent because the frontend has stopped the device
    /// is not logged.
    pub(super) fn answered_with(
        &mut self,
        what: &'static str,
        done: Result<(), SessionError>,
    ) -> Result<(), EffectFailed> {
        match done {
            Err(SessionError::Stopped) => Err(EffectFailed),
            done => done.map_err(|error| self.failed(what, &error)),
        }
    }

    fn failed(&mut self, what: &'static str, error: &dyn fmt::Display) -> EffectFailed {
        self.log(DeviceEvent::Failed { what, why: error });
        EffectFailed
    }
}

impl Effects for World {
    type Ticket = PendingResponse;

    fn respond(&mut self, ticket: PendingResponse, response: Response) {
        log::trace!("-> {:#x}", response.response_type().0);
        ticket.respond(&response);
    }

    fn refused(&mut self, header: &Header, error: &GuestError) {
        let program = self.workers.name_of(ContextId(header.ctx_id));
        let is_news = self.events.refused(header, error, program);
        let lacks_maps = is_news && matches!(error, GuestError::Limit("max-maps"));
        if lacks_maps && !std::mem::replace(&mut self.events.advised.on_maps, true) {
            log::warn!("{}", self.advice_on_maps());
        }
    }

    fn start_worker(
        &mut self,
        ctx_id: ContextId,
        debug_name: &[u8],
        worker: u64,
    ) -> Result<(), EffectFailed> {
        let printable = String::from_utf8_lossy(debug_name);
        let printable: String = printable.chars().filter(|c| !c.is_control()).collect();
        if let Err((kind, why)) = self.may_start(ctx_id, &printable) {
            self.events.of_context(ctx_id, Some(&printable), ContextEvent::NotStarted { kind, why: &why });
            self.events.aftermath.refused(ctx_id);
            return Err(EffectFailed);
        }
        self.events.aftermath.begins(ctx_id);
        let placement = self.workers.placement().clone();
        let started = self.begin_context(ctx_id, &printable, &placement, |workers, page, gate| {
            workers.start(ctx_id, printable.clone(), worker, page.as_fd(), gate)
        });
        started.map_err(|e| self.failed("cannot start a worker", &e))
    }

    fn end_worker(&mut self, ctx_id: ContextId) {
        if self.workers.is_running(ctx_id) {
            self.tell_end(ctx_id, None, false);
        }
        self.workers.end(ctx_id);
        self.room.ends(ctx_id);
        self.lenders.ends(ctx_id);
        self.hangs.ends(ctx_id);
        self.rings.forget(ctx_id);
    }

    fn submit(
        &mut self,
        ctx_id: ContextId,
        data: &[u8],
        fence: Option<(RingIdx, FenceId)>,
    ) -> Result<(), EffectFailed> {
        let fence = fence.map(|(ring_idx, fence_id)| Fence { ring_idx, fence_id });
        // The limit submit_bytes keeps the length below 4 GiB.
        let size = u32::try_from(data.len()).map_err(|_| EffectFailed)?;
        if data.len() <= INLINE_SUBMIT_MAX {
            let inline = data.to_vec();
            self.send(ctx_id, ToWorker::Submit { size, inline, fence }, None);
        } else {
            let file = memory_file(data).map_err(|e| self.failed("cannot pass a stream", &e))?;
            let message = ToWorker::Submit { size, inline: Vec::new(), fence };
            self.send(ctx_id, message, Some(file.as_fd()));
        }
        Ok(())
    }

    fn make_memory(
        &mut self,
        ctx_id: ContextId,
        request: u32,
        memory: MemoryId,
        size: u64,
    ) -> Result<(), EffectFailed> {
        let file = self.blobs.make(memory, size).map_err(|e| self.failed("cannot make memory", &e))?;
        let granted = ToWorker::MemoryGranted { request, memory: Some(memory), bytes: size };
        self.send(ctx_id, granted, Some(file.as_fd()));
        Ok(())
    }

    fn grant_memory(&mut self, ctx_id: ContextId, request: u32, memory: Option<MemoryId>, bytes: u64) {
        self.send(ctx_id, ToWorker::MemoryGranted { request, memory, bytes }, None);
    }

    fn tell_budget(&mut self, ctx_id: ContextId, request: u32, memory: PerHeap<MemoryCount>) {
        self.send(ctx_id, ToWorker::Budget { request, memory }, None);
    }

    fn memory_waits(&mut self, ctx_id: ContextId, request: u32) {
        self.send(ctx_id, ToWorker::MemoryWaits { request }, None);
    }

    fn refuse_memory(&mut self, ctx_id: ContextId, request: u32, limit: Option<&'static str>) {
        if let Some(limit) = limit {
            self.log_of(ctx_id, ContextEvent::MemoryRefused(limit));
        }
        self.send(ctx_id, ToWorker::MemoryRefused { request }, None);
    }

    fn forget_memory(&mut self, memory: MemoryId) {
        self.blobs.forget(memory);
    }

    fn create_shmem(&mut self, resource_id: ResourceId, size: u64) -> Result<(), EffectFailed> {
        let created = self.blobs.create(resource_id, size);
        created.map_err(|e| self.failed("cannot make shared memory", &e))
    }

    fn export_blob(
        &mut self,
        ctx_id: ContextId,
        resource_id: ResourceId,
        blob_id: BlobId,
        size: u64,
        mappable: bool,
    ) -> Result<(), EffectFailed> {
        self.send(ctx_id, ToWorker::ExportBlob { resource_id, blob_id, size, mappable }, None);
        Ok(())
    }

    fn blob_gone(&mut self, ctx_id: ContextId, memory: MemoryId) {
        self.send(ctx_id, ToWorker::BlobGone { memory }, None);
    }

    fn revoke_blob(&mut self, resource_id: ResourceId) {
        self.closer.close(self.blobs.remove(resource_id));
    }

    fn drop_blob(&mut self, resource_id: ResourceId) {
        self.closer.close(self.blobs.remove(resource_id));
    }

    fn attach(&mut self, ctx_id: ContextId, resource_id: ResourceId, size: u64, shown: Shown) {
        // Not through `send`, as the file is borrowed from a field beside those that `send` borrows.
        let file = self.blobs.get(resource_id);
        let sent = self.workers.show(ctx_id, &attached(resource_id, size, shown), file);
        self.note_overflow(ctx_id, sent);
    }

    fn attach_to_successor(&mut self, ctx_id: ContextId, resource_id: ResourceId, size: u64, shown: Shown) {
        let file = self.blobs.get(resource_id);
        self.workers.send_to_successor(ctx_id, attached(resource_id, size, shown), file);
    }

    fn detach(&mut self, ctx_id: ContextId, resource_id: ResourceId) {
        self.checkpoints.is_used(ctx_id, Instant::now());
        let sent = self.workers.show(ctx_id, &ToWorker::DetachResource { resource_id }, None);
        self.note_overflow(ctx_id, sent);
    }

    fn map_blob(&mut self, resource_id: ResourceId, offset: u64, size: u64) -> Result<(), EffectFailed> {
        // The frontend may take long; answers that are ready should not wait for it.
        self.signal();
        let (Some((file, lender)), Some(session)) = (self.blobs.for_frontend(resource_id), &self.session)
        else {
            return Err(EffectFailed);
        };
        if let Some(lender) = lender {
            if !self.lenders.is_anchored(lender) {
                return Err(self.failed("cannot map a blob", &"nothing keeps its memory alive"));
            }
            if !session.acknowledges() {
                return Err(
                    self.failed("cannot map a blob", &"the frontend does not say when memory is unmapped")
                );
            }
            self.lenders.mapped(lender, offset);
        }
        let file = file.try_clone_to_owned().map_err(SessionError::Io);
        let mapped = file.and_then(|file| self.map(file, offset, size));
        if mapped.as_ref().is_err_and(SessionError::is_refusal) {
            self.lenders.unmapped(offset);
        }
        self.answered_with("cannot map a blob", mapped)
    }

    fn unmap_blob(&mut self, _resource_id: ResourceId, offset: u64, size: u64) -> Result<(), EffectFailed> {
        self.signal();
        let unmapped = self.unmap(offset, size);
        self.answered_with("cannot unmap a blob", unmapped)
    }

    fn random(&mut self) -> Result<[u8; 16], EffectFailed> {
        let mut bytes = [0; 16];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        match filled {
            Ok(16) => Ok(bytes),
            Ok(_) => Err(EffectFailed),
            Err(error) => Err(self.failed("no random numbers", &error)),
        }
    }
}

fn attached(resource_id: ResourceId, size: u64, shown: Shown) -> ToWorker {
    let kind = match shown {
        Shown::SharedMemory => ResourceKind::SharedMemory,
        Shown::DeviceMemory { mappable, memory } => ResourceKind::DeviceMemory { mappable, memory },
        Shown::Expected => ResourceKind::Expected,
    };
    ToWorker::AttachResource { resource_id, size, kind }
}

/// Makes a memory file with these bytes.
fn memory_file(data: &[u8]) -> io::Result<OwnedFd> {
    let file = shm::create("virtio-gpu stream", data.len() as u64)?;
    let mut written = 0;
    while written < data.len() {
        written += rustix::io::pwrite(&file, &data[written..], written as u64)?;
    }
    Ok(file)
}
