//! Attacks of a hostile frontend: it does not acknowledge maps, gives a call descriptor that is full, and takes the guest's memory away.

use crate::frontend::ram::GuestRam;
use crate::guest::Gpu;
use anyhow::Result;
use protocol::ids::{BlobId, ContextId, ResourceId};
use protocol::virtio_gpu::{BlobFlags, BlobMem, Command};
use virtio_bindings::virtio_ring::{VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::desc::split::Descriptor;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EventFd};

/// Asks for a blob that is mapped, and does not wait.
pub fn begin_map(guest: &Gpu, context: ContextId) -> ResourceId {
    let (resource_id, blob_mem, blob_flags) = (guest.new_resource_id(), BlobMem::Host3d, BlobFlags::MAPPABLE);
    let (blob_id, size, entries) = (BlobId(0), 4096, &[][..]);
    let create = Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id, size, entries };
    drop(guest.start(&create, Some(context), None));
    drop(guest.start(&Command::ResourceMapBlob { resource_id, offset: 0 }, None, None));
    resource_id
}

/// Gives the device a call descriptor whose counter is full until the returned descriptor is read.
pub fn fill_call(guest: &mut Gpu) -> Result<EventFd> {
    // Without EFD_NONBLOCK, and with a full counter: a write blocks until the counter is read.
    let full = EventFd::new(EFD_CLOEXEC)?;
    full.write(u64::MAX - 1)?;
    guest.session.set_call(&full)?;
    Ok(full)
}

/// Shrinks the guest's memory of `ram_size` bytes, and makes the device read from the removed part.
pub fn take_memory_away(guest: &Gpu, ram_size: u64) -> Result<()> {
    let (kept, gone) = (8 << 20, GuestRam::BASE + ram_size / 2);
    guest.session.ram.shrink(kept)?;
    let (next, write) = (VRING_DESC_F_NEXT as u16, VRING_DESC_F_WRITE as u16);
    let chain = [Descriptor::new(gone, 64, next, 1), Descriptor::new(gone + 0x1000, 64, write, 0)];
    guest.session.control.submit_raw(&chain, false, Box::new(|_| ()))?;
    Ok(())
}
