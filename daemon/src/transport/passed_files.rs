//! The descriptors that are sent with a state that is written down for another process.

use std::io;
use std::os::fd::OwnedFd;

/// The descriptors that were received with a state which is built up, in their order.
#[derive(Debug)]
pub(crate) struct PassedFiles(std::vec::IntoIter<OwnedFd>);

impl PassedFiles {
    /// Takes the next descriptor.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`]: the state names more descriptors than were received.
    pub(crate) fn take(&mut self) -> io::Result<OwnedFd> {
        self.0.next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Returns whether all descriptors are taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }
}

impl From<Vec<OwnedFd>> for PassedFiles {
    fn from(files: Vec<OwnedFd>) -> Self {
        Self(files.into_iter())
    }
}
