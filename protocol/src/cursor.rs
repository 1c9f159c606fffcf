//! `Reader` and `Writer`: the only code that walks over wire bytes.
//!
//! The two types know numbers, padding and bounds, and no Vulkan type: shapes are in `venus::shape`, chains in `venus::chain`. Everything is little
//! endian, and the unit of alignment is 4 bytes (Venus protocol, EXT_command_serialization).

use bumpalo::{AllocErr, Bump};
use std::cell::RefCell;
use std::fmt::Debug;

use crate::error::{DecodeError, DecodeErrorKind, Overflow};

/// Memory for the values of one command. Reset it between commands; it keeps its chunk.
#[derive(Debug)]
pub struct Arena {
    bump: Bump,
    /// The source of memory beyond the arena's own limit.
    room: Option<RefCell<Box<dyn Room>>>,
}

/// Memory that several arenas share, as one arena sees it. When the value is dropped, it returns all the memory that it has taken.
pub trait Room: Debug + Send {
    /// Takes this number of bytes more, if the shared memory has them.
    fn more(&mut self, bytes: usize) -> bool;
}

/// Bounds on the memory that one command may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most elements of an out array whose elements take no bytes in the request.
    pub max_out_elements: u64,
    /// Most bytes of room for all out blobs and out arrays of numbers together. The size of the reply window is a good value: results that do not fit
    /// there cannot be delivered.
    pub out_budget: u64,
    /// Most structs in one pNext chain; at most 128.
    pub max_chain: usize,
}

impl Default for Limits {
    /// Limits for commands without a reply window.
    fn default() -> Self {
        Self { max_out_elements: 4096, out_budget: 1 << 20, max_chain: MAX_CHAIN }
    }
}

/// Reads values from bytes that have been copied out of the guest's reach.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
    arena: &'a Arena,
    limits: Limits,
}

/// Writes values into a bounded window or a growing buffer. Overflow is remembered and reported once, by [`Writer::finish`].
#[derive(Debug)]
pub struct Writer<'w> {
    sink: Sink<'w>,
    overflowed: bool,
}

#[derive(Debug)]
enum Sink<'w> {
    Window { window: &'w mut [u8], at: usize },
    Growing(Vec<u8>),
}

impl Arena {
    /// An empty arena that never holds more than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let bump = Bump::new();
        bump.set_allocation_limit(Some(limit));
        Self { bump, room: None }
    }

    /// An empty arena that has `own` bytes and takes more from `room`.
    pub fn within(own: usize, room: impl Room + 'static) -> Self {
        Self { room: Some(RefCell::new(Box::new(room))), ..Self::new(own) }
    }

    /// Takes room for values of this size. If the arena has none left, it takes the room from the memory that arenas share.
    #[inline]
    fn take<'a, V>(
        &'a self,
        size: usize,
        alloc: impl Fn(&'a Bump) -> Result<V, AllocErr>,
    ) -> Result<V, DecodeError> {
        loop {
            match alloc(&self.bump) {
                Ok(kept) => return Ok(kept),
                Err(_) if self.grow(size) => {}
                Err(_) => return Err(ARENA_FULL),
            }
        }
    }

    /// Takes room for a value that does not fit: as much again as the arena has, or as much as the value needs.
    #[cold]
    fn grow(&self, size: usize) -> bool {
        let (Some(room), Some(limit)) = (&self.room, self.bump.allocation_limit()) else { return false };
        let needed = size.saturating_add(CHUNK_EXTRA);
        let mut room = room.borrow_mut();
        let more = [limit.max(needed), needed].into_iter().find(|bytes| room.more(*bytes));
        if let Some(more) = more {
            self.bump.set_allocation_limit(Some(limit + more));
        }
        more.is_some()
    }

    /// Forgets all values and keeps the memory.
    pub fn reset(&mut self) {
        self.bump.reset();
    }

    /// Bytes held from the system.
    pub fn allocated_bytes(&self) -> usize {
        self.bump.allocated_bytes()
    }

    /// Moves a value into the arena.
    pub fn value<T: Copy>(&self, value: T) -> Result<&mut T, DecodeError> {
        self.take(size_of::<T>(), |bump| bump.try_alloc(value))
    }

    /// Copies values into the arena.
    pub fn slice_copy<T: Copy>(&self, values: &[T]) -> Result<&mut [T], DecodeError> {
        self.take(size_of_val(values), |bump| bump.try_alloc_slice_copy(values))
    }

    /// A slice of the arena with `len` times the same value.
    pub fn slice_fill<T: Copy>(&self, len: usize, value: T) -> Result<&mut [T], DecodeError> {
        self.take(size_of::<T>().saturating_mul(len), |bump| bump.try_alloc_slice_fill_copy(len, value))
    }

    /// Fills a slice of the arena element by element, in order.
    #[inline]
    pub fn slice_try_fill<T: Copy, E: From<DecodeError>>(
        &self,
        len: usize,
        mut element: impl FnMut(usize) -> Result<T, E>,
    ) -> Result<&mut [T], E> {
        if len == 0 {
            return Ok(&mut []);
        }
        if len == 1 {
            return Ok(std::slice::from_mut(self.value(element(0)?)?));
        }
        // The loop writes each element a second time, which is cheaper than a vector that checks for room at each element.
        let elements = self.slice_fill(len, element(0)?)?;
        for (at, slot) in elements.iter_mut().enumerate().skip(1) {
            *slot = element(at)?;
        }
        Ok(elements)
    }
}

