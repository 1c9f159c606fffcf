//! Runtime of the generated lowering and raising.
//!
//! Everything a driver call points to is allocated from the command's arena or borrowed from the command itself, so it lives
//! until the command is done. Memory the driver writes is always a fresh, initialised allocation of the arena.
//!
//! Invariant behind the `unsafe` blocks: a C struct with an `s_type` was written by [`Lowering::linked`] or
//! [`Lowering::out_pointer`] from the value it is raised against, and drivers never change `s_type` or `p_next`.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::generated::{lower_chain_struct, raise_chain_struct};
use super::handle_types;
use crate::context::cause::Cause;
use crate::context::error::Fault;
use crate::driver::families::FamilyOrder;
use crate::driver::header::Header;
use crate::logical::device::Device;
use crate::objects::object::Handle;
use crate::objects::origin::may_leave;
use crate::objects::reading::Reading;
use crate::objects::usage::Uses;
use config::MemoryBackEnd;
use protocol::cursor::Arena;
use protocol::venus::chain::Chain;
use protocol::venus::generated::{ChainStruct, ObjectType};
use protocol::venus::wire::Enumeration;
use std::ffi::{CStr, c_char, c_void};
use std::mem::discriminant;
use std::ptr;
use std::sync::Arc;

/// A decoded value that has a C form.
pub(crate) trait Lower {
    /// The C form.
    type Sys: Copy;
    /// Makes the C form; ids become the host's handles.
    fn lower(&self, l: &Lowering<'_>) -> Result<Self::Sys, Fault>;
}

/// A value the driver writes: `self` is the request's description of it (chain, lengths), `sys` the driver's answer.
pub(crate) trait Raise<'a>: Lower + Copy {
    /// Makes the value for the reply.
    fn raise(&self, sys: &Self::Sys, arena: &'a Arena) -> Result<Self, Fault>;
}

/// The means of lowering a command: the object table, locked for reading, and the command's arena.
pub(crate) struct Lowering<'l> {
    pub objects: Reading<'l>,
    pub arena: &'l Arena,
    /// The memory back end, which decides the host's handle type for the guest's dma-bufs.
    pub memory: MemoryBackEnd,
    /// The device that handles must belong to, if there is one.
    pub owner: Option<*const Device>,
    /// The order of the device's queue families, which gives the host's number of each.
    pub families: FamilyOrder,
    /// The uses that collect the objects that the command names, for its recording or for what it creates; none if the caller needs none.
    pub uses: Option<&'l Uses>,
}

