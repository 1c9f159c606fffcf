//! The life of a worker process: set-up, messages in order, orderly end.
//!
//! A worker that is to hand over does not wait for a ring to the end: the wait is interrupted, and the unexecuted messages go to the successor.

use super::checkpoint::{self, CacheDataKept, Written};
use super::hand_over::hand_over;
use super::link::{self, Link};
use super::prelude;
use super::swapped_out::SwappedOut;
use super::take_over::{Taken, take_over};
use super::watchdog::{self, Watchdog};
use crate::ipc::{Channel, Fence, MapInfo, ReceiveError, ResourceKind, ToDevice, ToWorker, WorkerSetup};
use crate::worker::allowance::Allowances;
use crate::worker::at_rest::{Begin, LEFT_MAX, Left, payload};
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use crate::worker::inbox::{Inbox, Letter};
use crate::worker::journal::Told;
use crate::worker::resources::{Arriving, Resources};
use crate::worker::stream::{Executor, Place};
use config::GPUS_MAX;
use outside::HostMemory;
use protocol::ids::{BlobId, ResourceId, RingIdx};
use shm::journal::Journal;
use shm::{Doorbell, GateSide, MapError, StatusPage};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use vulkan::snapshot::{Carry, NotMovable, Prelude};
use vulkan::{ContextLost, Exported, Gate, Limit, MemoryFile, NotExported, Renderer, ResourceMemory};

/// Serves one guest context until the device process closes the channel. The calling thread is the executor of the virtqueue's
/// stream.
pub fn run(channel: Channel) -> ExitCode {
    let (setup, page) = match channel.receive() {
        Ok((ToWorker::Setup(setup), Some(page))) => (*setup, page),
        Ok(_) => return failed("first message is no set-up"),
        Err(error) => return failed(&format!("no set-up: {error}")),
    };
    waiting::start(&setup.waiting_off);
    let page = match StatusPage::open(page) {
        Ok(page) => page,
        Err(error) => return failed(&format!("no status page: {error}")),
    };
    if setup.gpus.is_empty() || setup.gpus.len() > GPUS_MAX {
        return failed("a set-up without a GPU");
    }
    if let Some(contents_max) = setup.swapped_out {
        return serve_swapped_out(&setup, page, channel, contents_max);
    }
    let gates = match gates(&channel, &setup) {
        Ok(gates) => gates,
        Err(why) => return failed(&format!("no way to ask for grants: {why}")),
    };
    let channel = Arc::new(channel);
    let resources = Arc::<Resources>::default();
    let allowances = Allowances::new(Arc::clone(&channel));
    let (table, allowance) = (Arc::clone(&resources) as _, Arc::clone(&allowances) as _);
    let (gpus, limits, cache_key) = (setup.gpus.clone(), setup.limits, setup.cache_key);
    let renderer = match Renderer::new(gpus, limits, cache_key, table, allowance) {
        Ok(renderer) => {
            renderer.telling(Arc::clone(page.results())).gated(gates.clone()).journalled(Told::of(&page))
        }
        Err(lost) => return failed(&lost.to_string()),
    };
    let end = End { begins: start_end_watchdog, kill: watchdog::kill };
    serve(&setup, page, channel, resources, allowances, (renderer, gates), end)
}

/// Serves a context that is swapped out, without a driver.
fn serve_swapped_out(setup: &WorkerSetup, page: StatusPage, channel: Channel, contents_max: u64) -> ExitCode {
    let channel = Arc::new(channel);
    let allowances = Allowances::new(Arc::clone(&channel));
    let backend = SwappedOut::new(Arc::clone(&channel), &setup.limits, contents_max, HostMemory::open());
    let end = End { begins: start_end_watchdog, kill: watchdog::kill };
    serve(setup, page, channel, Arc::default(), allowances, (backend, Vec::new()), end)
}

