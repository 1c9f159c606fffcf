//! Decides whether guests are offered the GPU's own memory to map, where only the driver's own mappings make that possible.
//!
//! Programs that find such memory put everything into it and map all of it, as llama.cpp does with its weights. So it is offered only if
//! the window can hold all that they may have: a program whose map fails is worse off than one that never saw the memory.

use config::{DriverMapped, GpuChoice};

/// Takes the offer back from all GPUs if it is not wanted, or if `window_size` is not larger than `device_memory`, in bytes. Answers what
/// would have to change for it, if anything.
pub fn offer_mapped(
    gpus: &mut [GpuChoice],
    wanted: bool,
    window_size: u64,
    device_memory: Option<u64>,
) -> Option<String> {
    let possible = gpus.iter().any(|gpu| gpu.trial.driver_mapped.types != 0);
    let fits = device_memory.is_some_and(|bytes| window_size > bytes);
    if wanted && fits {
        return None;
    }
    gpus.iter_mut().for_each(|gpu| gpu.trial.driver_mapped = DriverMapped::default());
    let needed = match device_memory {
        None => "--device-memory, and a --window-size larger than that".to_owned(),
        Some(_) => "a --window-size larger than --device-memory".to_owned(),
    };
    (possible && wanted).then_some(needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{MemoryBackEnd, MemoryTrial, Protection, Queues};

    const GIB: u64 = 1 << 30;

    fn offered(types: u32, wanted: bool, window: u64, memory: Option<u64>) -> (bool, Option<String>) {
        let driver_mapped = DriverMapped { types, device: 1 };
        let mut gpus = [GpuChoice {
            uuid: [0; 16],
            memory: MemoryBackEnd::Memfd,
            trial: MemoryTrial { mappable_types: 1, shareable: true, driver_mapped },
            queues: Queues::Compute,
            protection: Protection::default(),
        }];
        let needed = offer_mapped(&mut gpus, wanted, window, memory);
        (gpus[0].trial.driver_mapped.types != 0, needed)
    }

    #[test]
    fn device_memory_is_mapped_if_the_window_holds_all_of_it() {
        assert_eq!(offered(4, true, 16 * GIB, Some(8 * GIB)), (true, None));
        assert_eq!(offered(4, false, 16 * GIB, Some(8 * GIB)), (false, None));
        let (offered_it, needed) = offered(4, true, 8 * GIB, Some(8 * GIB));
        assert!(!offered_it && needed.unwrap().starts_with("a --window-size"));
        let (offered_it, needed) = offered(4, true, 256 * GIB, None);
        assert!(!offered_it && needed.unwrap().starts_with("--device-memory"));
        assert_eq!(offered(0, true, 8 * GIB, None), (false, None));
    }
}
