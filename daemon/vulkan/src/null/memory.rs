//! Memory of the null driver that has contents, for tests: buffers are bound to it, and copies between buffers are done when they are recorded.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::addresses::for_each;
use super::exports::{assert_bindable, in_truth};
use super::state::{self, Kind};
use ash::vk;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ffi::c_void;
use std::sync::LazyLock;

#[derive(Default)]
struct State {
    /// The addresses of pages that were imported, by memory.
    imported: FxHashMap<u64, usize>,
    /// Bytes of other memory that are not zero, by memory and place.
    bytes: FxHashMap<(u64, u64), u8>,
    /// The memory of buffers, and their place in it.
    bound: FxHashMap<u64, (u64, u64)>,
    /// The number of fills that were recorded.
    fills: usize,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

impl State {
    fn get(&self, memory: u64, at: u64) -> u8 {
        let memory = in_truth(memory);
        match self.imported.get(&memory) {
            // SAFETY: pages stay mapped for as long as they are imported, and tests copy what is inside.
            Some(start) => unsafe { *((start + at as usize) as *const u8) },
            None => self.bytes.get(&(memory, at)).copied().unwrap_or(0),
        }
    }

    fn set(&mut self, memory: u64, at: u64, byte: u8) {
        let memory = in_truth(memory);
        match self.imported.get(&memory) {
            // SAFETY: as above.
            Some(start) => unsafe { *((start + at as usize) as *mut u8) = byte },
            None => drop(self.bytes.insert((memory, at), byte)),
        }
    }
}

/// Returns these bytes of an allocation.
pub(crate) fn contents(memory: u64, start: u64, size: u64) -> Vec<u8> {
    let state = STATE.lock();
    (start..start + size).map(|at| state.get(memory, at)).collect()
}

/// Returns the number of fills that were recorded.
pub(crate) fn fills() -> usize {
    STATE.lock().fills
}

/// Forgets everything: handles are given out anew.
pub(super) fn forget() {
    *STATE.lock() = State::default();
}

/// Notes the pages that an allocation imports, if its description names some.
pub(super) fn allocated(memory: u64, info: &vk::MemoryAllocateInfo<'_>) {
    let look = |s_type, at: *const c_void| {
        if s_type == vk::StructureType::IMPORT_MEMORY_HOST_POINTER_INFO_EXT {
            // SAFETY: its type says so.
            let import = unsafe { &*at.cast::<vk::ImportMemoryHostPointerInfoEXT<'_>>() };
            STATE.lock().imported.insert(memory, import.p_host_pointer.addr());
        }
    };
    // SAFETY: callers pass a chain.
    unsafe { for_each(info.p_next, look) };
}

pub(super) fn freed(memory: u64) {
    STATE.lock().imported.remove(&memory);
}

pub(super) unsafe extern "system" fn bind(device: u64, buffer: u64, memory: u64, offset: u64) -> i32 {
    state::assert_of(device, buffer, Kind::Buffer);
    state::assert_of(device, memory, Kind::Memory);
    assert_bindable(buffer, memory);
    STATE.lock().bound.insert(buffer, (memory, offset));
    0
}

pub(super) extern "system" fn fill(command_buffer: u64, buffer: u64, _offset: u64, _size: u64, _data: u32) {
    state::assert_of(command_buffer, buffer, Kind::Buffer);
    STATE.lock().fills += 1;
}

pub(super) unsafe extern "system" fn copy(
    command_buffer: u64,
    from: u64,
    to: u64,
    count: u32,
    regions: *const vk::BufferCopy,
) {
    state::assert_of(command_buffer, from, Kind::Buffer);
    state::assert_of(command_buffer, to, Kind::Buffer);
    let mut state = STATE.lock();
    let (Some(from), Some(to)) = (state.bound.get(&from).copied(), state.bound.get(&to).copied()) else {
        return;
    };
    // SAFETY: callers pass so many regions.
    for region in unsafe { std::slice::from_raw_parts(regions, count as usize) } {
        for at in 0..region.size {
            let byte = state.get(from.0, from.1 + region.src_offset + at);
            state.set(to.0, to.1 + region.dst_offset + at, byte);
        }
    }
}
