//! The time slices in which an NVIDIA GPU runs the work of several contexts.
//!
//! The hardware gives the GPU to one context after the other, each for a slice of about 1 ms, so a context waits for the slice of another. NVIDIA's
//! libraries make *channel groups* with their kernel module (class `0xa06c`), and a process may set the slices of its own groups without a privilege. The
//! executable's own `ioctl` takes precedence over the C library's and calls [`ioctl`], which does the same and notes the groups.
//!
//! Numbers and structs are those of the kernel module's published sources, and were tried with driver 580. A request of another size, another class, or a
//! status that is not 0 has no effect here: the slices then stay as the driver has them.

#![allow(unsafe_code, reason = "stands before the C library's ioctl, and asks a kernel module")]

use log::debug;
use parking_lot::Mutex;
use std::ffi::{c_int, c_ulong, c_void};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The request that makes an object: `NV_ESC_RM_ALLOC` with 48 bytes.
const ALLOCATE: c_ulong = 0xc030_462b;
/// The request that commands an object: `NV_ESC_RM_CONTROL` with 32 bytes.
const CONTROL: c_ulong = 0xc020_462a;
/// The class of channel groups: `KEPLER_CHANNEL_GROUP_A`.
const CHANNEL_GROUP: u32 = 0xa06c;
/// The commands that set and tell a group's slice: `NVA06C_CTRL_CMD_SET_TIMESLICE`, `NVA06C_CTRL_CMD_GET_TIMESLICE`.
const SET: u32 = 0xa06c_0103;
const GET: u32 = 0xa06c_0104;

/// The most groups that are kept, the newest ones: a device has four.
const GROUPS_MAX: usize = 256;

/// A group that the module has refused so often in a row to set is forgotten.
const REFUSALS_MAX: u8 = 3;

/// The groups that this process has made.
static GROUPS: Mutex<Groups> = Mutex::new(Groups(Vec::new()));
/// The number of groups made so far, wrapping.
static MADE: AtomicU32 = AtomicU32::new(0);
/// The number of [`Slices`].
static FOLLOWERS: AtomicUsize = AtomicUsize::new(0);

/// `NVOS64_PARAMETERS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Allocation {
    client: u32,
    parent: u32,
    object: u32,
    class: u32,
    parameters: u64,
    rights: u64,
    parameters_bytes: u32,
    flags: u32,
    status: u32,
    padding: u32,
}

/// `NVOS54_PARAMETERS`.
#[repr(C)]
#[derive(Debug)]
struct Control {
    client: u32,
    object: u32,
    command: u32,
    flags: u32,
    parameters: u64,
    parameters_bytes: u32,
    status: u32,
}

/// A group, as the module names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    /// The descriptor of the module with which the group was made. It may be closed by now, and be another file's: no other file knows the request.
    fd: RawFd,
    client: u32,
    object: u32,
    /// The group's slice before it was set for the first time, in microseconds.
    usual: Option<u64>,
    /// The module has refused so often in a row to set it.
    refusals: u8,
}

#[derive(Debug)]
struct Groups(Vec<Group>);

/// The reason why the module has not done what it was asked for.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("status {0:#x}")]
    Status(u32),
    #[error("a slice of {0} us cannot be")]
    Slice(u64),
}

/// `ioctl` (Linux), with `errno`.
///
/// # Safety
///
/// The caller keeps the contract of the C library's function.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) };
    // The kernel takes 32 bits of the request.
    if request as u32 == ALLOCATE as u32 && result == 0 && !argument.is_null() {
        // SAFETY: the kernel has just read and written these bytes, whose number is a part of the request. The sandbox lets a worker reach no other
        // file that takes requests of type `F`.
        let allocation = unsafe { argument.cast::<Allocation>().read_unaligned() };
        if GROUPS.lock().note(fd, &allocation) {
            MADE.fetch_add(1, Ordering::Release);
        }
    }
    // The kernel returns an int.
    result as c_int
}

impl Groups {
    /// Notes a group that was made. Returns false for any other object.
    fn note(&mut self, fd: RawFd, made: &Allocation) -> bool {
        if made.class != CHANNEL_GROUP || made.status != 0 {
            return false;
        }
        let Allocation { client, object, .. } = *made;
        self.0.retain(|group| (group.client, group.object) != (client, object));
        if self.0.len() >= GROUPS_MAX {
            self.0.remove(0);
        }
        self.0.push(Group { fd, client, object, usual: None, refusals: 0 });
        true
    }

    /// Sets the slices of all groups to so many microseconds, or as they were if 0, and forgets groups that are not there any more.
    fn set(&mut self, microseconds: u32) {
        self.0.retain_mut(|group| {
            let set = group.set(microseconds);
            group.refusals = if set.is_ok() { 0 } else { group.refusals + 1 };
            let is_no_module = matches!(set, Err(Refused::System(_)));
            if let Err(why) = &set {
                debug!("the time slices of a channel group stay as they are: {why}");
            }
            !is_no_module && group.refusals < REFUSALS_MAX
        });
        let count = self.0.len();
        match (count, microseconds) {
            (0, _) => {}
            (_, 0) => debug!("the time slices of {count} channel groups are as the driver has them"),
            _ => debug!("the time slices of {count} channel groups are {microseconds} us"),
        }
    }
}

