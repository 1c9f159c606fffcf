//! Host blobs of a context: created, attached and mapped in one go, as the kernel does for a buffer object.

use super::gpu::{Answer, Gpu, GpuError, PATIENCE, required};
use crate::frontend::virtqueue::Completion;
use crate::frontend::window::WindowMap;
use anyhow::{Context, Result};
use protocol::ids::{BlobId, ContextId, ResourceId};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command, Response, ResponseType};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use vm_memory::{Bytes as _, MmapRegion, VolatileMemory as _};

/// A blob resource that exists in the device.
#[derive(Clone, Debug)]
pub struct Blob {
    /// The resource's id.
    pub resource_id: ResourceId,
    /// The context it was created in and is attached to.
    pub context: ContextId,
    /// Bytes, a multiple of 4096.
    pub size: u64,
    /// Offset in the window and the mapping there; `None` for blobs that are not mappable.
    pub mapping: Option<(u64, WindowMap)>,
}

impl Blob {
    /// Maps the blob's memory into this process, as the guest's user space would.
    ///
    /// # Errors
    /// The blob is not mappable, or the system does not map it.
    pub fn map(&self) -> Result<MmapRegion> {
        self.mapping.as_ref().context("a mappable blob is mapped")?.1.map()
    }

    /// Returns the first bytes of the memory, so many.
    ///
    /// # Errors
    /// As those of [`Self::map`], or the memory is smaller.
    pub fn bytes(&self, count: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(count)?];
        self.map()?.as_volatile_slice().read_slice(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Finds the memory that lies at the blob's place of the window now: another daemon has made it anew.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn find_again(&mut self, gpu: &Gpu) -> Result<()> {
        if let Some((offset, map)) = &mut self.mapping {
            *map = gpu.session.window.get(*offset).context("the blob is not mapped any more")?;
        }
        Ok(())
    }
}

impl Gpu {
    /// CREATE_BLOB of host memory, CTX_ATTACH_RESOURCE, and MAP_BLOB if it is mappable. `size` is rounded up to pages.
    pub fn create_blob(
        &self,
        context: ContextId,
        blob_id: BlobId,
        blob_flags: BlobFlags,
        size: u64,
    ) -> Result<Blob> {
        let resource_id = self.new_resource_id();
        let size = size.next_multiple_of(4096);
        let mappable = blob_flags.contains(BlobFlags::MAPPABLE);
        let offset = match mappable {
            true => Some(self.window.lock().allocate(size).context("the window is full")?),
            false => None,
        };
        let blob_mem = BlobMem::Host3d;
        let mut batch = vec![(
            Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size, entries: &[] },
            Some(context),
        )];
        batch.extend(offset.map(|offset| (Command::ResourceMapBlob { resource_id, offset }, None)));
        batch.push((Command::CtxAttachResource { resource_id }, Some(context)));
        let answers = self.start_all(&batch);
        let created = self.finish_blob(&answers, offset);
        match created {
            Ok(map) => Ok(Blob { resource_id, context, size, mapping: offset.zip(map) }),
            Err(e) => {
                // The window range may be used again only when the resource certainly no longer exists.
                let unref = self.call(&Command::ResourceUnref { resource_id }, None);
                if let Some(offset) = offset
                    && !matches!(unref, Err(GpuError::SessionOver | GpuError::TimedOut))
                {
                    self.window.lock().release(offset, size);
                }
                Err(e)
            }
        }
    }

    /// A blob of fresh shared memory (blob id 0), as rings and replies use.
    pub fn create_shmem(&self, context: ContextId, size: u64) -> Result<Blob> {
        self.create_blob(context, BlobId(0), BlobFlags::MAPPABLE, size)
    }

    /// Unmaps, detaches and releases blobs; returns when the commands are on the queue.
    pub fn destroy_blobs(&self, blobs: Vec<Blob>) {
        let mut requests: Vec<(Vec<u8>, Completion)> = Vec::new();
        for blob in blobs {
            let resource_id = blob.resource_id;
            push(
                &mut requests,
                &Command::CtxDetachResource { resource_id },
                Some(blob.context),
                Box::new(|_| ()),
            );
            if blob.mapping.is_some() {
                push(&mut requests, &Command::ResourceUnmapBlob { resource_id }, None, Box::new(|_| ()));
            }
            let window = Arc::clone(&self.window);
            let released: Completion = Box::new(move |response| {
                if let (Some(_), Some((offset, _))) = (response, &blob.mapping) {
                    window.lock().release(*offset, blob.size);
                }
            });
            push(&mut requests, &Command::ResourceUnref { resource_id }, None, released);
        }
        self.send_bytes(requests);
    }

    /// Destroys one blob and waits for it.
    pub fn destroy_blob(&self, blob: Blob) -> Result<(), GpuError> {
        let resource_id = blob.resource_id;
        let mut batch = vec![(Command::CtxDetachResource { resource_id }, Some(blob.context))];
        if blob.mapping.is_some() {
            batch.push((Command::ResourceUnmapBlob { resource_id }, None));
        }
        batch.push((Command::ResourceUnref { resource_id }, None));
        for answer in self.start_all(&batch) {
            answer.wait(PATIENCE)?;
        }
        if let Some((offset, _)) = blob.mapping {
            self.window.lock().release(offset, blob.size);
        }
        Ok(())
    }

    /// Sends commands with one kick.
    pub fn start_all(&self, batch: &[(Command<'_>, Option<ContextId>)]) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut requests = Vec::new();
        for (command, context) in batch {
            let (sender, receiver) = sync_channel(1);
            push(&mut requests, command, *context, Box::new(move |response| drop(sender.send(response))));
            answers.push(Answer::new(receiver));
        }
        self.send_bytes(requests);
        answers
    }

    fn finish_blob(&self, answers: &[Answer], offset: Option<u64>) -> Result<Option<WindowMap>> {
        let mut steps = answers.iter();
        let mut next =
            |step| required(step, steps.next().map_or(Err(GpuError::SessionOver), |a| a.wait(PATIENCE)));
        next("CREATE_BLOB")?;
        let map = match offset {
            None => None,
            Some(offset) => {
                let response = next("MAP_BLOB")?;
                anyhow::ensure!(
                    matches!(response, Response::OkMapInfo(_)),
                    "MAP_BLOB was answered {response:?}"
                );
                Some(self.session.window.get(offset).context("MAP_BLOB succeeded without SHMEM_MAP")?)
            }
        };
        next("CTX_ATTACH_RESOURCE")?;
        Ok(map)
    }
}

fn push(
    requests: &mut Vec<(Vec<u8>, Completion)>,
    command: &Command<'_>,
    context: Option<ContextId>,
    done: Completion,
) {
    let mut bytes = Vec::new();
    command.encode(context, None, &mut bytes);
    requests.push((bytes, done));
}

/// Returns whether an error is the device's answer with this code.
pub fn is_refusal(error: &anyhow::Error, code: ResponseType) -> bool {
    error.downcast_ref::<GpuError>() == Some(&GpuError::Refused(code))
}
