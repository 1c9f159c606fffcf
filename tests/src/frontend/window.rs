//! The shared-memory window of the device, as a VMM keeps it: each mapping, with its descriptor and its place.
//!
//! Knows nothing of blobs. It is as strict as the strictest VMM: an unaligned, overlapping or surplus request is refused *and* counted as a
//! violation, since some VMMs end the VM for one. A mapping enters this process only when a test maps it.

use anyhow::{Context, Result, ensure};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vhost::VhostUserMemoryRegionInfo;
use vhost::vhost_user::message::{VhostUserMMap, VhostUserMMapFlags};
use vhost::vhost_user::{Frontend, HandlerResult, VhostUserFrontend, VhostUserFrontendReqHandler};
use vm_memory::{FileOffset, MmapRegion};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// The region's number: `VIRTIO_GPU_SHM_ID_HOST_VISIBLE`.
pub const HOST_VISIBLE: u8 = 1;
const PAGE: u64 = 4096;
/// Bytes of a request: request, flags and size, each a u32, and what is to be mapped.
const REQUEST_BYTES: u64 = 12 + size_of::<VhostUserMMap>() as u64;

/// One mapping of the window.
#[derive(Clone, Debug)]
pub struct WindowMap {
    /// The file that the backend passed, duplicated.
    pub file: Arc<File>,
    /// The offset in that file at which the mapping begins, bytes.
    pub fd_offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The guest may write.
    pub writable: bool,
}

impl WindowMap {
    /// Maps the memory into this process, as the guest's user space would see it.
    pub fn map(&self) -> Result<MmapRegion> {
        let file = FileOffset::from_arc(Arc::clone(&self.file), self.fd_offset);
        Ok(MmapRegion::from_file(file, usize::try_from(self.len)?)?)
    }
}

/// The window and the requests that changed it. Handles the backend's requests on its own channel.
pub struct Window {
    size: u64,
    maps: Mutex<BTreeMap<u64, WindowMap>>,
    violations: Mutex<Vec<String>>,
    /// Requests to map that have arrived.
    asked: AtomicU64,
    /// The backend's channel, and the requests to map that had arrived before, until the rings are started.
    channel: Mutex<Option<(File, u64)>>,
    /// Requests that had come from that channel, or lay in it, when the rings were started.
    asked_ahead: AtomicU64,
    /// Requests to unmap that have arrived.
    unmaps_asked: AtomicU64,
    /// The mappings that the last reset dropped: the memory table still names their descriptors.
    dropped: Mutex<Vec<(u64, WindowMap)>>,
    /// A message from this process to itself duplicates a descriptor that it only knows by its number.
    duplicator: Mutex<(UnixStream, UnixStream)>,
    /// The lock whose holder delays each request to map.
    mapping: Mutex<()>,
    /// The lock whose holder delays each request to unmap.
    unmapping: Mutex<()>,
    /// Milliseconds that each request to unmap takes.
    unmaps_take: AtomicU64,
    /// The vhost-user frontend that announces every mapping as a memory region, as QEMU does; `None` if none is announced.
    announce: Mutex<Option<Frontend>>,
    /// Changes of the memory table that are not announced yet. QEMU announces a change after its acknowledgement.
    changes: Mutex<Vec<Change>>,
    /// The lock whose holder delays announcements.
    announcing: Mutex<()>,
}

/// A change of the memory table, by the offset of the mapping.
enum Change {
    Added(u64, WindowMap),
    Removed(u64, WindowMap),
}

