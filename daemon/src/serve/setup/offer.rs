//! This file decides how large the guest's window is, and whether guests are offered the GPU's own memory to map where only mappings by the
//! driver make that possible.
//!
//! Programs that find such memory put everything into it and map all of it, as llama.cpp does with its weights. So the memory is offered only if
//! the window can hold all that the programs may have: a program whose map fails is worse off than one that never saw the memory.

use config::{DriverMapped, GpuChoice, MemoryBackEnd, WINDOW_MAX};
use outside::Bytes;
use std::fmt;

/// Bytes of the window for memory of the host, and of the whole window where guests map no memory of a GPU.
const HOST_PART: u64 = 8 << 30;

/// The cost of a window that is too small for the GPU's own memory that a VM may have, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Both sizes and the cost, in words.
    pub what: String,
    /// Options with sizes that are enough.
    pub remedy: String,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; remedy: {}", self.what, self.remedy)
    }
}

/// Returns the bytes of the window, `wanted` or as many as fit. Lets guests map the GPUs' own `device_memory` if `map_device_memory` says so
/// and the window holds all of it. If only the size of the window prevents that, returns advice that says what to change.
pub fn decide_window(
    gpus: &mut [GpuChoice],
    wanted: Option<u64>,
    map_device_memory: bool,
    device_memory: u64,
) -> (u64, Option<Advice>) {
    let window_size = wanted.unwrap_or_else(|| fitting_window(gpus, map_device_memory, device_memory));
    let exports = gpus.iter().any(|gpu| gpu.memory == MemoryBackEnd::DmaBuf);
    let short = match offer_mapped(gpus, map_device_memory, window_size, device_memory) {
        true => Some(small_window(window_size, device_memory)),
        false if exports && window_size < device_memory => {
            Some(small_for_exports(window_size, device_memory))
        }
        false => None,
    };
    (window_size, short)
}

/// Returns the advice for a window of `window_size` bytes that does not hold the GPU's own memory which a VM may have and could map.
#[must_use]
pub fn small_window(window_size: u64, device_memory: u64) -> Advice {
    let cost =
        ", so guests cannot map that memory, and programs with small inputs, such as llama.cpp, run slower";
    advice(window_size, device_memory, cost)
}

/// Returns such advice for a driver that exports the memory, where each program maps as much as it likes.
fn small_for_exports(window_size: u64, device_memory: u64) -> Advice {
    advice(window_size, device_memory, ": programs that map more of it than that together fail")
}

fn advice(window_size: u64, device_memory: u64, cost: &str) -> Advice {
    let what = format!(
        "the window of {} does not hold the {} of the GPU's own memory that the VM may have{cost}",
        Bytes(window_size),
        Bytes(device_memory)
    );
    Advice { what, remedy: needed(window_size, device_memory) }
}

/// Returns the cost of letting a VM have `wanted` bytes of the GPUs' own memory if the GPUs have fewer; none if they have as many.
#[must_use]
pub fn more_than_there_is(wanted: Option<u64>, device_memory: u64) -> Option<String> {
    let wanted = wanted.filter(|wanted| *wanted > device_memory)?;
    Some(format!(
        "--device-memory of {} is more than the {} that the VM's GPU has: it bounds nothing, so the VM can take all of it from others; remedy: a smaller --device-memory",
        Bytes(wanted),
        Bytes(device_memory)
    ))
}

/// Returns the bytes of a window that holds all of `device_memory` if guests can map that memory, and otherwise only memory of the host.
fn fitting_window(gpus: &[GpuChoice], map_device_memory: bool, device_memory: u64) -> u64 {
    let maps = |gpu: &GpuChoice| match gpu.memory {
        MemoryBackEnd::DmaBuf => true,
        MemoryBackEnd::Memfd => map_device_memory && gpu.trial.driver_mapped.types != 0,
    };
    let all = device_memory.checked_add(HOST_PART).and_then(u64::checked_next_power_of_two);
    all.filter(|bytes| *bytes <= WINDOW_MAX && gpus.iter().any(maps)).unwrap_or(HOST_PART)
}

/// Takes the offer back from all GPUs if it is not wanted, or if `window_size` is not larger than `device_memory`, in bytes. Returns whether
/// the size alone prevents it.
fn offer_mapped(gpus: &mut [GpuChoice], wanted: bool, window_size: u64, device_memory: u64) -> bool {
    let possible = gpus.iter().any(|gpu| gpu.trial.driver_mapped.types != 0);
    if wanted && window_size > device_memory {
        return false;
    }
    gpus.iter_mut().for_each(|gpu| gpu.trial.driver_mapped = DriverMapped::default());
    possible && wanted
}

