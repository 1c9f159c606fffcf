//! A socket at which the service manager listens, and which it hands over when the first peer connects.

use std::io;
use std::os::fd::RawFd;

/// The sockets that the service manager has passed to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// No socket was passed.
    None,
    /// One socket was passed, under this number.
    One(RawFd),
    /// Several sockets were passed, this many.
    Several(usize),
}

/// Returns which sockets were passed (`LISTEN_FDS`, if `LISTEN_PID` names this process), and marks them close-on-exec. The caller calls this before
/// it opens any descriptor.
///
/// # Errors
///
/// The variables are malformed, or name descriptors that are not open.
pub fn activation() -> io::Result<Activation> {
    let mut passed = sd_notify::listen_fds()?;
    Ok(match (passed.len(), passed.next()) {
        (1, Some(fd)) => Activation::One(fd),
        (0, _) | (_, None) => Activation::None,
        (several, _) => Activation::Several(several),
    })
}
