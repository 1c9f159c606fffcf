//! One mapped memory file, and single words in it.

use super::placed::{PLACES, is_place};
use super::{MapError, copy, inspect};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The least size of a page: a larger one begins and ends where the kernel rounds to.
const PAGE: u64 = 4096;
/// Bytes that pass at a time through private memory, which stays in the processor's first cache.
const CHUNK: usize = 8192;

/// A memory file mapped shared, readable and writable, from its start, or memory that is like one; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

/// A range outside the mapping, or a word at an offset that is no multiple of 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} are misaligned or not within {of} bytes")]
pub struct OutOfBounds {
    /// The offset of the range.
    pub offset: u64,
    /// The length of the range.
    pub len: u64,
    /// Length of the mapping.
    pub of: u64,
}

// SAFETY: the pages belong to the mapping alone and stay until it is dropped, and every access through it is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above; there is no access through `&Mapping` that is not atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `size` bytes of a file whose size cannot change.
    pub fn new(file: impl AsFd, size: u64) -> Result<Self, MapError> {
        let len = len_of(&file, size)?;
        Self::map(file, len)
    }

    /// Maps like [`Self::new`], at an address that another process can use too ([`Self::new_at`]), unless a few tries find none
    /// ([`Self::is_placed`]).
    pub fn new_placed(file: impl AsFd, size: u64) -> Result<Self, MapError> {
        let len = len_of(&file, size)?;
        match PLACES.place(size, |address| map_at(&file, len, address)) {
            Some(start) => Self::of_pages(start, len),
            None => Self::map(file, len),
        }
    }

    /// Maps like [`Self::new`], at an address at which another process has mapped with [`Self::new_placed`].
    ///
    /// # Errors
    ///
    /// [`MapError::Address`] if the address is taken, or no such mapping can lie there.
    pub fn new_at(file: impl AsFd, size: u64, address: u64) -> Result<Self, MapError> {
        let len = len_of(&file, size)?;
        if !is_place(address, size) {
            return Err(MapError::Address { address });
        }
        match map_at(file, len, address) {
            Ok(start) => Self::of_pages(start, len),
            Err(Errno::EXIST) => Err(MapError::Address { address }),
            Err(error) => Err(error.into()),
        }
    }

    /// Maps the first `size` bytes of a device's memory, as a driver shows it. Only the owner of that memory may use the mapping, and only until the
    /// memory is freed: the later content of the pages is not known.
    pub fn of_device(device: impl AsFd, size: u64) -> Result<Self, MapError> {
        Self::map(device, usize::try_from(size).unwrap_or(usize::MAX))
    }

    /// Maps `size` bytes, all zero, that only this process has. They take memory once the process writes to them. The kernel backs them with huge pages
    /// if it gives huge pages to programs that ask.
    pub fn anonymous(size: u64) -> Result<Self, MapError> {
        let len = usize::try_from(size).unwrap_or(usize::MAX);
        // SAFETY: without an address hint and MAP_FIXED the kernel picks free addresses, so no memory in use is replaced.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let mapping = Self::of_pages(start, len)?;
        // Without huge pages the mapping is only filled more slowly.
        let _ = mapping.advise(0, mapping.len(), Advice::LinuxHugepage);
        Ok(mapping)
    }

    fn map(file: impl AsFd, len: usize) -> Result<Self, MapError> {
        // SAFETY: without an address hint and MAP_FIXED the kernel picks free addresses, so no memory in use is replaced.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        }?;
        Self::of_pages(start, len)
    }

    pub(super) fn of_pages(start: *mut c_void, len: usize) -> Result<Self, MapError> {
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// Returns the length in bytes, never 0.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns the first byte, page aligned, for the driver's import of host pages. It is valid while the mapping lives; code that reads or
    /// writes through it races with the guest.
    pub fn as_ptr(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }

    /// Returns whether [`Self::new_at`] can map at the same address in another process.
    pub fn is_placed(&self) -> bool {
        is_place(self.as_ptr().addr() as u64, self.len())
    }

    /// Returns whether `len` bytes at `offset` lie inside.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        self.check(offset, len).is_ok()
    }

    /// Has the system provide the pages of `len` bytes at `offset`, so that writing there does not fail for lack of memory.
    ///
    /// # Errors
    ///
    /// The system has no memory for them, or is older than Linux 5.14; or the bytes do not lie inside.
    pub fn provide(&self, offset: u64, len: u64) -> io::Result<()> {
        let start = offset / PAGE * PAGE;
        self.advise(start, len.saturating_add(offset - start), Advice::LinuxPopulateWrite)
    }

    /// Gives the system advice that changes no bytes.
    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        let at = self.check(offset, len).map_err(io::Error::other)?;
        // SAFETY: `check` found the pages inside the mapping, and this changes nothing that is in them.
        Ok(unsafe { madvise(at.as_ptr().cast(), len as usize, advice) }?)
    }

    /// Copies the bytes at `offset` into private memory.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let at = self.check(offset, into.len() as u64)?;
        // SAFETY: `check` found the range inside the pages, which live as long as `self` and are only touched atomically.
        unsafe { copy::copy_out(at.as_ptr(), into) };
        Ok(())
    }

    /// Copies private bytes to `offset`.
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        let at = self.check(offset, from.len() as u64)?;
        // SAFETY: `check` found the range inside the pages, which live as long as `self` and are only touched atomically.
        unsafe { copy::copy_in(at.as_ptr(), from) };
        Ok(())
    }

    /// Copies `len` bytes at `offset` to `at` in another mapping. If the other mapping is this one and the ranges overlap, their contents are not known
    /// afterwards.
    pub fn copy_to(&self, offset: u64, other: &Self, at: u64, len: u64) -> Result<(), OutOfBounds> {
        // No byte is copied unless all can be.
        let _ranges = (self.check(offset, len)?, other.check(at, len)?);
        let mut buffer = [0; CHUNK];
        for done in (0..len).step_by(CHUNK) {
            let part = &mut buffer[..CHUNK.min((len - done) as usize)];
            self.copy_out(offset + done, part)?;
            other.copy_in(at + done, part)?;
        }
        Ok(())
    }

    /// Makes all bytes zero.
    pub fn clear(&self) {
        let zeros = [0; CHUNK];
        for start in (0..self.len()).step_by(CHUNK) {
            // All these bytes are inside.
            let _ = self.copy_in(start, &zeros[..CHUNK.min((self.len() - start) as usize)]);
        }
    }

    /// Returns the aligned 32-bit word at `offset`, which keeps the mapping alive.
    pub fn word(self: &Arc<Self>, offset: u64) -> Result<Word, OutOfBounds> {
        let at = self.check(offset, 4)?.cast::<u32>();
        if !at.is_aligned() {
            return Err(OutOfBounds { offset, len: 4, of: self.len() });
        }
        Ok(Word { at, _mapping: Arc::clone(self) })
    }

    fn check(&self, offset: u64, len: u64) -> Result<NonNull<u8>, OutOfBounds> {
        match offset.checked_add(len) {
            // SAFETY: `offset` is at most the length of the pages, so the address is inside them or one past their end.
            Some(end) if end <= self.len() => Ok(unsafe { self.start.add(offset as usize) }),
            _ => Err(OutOfBounds { offset, len, of: self.len() }),
        }
    }
}