impl Window {
    /// An empty window of `size` bytes.
    pub fn new(size: u64, announce: Option<Frontend>) -> Result<Self> {
        Ok(Self {
            size,
            maps: Mutex::default(),
            violations: Mutex::default(),
            asked: AtomicU64::new(0),
            channel: Mutex::default(),
            asked_ahead: AtomicU64::new(0),
            unmaps_asked: AtomicU64::new(0),
            dropped: Mutex::default(),
            duplicator: Mutex::new(UnixStream::pair().context("a pair of sockets")?),
            mapping: Mutex::default(),
            unmapping: Mutex::default(),
            unmaps_take: AtomicU64::new(0),
            announce: Mutex::new(announce),
            changes: Mutex::default(),
            announcing: Mutex::default(),
        })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the mapping at exactly this offset.
    pub fn get(&self, offset: u64) -> Option<WindowMap> {
        self.maps.lock().get(&offset).cloned()
    }

    /// Requests to map that have arrived, including those that are held.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Requests that the backend had sent when the rings were started for the first time: crosvm reads none before, and QEMU crashes at one.
    pub fn asked_ahead(&self) -> u64 {
        self.asked_ahead.load(Ordering::Relaxed)
    }

    /// The backend's requests come from this channel.
    pub(super) fn hears(&self, channel: &impl AsRawFd) -> Result<()> {
        *self.channel.lock() = Some((self.duplicate(channel)?, self.asked()));
        Ok(())
    }

    /// The rings are being started: counts the requests that the backend has sent so far.
    pub(super) fn count_ahead(&self) -> Result<()> {
        if let Some((channel, before)) = self.channel.lock().take() {
            let waiting = rustix::io::ioctl_fionread(channel)? / REQUEST_BYTES;
            self.asked_ahead.store(self.asked() - before + waiting, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Requests to unmap that have arrived, including those that are held.
    pub fn unmaps_asked(&self) -> u64 {
        self.unmaps_asked.load(Ordering::Relaxed)
    }

    /// Delays maps: nothing is mapped, and so acknowledged, until the returned guard is dropped.
    pub fn hold_maps(&self) -> MutexGuard<'_, ()> {
        self.mapping.lock()
    }

    /// Delays unmaps: nothing is unmapped, and so acknowledged, until the returned guard is dropped.
    pub fn hold_unmaps(&self) -> MutexGuard<'_, ()> {
        self.unmapping.lock()
    }

    /// Has each unmap take the time `each` from now on, as in a VMM on a busy host.
    pub fn slow_unmaps(&self, each: Duration) {
        self.unmaps_take.store(each.as_millis() as u64, Ordering::Relaxed);
    }

    /// Delays the announcement of maps and unmaps, until the returned guard is dropped.
    pub fn hold_announcements(&self) -> MutexGuard<'_, ()> {
        self.announcing.lock()
    }

    /// Announces the changes since the last call; to be called after each request.
    pub(super) fn announce(&self) {
        let _held = self.announcing.lock();
        let mut changes = self.changes.lock();
        let Some(frontend) = self.announce.lock().clone() else { return changes.clear() };
        for change in changes.drain(..) {
            let mut frontend = frontend.clone();
            let announced = match &change {
                Change::Added(offset, map) => frontend.add_mem_region(&region(*offset, map)).map(drop),
                Change::Removed(offset, map) => frontend.remove_mem_region(&region(*offset, map)),
            };
            if let Err(error) = announced {
                self.violations.lock().push(format!("the backend refused a change of the table: {error}"));
            }
        }
    }

    /// Begins anew with another backend: nothing is mapped, and mappings are announced by this frontend.
    pub(super) fn begin_anew(&self, announce: Option<Frontend>) {
        let mut changes = self.changes.lock();
        changes.clear();
        self.maps.lock().clear();
        self.dropped.lock().clear();
        *self.announce.lock() = announce;
    }

    /// Number of live mappings.
    pub fn live(&self) -> usize {
        self.maps.lock().len()
    }

    /// Requests for which some VMM would have ended the VM.
    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().clone()
    }

    /// Drops every mapping, as QEMU does when the guest is reset; the memory regions they were, for the next start to
    /// withdraw.
    pub fn drop_all(&self) -> Vec<VhostUserMemoryRegionInfo> {
        let mut changes = self.changes.lock();
        let mut maps = std::mem::take(&mut *self.maps.lock());
        let mut removed = Vec::new();
        for change in changes.drain(..) {
            match change {
                // The mapping was not announced, so neither is its end.
                Change::Added(offset, _) => drop(maps.remove(&offset)),
                Change::Removed(offset, map) => removed.push((offset, map)),
            }
        }
        let mut dropped = self.dropped.lock();
        *dropped = maps.into_iter().chain(removed).collect();
        dropped.iter().map(|(offset, map)| region(*offset, map)).collect()
    }

