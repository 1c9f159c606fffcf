//! One vtest connection: a Venus instance of some process, served as one context of the device.
//!
//! Knows nothing of other clients or of vhost-user. Requests are executed in order on the connection's own thread; only fences and the clean-up
//! complete elsewhere. A blob that the device refuses is answered with a descriptor that cannot be mapped, since a real guest would notice the
//! refusal only at `mmap`, too.

use super::syncs::Syncs;
use super::wire::{self, Request, Submit, id, reply};
use crate::frontend::HaltPoll;
use crate::guest::{Blob, Gpu};
use anyhow::{Context, Result, bail, ensure};
use protocol::ids::{BlobId, CapsetId, ContextId, RingIdx};
use protocol::virtio_gpu::{BlobFlags, Command};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Timelines a client may use, as the kernel grants them to Venus.
const TIMELINES: u32 = RingIdx::COUNT as u32;
const PARAM_MAX_TIMELINE_COUNT: u32 = 1;
const BLOB_TYPE_HOST3D: u32 = 2;

/// Serves a connection until the client closes it. The context and everything in it ends with the connection.
pub fn serve(gpu: Arc<Gpu>, stream: &UnixStream, capset: &[u8]) -> Result<()> {
    let mut client = Client {
        gpu,
        stream,
        capset,
        name: String::new(),
        context: None,
        blobs: HashMap::new(),
        syncs: Arc::default(),
    };
    let mut requests =
        BufReader::with_capacity(64 << 10, Requests { stream, halt_poll: HaltPoll::default() });
    while let Some(request) = wire::read_request(&mut requests)? {
        client.execute(request)?;
    }
    Ok(())
}

/// The requests that the client sends. In a virtual machine the guest's own processor executes the requests.
struct Requests<'a> {
    stream: &'a UnixStream,
    halt_poll: HaltPoll,
}

impl Read for Requests<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let received = Cell::new(None);
        let buffer = RefCell::new(buffer);
        let receive = |flags| recv(self.stream, &mut **buffer.borrow_mut(), flags);
        let is_there = || {
            received
                .set(Some(receive(RecvFlags::DONTWAIT)).filter(|received| *received != Err(Errno::AGAIN)));
            received.get().is_some()
        };
        self.halt_poll
            .wait(is_there, || receive(RecvFlags::empty()).map(|count| received.set(Some(Ok(count)))))?;
        Ok(received.get().map_or(Ok((0, 0)), |received| received)?.0)
    }
}

struct Client<'a> {
    gpu: Arc<Gpu>,
    stream: &'a UnixStream,
    capset: &'a [u8],
    name: String,
    context: Option<ContextId>,
    /// `None` for a blob that the device refused.
    blobs: HashMap<u32, Option<Blob>>,
    syncs: Arc<Syncs>,
}