/// The reason why a worker has no gates.
#[derive(Debug, thiserror::Error)]
enum NoGate {
    /// The device process sends another message.
    #[error("the wrong message")]
    Unexpected,
    /// No message can be received from the device process.
    #[error(transparent)]
    Channel(#[from] ReceiveError),
    /// A page cannot be used.
    #[error(transparent)]
    Page(#[from] MapError),
}

/// Receives the gates that submissions to each GPU pass, if the setup has any.
fn gates(channel: &Channel, setup: &WorkerSetup) -> Result<Vec<Arc<Gate>>, NoGate> {
    let Some(passage) = setup.passage else { return Ok(Vec::new()) };
    let file = |wanted: &ToWorker| match channel.receive::<ToWorker>() {
        Ok((message, Some(file))) if message == *wanted => Ok(file),
        Ok(_) => Err(NoGate::Unexpected),
        Err(error) => Err(error.into()),
    };
    let page = |_| Ok(GateSide::open(file(&ToWorker::Grants)?)?);
    let pages = setup.gpus.iter().map(page).collect::<Result<Vec<_>, NoGate>>()?;
    let doorbell = Arc::new(Doorbell::of(file(&ToWorker::Doorbell)?));
    Ok(pages.into_iter().map(|page| Gate::new(page, Arc::clone(&doorbell), passage)).collect())
}

fn failed(reason: &str) -> ExitCode {
    log::error!("worker ends: {reason}");
    ExitCode::FAILURE
}

/// Ends this process if its orderly end takes too long: drivers can hang on a lost device, even in their exit handlers.
fn start_end_watchdog() {
    let started = std::thread::Builder::new().name("end".into()).spawn(|| {
        std::thread::sleep(END_MAX);
        log::warn!("worker does not end by itself and is killed");
        watchdog::kill();
    });
    if started.is_err() {
        std::process::abort();
    }
}

/// The calls that end the process.
pub(in crate::worker) struct End {
    /// Called once when the channel is closed.
    pub begins: fn(),
    /// Ends the process at once.
    pub kill: fn(),
}

/// Serves a context with any backend.
pub(in crate::worker) fn serve<B: Backend>(
    setup: &WorkerSetup,
    page: StatusPage,
    channel: Arc<Channel>,
    resources: Arc<Resources>,
    allowances: Arc<Allowances>,
    (backend, gates): (B, Vec<Arc<Gate>>),
    end: End,
) -> ExitCode {
    let context = Context::new(setup, Arc::clone(&channel), resources, backend);
    let context = Arc::new(context.telling(&page));
    let closed = Arc::clone(&context);
    let arriving = Arc::clone(&context);
    let asked = Arc::clone(&allowances);
    let on_arrival = move |letter| handle_on_arrival(&arriving, &asked, letter);
    let inbox = match Inbox::new(channel, Box::new(on_arrival), move || end_context(&closed, end.kill)) {
        Ok(inbox) => Arc::new(inbox),
        Err(error) => return failed(&format!("no thread for messages: {error}")),
    };
    let longest = page.limit();
    log::debug!(ctx_id = setup.ctx_id.0, debug_name = setup.debug_name.as_str(); "worker is ready");
    let watchdog = match Watchdog::start(Arc::clone(&context), page, end.kill) {
        Ok(watchdog) => watchdog,
        Err(error) => return failed(&format!("no thread to watch submissions: {error}")),
    };
    for gate in &gates {
        let lost = Arc::clone(&context);
        if let Err(error) = gate.start(Box::new(move |why| lost.lose(why))) {
            return failed(&format!("no thread to dispatch submissions: {error}"));
        }
    }
    context.answer(&ToDevice::Ready, None);
    let executor = virtqueue(&context, &inbox, Begin::default());
    let prelude = Prelude::default();
    let (inbox, caches) = (Arc::clone(&inbox), CacheDataKept::default());
    let handed_over = HandOvers { inbox, allowances, gates, longest, prelude, caches };
    let mut worker = Worker { context, executor, handed_over, left: VecDeque::new(), stage: Stage::Begins };
    while worker.takes_turn() {}
    (end.begins)();
    end_context(&worker.context, end.kill);
    worker.context.join();
    worker.handed_over.gates.iter().for_each(|gate| gate.end());
    if worker.context.backend.is_lending() {
        // Other processes hold the lent memory alive, and release it once it is mapped nowhere. Not even exit handlers of the driver may run.
        (end.kill)();
        return ExitCode::FAILURE;
    }
    worker.context.backend.destroy_objects();
    drop(watchdog);
    log::debug!(ctx_id = setup.ctx_id.0; "worker ends");
    ExitCode::SUCCESS
}

/// Ends all waits. If the driver is starting, kills the process: that start cannot be stopped, and others wait for this process to end.
fn end_context<B: Backend>(context: &Context<B>, kill: fn()) {
    context.end();
    if context.backend.is_coming_up() {
        kill();
    }
}

/// Returns the executor of the virtqueue's stream.
fn virtqueue<B: Backend>(context: &Arc<Context<B>>, inbox: &Arc<Inbox>, begin: Begin) -> Executor<B> {
    Executor::new(Arc::clone(context), Place::Virtqueue(Arc::clone(inbox)), begin)
}

struct Worker<B> {
    context: Arc<Context<B>>,
    executor: Executor<B>,
    handed_over: HandOvers,
    /// Messages that this worker, or its predecessor, has not executed. The first may be the rest of a submission in which a wait was interrupted.
    left: VecDeque<Letter>,
    stage: Stage,
}

/// Parts of the worker that only a hand-over needs.
struct HandOvers {
    inbox: Arc<Inbox>,
    allowances: Arc<Allowances>,
    gates: Vec<Arc<Gate>>,
    /// The time for which a submission may run.
    longest: Duration,
    /// The objects that a successor has made already.
    prelude: Prelude,
    /// The part that keeps the data of pipeline caches.
    caches: CacheDataKept,
}

/// The stage of a worker, which decides the messages that it may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The worker has been shown resources at most, and can take over.
    Begins,
    /// The worker serves its context.
    Serves,
    /// The worker has handed over or taken over, and waits for [`ToWorker::GoOn`].
    Rests,
}

impl<B: Backend> Worker<B> {
    /// Handles the next message, or one that is left of those before. Returns false when no more messages come.
    fn takes_turn(&mut self) -> bool {
        let has_driver = self.context.backend.has_driver();
        let is_serving = self.stage == Stage::Serves;
        let may_wait = !self.context.hand_overs.waits.is_interrupted();
        if is_serving
            && may_wait
            && has_driver
            && let Some(letter) = self.left.pop_front()
        {
            self.handle(letter);
            return true;
        }
        let Some(letter) = self.handed_over.inbox.next() else { return false };
        let is_ahead = match letter.message {
            ToWorker::HandOver { .. } | ToWorker::GoOn | ToWorker::WritePrelude { .. } => true,
            // The device process shows the next worker which resources are attached.
            ToWorker::DetachResource { .. } => !has_driver,
            _ => false,
        };
        match is_serving && !is_ahead && !self.left.is_empty() {
            true => self.comes_later(letter),
            false => self.handle(letter),
        }
        true
    }

