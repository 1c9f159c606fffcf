//! Guards for mappings whose file another process can shrink, or leave without room.
//!
//! An access to a page behind the end of its file, or to one for which the system has no room, raises SIGBUS and would end the process. Seals can
//! rule out the first case; the second cannot be ruled out (holes can be punched into sealed files, and a pool of huge pages runs dry). The signal
//! handler replaces the whole guarded mapping by zeros, so that the thread goes on, and notes the loss. The bytes that this thread read are wrong
//! then, and the caller of [`memory_was_lost`] ends the session. For all other addresses SIGBUS acts as before.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The guard of a mapping. It must be dropped before the mapping.
#[derive(Debug)]
pub struct Guard(usize);

/// Addresses of a mapping. A start of 0 marks a free place, [`TAKEN`] a place that is being filled.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
}

/// Mappings that can be guarded at a time.
const PLACES: usize = 1 << 14;
const TAKEN: usize = usize::MAX;

static MAPPINGS: [Place; PLACES] =
    [const { Place { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; PLACES];
/// The index at which the search for a free place begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicBool = AtomicBool::new(false);

impl Guard {
    /// Guards the mapping of `len` bytes at `start`; returns none if too many are guarded.
    pub fn over(start: *const u8, len: usize) -> Option<Self> {
        let first = NEXT.fetch_add(1, Ordering::Relaxed);
        let found = (0..PLACES).map(|at| first.wrapping_add(at) % PLACES).find(|at| {
            let start = &MAPPINGS[*at].start;
            start.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        MAPPINGS[found].end.store(start.addr().saturating_add(len), Ordering::Relaxed);
        MAPPINGS[found].start.store(start.addr(), Ordering::Release);
        Some(Self(found))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        MAPPINGS[self.0].start.store(0, Ordering::Release);
    }
}

/// Returns whether guarded memory was lost since the last call.
pub fn memory_was_lost() -> bool {
    LOST.load(Ordering::Relaxed) && LOST.swap(false, Ordering::Acquire)
}

/// Handles SIGBUS by these guards from now on, in all threads.
///
/// # Errors
///
/// The system refuses the handler.
pub fn guard_mappings() -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
    // SAFETY: all zeros are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // Threads have a stack for signals from Rust's runtime.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` is valid, and its handler does nothing but what is safe in a signal: it accesses atomics and calls the kernel.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_bus_error(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` (SA_SIGINFO), which no other code uses while the handler runs.
    let info = unsafe { &*info };
    // SAFETY: the field is set for a SIGBUS that an access has caused, and some number for others, for which it is not used.
    let address = unsafe { info.si_addr() }.addr();
    if info.si_code == libc::BUS_ADRERR
        && let Some((start, end)) = mapping_at(address)
        && put_zeros(start, end)
    {
        LOST.store(true, Ordering::Release);
        return;
    }
    // SAFETY: the default action is no handler. The access is made again and ends the process, as it would have without us.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

fn mapping_at(address: usize) -> Option<(usize, usize)> {
    MAPPINGS.iter().find_map(|place| {
        let start = place.start.load(Ordering::Acquire);
        let end = place.end.load(Ordering::Relaxed);
        (start != 0 && start <= address && address < end).then_some((start, end))
    })
}

/// Replaces lost pages by zeros; returns whether that succeeded, so that private memory is at these addresses.
fn put_zeros(start: usize, end: usize) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: these addresses are those of a guarded mapping, which exists for as long as it is guarded, and of nothing else. Code that accesses
    // it expects its bytes to change at any time, and the new pages can be read and written as the old ones.
    unsafe { mmap_anonymous(at, end - start, ProtFlags::READ | ProtFlags::WRITE, flags) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;
    use rustix::fs::ftruncate;
    use std::fs::File;
    use std::os::fd::AsFd;

    /// Returns a file of so many bytes, and its mapping with a guard.
    fn guarded(len: u64) -> (File, Mapping, Guard) {
        let file = tempfile::tempfile().unwrap();
        ftruncate(&file, len).unwrap();
        // `Mapping::new` takes no file that can shrink; this function takes any.
        let mapping = Mapping::of_device(file.as_fd(), len).unwrap();
        let guard = Guard::over(mapping.as_ptr().cast(), len as usize).unwrap();
        (file, mapping, guard)
    }

    #[test]
    fn who_touches_what_is_gone_finds_zeros_and_it_is_noted_once() {
        guard_mappings().unwrap();
        let (file, lost, _guard) = guarded(0x4000);
        let (_other_file, other, _other_guard) = guarded(0x4000);
        lost.copy_in(0x2000, &[7; 16]).unwrap();
        other.copy_in(0x2000, &[8; 16]).unwrap();
        assert!(!memory_was_lost());
        ftruncate(&file, 0x1000).unwrap();
        let mut bytes = [1; 16];
        lost.copy_out(0x2000, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 16]);
        lost.copy_in(0x3ff0, &[9; 16]).unwrap();
        lost.copy_out(0x3ff0, &mut bytes).unwrap();
        assert_eq!(bytes, [9; 16]);
        assert_eq!((memory_was_lost(), memory_was_lost()), (true, false));
        other.copy_out(0x2000, &mut bytes).unwrap();
        assert_eq!(bytes, [8; 16], "other memory is left alone");
    }
}
