//! This file admits contexts that are to be swapped out, if the host's memory has room for their contents.

use super::failure::Failure;
use outside::{Bytes, HostMemory};

/// Admits a context that is to be swapped out, whose contents take at most `bytes` bytes of the host's memory. `going` is the number of bytes of
/// contexts that are being swapped out: a part of these may be in the host's memory already, so that part may count twice for a while.
///
/// There may be less room a moment later, as any program can take it. The worker that gets the contents checks again while they arrive.
///
/// # Errors
///
/// There is no room, and the kernel would kill programs of the host. The failure passes by itself if there is room for this context alone.
pub(in crate::serve) fn admit(memory: &HostMemory, bytes: u64, going: u64) -> Result<(), Failure> {
    let room = memory.room().unwrap_or(u64::MAX);
    if bytes == 0 || bytes.saturating_add(going) <= room {
        return Ok(());
    }
    if bytes <= room {
        return Err(Failure::for_now(
            "other programs of its VM are being swapped out to the host's memory: try again in a moment",
        ));
    }
    let reason = format!(
        "its contents take up to {} of the host's memory, where there is room for {}: give its VM less device-memory or host-memory, or stop other \
         programs of the host",
        Bytes(bytes),
        Bytes(room)
    );
    Err(Failure::until_mended(reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::handover::failure::Lasts;
    use crate::serve::swaps_tests::host_memory;

    const GIB: u64 = 1 << 30;

    #[test]
    fn contents_have_to_fit_beside_everything_else() {
        let memory = host_memory("MemAvailable:    1310720 kB\n");
        admit(&memory, GIB, 0).unwrap();
        let refused = admit(&memory, 3 * GIB / 2, 0).unwrap_err();
        assert!(
            refused.reason.starts_with(
                "its contents take up to 1.5GiB of the host's memory, where there is room for 1.0GiB"
            ),
            "{refused:?}"
        );
        assert_eq!(refused.lasts, Lasts::UntilMended);
        assert_eq!(admit(&memory, GIB, 1).unwrap_err().lasts, Lasts::ForNow, "others are on their way");
        admit(&host_memory("MemAvailable: 0 kB\n"), 0, GIB).unwrap();
    }

    #[test]
    fn memory_that_cannot_be_seen_refuses_nothing() {
        admit(&HostMemory::default(), 1 << 60, u64::MAX).unwrap();
    }
}