    /// Keeps a message until those before it are executed.
    fn comes_later(&mut self, letter: Letter) {
        match self.left.len() < LEFT_MAX {
            true => self.left.push_back(letter),
            false => {
                self.context.lose(&ContextLost::from(Limit::Messages(LEFT_MAX)));
            }
        }
    }

    /// Handles the messages in `left` that a successor cannot handle.
    fn settle_left(&mut self) {
        let is_own = |letter: &Letter| {
            matches!(letter.message, ToWorker::WriteCheckpoint { .. } | ToWorker::KeepJournal)
        };
        let (own, left): (VecDeque<_>, _) = std::mem::take(&mut self.left).into_iter().partition(is_own);
        self.left = left;
        for Letter { message, fd, .. } in own {
            match message {
                ToWorker::KeepJournal => self.keep_journal(fd),
                _ => self.write_no_checkpoint(NotMovable::for_now("its worker is to hand over")),
            }
        }
    }

    fn handle(&mut self, letter: Letter) {
        let Letter { message, fd, number } = letter;
        match (self.stage, &message) {
            // A hand-over was called off after it had failed.
            (_, ToWorker::GoOn) => return self.go_on(),
            (Stage::Rests, _) => {
                return self.context.lose(&ContextLost::daemon("a message to a worker that rests"));
            }
            (Stage::Begins, ToWorker::BuildPrelude) => return self.build_prelude(fd),
            (Stage::Begins, ToWorker::TakeOver) => return self.take_over(fd, number),
            // Until the worker takes over, resources of the context come and go.
            (Stage::Begins, message) if is_about_resources(message) => {}
            // These messages change nothing that a checkpoint has, or the commands that they bring note themselves.
            (_, ToWorker::WriteCheckpoint { .. } | ToWorker::KeepJournal | ToWorker::Submit { .. }) => {
                self.stage = Stage::Serves;
            }
            _ => {
                self.stage = Stage::Serves;
                self.context.changes();
            }
        }
        match message {
            ToWorker::Setup(_) => self.context.lose(&ContextLost::daemon("a second set-up")),
            ToWorker::Grants | ToWorker::Doorbell => {
                self.context.lose(&ContextLost::daemon("grants without a scheduler"));
            }
            ToWorker::WritePrelude { goes_on, is_at_home } => self.write_prelude((goes_on, is_at_home), fd),
            ToWorker::HandOver { copies, goes_on } => {
                if !goes_on {
                    self.handed_over.prelude = Prelude::default();
                }
                self.settle_left();
                self.hand_over(fd, if copies { Carry::Copied } else { Carry::HandedOver });
            }
            ToWorker::WriteCheckpoint { number: checkpoint } => {
                self.write_checkpoint((checkpoint, number), fd);
            }
            ToWorker::KeepJournal => self.keep_journal(fd),
            ToWorker::BuildPrelude => {
                self.context.lose(&ContextLost::daemon("a prelude for a worker that has a context"))
            }
            ToWorker::TakeOver => {
                self.context.lose(&ContextLost::daemon("a context to take over for a worker that has one"))
            }
            // Handled before, or on arrival.
            ToWorker::GoOn
            | ToWorker::AttachResource { .. }
            | ToWorker::MemoryGranted { .. }
            | ToWorker::MemoryRefused { .. }
            | ToWorker::MemoryWaits { .. }
            | ToWorker::Budget { .. }
            | ToWorker::CaughtUp { .. }
            | ToWorker::BlobGone { .. } => {}
            ToWorker::DetachResource { resource_id } => self.context.resources.detach(resource_id, number),
            ToWorker::Submit { size, inline, fence } => self.submit((size, inline, fd), fence, number),
            ToWorker::ExportBlob { resource_id, blob_id, size, mappable } => {
                let exported = self.export(blob_id, size, mappable);
                self.answer_export(resource_id, exported, (size, mappable), number);
            }
        }
        self.has_executed(number);
    }