impl<'a> Reader<'a> {
    /// A reader with default limits.
    pub fn new(bytes: &'a [u8], arena: &'a Arena) -> Self {
        Self::with_limits(bytes, arena, Limits::default())
    }

    /// A reader with these limits.
    pub fn with_limits(bytes: &'a [u8], arena: &'a Arena, limits: Limits) -> Self {
        Self { rest: bytes, len: bytes.len(), arena, limits }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> usize {
        self.len - self.rest.len()
    }

    /// Bytes left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The limits this reader works under.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Demands that this number of bytes is left. This one check then bounds the reads of fixed size that follow.
    #[inline]
    pub(crate) fn demand(&self, bytes: usize, what: &'static str) -> Result<(), DecodeError> {
        if self.rest.len() < bytes { Err(self.truncated().within(what)) } else { Ok(()) }
    }

    /// Reads a `u32`.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<4>() else { return Err(self.truncated()) };
        self.rest = rest;
        Ok(u32::from_le_bytes(*head))
    }

    /// Reads a `u64`, which may start at any multiple of 4.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<8>() else { return Err(self.truncated()) };
        self.rest = rest;
        Ok(u64::from_le_bytes(*head))
    }

    /// Reads `count` bytes and the padding after them, without copying.
    pub fn padded_bytes(&mut self, count: u64) -> Result<&'a [u8], DecodeError> {
        let count = usize::try_from(count).map_err(|_| self.truncated())?;
        let padded = count.checked_next_multiple_of(4).ok_or_else(|| self.truncated())?;
        let (head, rest) = self.rest.split_at_checked(padded).ok_or_else(|| self.truncated())?;
        self.rest = rest;
        Ok(head.get(..count).unwrap_or_default())
    }

    /// An error at the current position.
    #[cold]
    pub fn error(&self, kind: DecodeErrorKind) -> DecodeError {
        DecodeError { what: "", offset: self.offset(), kind }
    }

    #[cold]
    fn truncated(&self) -> DecodeError {
        self.error(DecodeErrorKind::Truncated)
    }

    /// Moves a value into the arena.
    pub(crate) fn keep<T: Copy>(&self, value: T) -> Result<&'a T, DecodeError> {
        self.arena.value(value).map(|kept| &*kept).map_err(|error| self.placed(error))
    }

    /// Reads `count` elements into the arena. The caller has bounded `count`.
    pub(crate) fn keep_all<T: Copy>(
        &mut self,
        count: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<&'a mut [T], DecodeError> {
        // Borrowed for longer than `self`, which every element changes.
        let arena = self.arena;
        arena.slice_try_fill(count, |_| element(self)).map_err(|error: DecodeError| self.placed(error))
    }

    /// A slice in the arena with `count` times the same value. The caller has bounded `count`.
    pub(crate) fn keep_filled<T: Copy>(&self, count: usize, value: T) -> Result<&'a [T], DecodeError> {
        self.arena.slice_fill(count, value).map(|all| &*all).map_err(|error| self.placed(error))
    }

    /// An error of the arena, which knows no position.
    #[cold]
    fn placed(&self, error: DecodeError) -> DecodeError {
        match error.kind {
            DecodeErrorKind::ArenaFull => self.error(DecodeErrorKind::ArenaFull),
            _ => error,
        }
    }

    /// A count that the remaining bytes can hold, each element taking at least `min_size` bytes; elements without any bytes are
    /// bounded by the limits.
    pub(crate) fn bounded(&self, count: u64, min_size: usize) -> Result<usize, DecodeError> {
        let room = match min_size {
            0 => self.limits.max_out_elements,
            size => (self.remaining() / size) as u64,
        };
        if count > room {
            let kind = if min_size == 0 { DecodeErrorKind::OutBudget } else { DecodeErrorKind::Truncated };
            return Err(self.error(kind));
        }
        usize::try_from(count).map_err(|_| self.truncated())
    }

    /// Takes `count` elements of `size` bytes from the budget for results.
    pub(crate) fn spend(&mut self, count: u64, size: usize) -> Result<usize, DecodeError> {
        let bytes = count.checked_mul(size as u64);
        let left = bytes.and_then(|bytes| self.limits.out_budget.checked_sub(bytes));
        let Some(left) = left else { return Err(self.error(DecodeErrorKind::OutBudget)) };
        self.limits.out_budget = left;
        usize::try_from(count).map_err(|_| self.truncated())
    }
}

