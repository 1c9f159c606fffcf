//! The life of a worker process: set-up, messages strictly in order, orderly end.

use super::allowance::Allowances;
use super::backend::Backend;
use super::context::Context;
use super::inbox::{Inbox, Letter};
use super::resources::{Arriving, Resources};
use super::stream::{Executor, Place};
use super::watchdog::{self, Watchdog};
use crate::ipc::{Channel, Fence, MapInfo, ResourceKind, ToDevice, ToWorker, WorkerSetup};
use config::GPUS_MAX;
use protocol::ids::{BlobId, ResourceId, RingIdx};
use shm::{Doorbell, GateSide, StatusPage};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use vulkan::{ContextLost, Exported, Gate, MemoryFile, Renderer, ResourceMemory};

/// Serves one guest context until the device process closes the channel. The calling thread is the executor of the virtqueue's
/// stream.
pub fn run(channel: Channel) -> ExitCode {
    let (setup, page) = match channel.receive() {
        Ok((ToWorker::Setup(setup), Some(page))) => (setup, page),
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
    let gates = match gates(&channel, &setup) {
        Ok(gates) => gates,
        Err(reason) => return failed(&format!("no way to ask for grants: {reason}")),
    };
    let channel = Arc::new(channel);
    let resources = Arc::<Resources>::default();
    let allowances = Allowances::new(Arc::clone(&channel));
    let (table, allowance) = (Arc::clone(&resources) as _, Arc::clone(&allowances) as _);
    let (gpus, limits, cache_key) = (setup.gpus.clone(), setup.limits, setup.cache_key);
    let renderer = match Renderer::new(gpus, limits, cache_key, table, allowance) {
        Ok(renderer) => renderer.telling(Arc::clone(page.results())).gated(gates.clone()),
        Err(lost) => return failed(&lost.reason),
    };
    let end = End { begins: start_end_watchdog, kill: watchdog::kill };
    serve(&setup, page, channel, resources, allowances, (renderer, gates), end)
}

/// The gates that submissions to each GPU wait at, if they are scheduled.
fn gates(channel: &Channel, setup: &WorkerSetup) -> Result<Vec<Arc<Gate>>, String> {
    if !setup.scheduled {
        return Ok(Vec::new());
    }
    let file = |wanted: &ToWorker| match channel.receive::<ToWorker>() {
        Ok((message, Some(file))) if message == *wanted => Ok(file),
        Ok(_) => Err("the wrong message".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let page = |_| GateSide::open(file(&ToWorker::Grants)?).map_err(|error| error.to_string());
    let pages = setup.gpus.iter().map(page).collect::<Result<Vec<_>, _>>()?;
    let doorbell = Arc::new(Doorbell::of(file(&ToWorker::Doorbell)?));
    Ok(pages.into_iter().map(|page| Gate::new(page, Arc::clone(&doorbell))).collect())
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

/// The reason that ends the process.
pub(super) struct End {
    /// Called once when the channel is closed.
    pub begins: fn(),
    /// Ends it at once.
    pub kill: fn(),
}

/// Serves a context with any backend.
pub(super) fn serve<B: Backend>(
    setup: &WorkerSetup,
    page: StatusPage,
    channel: Arc<Channel>,
    resources: Arc<Resources>,
    allowances: Arc<Allowances>,
    (backend, gates): (B, Vec<Arc<Gate>>),
    end: End,
) -> ExitCode {
    let context = Arc::new(Context::new(setup, Arc::clone(&channel), resources, backend));
    let closed = Arc::clone(&context);
    let arriving = Arc::clone(&context);
    let on_arrival = move |letter| handle_on_arrival(&arriving, &allowances, letter);
    let inbox = match Inbox::new(channel, Box::new(on_arrival), move || end_context(&closed, end.kill)) {
        Ok(inbox) => Arc::new(inbox),
        Err(error) => return failed(&format!("no thread for messages: {error}")),
    };
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
    let executor = Executor::new(Arc::clone(&context), Place::Virtqueue(Arc::clone(&inbox)));
    let mut worker = Worker { context, executor };
    while let Some(letter) = inbox.next() {
        worker.handle(letter);
    }
    (end.begins)();
    end_context(&worker.context, end.kill);
    worker.context.join();
    gates.iter().for_each(|gate| gate.end());
    if worker.context.backend.is_lending() {
        // Others hold what keeps it alive, and let go once it is mapped nowhere. Not even exit handlers of the driver may run.
        (end.kill)();
        return ExitCode::FAILURE;
    }
    worker.context.backend.destroy_objects();
    drop(watchdog);
    log::debug!(ctx_id = setup.ctx_id.0; "worker ends");
    ExitCode::SUCCESS
}

/// Ends what waits. A driver that comes up cannot be stopped, and others wait for this process' end.
fn end_context<B: Backend>(context: &Context<B>, kill: fn()) {
    context.end();
    if context.backend.is_coming_up() {
        kill();
    }
}

struct Worker<B> {
    context: Arc<Context<B>>,
    executor: Executor<B>,
}

impl<B: Backend> Worker<B> {
    fn handle(&mut self, letter: Letter) {
        let Letter { message, fd, number } = letter;
        match message {
            ToWorker::Setup(_) => self.context.lose(&ContextLost::new("a second set-up")),
            ToWorker::Grants | ToWorker::Doorbell => {
                self.context.lose(&ContextLost::new("grants without a scheduler"));
            }
            // Handled on arrival.
            ToWorker::AttachResource { .. }
            | ToWorker::MemoryGranted { .. }
            | ToWorker::MemoryRefused { .. }
            | ToWorker::Budget { .. }
            | ToWorker::BlobGone { .. } => {}
            ToWorker::DetachResource { resource_id } => self.context.resources.detach(resource_id, number),
            ToWorker::Submit { size, inline, fence } => self.submit(size, inline, fd, fence),
            ToWorker::ExportBlob { resource_id, blob_id, size, mappable } => {
                let exported = self.export(blob_id, size, mappable);
                self.answer_export(resource_id, exported, (size, mappable), number);
            }
        }
    }

    fn submit(&mut self, size: u32, inline: Vec<u8>, file: Option<OwnedFd>, fence: Option<Fence>) {
        if let Some(fence) = fence {
            self.context.fences.open(fence);
        }
        if !self.context.has_ended() {
            let limit = self.context.limits.command_bytes;
            let executed = payload(size, inline, file, limit).and_then(|payload| self.executor.run(&payload));
            if let Err(lost) = executed {
                self.context.lose(&lost);
            }
        }
        if let Some(fence) = fence {
            self.fence(fence);
        }
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

    fn export(&self, blob_id: BlobId, size: u64, mappable: bool) -> Result<Exported, String> {
        match self.context.has_ended() {
            true => Err("context is lost".to_owned()),
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
        exported: Result<Exported, String>,
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
            Err(reason) => {
                self.context.resources.detach(resource_id, number + 1);
                self.context.answer(&ToDevice::BlobRefused { resource_id, reason }, None);
            }
        }
    }
}

/// Attaches a resource before its turn, since rings may name it already; answers those who wait for memory, and frees what may be freed.
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
        ToWorker::Budget { request, memory } => {
            allowances.counted(request, memory);
            return None;
        }
        ToWorker::BlobGone { memory } => {
            context.backend.blob_gone(memory);
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

/// The bytes of a submission, in private memory: they came in the packet, or in a file beside it.
fn payload(size: u32, inline: Vec<u8>, file: Option<OwnedFd>, limit: usize) -> Result<Vec<u8>, ContextLost> {
    let size = size as usize;
    if inline.len() == size {
        return Ok(inline);
    }
    let file = File::from(file.ok_or_else(|| ContextLost::new("submission without its payload"))?);
    if size > limit {
        return Err(ContextLost::new(format!("limit reached: command_bytes ({limit})")));
    }
    let mut payload = vec![0; size];
    file.read_exact_at(&mut payload, 0)
        .map_err(|error| ContextLost::new(format!("payload cannot be read: {error}")))?;
    Ok(payload)
}

/// The time that the orderly end of a worker may take.
const END_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