    /// Reports that the message of this number is executed.
    fn has_executed(&self, number: u64) {
        // The report means that all earlier messages are executed too.
        let are_all = self.left.front().is_none_or(|left| left.number > number);
        if let Some(progress) = self.context.progress.as_ref().filter(|_| are_all) {
            progress.executed(number as u32);
        }
    }

    /// Writes down the objects that a successor can already make. If it `goes_on`, only new ones, and memory: the successor takes it over if it
    /// `is_at_home`, and makes it anew otherwise.
    fn write_prelude(&mut self, (goes_on, is_at_home): (bool, bool), socket: Option<OwnedFd>) {
        let Self { context, handed_over: HandOvers { inbox, allowances, prelude, .. }, .. } = self;
        context.hand_over_is_handled();
        let so_far = if goes_on { std::mem::take(prelude) } else { Prelude::default() };
        let carry = if is_at_home { Carry::HandedOver } else { Carry::Copied };
        let memory = (goes_on.then_some(carry), &**allowances);
        let written = |link| inbox.while_away(|| prelude::write(context, so_far, memory, &link));
        *prelude = open(context, socket, link::PATIENCE).map(written).unwrap_or_default();
    }

    /// Makes the objects that the predecessor has written down; otherwise the context is lost here.
    fn build_prelude(&mut self, socket: Option<OwnedFd>) {
        let Self { context, handed_over: HandOvers { inbox, allowances, .. }, .. } = self;
        let built = match open(context, socket, link::PATIENCE) {
            Some(link) => inbox.while_away(|| prelude::build(context, allowances, &link)),
            None => Err(ContextLost::daemon("a prelude without its socket")),
        };
        match built {
            Ok(()) => {
                let is_at_home = self.context.backend.is_at_home();
                self.context.answer(&ToDevice::PreludeBuilt { is_at_home }, None);
            }
            Err(lost) => self.context.lose(&lost.inherited()),
        }
    }

