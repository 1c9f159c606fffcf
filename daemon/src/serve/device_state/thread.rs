//! The thread that reads or writes a state, and its reports to the device thread.

use super::format::{Head, StateError};
use super::patient_file::PatientFile;
use readiness::Events;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A report of the thread that reads or writes the file.
#[derive(Debug)]
pub(in crate::serve) enum Report {
    /// Each worker has begun to write, so all contexts are at rest.
    AreAtRest,
    /// The head is read: the thread waits for the memory.
    Head(Box<Head>),
    /// The thread waits for the socket to the worker of the next context.
    Next,
    /// The thread is done.
    Ended(Result<(), StateError>),
}

/// The thread's end of the reports.
pub(in crate::serve) struct Reports {
    reports: Sender<Report>,
    bell: Arc<OwnedFd>,
}

impl Reports {
    pub(super) fn report(&self, report: Report) {
        // If nothing listens, the transfer was called off.
        if self.reports.send(report).is_ok() {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

/// The device thread's end of the thread that reads or writes the file. If it is dropped, the thread ends by itself.
#[derive(Debug)]
pub(in crate::serve) struct Thread {
    reports: Receiver<Report>,
    bell: Arc<OwnedFd>,
    epoll: Arc<OwnedFd>,
    pub(in crate::serve) called_off: Arc<AtomicBool>,
}

impl Thread {
    /// Starts the thread: `work` gets the file and the end of the reports, and a flag that is set when the transfer is called off. Reports are announced under
    /// this epoll value.
    pub(in crate::serve) fn start<F: FnOnce() + Send + 'static>(
        (epoll, token): (&Arc<OwnedFd>, u64),
        file: File,
        work: impl FnOnce(PatientFile, Reports, &Arc<AtomicBool>) -> F,
    ) -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        readiness::watch(epoll, &bell, token, Events::EPOLLIN)?;
        let called_off = Arc::new(AtomicBool::new(false));
        let (sender, reports) = channel();
        let theirs = Reports { reports: sender, bell: Arc::clone(&bell) };
        let thread = Self { reports, bell, epoll: Arc::clone(epoll), called_off: Arc::clone(&called_off) };
        let work = work(PatientFile::new(file, Arc::clone(&called_off)), theirs, &called_off);
        std::thread::Builder::new().name("state".into()).spawn(work)?;
        Ok(thread)
    }

    /// Returns the next report, if there is one.
    pub(in crate::serve) fn report(&self) -> Option<Report> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.reports.try_recv().ok()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.called_off.store(true, Ordering::Relaxed);
        let _ = readiness::unwatch(&self.epoll, &self.bell);
    }
}
