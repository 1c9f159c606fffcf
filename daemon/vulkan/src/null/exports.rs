//! Memory of the null driver that is given to other contexts, for tests: an import of a descriptor yields the same memory. The driver panics if a
//! buffer that has not declared this is bound to such memory, and if a descriptor is not its own.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::addresses::for_each;
use super::state::{self, Kind};
use ash::vk;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::fstat;
use std::ffi::c_int;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::sync::LazyLock;

const OPAQUE_FD: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

#[derive(Default)]
struct State {
    /// Memory that was made to be exported.
    exportable: FxHashSet<u64>,
    /// The memory of each descriptor, by its file.
    files: FxHashMap<u64, u64>,
    /// The original of imported memory.
    imported: FxHashMap<u64, u64>,
    /// Buffers that have declared that they may be bound to such memory.
    buffers: FxHashSet<u64>,
    /// True if no descriptor is made.
    refuses: bool,
    /// The number of coming allocations that find no memory.
    scarce: u32,
    /// The bytes of each heap that the driver reports as free.
    spare: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

/// Forgets everything: handles are given out anew.
pub(super) fn forget() {
    *STATE.lock() = State::default();
}

/// The original of this memory.
pub(super) fn in_truth(memory: u64) -> u64 {
    STATE.lock().imported.get(&memory).copied().unwrap_or(memory)
}

/// The number of allocations that were made of descriptors and not freed.
pub(crate) fn imports() -> usize {
    STATE.lock().imported.len()
}

/// Makes descriptors from now on, or none.
pub(crate) fn refuse_exports(refuses: bool) {
    STATE.lock().refuses = refuses;
}

/// Makes this many of the next allocations find no memory.
pub(crate) fn be_scarce(allocations: u32) {
    STATE.lock().scarce = allocations;
}

/// Makes the driver report from now on that so many bytes of each heap are free.
pub(crate) fn have_to_spare(bytes: u64) {
    STATE.lock().spare = bytes;
}

/// `vkGetPhysicalDeviceMemoryProperties2`: answers only how much memory is free.
pub(super) unsafe extern "system" fn memory2(
    gpu: u64,
    memory: *mut vk::PhysicalDeviceMemoryProperties2<'static>,
) {
    state::assert_live(gpu, Some(Kind::PhysicalDevice as u8));
    // SAFETY: callers pass a chain that may be written to, and types say which structs are in it.
    unsafe {
        for_each((*memory).p_next, |s_type, at| {
            if s_type == vk::StructureType::PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT {
                let budget = at.cast_mut().cast::<vk::PhysicalDeviceMemoryBudgetPropertiesEXT<'_>>();
                (*budget).heap_budget.fill(STATE.lock().spare);
            }
        });
    }
}

/// Returns whether an allocation finds memory.
pub(super) fn finds_memory() -> bool {
    let scarce = &mut STATE.lock().scarce;
    std::mem::replace(scarce, scarce.saturating_sub(1)) == 0
}

/// Notes whether memory can be exported or is imported, as its description says.
pub(super) fn allocated(memory: u64, info: &vk::MemoryAllocateInfo<'_>) {
    // SAFETY: callers pass a chain, and types say what is in it.
    unsafe {
        for_each(info.p_next, |s_type, at| match s_type {
            vk::StructureType::EXPORT_MEMORY_ALLOCATE_INFO => {
                let export = &*at.cast::<vk::ExportMemoryAllocateInfo<'_>>();
                assert!(export.handle_types == OPAQUE_FD);
                STATE.lock().exportable.insert(memory);
            }
            vk::StructureType::IMPORT_MEMORY_FD_INFO_KHR => {
                import(memory, OwnedFd::from_raw_fd((*at.cast::<vk::ImportMemoryFdInfoKHR<'_>>()).fd));
            }
            _ => {}
        });
    }
}

fn import(memory: u64, file: OwnedFd) {
    let mut state = STATE.lock();
    let of = fstat(&file).ok().and_then(|stat| state.files.get(&stat.st_ino).copied());
    state.imported.insert(memory, of.expect("a descriptor of this driver"));
}

pub(super) fn freed(memory: u64) {
    let mut state = STATE.lock();
    state.exportable.remove(&memory);
    state.imported.remove(&memory);
}

/// Takes note of a buffer.
pub(super) fn buffer_made(buffer: u64, info: &vk::BufferCreateInfo<'_>) {
    // SAFETY: callers pass a chain, and types say what is in it.
    unsafe {
        for_each(info.p_next, |s_type, at| {
            if s_type == vk::StructureType::EXTERNAL_MEMORY_BUFFER_CREATE_INFO
                && (*at.cast::<vk::ExternalMemoryBufferCreateInfo<'_>>()).handle_types == OPAQUE_FD
            {
                STATE.lock().buffers.insert(buffer);
            }
        });
    }
}

/// Demands that a buffer may be bound to memory.
pub(super) fn assert_bindable(buffer: u64, memory: u64) {
    let state = STATE.lock();
    let is_shared = state.exportable.contains(&memory) || state.imported.contains_key(&memory);
    assert!(!is_shared || state.buffers.contains(&buffer), "a buffer that has not said where it is bound");
}

/// `vkGetMemoryFdKHR`.
pub(super) unsafe extern "system" fn get_memory_fd(
    device: u64,
    info: *const vk::MemoryGetFdInfoKHR<'static>,
    out: *mut c_int,
) -> i32 {
    // SAFETY: callers pass a description.
    let memory = vk::Handle::as_raw(unsafe { (*info).memory });
    state::assert_of(device, memory, Kind::Memory);
    let mut state = STATE.lock();
    assert!(state.exportable.contains(&memory), "memory that was not made to be exported");
    if state.refuses {
        return vk::Result::ERROR_TOO_MANY_OBJECTS.as_raw();
    }
    let file = shm::create("null-memory", 4096).expect("there is memory");
    state.files.insert(fstat(&file).expect("it is open").st_ino, memory);
    // SAFETY: callers pass a place for it.
    unsafe { out.write(file.into_raw_fd()) };
    0
}