/// Returns the number of bytes to map of a file of fixed size.
fn len_of(file: impl AsFd, size: u64) -> Result<usize, MapError> {
    let (_, actual) = inspect(&file)?;
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    match size == 0 || size > actual || len > isize::MAX as usize {
        true => Err(MapError::Size { wanted: size, actual }),
        false => Ok(len),
    }
}

/// Maps a file at an address; if a mapping is there already, fails with [`Errno::EXIST`].
fn map_at(file: impl AsFd, len: usize, address: u64) -> Result<*mut c_void, Errno> {
    let wanted = usize::try_from(address).map_err(|_| Errno::NOMEM)?;
    let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
    let at = std::ptr::without_provenance_mut(wanted);
    // SAFETY: the flag keeps the kernel from replacing what is mapped there, so no memory in use is replaced.
    let start = unsafe { mmap(at, len, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) }?;
    if start.addr() != wanted {
        // Linux before 4.17 does not know the flag, and takes the address as a hint.
        // SAFETY: mapped just now, and no other code knows of it.
        unsafe { munmap(start, len) }?;
        return Err(Errno::EXIST);
    }
    Ok(start)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and length are those of the mapping made in `new`, and nothing borrowed from it is left. An error
        // cannot happen for a valid range and could not be handled.
        let _ = unsafe { munmap(self.as_ptr(), self.len) };
    }
}

/// A 32-bit word in shared memory, little endian like the machines this runs on. Keeps its mapping alive.
#[derive(Debug)]
pub struct Word {
    at: NonNull<u32>,
    _mapping: Arc<Mapping>,
}

// SAFETY: a word is accessed only atomically and keeps its pages alive.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// Reads the word.
    pub fn load(&self, order: Ordering) -> u32 {
        self.atomic().load(order)
    }

    /// Writes the word.
    pub fn store(&self, value: u32, order: Ordering) {
        self.atomic().store(value, order);
    }

    /// Sets bits, without effect on other bits that another thread changes at the same time. Returns the value before.
    pub fn set_bits(&self, bits: u32, order: Ordering) -> u32 {
        self.atomic().fetch_or(bits, order)
    }

    /// Clears bits, without effect on other bits that another thread changes at the same time. Returns the value before.
    pub fn clear_bits(&self, bits: u32, order: Ordering) -> u32 {
        self.atomic().fetch_and(!bits, order)
    }

    /// Adds to the word, wrapping. Returns the value before.
    pub fn add(&self, count: u32, order: Ordering) -> u32 {
        self.atomic().fetch_add(count, order)
    }

    /// Writes `to` if the word is `from`. Returns whether the word was `from`.
    pub fn change(&self, from: u32, to: u32) -> bool {
        self.atomic().compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Sleeps while the word is `value`, until [`Self::wake`] or the end of `limit`; may return sooner.
    pub fn wait(&self, value: u32, limit: Option<Duration>) {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // The waiting thread looks again, so the reason for the wake-up does not matter. The futex is not private, because other processes wake it.
        let _ = futex::wait(self.atomic(), futex::Flags::empty(), value, limit.as_ref());
    }

    /// Wakes the threads that wait for the word, in any process.
    pub fn wake(&self) {
        let _ = futex::wake(self.atomic(), futex::Flags::empty(), u32::MAX);
    }

    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: `Mapping::word` checked bounds and alignment, the mapping is alive because it is held, and this module
        // touches these bytes only atomically. The reference does not leave this type.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr()) }
    }
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
pub(crate) mod tests;
