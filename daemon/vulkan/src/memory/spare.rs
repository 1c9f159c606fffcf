//! Memory that GPUs have to spare, as their drivers say (`VK_EXT_memory_budget`).

use crate::backing::memory::Memory;
use crate::driver::physical_device::PhysicalDevice;
use crate::objects::object::Object;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The number of bytes that have to be free for each byte that is wanted. The rest is for successors that prepare themselves at the same time, for other
/// programs, and for what this program allocates meanwhile.
const FREE_FOR_EACH: u64 = 4;

/// The memory that is wanted for a while, beside the memory of programs.
#[derive(Default)]
pub(crate) struct Wanted {
    /// Bytes of each heap, which is known by the indices of its GPU and of itself.
    heaps: FxHashMap<(usize, u32), (Arc<PhysicalDevice>, u64)>,
}

impl Wanted {
    /// Adds the size of this allocation to the wanted bytes of its heap. The allocation can be filled (`refill::is_possible`).
    pub(crate) fn add(&mut self, object: &Object, memory: &Memory) {
        let (Some(device), Some(key)) = (&object.device, &memory.key) else { return };
        let physical = &device.physical;
        let Some(of_type) = physical.memory.memory_types.get(key.type_index as usize) else { return };
        let new = || (Arc::clone(physical), 0);
        let (_, bytes) = self.heaps.entry((physical.index, of_type.heap_index)).or_insert_with(new);
        *bytes = bytes.saturating_add(memory.size());
    }

    /// Returns whether the GPUs have all wanted memory to spare. A GPU whose driver does not tell its free memory has none to spare.
    pub(crate) fn is_to_spare(&self) -> bool {
        self.heaps.iter().all(|((_, heap), (physical, bytes))| {
            let free = physical.free_memory(*heap).unwrap_or(0);
            bytes.checked_mul(FREE_FOR_EACH).is_some_and(|needed| needed <= free)
        })
    }
}
