//! The thread that writes a state: what the workers write down as for successors, and the contents of memory files.
//!
//! It decodes nothing of what a worker writes down, and believes no worker: each could only damage the record of its own context.

use super::format::{Head, Record, StateError, StateWriter};
use super::link::Link;
use super::patient_file::PatientFile;
use super::thread::{Report, Reports};
use crate::ipc::{HandOver, Slots};
use config::MemoryName;
use shm::{FixedFile, inspect};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// The work of the thread.
pub(in crate::serve) struct Saver {
    /// The file.
    pub(in crate::serve) file: PatientFile,
    /// The sockets into which the workers write.
    pub(in crate::serve) links: Vec<Link>,
    /// The reports to the device thread.
    pub(in crate::serve) reports: Reports,
    /// What the device thread adds when all contexts are at rest.
    pub(in crate::serve) rest: Receiver<Rest>,
}

/// The part of a state that the device thread knows.
pub(in crate::serve) struct Rest {
    pub(in crate::serve) head: Head,
    /// The memory files of the head, in its order.
    pub(in crate::serve) files: Vec<OwnedFd>,
    /// Bytes of contents that each context may have, at most, in the order of the contexts.
    pub(in crate::serve) contents_max: Vec<u64>,
}

impl Saver {
    /// Writes the state, and reports the end.
    pub(in crate::serve) fn run(self) {
        let Self { file, links, reports, rest } = self;
        let written = || -> Result<(), StateError> {
            links.iter().try_for_each(Link::await_message)?;
            reports.report(Report::AreAtRest);
            let Rest { head, files, contents_max } = rest.recv().map_err(|_| StateError::Cancelled)?;
            let mut state = StateWriter::new(file)?;
            state.message(&head)?;
            for (file, saved) in files.into_iter().zip(&head.files) {
                state.contents(&Arc::new(file), 0, saved.bytes)?;
            }
            for (link, contents_max) in links.into_iter().zip(contents_max) {
                save_context(&link, &mut state, contents_max)?;
            }
            state.finish()
        };
        reports.report(Report::Ended(written()));
    }
}

/// Writes what the worker of a context writes down, with at most so many bytes of contents.
fn save_context(
    link: &Link,
    state: &mut StateWriter<PatientFile>,
    contents_max: u64,
) -> Result<(), StateError> {
    let mut slots = None;
    loop {
        match link.receive()? {
            // The device process has the file itself.
            Some((HandOver::File { memory: memory @ MemoryName::Piece(_) }, Some(_))) => {
                state.message(&Record::File(memory))?;
            }
            Some((HandOver::Bytes(bytes), None)) => {
                // A message is far shorter than 4 GiB.
                state.message(&Record::Bytes(bytes.len() as u32))?;
                state.bytes(&bytes)?;
            }
            Some((HandOver::Slots { count, bytes }, Some(file))) if slots.is_none() => {
                slots = Some((announced(link, count, bytes, &file)?, Arc::new(file)));
                state.message(&Record::Slots { count, bytes })?;
            }
            Some((HandOver::End, None)) => break,
            Some(_) => return Err(link.broken("its worker writes something that cannot be saved")),
            None => return Err(link.broken("its worker does not write everything")),
        }
    }
    state.message(&Record::End)?;
    if let Some(slots) = slots {
        save_contents(link, state, &slots, contents_max)?;
    }
    state.message(&Record::Over)
}

/// Writes each slot that a worker fills, until it has filled the last.
fn save_contents(
    link: &Link,
    state: &mut StateWriter<PatientFile>,
    (slots, file): &(Slots, Arc<OwnedFd>),
    contents_max: u64,
) -> Result<(), StateError> {
    let (mut at, mut left) = (0, contents_max.saturating_add(slots.bytes()));
    // The slots that the worker has filled and must not change yet.
    let mut filled = VecDeque::new();
    loop {
        // While the worker fills a slot, or if it has filled all, the oldest is emptied.
        let is_to_receive =
            filled.is_empty() || (filled.len() < slots.count() as usize && link.has_message());
        if !is_to_receive && let Some(mark) = filled.pop_front() {
            state.settle(mark)?;
            link.send(&HandOver::Emptied, None)?;
            continue;
        }
        match link.receive()? {
            Some((HandOver::Filled, None)) => {}
            Some(_) => return Err(link.broken("its worker writes something else than contents")),
            None if filled.is_empty() => return Ok(()),
            None => return Err(link.broken("its worker does not wait until its contents are read")),
        }
        left = left
            .checked_sub(slots.bytes())
            .ok_or_else(|| link.broken("its worker has more contents than it was granted memory"))?;
        state.message(&Record::Slot)?;
        filled.push_back(state.contents(file, slots.place(at), slots.bytes())?);
        at += 1;
    }
}

/// Returns the slots of a file that a worker announces.
fn announced(link: &Link, count: u32, bytes: u64, file: &OwnedFd) -> Result<Slots, StateError> {
    match (Slots::announced(count, bytes), inspect(file)) {
        (Some(slots), Ok((FixedFile::Memfd, there))) if there >= slots.all() => Ok(slots),
        _ => Err(link.broken("its worker sends contents through something that is no memory")),
    }
}