    /// Comes to rest and hands over, or goes on.
    fn hand_over(&mut self, socket: Option<OwnedFd>, carry: Carry) {
        let Self { context, executor, handed_over, left, .. } = self;
        let HandOvers { inbox, allowances, longest, prelude, .. } = handed_over;
        context.hand_over_is_handled();
        // No part is sent before all submissions have completed.
        let patience = longest.saturating_add(link::PATIENCE);
        let handed = match open(context, socket, patience) {
            Some(link) => inbox.while_away(|| {
                hand_over(context, (executor, left), (prelude, carry), allowances, *longest, &link)
            }),
            None => Err(NotMovable::ever("a hand-over without its socket")),
        };
        match handed {
            Ok(()) => {
                self.stage = Stage::Rests;
                self.context.answer(&ToDevice::HandedOver, None);
            }
            Err(NotMovable { reason, for_now }) => {
                self.context.go_on();
                self.context.answer(&ToDevice::Stays { reason, for_now }, None);
            }
        }
    }

    /// Writes the checkpoint with this number, and goes on. The number of the message is `message`.
    fn write_checkpoint(&mut self, (number, message): (u32, u64), file: Option<OwnedFd>) {
        let Self { context, executor, handed_over: HandOvers { inbox, allowances, caches, .. }, .. } = self;
        let written = inbox.while_away(|| checkpoint::write(context, executor, allowances, caches, file));
        match written {
            Ok(Written { bytes, took }) => {
                // Sent before the mark is set: with the mark the device process takes this answer as true.
                context.answer(&ToDevice::CheckpointWritten { bytes, took }, None);
                self.has_executed(message);
                // The journal follows the older checkpoint until its next entry is written.
                if self.context.journal.get().is_some_and(|journal| !journal.begins(number)) {
                    log::debug!("no journal follows this checkpoint: parts of the last one are in use");
                }
                if let Some(mark) = &self.context.checkpoint {
                    mark.ends(number);
                }
            }
            Err(why) => self.write_no_checkpoint(why),
        }
        self.context.go_on();
    }

    /// Refuses a checkpoint: the last one stays the context's, with the notes behind it.
    fn write_no_checkpoint(&self, NotMovable { reason, for_now }: NotMovable) {
        self.context.answer(&ToDevice::NoCheckpoint { reason, for_now }, None);
        if let Some(mark) = &self.context.checkpoint {
            mark.gives_up();
        }
    }

    /// Notes from now on the commands that are executed after a checkpoint.
    fn keep_journal(&self, file: Option<OwnedFd>) {
        match file.map(Journal::open) {
            Some(Ok(journal)) => _ = self.context.journal.set(Arc::new(journal)),
            Some(Err(error)) => log::debug!("cannot open the journal: {error}"),
            None => self.context.lose(&ContextLost::daemon("a journal without its file")),
        }
    }