impl<'w> Writer<'w> {
    /// Writes into `window` from its start.
    pub fn window(window: &'w mut [u8]) -> Self {
        Self { sink: Sink::Window { window, at: 0 }, overflowed: false }
    }

    /// Bytes written so far.
    pub fn written(&self) -> usize {
        match &self.sink {
            Sink::Window { at, .. } => *at,
            Sink::Growing(bytes) => bytes.len(),
        }
    }

    /// Returns how many bytes were written, unless they did not fit.
    pub fn finish(self) -> Result<usize, Overflow> {
        match &self.sink {
            Sink::Window { window, .. } if self.overflowed => Err(Overflow { room: window.len() }),
            _ => Ok(self.written()),
        }
    }

    /// Appends bytes as they are.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        match &mut self.sink {
            Sink::Window { window, at } => {
                let end = at.saturating_add(bytes.len());
                match window.get_mut(*at..end) {
                    Some(target) if !self.overflowed => {
                        target.copy_from_slice(bytes);
                        *at = end;
                    }
                    _ => self.overflowed = true,
                }
            }
            Sink::Growing(buffer) => buffer.extend_from_slice(bytes),
        }
    }

    /// Appends a `u32`.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends a `u64`.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Appends bytes and zeros up to a multiple of 4.
    pub fn padded_bytes(&mut self, bytes: &[u8]) {
        self.raw(bytes);
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.raw(PADDING.get(..padding).unwrap_or_default());
    }
}

impl Writer<'static> {
    /// Writes into a buffer that grows.
    pub fn growing() -> Self {
        Self { sink: Sink::Growing(Vec::new()), overflowed: false }
    }

    /// The bytes of a growing writer.
    pub fn into_bytes(self) -> Vec<u8> {
        match self.sink {
            Sink::Growing(bytes) => bytes,
            Sink::Window { window, at } => window.get(..at).unwrap_or_default().to_vec(),
        }
    }
}

/// Longest chain that is ever accepted; bounds a buffer on the stack.
pub(crate) const MAX_CHAIN: usize = 128;

/// The bytes that a chunk of an arena takes beside the values in it: its footer, and the rounding of sizes and alignments.
const CHUNK_EXTRA: usize = 4096 + 512;

const ARENA_FULL: DecodeError = DecodeError { what: "arena", offset: 0, kind: DecodeErrorKind::ArenaFull };

const PADDING: [u8; 3] = [0; 3];
