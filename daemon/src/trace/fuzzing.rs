//! Entry point for fuzzing all stages of a trace: notes of workers, events of the broker, the client's copy of these events, and the file.

use super::collected::{Collected, Kept};
use super::{LINE_BYTES, format, picture, rules};
use crate::broker::TraceEvent;
use crate::broker::fuzzing::traced;
use arbitrary::Unstructured;
use serde_json::Value;

/// The most entries from one event: a submission has a slice, five stages, a slice on the GPU, the ends of two arrows and four counts, and each of
/// its two rows may be new, and is named by two entries.
const ENTRIES_PER_EVENT: usize = 19;

/// A day after the machine has started.
const BEGIN: u64 = 86_400_000_000_000;

/// Makes a trace of the bytes. If they begin with `{`, they are the lines of a broker, which may say anything. Otherwise they are notes of workers:
/// every event that the broker sends is kept as far as there is room, and the file follows the rules of its format. In both cases the file can be
/// read, and has no more in it than the sent lines account for. Returns the number of lines or notes.
pub fn fuzz_trace(bytes: &[u8]) -> usize {
    if bytes.starts_with(b"{") {
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| line.len() as u64 <= LINE_BYTES);
        let events: Vec<TraceEvent> = lines.map_while(|line| serde_json::from_slice(line).ok()).collect();
        let count = events.len();
        file(&read(events, 0, count / 2));
        return count;
    }
    let mut bytes = Unstructured::new(bytes);
    let room = if bytes.ratio(1, 4).unwrap_or(false) { 100 } else { super::EVENTS_MAX };
    let (events, happened) = traced(&mut bytes, BEGIN);
    let is_of_vm = |event: &&TraceEvent| matches!(event, TraceEvent::Submission(_));
    let submissions = events.iter().filter(is_of_vm).count();
    let events = events.into_iter().map(|event| {
        let line = serde_json::to_vec(&event).expect("an event can be written");
        assert!(!line.contains(&b'\n') && (line.len() as u64) < LINE_BYTES, "an event is a line");
        serde_json::from_slice(&line).expect("an event can be read")
    });
    let collected = read(events, BEGIN, room);
    assert!(collected.is_over() && collected.end() >= collected.begin);
    let is_told = collected.lacks().iter().any(|lack| lack.contains("events are kept"));
    let is_whole = collected.submissions.len() == submissions;
    assert!(is_whole || is_told, "a submission that the broker let through is left out");
    rules::check(&file(&collected)["traceEvents"]);
    happened
}

/// Reads a trace as an operator's client does: until its last line.
fn read(events: impl IntoIterator<Item = TraceEvent>, begin: u64, room: usize) -> Collected {
    let mut collected = Collected::new("web", begin, room);
    let mut full = 0;
    for event in events {
        full += usize::from(collected.keep(event) == Kept::NoRoom);
        if collected.is_over() {
            break;
        }
    }
    assert!(full <= 1, "the broker is told more than once that it is enough");
    let busy = collected.busy.iter().filter(|busy| busy.end.is_some()).count();
    assert!(collected.submissions.len() + collected.told.len() + busy <= room, "more is kept than may be");
    collected
}

/// Makes the file of a trace, and reads it.
fn file(collected: &Collected) -> Value {
    let mut file = Vec::new();
    format::write(&mut file, &picture::picture(collected)).expect("there is room");
    let file: Value = serde_json::from_slice(&file).expect("the file can be read");
    let Collected { submissions, busy, memory, gpus, .. } = collected;
    let events = submissions.len() + busy.len() + memory.len();
    let most = ENTRIES_PER_EVENT * events + 2 * (gpus.len() + 1);
    let entries = file["traceEvents"].as_array().map_or(0, Vec::len);
    assert!(entries <= most, "{entries} entries come of {events} events");
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn committed_traces_hold() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/trace");
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let events: usize = files.map(|file| fuzz_trace(&fs::read(file).unwrap())).sum();
        assert!(events > 500, "only {events} events");
    }
}