    /// Takes over the context of another worker, and rests, or loses the context. The number of the message is `number`.
    fn take_over(&mut self, socket: Option<OwnedFd>, number: u64) {
        let Self { context, handed_over: HandOvers { inbox, allowances, gates, .. }, .. } = self;
        let link = open(context, socket, link::PATIENCE);
        let taken = match &link {
            Some(link) => inbox.while_away(|| take_over(context, allowances, gates, link)),
            None => Err(ContextLost::daemon("a hand-over without its socket")),
        };
        match taken {
            Ok(Taken { begin, said, files, left }) => {
                self.executor = virtqueue(context, inbox, begin);
                let letter = |left: Left| Letter { message: left.message(), fd: None, number };
                let letters = left.into_iter().map(letter);
                self.left = letters.filter_map(|left| handle_on_arrival(context, allowances, left)).collect();
                self.stage = Stage::Rests;
                said.iter().for_each(|message| self.context.answer(message, None));
                // Files that the rebuilt context does not use go back only now, when they count as taken over.
                drop(files);
            }
            Err(lost) => {
                self.stage = Stage::Serves;
                // Sent before the link ends, because the other worker reports that end as well.
                self.context.lose(&lost.inherited());
            }
        }
        drop(link);
    }

    fn go_on(&mut self) {
        self.stage = Stage::Serves;
        self.handed_over.prelude = Prelude::default();
        self.context.go_on();
        if !self.left.is_empty() {
            self.context.backend.want_driver();
        }
    }

    /// Executes a submission. If a wait in it is interrupted, the rest of the submission is kept.
    fn submit(
        &mut self,
        (size, inline, file): (u32, Vec<u8>, Option<OwnedFd>),
        fence: Option<Fence>,
        number: u64,
    ) {
        if let Some(fence) = fence {
            self.context.fences.open(fence);
        }
        match self.execute(size, &inline, file.as_ref()) {
            Ok(None) => {}
            Ok(Some(rest)) => {
                return self.leave(rest, fence, number);
            }
            Err(lost) => self.context.lose(&lost),
        }
        if let Some(fence) = fence {
            self.fence(fence);
        }
    }

    /// Executes the stream of a submission. Returns the rest of the stream if a wait in it was interrupted.
    fn execute(
        &mut self,
        size: u32,
        inline: &[u8],
        file: Option<&OwnedFd>,
    ) -> Result<Option<Vec<u8>>, ContextLost> {
        if self.context.has_ended() {
            return Ok(None);
        }
        let (payload, mut done) = (payload(size, inline, file, self.context.limits.command_bytes)?, 0);
        match self.executor.run_from(&payload, &mut done) {
            Err(lost) if lost.is_interruption() => Ok(payload.get(done..).map(<[u8]>::to_vec)),
            executed => executed.map(|()| None),
        }
    }

    /// Keeps the rest of a submission. If the context is lost, the fence is answered already.
    fn leave(&mut self, bytes: Vec<u8>, fence: Option<Fence>, number: u64) {
        let fence = fence.filter(|fence| self.context.fences.take_back(*fence));
        let message = Left::Submission { bytes, fence }.message();
        self.left.push_front(Letter { message, fd: None, number });
    }

    /// Passes a fence once everything before it on its timeline is done.
    fn fence(&self, fence: Fence) {
        let fences = Arc::clone(&self.context.fences);
        if fence.ring_idx == RingIdx::CONTEXT || self.context.has_ended() {
            fences.pass(fence);
        } else {
            self.context.backend.queue_fence(fence.ring_idx.0, Box::new(move || fences.pass(fence)));
        }
    }

    fn export(&self, blob_id: BlobId, size: u64, mappable: bool) -> Result<Exported, NotExported> {
        match self.context.has_ended() {
            true => Err(NotExported::Ended),
            false => self.context.backend.export(blob_id.0, size, mappable),
        }
    }

    fn hand_out(&self, anchors: Vec<OwnedFd>) {
        for (left, anchor) in (0..anchors.len() as u32).rev().zip(anchors) {
            self.context.answer(&ToDevice::Anchor { left }, Some(anchor.as_fd()));
        }
    }

