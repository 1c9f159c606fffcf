//! Descriptors that keep the memory of a driver alive when its process is gone.
//!
//! A kernel's driver frees the memory of a process when the last holder of its control node's descriptors closes them. Mappings of it elsewhere would
//! then show the memory of another process, so a process that maps it gets these descriptors first. This file finds them without the driver: of the
//! driver's devices that are open in this process and that no memory is mapped out of, the control node has the highest number.

#![allow(unsafe_code, reason = "looks at descriptors of the driver")]

use config::ANCHORS_MAX;
use rustix::fs::minor;
use rustix::io::fcntl_dupfd_cloexec;
use shm::{device_node, is_anchor};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// The bound of the descriptor numbers that are tried if the system does not list a process's descriptors.
const NUMBERS_MAX: RawFd = 4096;

/// The reason why the anchors of a driver's memory are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnchors {
    /// No descriptor of the driver is open.
    #[error("nothing keeps the driver's memory alive")]
    None,
    /// This many descriptors are open, which are more than [`ANCHORS_MAX`].
    #[error(
        "limit anchors ({ANCHORS_MAX}) reached: {0} descriptors keep the driver's memory alive; it is fixed"
    )]
    TooMany(usize),
}

/// Copies of the anchors among the descriptors of this process, for memory that is mapped out of `mapped` (`st_rdev` of each device).
///
/// # Errors
///
/// There are no anchors, or more than [`ANCHORS_MAX`].
pub(crate) fn anchors(mapped: &[u64]) -> Result<Vec<OwnedFd>, NoAnchors> {
    anchors_among(numbers(), mapped)
}

fn anchors_among(numbers: Vec<RawFd>, mapped: &[u64]) -> Result<Vec<OwnedFd>, NoAnchors> {
    let open = numbers.into_iter().filter_map(|number| Some((number, device_of(number)?)));
    let open: Vec<_> = open.filter(|(_, device)| is_anchor(*device, mapped)).collect();
    let control_node = open.iter().map(|(_, device)| *device).max_by_key(|device| minor(*device));
    let copy = |(number, device)| if Some(device) == control_node { copy_of(number) } else { None };
    let found: Vec<_> = open.into_iter().filter_map(copy).collect();
    match found.len() {
        0 => Err(NoAnchors::None),
        1..=ANCHORS_MAX => Ok(found),
        more => Err(NoAnchors::TooMany(more)),
    }
}

fn device_of(number: RawFd) -> Option<u64> {
    // SAFETY: only asked for its kind, which fails if it is not open. If its owner closes it meanwhile, the answer is about another descriptor.
    device_node(unsafe { BorrowedFd::borrow_raw(number) })
}

fn copy_of(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: only copied, as above. The device process checks the descriptors that it gets.
    fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(number) }, 3).ok()
}

fn numbers() -> Vec<RawFd> {
    let Ok(listed) = std::fs::read_dir("/proc/self/fd") else { return (3..NUMBERS_MAX).collect() };
    let listed = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    listed.filter(|number| *number > 2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fstat, makedev};
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn anchors_are_the_descriptors_of_the_node_with_the_highest_number_that_is_not_mapped() {
        let (zero, random) = (makedev(1, 5), makedev(1, 8));
        let open =
            |path: &str, count: usize| (0..count).map(|_| File::open(path).unwrap()).collect::<Vec<_>>();
        let numbers = |files: &[File]| files.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>();
        // Other tests of this process open and look for the node that has the highest number of all, so this one gives the numbers itself.
        let files =
            [open("/dev/full", 2), open("/dev/zero", 2), open("/dev/random", 3)].into_iter().flatten();
        let mut files: Vec<_> = files.collect();
        let found = anchors_among(numbers(&files), &[zero]).unwrap();
        let devices: Vec<_> = found.iter().map(|fd| fstat(fd).unwrap().st_rdev).collect();
        assert_eq!(devices, [random; 3]);
        assert_eq!(anchors_among(numbers(&files), &[makedev(195, 0)]).unwrap_err(), NoAnchors::None);
        files.extend(open("/dev/random", ANCHORS_MAX - 2));
        let too_many = NoAnchors::TooMany(ANCHORS_MAX + 1);
        assert_eq!(anchors_among(numbers(&files), &[zero]).unwrap_err(), too_many);
        let listed = super::numbers();
        assert!(numbers(&files).iter().all(|number| listed.contains(number)));
    }
}
