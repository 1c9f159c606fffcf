//! Entry point for fuzzing requests: hostile bytes in, and a panic only where there is a bug.

use super::{Command, CommandLimits, Header};

/// Limits that are small enough for a fuzzer to reach them.
const LIMITS: CommandLimits = CommandLimits { backing_entries: 16, submit_bytes: 256 };

/// A request keeps to the limits and is the same after encoding and decoding it again. Returns the number of requests: 0 or 1.
pub fn fuzz_command(bytes: &[u8]) -> usize {
    let Some(header) = Header::decode(bytes) else { return 0 };
    let Ok(command) = Command::decode(&header, bytes, &LIMITS) else { return 0 };
    match command {
        Command::Submit3d { data } => assert!(data.len() <= LIMITS.submit_bytes as usize),
        Command::ResourceAttachBacking { entries, .. } | Command::ResourceCreateBlob { entries, .. } => {
            assert!(entries.len() <= LIMITS.backing_entries as usize);
        }
        _ => {}
    }
    let mut written = Vec::new();
    command.encode(header.context(), header.fence(), &mut written);
    let same_header = Header::decode(&written).expect("encoded headers decode");
    assert_eq!((same_header.context(), same_header.fence()), (header.context(), header.fence()));
    let same = Command::decode(&same_header, &written, &LIMITS).expect("encoded commands decode");
    assert_eq!(same, command);
    1
}