    fn check(&self, request: &VhostUserMMap) -> Result<()> {
        let VhostUserMMap { shmid, shm_offset, len, fd_offset, .. } = *request;
        ensure!(shmid == HOST_VISIBLE, "no region {shmid}");
        ensure!(len > 0 && len % PAGE == 0, "length {len:#x} is not a number of pages");
        ensure!(
            shm_offset % PAGE == 0 && fd_offset % PAGE == 0,
            "unaligned offset {shm_offset:#x} or {fd_offset:#x}"
        );
        let end = shm_offset.checked_add(len).context("offset overflows")?;
        ensure!(end <= self.size, "{shm_offset:#x} + {len:#x} lies outside the window");
        Ok(())
    }

    fn insert(&self, request: &VhostUserMMap, fd: &dyn AsRawFd) -> Result<()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let _held = self.mapping.lock();
        self.check(request)?;
        let VhostUserMMap { shm_offset, len, fd_offset, flags, .. } = *request;
        let file = self.duplicate(fd)?;
        let metadata = file.metadata()?;
        let (file_len, endless) = (metadata.len(), metadata.file_type().is_char_device());
        ensure!(endless || fd_offset + len <= file_len, "maps {len:#x} bytes of a file of {file_len:#x}");
        let writable = flags & VhostUserMMapFlags::WRITABLE.bits() != 0;
        let map = WindowMap { file: Arc::new(file), fd_offset, len, writable };
        if endless {
            // A driver says only at the mapping how much of its device can be mapped.
            map.map().context("mapping a device")?;
        }
        let mut changes = self.changes.lock();
        {
            let mut maps = self.maps.lock();
            let overlaps =
                maps.range(..shm_offset + len).next_back().is_some_and(|(at, map)| at + map.len > shm_offset);
            ensure!(!overlaps, "{shm_offset:#x} + {len:#x} overlaps a live mapping");
            maps.insert(shm_offset, map.clone());
        }
        changes.push(Change::Added(shm_offset, map));
        Ok(())
    }

    fn remove(&self, request: &VhostUserMMap) -> Result<()> {
        self.unmaps_asked.fetch_add(1, Ordering::Relaxed);
        let _held = self.unmapping.lock();
        std::thread::sleep(Duration::from_millis(self.unmaps_take.load(Ordering::Relaxed)));
        self.check(request)?;
        let VhostUserMMap { shm_offset, len, .. } = *request;
        let mut changes = self.changes.lock();
        let mut maps = self.maps.lock();
        ensure!(
            maps.get(&shm_offset).is_some_and(|map| map.len == len),
            "{shm_offset:#x} + {len:#x} is not mapped"
        );
        changes.push(Change::Removed(shm_offset, maps.remove(&shm_offset).context("checked above")?));
        Ok(())
    }

    fn duplicate(&self, fd: &dyn AsRawFd) -> Result<File> {
        let sockets = self.duplicator.lock();
        sockets.0.send_with_fd(&[0u8][..], fd.as_raw_fd()).context("duplicating a descriptor")?;
        let (_, file) = sockets.1.recv_with_fd(&mut [0]).context("duplicating a descriptor")?;
        let file = file.context("a duplicated descriptor")?;
        // The copy arrives without this flag: programs that this process starts would inherit the descriptor, and keep the blob alive.
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC)?;
        Ok(file)
    }

    fn answer(&self, what: &str, result: Result<()>) -> HandlerResult<u64> {
        result.map(|()| 0).map_err(|e| {
            self.violations.lock().push(format!("{what}: {e:#}"));
            log::warn!("the backend's {what} was refused: {e:#}");
            io::Error::from_raw_os_error(libc::EINVAL)
        })
    }
}

impl VhostUserFrontendReqHandler for Window {
    fn shmem_map(&self, request: &VhostUserMMap, fd: &dyn AsRawFd) -> HandlerResult<u64> {
        self.answer("SHMEM_MAP", self.insert(request, fd))
    }

    fn shmem_unmap(&self, request: &VhostUserMMap) -> HandlerResult<u64> {
        self.answer("SHMEM_UNMAP", self.remove(request))
    }
}

/// A mapping as a memory region: far above guest memory, at an address of no process.
fn region(offset: u64, map: &WindowMap) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: 0x80_0000_0000 + offset,
        memory_size: map.len,
        userspace_addr: 0x1_0000_0000_0000 + offset,
        mmap_offset: map.fd_offset,
        mmap_handle: map.file.as_raw_fd(),
    }
}
