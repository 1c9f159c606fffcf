//! Attacks of a worker under an attacker's control, with the descriptors that it shares with other processes. Only root may take copies of them.

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Copies of a process's counters (`eventfd`): its doorbell is among them.
pub fn counters(process: Pid) -> Result<Vec<OwnedFd>> {
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero()))? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|link| link == Path::new("anon_inode:[eventfd]")) {
            let number = path.file_name().and_then(|name| name.to_str()).context("a number")?.parse()?;
            found.push(pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty())?);
        }
    }
    Ok(found)
}

/// Rings, and resets the doorbell before the process that was woken can read it; its read then blocks.
pub fn ring_and_take_back(doorbells: &[OwnedFd]) {
    for doorbell in doorbells {
        let _ = rustix::fs::fcntl_setfl(doorbell, OFlags::empty());
        let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
        let mut count = [0; 8];
        let _ = preadv2(doorbell, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT);
    }
}

/// A copy of the descriptor to which a process prints.
pub fn printing_end(process: Pid) -> Result<OwnedFd> {
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    Ok(pidfd_getfd(&pidfd, 2, PidfdGetfdFlags::empty())?)
}