impl Client<'_> {
    fn execute(&mut self, request: Request) -> Result<()> {
        match request {
            Request::CreateRenderer { name } => self.name = name,
            Request::PingProtocolVersion => self.reply(id::PING_PROTOCOL_VERSION, &[])?,
            Request::ResourceBusyWait => self.reply(id::RESOURCE_BUSY_WAIT, &[0])?,
            Request::ProtocolVersion { version } => {
                self.reply(id::PROTOCOL_VERSION, &[version.min(wire::VERSION)])?
            }
            Request::GetParam { param } => {
                let known = param == PARAM_MAX_TIMELINE_COUNT;
                self.reply(id::GET_PARAM, &[known.into(), if known { TIMELINES } else { 0 }])?;
            }
            Request::GetCapset { capset_id } => self.get_capset(CapsetId(capset_id))?,
            Request::ContextInit { capset_id } => self.context_init(CapsetId(capset_id))?,
            Request::CreateBlob { blob_type, flags, size, blob_id } => {
                ensure!(blob_type == BLOB_TYPE_HOST3D, "blob type {blob_type}");
                self.create_blob(BlobFlags::from_bits_truncate(flags), size, BlobId(blob_id))?;
            }
            Request::ResourceUnref { resource_id } => {
                let blob =
                    self.blobs.remove(&resource_id).with_context(|| format!("no resource {resource_id}"))?;
                self.gpu.destroy_blobs(blob.into_iter().collect());
            }
            Request::SyncCreate { value } => self.reply(id::SYNC_CREATE, &[self.syncs.create(value)])?,
            Request::SyncUnref { sync_id } => self.syncs.remove(sync_id),
            Request::SyncRead { sync_id } => {
                let value = self.syncs.read(sync_id).with_context(|| format!("no sync {sync_id}"))?;
                self.reply(id::SYNC_READ, &[value as u32, (value >> 32) as u32])?;
            }
            Request::SyncWrite(point) => self.syncs.write(&[point]),
            Request::SyncWait { any, timeout_ms, points } => {
                let event = self.syncs.wait(any, timeout_ms, points)?;
                self.reply(id::SYNC_WAIT, &[])?;
                self.send_descriptor(&event)?;
            }
            Request::Submit(submit) => self.submit(submit)?,
        }
        Ok(())
    }

    fn get_capset(&self, capset_id: CapsetId) -> Result<()> {
        if capset_id != CapsetId::VENUS {
            return self.reply(id::GET_CAPSET, &[0]);
        }
        let (dwords, _) = self.capset.as_chunks::<4>();
        let payload: Vec<u32> =
            [1].into_iter().chain(dwords.iter().map(|&dword| u32::from_le_bytes(dword))).collect();
        self.reply(id::GET_CAPSET, &payload)
    }

    fn context_init(&mut self, capset_id: CapsetId) -> Result<()> {
        ensure!(
            capset_id == CapsetId::VENUS && self.context.is_none(),
            "context of capability set {capset_id}"
        );
        let context = self.gpu.create_context(&self.name).context("CTX_CREATE")?;
        log::debug!(ctx_id = context.0, name = self.name.as_str(); "client has a context");
        self.context = Some(context);
        Ok(())
    }

    fn create_blob(&mut self, flags: BlobFlags, size: u64, blob_id: BlobId) -> Result<()> {
        let context = self.context()?;
        let blob = match self.gpu.create_blob(context, blob_id, flags, size) {
            Ok(blob) => Some(blob),
            Err(e) => {
                log::warn!(ctx_id = context.0, size = size, blob_id = blob_id.0; "the device refused a blob: {e:#}");
                None
            }
        };
        let resource_id = blob.as_ref().map_or_else(|| self.gpu.new_resource_id(), |blob| blob.resource_id);
        let mapping = blob.as_ref().and_then(|blob| blob.mapping.as_ref());
        let map = mapping.map(|(_, map)| map.clone());
        // The blob is noted first, so that it is destroyed even if the client has ended in the meantime.
        self.blobs.insert(resource_id.0, blob);
        self.reply(id::RESOURCE_CREATE_BLOB, &[resource_id.0])?;
        match map {
            Some(map) => {
                // The client maps from the descriptor's beginning.
                ensure!(map.fd_offset == 0, "a blob begins at {:#x} of its descriptor", map.fd_offset);
                self.send_descriptor(&*map.file)
            }
            None => self.send_descriptor(&File::open("/dev/null")?),
        }
    }

    fn submit(&mut self, submit: Submit) -> Result<()> {
        let context = Some(self.context()?);
        let command = Command::Submit3d { data: &submit.commands };
        if submit.syncs.is_empty() {
            if !submit.commands.is_empty() {
                self.gpu.send(&command, context, None, Box::new(|_| ()));
            }
            return Ok(());
        }
        ensure!(u32::from(submit.ring_idx) < TIMELINES, "ring_idx {}", submit.ring_idx);
        let fence = self.gpu.fence(RingIdx(submit.ring_idx));
        let syncs = Arc::clone(&self.syncs);
        self.gpu.send(&command, context, Some(fence), Box::new(move |_| syncs.write(&submit.syncs)));
        Ok(())
    }

    fn context(&self) -> Result<ContextId> {
        match self.context {
            Some(context) => Ok(context),
            None => bail!("no context yet"),
        }
    }

    fn reply(&self, command: u32, payload: &[u32]) -> Result<()> {
        let mut stream = self.stream;
        Ok(stream.write_all(&reply(command, payload))?)
    }

    /// Sends a descriptor with a byte of its own: the client would lose a descriptor that follows bytes which it reads without room for a descriptor.
    fn send_descriptor(&self, fd: &impl AsRawFd) -> Result<()> {
        self.stream.send_with_fd(&[0u8][..], fd.as_raw_fd()).context("passing a descriptor")?;
        Ok(())
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // As the kernel does when a file is closed: every resource first, then the context.
        self.gpu.destroy_blobs(self.blobs.drain().filter_map(|(_, blob)| blob).collect());
        if let Some(context) = self.context {
            self.gpu.send(&Command::CtxDestroy, Some(context), None, Box::new(|_| ()));
        }
    }
}