    fn answer_export(
        &self,
        resource_id: ResourceId,
        exported: Result<Exported, NotExported>,
        (size, mappable): (u64, bool),
        number: u64,
    ) {
        match exported {
            Ok(Exported { file, cached, lent }) => {
                let is_lent = lent.is_some();
                self.hand_out(lent.unwrap_or_default());
                let map_info = if cached { MapInfo::Cached } else { MapInfo::WriteCombined };
                let fd = file.as_ref().map(|file| file.as_fd());
                let memory = file.as_ref().and_then(|file| file.piece.memory);
                self.context.answer(&ToDevice::BlobExported { resource_id, map_info, memory }, fd);
                let file = file.filter(|_| !is_lent);
                let memory = file.map(|file| ResourceMemory { file, size, mappable });
                self.context.resources.attach_memory(resource_id, memory, number);
            }
            Err(why) => {
                self.context.resources.detach(resource_id, number + 1);
                self.context.answer(&ToDevice::BlobRefused { resource_id, reason: why.to_string() }, None);
            }
        }
    }
}

/// Opens the link that came with a message, if one did.
fn open<B: Backend>(context: &Context<B>, socket: Option<OwnedFd>, patience: Duration) -> Option<Link> {
    socket.map(|socket| Link::new(socket, context.cancel.clone(), patience))
}

/// Returns whether a message tells which resources the context sees, or is handled on arrival.
fn is_about_resources(message: &ToWorker) -> bool {
    matches!(
        message,
        ToWorker::AttachResource { .. } | ToWorker::DetachResource { .. } | ToWorker::BlobGone { .. }
    )
}

/// Attaches a resource before its turn, since rings may name it already; answers executors that wait for memory, and frees memory whose blobs are gone.
fn handle_on_arrival<B: Backend>(
    context: &Context<B>,
    allowances: &Allowances,
    letter: Letter,
) -> Option<Letter> {
    let number = letter.number;
    let attached = match letter.message {
        ToWorker::MemoryGranted { request, memory, bytes } => {
            allowances.granted(request, memory, bytes, letter.fd);
            return None;
        }
        ToWorker::MemoryRefused { request } => {
            allowances.refused(request);
            return None;
        }
        ToWorker::MemoryWaits { request } => {
            allowances.waits(request);
            return None;
        }
        ToWorker::Budget { request, memory } => {
            allowances.counted(request, memory);
            return None;
        }
        ToWorker::CaughtUp { request } => {
            allowances.caught_up(request);
            return None;
        }
        ToWorker::BlobGone { memory } => {
            context.backend.blob_gone(memory);
            // After the change itself: a checkpoint that is being written may have the change, or not.
            context.changes();
            return None;
        }
        ToWorker::AttachResource { resource_id, size, kind } => {
            let what = match (kind, letter.fd) {
                (ResourceKind::Expected, _) => Arriving::Expected,
                (ResourceKind::SharedMemory, Some(file)) => Arriving::Shared(file),
                (ResourceKind::DeviceMemory { mappable, memory: Some(memory) }, Some(file)) => {
                    Arriving::Device { file: MemoryFile::new(file, allowances.shown(memory)), mappable }
                }
                _ => Arriving::Opaque,
            };
            (resource_id, context.resources.attach(resource_id, what, size, number))
        }
        ToWorker::HandOver { .. } | ToWorker::WritePrelude { .. } => {
            context.hand_over_comes();
            return Some(letter);
        }
        ToWorker::ExportBlob { resource_id, size, .. } => {
            let attached = context.resources.attach(resource_id, Arriving::Expected, size, number);
            debug_assert!(attached.is_ok(), "there is nothing to map");
            return Some(letter);
        }
        _ => return Some(letter),
    };
    if let (resource_id, Err(error)) = attached {
        log::debug!(resource_id = resource_id.0; "resource cannot carry streams: {error}");
    }
    None
}

/// The time that the orderly end of a worker may take.
const END_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
