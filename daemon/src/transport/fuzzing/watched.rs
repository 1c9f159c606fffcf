//! Guest memory that notices when a byte is read twice, and changes it in between as a hostile guest would.

use std::cell::RefCell;
use vm_memory::bitmap::BS;
use vm_memory::guest_memory::GuestMemorySliceIterator;
use vm_memory::{
    Bytes, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryResult as Result,
    Permissions,
};

/// A piece of guest memory from address 0.
pub(super) struct Watched {
    memory: GuestMemoryMmap,
    /// The number of times that each byte was read since [`Watched::forget`].
    reads: RefCell<Vec<u8>>,
    /// The number that is added to a byte before it is read again.
    change: u8,
}

impl Watched {
    /// Makes memory of zeros; `change` is added to every byte before it is read again.
    pub(super) fn new(size: usize, change: u8) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)]).expect("memory");
        Self { memory, reads: RefCell::new(vec![0; size]), change }
    }

    /// Returns the memory itself, unwatched.
    pub(super) fn plain(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Forgets all reads so far.
    pub(super) fn forget(&self) {
        self.reads.borrow_mut().fill(0);
    }

    /// Returns a byte that was read twice, if there is one.
    pub(super) fn read_twice(&self) -> Option<usize> {
        self.reads.borrow().iter().position(|count| *count > 1)
    }

    fn note(&self, addr: GuestAddress, count: usize) {
        let mut reads = self.reads.borrow_mut();
        let start = usize::try_from(addr.0).unwrap_or(usize::MAX).min(reads.len());
        let end = start.saturating_add(count).min(reads.len());
        for (at, before) in (start..).zip(&mut reads[start..end]) {
            *before = before.saturating_add(1);
            let addr = GuestAddress(at as u64);
            if *before > 1
                && self.change != 0
                && let Ok(byte) = self.memory.read_obj::<u8>(addr)
            {
                let _ = self.memory.write_obj(byte.wrapping_add(self.change), addr);
            }
        }
    }
}

impl GuestMemory for Watched {
    type PhysicalMemory = GuestMemoryMmap;
    type Bitmap = <GuestMemoryMmap as GuestMemory>::Bitmap;

    fn check_range(&self, addr: GuestAddress, count: usize, _: Permissions) -> bool {
        GuestMemoryBackend::check_range(&self.memory, addr, count)
    }

    fn get_slices<'a>(
        &'a self,
        addr: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'a, BS<'a, Self::Bitmap>>> {
        if access.allow(Permissions::Read) {
            self.note(addr, count);
        }
        GuestMemory::get_slices(&self.memory, addr, count, access)
    }
}
