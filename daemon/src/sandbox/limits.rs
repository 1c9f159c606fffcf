//! Limits on the resources of the system that one child may take (`getrlimit`). Device memory and pinned memory are counted elsewhere.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Open descriptors of a child: two for each of the 65 536 resources that a context may see.
pub(super) const DESCRIPTORS: u64 = 131_072;
/// Processes and threads of a child: rings, their helpers and the driver's. Counted in its own user namespace only.
pub(super) const THREADS: u64 = 2048;

/// Limits this process and the program that it executes. `counts_own` says that it is in a user namespace of its own; `data` is the number of bytes
/// of private memory that it may have, if bounded. Memory files do not count there.
pub(super) fn set(counts_own: bool, data: Option<u64>) -> io::Result<()> {
    let at_most = |resource, limit: u64| {
        let Rlimit { current, maximum } = getrlimit(resource);
        let lower = |present: Option<u64>| Some(present.map_or(limit, |present| present.min(limit)));
        setrlimit(resource, Rlimit { current: lower(current), maximum: lower(maximum) })
    };
    // A core file has the guest's memory, and a guest that can crash a driver could cause many.
    at_most(Resource::Core, 0)?;
    at_most(Resource::Nofile, DESCRIPTORS)?;
    at_most(Resource::Memlock, 0)?;
    at_most(Resource::Msgqueue, 0)?;
    at_most(Resource::Nice, 0)?;
    at_most(Resource::Rtprio, 0)?;
    if let Some(data) = data {
        at_most(Resource::Data, data)?;
    }
    if counts_own {
        at_most(Resource::Nproc, THREADS)?;
    }
    Ok(())
}