impl Lowering<'_> {
    /// Returns the host's handle; `VK_NULL_HANDLE` stays null.
    #[inline]
    pub(crate) fn handle<H: Handle>(&self, handle: H) -> Result<u64, Fault> {
        if handle.id() == 0 {
            return Ok(0);
        }
        let object = self.objects.get(handle)?;
        if let Some(owner) = self.owner
            && let Some(device) = &object.device
            && Arc::as_ptr(device) != owner
        {
            return Err(Fault::invalid("an object of another device"));
        }
        if may_leave(H::KIND)
            && let Some(uses) = self.uses
        {
            uses.add(&object.usage);
            if matches!(H::KIND, ObjectType::EVENT | ObjectType::QUERY_POOL) {
                uses.set_heard();
            }
        }
        Ok(object.raw)
    }

    /// Host handles in an array of their own.
    pub(crate) fn handles<H: Handle>(&self, handles: Option<&[H]>) -> Result<*const u64, Fault> {
        let Some(handles) = handles else { return Ok(ptr::null()) };
        let raw = self.arena.slice_try_fill(handles.len(), |i| self.handle(handles[i]))?;
        Ok(raw.as_ptr())
    }

    /// Host handles in a fixed array.
    pub(crate) fn fixed_handles<H: Handle, const N: usize>(
        &self,
        handles: &[H; N],
    ) -> Result<[u64; N], Fault> {
        let mut raw = [0; N];
        for (slot, handle) in raw.iter_mut().zip(handles) {
            *slot = self.handle(*handle)?;
        }
        Ok(raw)
    }

    /// Returns the host's number of a queue family.
    pub(crate) fn family(&self, family: u32) -> u32 {
        self.families.swap(family)
    }

    /// Returns the host's numbers of queue families.
    pub(crate) fn families(&self, families: Option<&[u32]>) -> Result<*const u32, Fault> {
        if self.families.is_host() {
            return Ok(self.plain_array(families));
        }
        self.mapped(families, |family| self.family(family))
    }

    /// Structs in a fixed array.
    pub(crate) fn fixed<T: Lower, const N: usize>(&self, values: &[T; N]) -> Result<[T::Sys; N], Fault> {
        let lowered = values.iter().map(|v| v.lower(self)).collect::<Result<Vec<_>, _>>()?;
        lowered.try_into().map_err(|_| Cause::Daemon("a fixed array changed its length").into())
    }

    /// A struct behind a pointer the driver reads.
    #[inline]
    pub(crate) fn pointer<T: Lower>(&self, value: Option<&T>) -> Result<*const T::Sys, Fault> {
        Ok(self.out_pointer(value)?.cast_const())
    }

    /// A struct behind a pointer the driver writes.
    pub(crate) fn out_pointer<T: Lower>(&self, value: Option<&T>) -> Result<*mut T::Sys, Fault> {
        let Some(value) = value else { return Ok(ptr::null_mut()) };
        Ok(ptr::from_mut(self.arena.value(value.lower(self)?)?))
    }

    /// Structs the driver reads.
    pub(crate) fn array<T: Lower>(&self, values: Option<&[T]>) -> Result<*const T::Sys, Fault> {
        Ok(self.out_array(values)?.cast_const())
    }

    /// Structs the driver writes.
    pub(crate) fn out_array<T: Lower>(&self, values: Option<&[T]>) -> Result<*mut T::Sys, Fault> {
        let Some(values) = values else { return Ok(ptr::null_mut()) };
        Ok(self.arena.slice_try_fill(values.len(), |i| values[i].lower(self))?.as_mut_ptr())
    }

    /// A number the driver reads, where it lies.
    pub(crate) fn plain_pointer<T: Copy>(&self, value: Option<&T>) -> *const T {
        value.map_or(ptr::null(), ptr::from_ref)
    }

    /// Numbers or bytes the driver reads, where they lie.
    pub(crate) fn plain_array<T: Copy>(&self, values: Option<&[T]>) -> *const T {
        values.map_or(ptr::null(), <[T]>::as_ptr)
    }

    /// Numbers or bytes the driver writes.
    pub(crate) fn writable_array<T: Copy>(&self, values: Option<&[T]>) -> Result<*mut T, Fault> {
        let Some(values) = values else { return Ok(ptr::null_mut()) };
        Ok(self.arena.slice_copy(values)?.as_mut_ptr())
    }

    /// Converted numbers in an array of their own.
    pub(crate) fn mapped<T: Copy, U: Copy>(
        &self,
        values: Option<&[T]>,
        map: impl Fn(T) -> U,
    ) -> Result<*const U, Fault> {
        let Some(values) = values else { return Ok(ptr::null()) };
        Ok(self.arena.slice_try_fill(values.len(), |i| Ok::<_, Fault>(map(values[i])))?.as_ptr())
    }

    /// Enumerations in an array of their own.
    pub(crate) fn known_array<T: Enumeration>(&self, values: Option<&[T]>) -> Result<*const i32, Fault> {
        let Some(values) = values else { return Ok(ptr::null()) };
        Ok(self.arena.slice_try_fill(values.len(), |i| known(values[i]))?.as_ptr())
    }

    /// An array of strings.
    pub(crate) fn strings(&self, values: Option<&[&CStr]>) -> Result<*const *const c_char, Fault> {
        self.mapped(values, CStr::as_ptr)
    }

    /// A chain in C form, in the same order.
    ///
    /// # Errors
    ///
    /// A struct is in the chain twice: a driver may use the one that was not checked.
    pub(crate) fn chain(&self, chain: Chain<'_>) -> Result<*const c_void, Fault> {
        if has_repetition(chain) {
            return Err(Fault::invalid("a chain holds a struct twice"));
        }
        chain.iter().rev().try_fold(ptr::null(), |rest, next| {
            handle_types::link(next, rest, self).unwrap_or_else(|| lower_chain_struct(next, rest, self))
        })
    }

    /// One struct of a chain in front of the rest.
    pub(crate) fn linked<T: Lower>(&self, value: &T, rest: *const c_void) -> Result<*const c_void, Fault> {
        let sys = self.out_pointer(Some(value))?.cast::<Header>();
        // SAFETY: only structs that start with a `Header` are chained, and this one was just allocated and is not shared.
        unsafe { (*sys).p_next = rest };
        Ok(sys.cast_const().cast())
    }
}

/// Returns whether a chain has a struct twice that may be in it once (Vulkan 3.7.4, "Valid Usage for Structure Pointer Chains").
fn has_repetition(chain: Chain<'_>) -> bool {
    let repeated = |(at, next): (usize, &ChainStruct<'_>)| {
        let same = |earlier: &ChainStruct<'_>| discriminant(earlier) == discriminant(next);
        !matches!(next, ChainStruct::DevicePrivateDataCreateInfo(_)) && chain[..at].iter().any(same)
    };
    chain.iter().enumerate().any(repeated)
}

/// Returns the number of a value that the registry names. Drivers look such values up in tables, and not all tables have a place for other values.
pub(crate) fn known<T: Enumeration>(value: T) -> Result<i32, Fault> {
    match value.is_known() {
        true => Ok(value.number()),
        false => Err(Fault::invalid("a value outside its enumeration")),
    }
}

/// Returns the numbers of values in a fixed array.
pub(crate) fn known_fixed<T: Enumeration, const N: usize>(values: [T; N]) -> Result<[i32; N], Fault> {
    let mut numbers = [0; N];
    for (slot, value) in numbers.iter_mut().zip(values) {
        *slot = known(value)?;
    }
    Ok(numbers)
}