impl Group {
    fn set(&mut self, microseconds: u32) -> Result<(), Refused> {
        let usual = match (self.usual, microseconds) {
            (Some(usual), _) => usual,
            (None, 0) => return Ok(()),
            (None, _) => self.control(GET, 0)?,
        };
        if !(1..=1_000_000).contains(&usual) {
            return Err(Refused::Slice(usual));
        }
        self.usual = Some(usual);
        self.control(SET, if microseconds == 0 { usual } else { microseconds.into() }).map(drop)
    }

    /// Has the module carry out a command whose parameter is one number. Returns that number afterwards.
    fn control(&self, command: u32, mut number: u64) -> Result<u64, Refused> {
        let mut control = Control {
            client: self.client,
            object: self.object,
            command,
            flags: 0,
            parameters: (&raw mut number).expose_provenance() as u64,
            parameters_bytes: size_of_val(&number) as u32,
            // The module writes it.
            status: u32::MAX,
        };
        // SAFETY: the struct has the size that the request says, and the number the size that the struct says; both live until the call returns.
        let result = unsafe { libc::syscall(libc::SYS_ioctl, self.fd, CONTROL, &raw mut control) };
        match (result, control.status) {
            (0, 0) => Ok(number),
            (0, status) => Err(Refused::Status(status)),
            _ => Err(io::Error::last_os_error().into()),
        }
    }
}

/// The time slices of this process, for one GPU.
#[derive(Debug)]
pub(crate) struct Slices {
    set: u32,
    made: u32,
}

impl Slices {
    pub(crate) fn new() -> Self {
        FOLLOWERS.fetch_add(1, Ordering::Relaxed);
        Self { set: 0, made: 0 }
    }

    /// Sets the slices to so many microseconds, or as the driver has them if 0, unless that was done. A process on several GPUs leaves them, as nothing
    /// tells on which GPU a group is.
    pub(crate) fn follow(&mut self, microseconds: u32) {
        let wanted = if FOLLOWERS.load(Ordering::Relaxed) > 1 { 0 } else { microseconds };
        let made = MADE.load(Ordering::Acquire);
        let is_set = self.set == wanted && (wanted == 0 || self.made == made);
        (self.set, self.made) = (wanted, made);
        if !is_set {
            GROUPS.lock().set(wanted);
        }
    }
}

impl Drop for Slices {
    fn drop(&mut self) {
        FOLLOWERS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    #[test]
    fn structs_are_as_long_as_the_requests_say() {
        let bytes = |request: c_ulong| (request >> 16 & 0x3fff) as usize;
        assert_eq!((size_of::<Allocation>(), size_of::<Control>()), (bytes(ALLOCATE), bytes(CONTROL)));
    }

    #[test]
    fn groups_are_noted_once_each_and_nothing_else_is() {
        let mut groups = Groups(Vec::new());
        let group = Allocation { client: 1, object: 2, class: CHANNEL_GROUP, ..Allocation::default() };
        assert!(!groups.note(3, &Allocation { class: 0x906f, ..group }), "another class");
        assert!(!groups.note(3, &Allocation { status: 0x1f, ..group }), "it was not made");
        assert!(groups.note(3, &group) && groups.note(3, &Allocation { object: 4, ..group }));
        // The same names are those of a new group.
        assert!(groups.note(5, &group));
        let noted = |fd, object| Group { fd, client: 1, object, usual: None, refusals: 0 };
        assert_eq!(groups.0, [noted(3, 4), noted(5, 2)]);
        for object in 0..2 * GROUPS_MAX as u32 {
            groups.note(3, &Allocation { object, ..group });
        }
        assert_eq!(groups.0.len(), GROUPS_MAX);
        assert_eq!(groups.0.last(), Some(&noted(3, 2 * GROUPS_MAX as u32 - 1)));
    }

    #[test]
    fn a_group_of_a_file_that_is_no_module_is_forgotten_when_its_slices_are_to_be_set() {
        let file = File::open("/dev/null").unwrap();
        let mut groups = Groups(Vec::new());
        let made = Allocation { client: 1, object: 2, class: CHANNEL_GROUP, ..Allocation::default() };
        assert!(groups.note(file.as_raw_fd(), &made));
        groups.set(0);
        assert_eq!(groups.0.len(), 1, "its slices are as the driver has them");
        groups.set(200);
        assert!(groups.0.is_empty());
    }

    #[test]
    fn requests_of_others_are_carried_out_and_fail_as_with_the_library() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"four").unwrap();
        let mut count: c_int = 0;
        let into = (&raw mut count).cast();
        // SAFETY: the request writes an int.
        assert_eq!(unsafe { ioctl(reader.as_raw_fd(), libc::FIONREAD, into) }, 0);
        assert_eq!(count, 4);
        for request in [libc::FIONREAD, ALLOCATE] {
            // SAFETY: there is no such descriptor.
            assert_eq!(unsafe { ioctl(-1, request, into) }, -1);
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
        }
    }
}