fn needed(window_size: u64, device_memory: u64) -> String {
    let larger = device_memory.checked_add(1).and_then(u64::checked_next_power_of_two);
    let larger = larger.filter(|bytes| *bytes <= WINDOW_MAX);
    let larger = larger.map(|bytes| format!("--window-size {}GiB or ", bytes.div_ceil(1 << 30)));
    let less = (window_size - 1) >> 20;
    format!("{}--device-memory of at most {less}MiB", larger.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{MemoryTrial, Protection, Queues};

    const GIB: u64 = 1 << 30;

    fn choice(types: u32) -> GpuChoice {
        let driver_mapped = DriverMapped { types, device: 1 };
        GpuChoice {
            uuid: [0; 16],
            memory: MemoryBackEnd::Memfd,
            trial: MemoryTrial { mappable_types: 1, shareable: true, driver_mapped, exportable_types: 0 },
            queues: Queues::Compute,
            protection: Protection::default(),
        }
    }

    /// Returns whether the GPU's own memory can be mapped, and whether only the size of the window prevents that.
    fn offered(types: u32, wanted: bool, window: u64, memory: u64) -> (bool, bool) {
        let mut gpus = [choice(types)];
        let is_short = offer_mapped(&mut gpus, wanted, window, memory);
        (gpus[0].trial.driver_mapped.types != 0, is_short)
    }

    #[test]
    fn device_memory_is_mapped_if_the_window_holds_all_of_it() {
        assert_eq!(offered(4, true, 16 * GIB, 8 * GIB), (true, false));
        assert_eq!(offered(4, true, 8 * GIB, 8 * GIB), (false, true));
        assert_eq!(offered(4, false, 16 * GIB, 8 * GIB), (false, false));
        assert_eq!(offered(0, true, 8 * GIB, 80 * GIB), (false, false));
    }

    #[test]
    fn where_guests_could_map_but_for_the_window_the_advice_says_what_to_change() {
        let decided = |wanted| decide_window(&mut [choice(4)], wanted, true, 80 * GIB);
        assert_eq!(decided(None), (128 * GIB, None));
        let (window, advice) = decided(Some(GIB));
        let advice = advice.unwrap().to_string();
        assert_eq!(window, GIB);
        let figures = "the window of 1.0GiB does not hold the 80.0GiB of the GPU's own memory";
        assert!(advice.starts_with(figures) && advice.contains("run slower"), "{advice}");
        assert!(advice.contains("; remedy: --window-size 128GiB or "), "{advice}");
    }

    #[test]
    fn where_memory_is_exported_a_small_window_is_told_as_well() {
        let dma_buf = || GpuChoice { memory: MemoryBackEnd::DmaBuf, ..choice(0) };
        let advice = |wanted| decide_window(&mut [dma_buf()], wanted, true, 80 * GIB).1;
        assert_eq!((advice(None), advice(Some(128 * GIB))), (None, None));
        let said = advice(Some(8 * GIB)).unwrap().to_string();
        assert!(said.starts_with("the window of 8.0GiB does not hold the 80.0GiB "), "{said}");
        assert!(
            said.ends_with("; remedy: --window-size 128GiB or --device-memory of at most 8191MiB"),
            "{said}"
        );
    }

    #[test]
    fn a_bound_that_bounds_nothing_is_told_with_both_figures() {
        assert_eq!((more_than_there_is(None, GIB), more_than_there_is(Some(GIB), GIB)), (None, None));
        let said = more_than_there_is(Some(80 * GIB), 24 * GIB).unwrap();
        assert!(said.starts_with("--device-memory of 80.0GiB is more than the 24.0GiB that "), "{said}");
    }

    #[test]
    fn the_remedy_has_sizes_that_are_enough() {
        assert_eq!(needed(8 * GIB, 8 * GIB), "--window-size 16GiB or --device-memory of at most 8191MiB");
        assert_eq!(
            needed(64 * GIB, 141 * GIB),
            "--window-size 256GiB or --device-memory of at most 65535MiB"
        );
        assert_eq!(needed(256 * GIB, 300 * GIB), "--device-memory of at most 262143MiB");
        assert_eq!(needed(GIB, u64::MAX), "--device-memory of at most 1023MiB");
    }

    fn window(memory: MemoryBackEnd, types: u32, wanted: bool, device_memory: u64) -> u64 {
        fitting_window(&[GpuChoice { memory, ..choice(types) }], wanted, device_memory) / GIB
    }

    #[test]
    fn a_window_holds_the_gpus_memory_if_guests_can_map_it() {
        use MemoryBackEnd::{DmaBuf, Memfd};
        for (device, holds) in [(15, 32), (24, 32), (48, 64), (80, 128), (141, 256), (248, 256), (249, 8)] {
            assert_eq!(window(Memfd, 4, true, device * GIB), holds, "{device}");
            assert_eq!(window(DmaBuf, 0, false, device * GIB), holds, "{device}");
        }
        assert_eq!(window(Memfd, 4, false, 80 * GIB), 8);
        assert_eq!(window(Memfd, 0, true, 80 * GIB), 8);
        assert_eq!(window(Memfd, 4, true, u64::MAX), 8);
    }
}