/// Raises a chain from where it was lowered to.
pub(crate) fn raise_chain<'a>(
    chain: Chain<'a>,
    first: *const c_void,
    arena: &'a Arena,
) -> Result<Chain<'a>, Fault> {
    let mut at = first;
    let raised = arena.slice_try_fill(chain.len(), |i| {
        if at.is_null() {
            return Err(Fault::from(Cause::Daemon("a chain lost its end")));
        }
        let next = raise_chain_struct(&chain[i], at, arena)?;
        // SAFETY: `at` is not null and was written by `linked`, which only links structs that start with a `Header`.
        at = unsafe { (*at.cast::<Header>()).p_next };
        Ok(next)
    })?;
    Ok(raised)
}

/// Raises one chain struct.
pub(crate) fn raise_linked<'a, T: Raise<'a>>(
    value: &T,
    sys: *const c_void,
    arena: &'a Arena,
) -> Result<&'a T, Fault> {
    // SAFETY: `sys` was lowered from this very value by `linked`, so it is a valid `T::Sys`; the driver call is over.
    let raised = value.raise(unsafe { &*sys.cast::<T::Sys>() }, arena)?;
    Ok(arena.value(raised)?)
}

/// Raises a struct behind a pointer.
pub(crate) fn raise_pointer<'a, T: Raise<'a>>(
    value: Option<&T>,
    sys: *mut T::Sys,
    arena: &'a Arena,
) -> Result<Option<&'a T>, Fault> {
    let Some(value) = value else { return Ok(None) };
    // SAFETY: `sys` was made by `out_pointer` from this value and is not null then; the driver call is over.
    let raised = value.raise(unsafe { &*sys }, arena)?;
    Ok(Some(arena.value(raised)?))
}

/// Raises a number behind a pointer.
pub(crate) fn raise_value<'a, T: Copy, U: Copy>(
    value: Option<&T>,
    sys: *mut U,
    map: impl FnOnce(U) -> T,
    arena: &'a Arena,
) -> Result<Option<&'a T>, Fault> {
    if value.is_none() {
        return Ok(None);
    }
    // SAFETY: `sys` was made from this value, which is there, so it is valid; the driver call is over.
    let raised = map(unsafe { *sys });
    Ok(Some(arena.value(raised)?))
}

/// Returns the count behind a pointer, or no bound where none was passed.
pub(crate) fn read_count<T: Copy + TryInto<usize>>(count: *mut T) -> usize {
    if count.is_null() {
        return usize::MAX;
    }
    // SAFETY: not null, hence made by lowering a count that is there; the driver call is over.
    unsafe { *count }.try_into().unwrap_or(usize::MAX)
}

/// Raises at most `count` structs of an array.
pub(crate) fn raise_array<'a, T: Raise<'a>>(
    values: Option<&[T]>,
    sys: *const T::Sys,
    count: usize,
    arena: &'a Arena,
) -> Result<Option<&'a [T]>, Fault> {
    let Some(values) = values else { return Ok(None) };
    let sys = filled(values, sys, count);
    Ok(Some(arena.slice_try_fill(sys.len(), |i| values[i].raise(&sys[i], arena))?))
}

/// Raises a fixed array of structs.
pub(crate) fn raise_fixed<'a, T: Raise<'a>, const N: usize>(
    values: &[T; N],
    sys: &[T::Sys; N],
    arena: &'a Arena,
) -> Result<[T; N], Fault> {
    let mut raised = *values;
    for ((slot, value), sys) in raised.iter_mut().zip(values).zip(sys) {
        *slot = value.raise(sys, arena)?;
    }
    Ok(raised)
}

/// Raises at most `count` numbers of an array.
pub(crate) fn raise_plain<'a, T: Copy>(
    values: Option<&[T]>,
    sys: *const T,
    count: usize,
    arena: &'a Arena,
) -> Result<Option<&'a [T]>, Fault> {
    let Some(values) = values else { return Ok(None) };
    Ok(Some(arena.slice_copy(filled(values, sys, count))?))
}

/// Raises at most `count` numbers of an array into their types.
pub(crate) fn raise_mapped<'a, T: Copy, U: Copy>(
    values: Option<&[T]>,
    sys: *const U,
    count: usize,
    map: impl Fn(U) -> T,
    arena: &'a Arena,
) -> Result<Option<&'a [T]>, Fault> {
    let Some(values) = values else { return Ok(None) };
    let sys = filled(values, sys, count);
    Ok(Some(arena.slice_try_fill(sys.len(), |i| Ok::<_, Fault>(map(sys[i])))?))
}

/// Returns at most `count` elements of the array that was made from `values` for the driver.
fn filled<'s, T, U>(values: &[T], sys: *const U, count: usize) -> &'s [U] {
    // SAFETY: lowering made `sys` from these values, so it has as many elements, in the command's arena; the driver call is over.
    let all = unsafe { std::slice::from_raw_parts(sys, values.len()) };
    &all[..count.min(values.len())]
}
