//! The Trace Event Format ("JSON Object Format"): <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.
//!
//! Times in it are microseconds with a fraction. All strings are written by `serde_json`, which escapes them.

use serde::Serialize;
use serde_json::{Map, Value};
use std::io::{self, Write};

/// An event of the format.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Entry {
    ph: Phase,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    pid: u32,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// The end of an arrow belongs to the slice at this time ("enclosing"), not to the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Phase {
    #[serde(rename = "X")]
    Complete,
    #[serde(rename = "s")]
    FlowStart,
    #[serde(rename = "f")]
    FlowFinish,
    #[serde(rename = "C")]
    Counter,
    #[serde(rename = "M")]
    Metadata,
}

/// A row of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// A file.
#[derive(Debug, Serialize)]
pub(super) struct Picture {
    #[serde(rename = "displayTimeUnit")]
    pub(super) unit: &'static str,
    #[serde(rename = "otherData")]
    pub(super) about: Map<String, Value>,
    #[serde(rename = "traceEvents")]
    pub(super) entries: Vec<Entry>,
}

impl Entry {
    fn new(ph: Phase, name: impl Into<String>, Row { pid, tid }: Row, at: u64) -> Self {
        let args = Map::new();
        Self {
            ph,
            name: name.into(),
            cat: None,
            pid,
            tid,
            ts: microseconds(at),
            dur: None,
            id: None,
            bp: None,
            args,
        }
    }

    /// A slice between two times, in nanoseconds.
    pub(super) fn slice(
        name: impl Into<String>,
        cat: &'static str,
        row: Row,
        (begin, end): (u64, u64),
        args: Map<String, Value>,
    ) -> Self {
        let dur = Some(microseconds(end.saturating_sub(begin)));
        Self { cat: Some(cat), dur, args, ..Self::new(Phase::Complete, name, row, begin) }
    }

    /// Both ends of an arrow, each in a slice of its row at its time.
    pub(super) fn arrow(name: &'static str, id: u64, from: (Row, u64), to: (Row, u64)) -> [Self; 2] {
        let start = Self::new(Phase::FlowStart, name, from.0, from.1);
        let finish = Self::new(Phase::FlowFinish, name, to.0, to.1);
        [
            Self { cat: Some("arrow"), id: Some(id), ..start },
            Self { cat: Some("arrow"), id: Some(id), bp: Some("e"), ..finish },
        ]
    }

    /// Values of a counter from a time on.
    pub(super) fn counter(name: impl Into<String>, pid: u32, at: u64, args: Map<String, Value>) -> Self {
        Self { args, ..Self::new(Phase::Counter, name, Row { pid, tid: 0 }, at) }
    }

    /// A name or a place in the order: `process_name`, `process_sort_index`, `thread_name`, `thread_sort_index`.
    pub(super) fn about(what: &'static str, key: &str, row: Row, value: Value) -> Self {
        let args = Map::from_iter([(key.to_owned(), value)]);
        Self { args, ..Self::new(Phase::Metadata, what, row, 0) }
    }
}

/// Writes a file.
pub(super) fn write(out: &mut impl Write, picture: &Picture) -> io::Result<()> {
    serde_json::to_writer(&mut *out, picture)?;
    out.write_all(b"\n")
}

/// Converts to microseconds, exact to the nanosecond for a machine that has run for a hundred days, and to 4 ns for ten years.
pub(super) fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_the_format_says() {
        let (row, other) = (Row { pid: 1, tid: 2 }, Row { pid: 3, tid: 4 });
        let slice = Entry::slice("a\"\n", "stage", row, (1_234_567, 1_234_600), Map::new());
        let [start, finish] = Entry::arrow("turn", 7, (row, 1000), (other, 2000));
        let about = Entry::about("thread_name", "name", row, "x".into());
        let lines = [slice, start, finish, about].map(|entry| serde_json::to_string(&entry).unwrap());
        assert_eq!(
            lines,
            [
                r#"{"ph":"X","name":"a\"\n","cat":"stage","pid":1,"tid":2,"ts":1234.567,"dur":0.033}"#,
                r#"{"ph":"s","name":"turn","cat":"arrow","pid":1,"tid":2,"ts":1.0,"id":7}"#,
                r#"{"ph":"f","name":"turn","cat":"arrow","pid":3,"tid":4,"ts":2.0,"id":7,"bp":"e"}"#,
                r#"{"ph":"M","name":"thread_name","pid":1,"tid":2,"ts":0.0,"args":{"name":"x"}}"#,
            ]
        );
    }
}
