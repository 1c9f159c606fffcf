//! A socket that the service manager listens at, and hands over when the first peer connects.

use std::io;
use std::os::fd::RawFd;

/// The sockets that the service manager has passed to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// None was passed.
    None,
    /// One was passed, under this number.
    One(RawFd),
    /// Several were passed, this many.
    Several(usize),
}

/// Returns which sockets were passed (`LISTEN_FDS`, if `LISTEN_PID` names this process), and marks them close-on-exec. To be called before
/// anything is opened.
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
