//! The thread that reads a state: it fills memory files, and writes to each context's new worker what the old one had written down.
//!
//! It decodes nothing of that: the worker takes it to be as hostile as the guest.

use super::contents::Target;
use super::format::{HEAD_BYTES_MAX, Head, Record, StateError, StateReader};
use super::link::Link;
use super::patient_file::PatientFile;
use super::thread::{Report, Reports};
use crate::ipc::{HandOver, INLINE_SUBMIT_MAX, Slots};
use config::{MemoryId, MemoryName};
use rustc_hash::FxHashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// The work of the thread.
pub(in crate::serve) struct Loader {
    /// The file.
    pub(in crate::serve) file: PatientFile,
    /// The reports to the device thread.
    pub(in crate::serve) reports: Reports,
    /// The memory files, once the device thread has made them.
    pub(in crate::serve) memory: Receiver<Memory>,
    /// The socket to the worker of each context, in their order.
    pub(in crate::serve) links: Receiver<Link>,
}

/// The memory files of a state, in the order of its head.
pub(in crate::serve) struct Memory(pub(in crate::serve) Vec<LoadedFile>);

/// A memory file that is to be filled.
pub(in crate::serve) struct LoadedFile {
    pub(in crate::serve) file: OwnedFd,
    pub(in crate::serve) bytes: u64,
    pub(in crate::serve) piece: Option<MemoryId>,
}

impl Loader {
    /// Reads the state, and reports the end.
    pub(in crate::serve) fn run(self) {
        let Self { file, reports, memory, links } = self;
        let read = || -> Result<(), StateError> {
            let mut state = StateReader::new(file)?;
            let head: Head = state.message(HEAD_BYTES_MAX)?;
            let contexts = head.contexts.len();
            reports.report(Report::Head(Box::new(head)));
            let Memory(files) = memory.recv().map_err(|_| StateError::Cancelled)?;
            for LoadedFile { file, bytes, .. } in &files {
                let target = Target::new(file, true).map_err(StateError::Memory)?;
                state.contents(&Arc::new(target), 0, *bytes)?;
            }
            let pieces = files.into_iter().filter_map(|loaded| Some((loaded.piece?, loaded.file))).collect();
            for _ in 0..contexts {
                reports.report(Report::Next);
                let link = links.recv().map_err(|_| StateError::Cancelled)?;
                load_context(&link, &mut state, &pieces)?;
            }
            state.finish()
        };
        reports.report(Report::Ended(read()));
    }
}

/// Writes to a context's worker what its predecessor had written down.
fn load_context(
    link: &Link,
    state: &mut StateReader<PatientFile>,
    pieces: &FxHashMap<MemoryId, OwnedFd>,
) -> Result<(), StateError> {
    let mut slots = None;
    loop {
        match state.record()? {
            Record::File(memory) => {
                let MemoryName::Piece(piece) = memory else {
                    return Err(StateError::Damaged("memory without a name"));
                };
                let file = pieces.get(&piece).ok_or(StateError::Damaged("memory without its file"))?;
                link.send(&HandOver::File { memory }, Some(file.as_fd()))?;
            }
            Record::Bytes(length) if length as usize <= INLINE_SUBMIT_MAX => {
                let mut bytes = vec![0; length as usize];
                state.bytes(&mut bytes)?;
                link.send(&HandOver::Bytes(bytes), None)?;
            }
            Record::Slots { count, bytes } if slots.is_none() => {
                slots = Some(make_slots(link, count, bytes)?);
            }
            Record::End => break,
            _ => return Err(StateError::Damaged("a record in the wrong place")),
        }
    }
    link.send(&HandOver::End, None)?;
    match slots {
        Some(slots) => load_contents(link, state, &slots),
        None => match state.record()? {
            Record::Over => Ok(()),
            _ => Err(StateError::Damaged("contents that were not announced")),
        },
    }
}

/// Makes slots, and announces them to a worker.
fn make_slots(link: &Link, count: u32, bytes: u64) -> Result<(Slots, Arc<Target>), StateError> {
    let slots = Slots::announced(count, bytes);
    let slots = slots.ok_or(StateError::Damaged("slots of another size or number"))?;
    let file = shm::create("slots", slots.all()).map_err(StateError::Memory)?;
    link.send(&HandOver::Slots { count, bytes }, Some(file.as_fd()))?;
    let target = Target::new(&file, false).map_err(StateError::Memory)?;
    Ok((slots, Arc::new(target)))
}

/// Passes the contents of each slot to a worker, and waits until it has taken all of them.
fn load_contents(
    link: &Link,
    state: &mut StateReader<PatientFile>,
    (slots, target): &(Slots, Arc<Target>),
) -> Result<(), StateError> {
    let (mut at, mut filled) = (0, 0);
    loop {
        match state.record()? {
            Record::Slot => {}
            Record::Over => break,
            _ => return Err(StateError::Damaged("a record in the wrong place")),
        }
        if filled == slots.count() {
            await_emptied(link)?;
            filled -= 1;
        }
        state.contents(target, slots.place(at), slots.bytes())?;
        link.send(&HandOver::Filled, None)?;
        (at, filled) = (at + 1, filled + 1);
    }
    (0..filled).try_for_each(|_| await_emptied(link))
}

fn await_emptied(link: &Link) -> Result<(), StateError> {
    match link.receive()? {
        Some((HandOver::Emptied, None)) => Ok(()),
        _ => Err(link.broken("its new worker does not take its contents")),
    }
}
