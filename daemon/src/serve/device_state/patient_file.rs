//! The frontend's file of a state, which is read and written without trust that the frontend goes on.

use super::format::PATIENCE;
use readiness::within;
use rustix::event::PollFlags;
use rustix::io::{Errno, ioctl_fionbio};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks whether the transfer is called off.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// The frontend's file. A wait ends with [`io::ErrorKind::TimedOut`] after [`PATIENCE`] without progress, and with
/// [`io::ErrorKind::ConnectionAborted`] when the transfer is called off.
pub(in crate::serve) struct PatientFile {
    file: File,
    called_off: Arc<AtomicBool>,
}

impl PatientFile {
    /// Takes the file of a transfer that ends when `called_off` is set.
    pub(super) fn new(file: File, called_off: Arc<AtomicBool>) -> Self {
        // A file that cannot be set so, such as a regular file, does not block for long.
        let _ = ioctl_fionbio(&file, true);
        Self { file, called_off }
    }

    /// Tries again and again, until the file is ready.
    fn patiently<T>(
        &mut self,
        wanted: PollFlags,
        mut attempt: impl FnMut(&mut File) -> io::Result<T>,
    ) -> io::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match attempt(&mut self.file) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                done => return done,
            }
            if self.called_off.load(Ordering::Relaxed) {
                return Err(CalledOff.into());
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match within(&self.file, wanted, LOOK) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The transfer was called off.
#[derive(Debug, thiserror::Error)]
#[error("the transfer is called off")]
struct CalledOff;

impl From<CalledOff> for io::Error {
    fn from(why: CalledOff) -> Self {
        Self::new(io::ErrorKind::ConnectionAborted, why)
    }
}

impl Read for PatientFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(PollFlags::IN, |file| file.read(buffer))
    }
}

impl Write for PatientFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(PollFlags::OUT, |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_that_reads_and_writes_nothing_holds_nothing_up() {
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        for (end, is_reading) in [(&reads, true), (&writes, false)] {
            let called_off = Arc::new(AtomicBool::new(false));
            let mut file = PatientFile::new(end.try_clone().unwrap().into(), Arc::clone(&called_off));
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| match is_reading {
                    true => file.read(&mut [0; 8]).map(drop),
                    false => file.write_all(&vec![0; 1 << 20]),
                });
                called_off.store(true, Ordering::Relaxed);
                let error = waits.join().unwrap().unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
            });
        }
    }

    #[test]
    fn what_is_written_is_read_however_small_the_pipe() {
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        let patient = |end: std::os::fd::OwnedFd| PatientFile::new(end.into(), Arc::default());
        let (mut reads, mut writes) = (patient(reads), patient(writes));
        let bytes: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writes.write_all(&bytes).unwrap();
                drop(writes);
            });
            let mut came = Vec::new();
            reads.read_to_end(&mut came).unwrap();
            assert!(came == bytes);
        });
    }
}
