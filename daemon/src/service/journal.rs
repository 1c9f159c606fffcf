//! The log of a process: lines on standard error, or, if standard error is the journal's (`JOURNAL_STREAM`), records with fields.
//!
//! Key-values of a record become fields in upper case. The text has the key-values too, for readers of the log that ask for no fields: `form` says
//! where. The socket is opened before a process confines itself.

use super::form::{Complete, Line, Text, Time};
use super::lines::Lines;
use super::records::{Journal, is_journal};
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use std::fmt::Arguments;
use std::io::stderr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Libraries that log every event that a guest causes, without limit.
const NOISY: [&str; 3] = ["virtio_queue", "vhost", "vm_memory"];
/// The beginning of the names of this program's own modules, which begin like one of the libraries.
const OWN: &str = "vhost_user_vulkan";

/// The reader of a process's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader<'a> {
    /// Operators, in a file, on a terminal or in the journal. If the process serves a single VM that has a name, each record is about this VM.
    Operators(Option<&'a str>),
    /// The device process, which adds time, VM and context to each line that it reads.
    DeviceProcess,
}

/// The log, from a level on.
struct Logger {
    level: LevelFilter,
    vm: Option<String>,
    way: Way,
}

/// The way to the reader.
enum Way {
    Journal(Records),
    Lines { lines: Mutex<Lines>, have_times: bool },
}

/// The journal, which may stop reading.
struct Records {
    journal: Journal,
    /// The number of records that the journal has not taken since it last took one.
    dropped: AtomicU64,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let is_noisy = NOISY.iter().any(|library| target.starts_with(library)) && !target.starts_with(OWN);
        metadata.level() <= self.level && !is_noisy
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let complete = Complete { pairs: record.key_values(), vm: self.vm.as_deref() };
            self.way.put(&record.to_builder().key_values(&complete).build(), self.vm.as_deref());
        }
    }

    fn flush(&self) {}
}

impl Way {
    /// Writes a record whose key-values are complete, or drops it: a reader that stops reading must not stop a process that serves VMs.
    fn put(&self, record: &Record<'_>, vm: Option<&str>) {
        match self {
            Self::Journal(records) => records.put(record, vm),
            Self::Lines { lines, have_times } => {
                let line = |record: &Record<'_>| {
                    let time = have_times.then(Time::now);
                    Line { time, level: record.level(), text: Text(record) }.to_string()
                };
                let notice = |dropped: u64| {
                    let text = format_args!(
                        "{dropped} lines of this log were dropped, since its reader stood still"
                    );
                    noticed(text, vm, line)
                };
                let text = line(record);
                lines.lock().put_line(&text, notice);
            }
        }
    }
}

impl Records {
    fn put(&self, record: &Record<'_>, vm: Option<&str>) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let text =
            format_args!("{dropped} records of this log were dropped, since the journal did not read it");
        let told = dropped == 0 || noticed(text, vm, |notice| self.send(notice));
        let kept = told && self.send(record);
        if kept != (dropped == 0) {
            self.journal.wait(kept);
        }
        if !kept {
            self.dropped.fetch_add(if told { 1 } else { dropped + 1 }, Ordering::Relaxed);
        }
    }

    /// Sends a record, and returns whether the journal has taken it.
    fn send(&self, record: &Record<'_>) -> bool {
        let text = format_args!("{}", Text(record));
        self.journal.send(&record.to_builder().args(text).build()).is_ok()
    }
}

/// Passes on a record of the log about the log itself.
fn noticed<T>(text: Arguments<'_>, vm: Option<&str>, put: impl FnOnce(&Record<'_>) -> T) -> T {
    let none: [(&str, &str); 0] = [];
    let complete = Complete { pairs: &none, vm };
    put(&Record::builder().level(Level::Warn).target("daemon").args(text).key_values(&complete).build())
}

/// Starts the log: of this program's modules from `level` on, and of libraries, without those that log every event that a guest causes.
pub fn start_logging(level: LevelFilter, reader: Reader<'_>) {
    let to_journal = is_journal(stderr());
    let (vm, have_times) = match reader {
        Reader::Operators(vm) => (vm.map(str::to_owned), !to_journal),
        Reader::DeviceProcess => (None, false),
    };
    let (way, problem) = match to_journal.then(Journal::open).transpose() {
        Ok(Some(journal)) => (Way::Journal(Records { journal, dropped: AtomicU64::new(0) }), None),
        opened => (Way::Lines { lines: Mutex::new(Lines::to_stderr()), have_times }, opened.err()),
    };
    log::set_max_level(level);
    // No other logger was set.
    let _ = log::set_boxed_logger(Box::new(Logger { level, vm, way }));
    if let Some(problem) = problem {
        log::warn!("the journal's socket cannot be used: {problem}; log lines have no fields");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;

    #[test]
    fn a_line_in_a_file_has_its_time_and_its_vm_and_libraries_that_guests_make_talk_have_none() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let lines = Mutex::new(Lines::to(OwnedFd::from(writer)));
        let way = Way::Lines { lines, have_times: true };
        let logger = Logger { level: LevelFilter::Info, vm: Some("web".into()), way };
        let log = |target, level| {
            let args = format_args!("a frontend has connected");
            logger.log(&Record::builder().target(target).level(level).args(args).build());
        };
        log("vhost::backend", Level::Error);
        log("daemon::serve", Level::Debug);
        log("vhost_user_vulkan", Level::Info);
        drop(logger);
        let mut line = String::new();
        reader.read_to_string(&mut line).unwrap();
        let (time, rest) = line.split_once(' ').unwrap();
        assert_eq!(rest, "INFO  vm=web a frontend has connected\n");
        assert_eq!(time.replace(|c: char| c.is_ascii_digit(), "0"), "0000-00-00T00:00:00Z");
    }
}
