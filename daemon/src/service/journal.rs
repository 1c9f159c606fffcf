//! The log of a process: lines on standard error; or, where that is the journal's (`JOURNAL_STREAM`), records with fields.
//!
//! Key-values of a record become fields in upper case, and what is given to [`start_logging`] is in each record. The text has them as well, for
//! whoever reads the log without asking for fields. The socket is opened before a process confines itself.

use super::lines::Lines;
use super::records::{Journal, is_journal};
use env_logger::Target;
use log::kv::{self, Key, Source, Value, VisitSource};
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::fmt::{self, Display, Formatter};
use std::io::{Write, stderr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set once the log has begun: whether it goes to the journal.
static TO_JOURNAL: OnceLock<bool> = OnceLock::new();

/// A log that goes to the journal, of what passes the filter.
struct Filtered {
    filter: env_logger::Logger,
    journal: Journal,
    /// The names of the fields that each record has.
    each: Vec<String>,
    /// The end of each record's text.
    suffix: String,
    /// The number of records that the journal has not taken since the last that it took.
    dropped: AtomicU64,
}

impl Filtered {
    /// Sends a record, and returns whether the journal has taken it.
    fn put(&self, record: &Record<'_>) -> bool {
        let own = Own { pairs: record.key_values(), each: &self.each };
        let record = record.to_builder().key_values(&own).build();
        let text = Text { record: &record, suffix: &self.suffix };
        self.journal.send(&record.to_builder().args(format_args!("{text}")).build()).is_ok()
    }
}

/// The key-values of a record, without those that each record has: the broker of one VM names the VM, as that of several does.
struct Own<'a> {
    pairs: &'a dyn Source,
    each: &'a [String],
}

impl Source for Own<'_> {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn VisitSource<'kvs>) -> Result<(), kv::Error> {
        struct Passing<'a, 'kvs>(&'a mut dyn VisitSource<'kvs>, &'a [String]);
        impl<'kvs> VisitSource<'kvs> for Passing<'_, 'kvs> {
            fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
                match self.1.iter().any(|name| name == key.as_str()) {
                    true => Ok(()),
                    false => self.0.visit_pair(key, value),
                }
            }
        }
        self.pairs.visit(&mut Passing(visitor, self.each))
    }
}

/// The text of a record: its message, its key-values, and what is part of each record.
struct Text<'a> {
    record: &'a Record<'a>,
    suffix: &'a str,
}

impl Display for Text<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}{}", self.record.args(), Pairs(&self.record.key_values()), self.suffix)
    }
}

/// Key-values as they stand behind a message, without those that the message itself names.
struct Pairs<'a>(&'a dyn Source);

/// A key for fields only.
const IN_MESSAGE: &str = "context";

impl Display for Pairs<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        struct Writing<'a, 'b>(&'a mut Formatter<'b>);
        impl<'kvs> VisitSource<'kvs> for Writing<'_, '_> {
            fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
                match key.as_str() {
                    IN_MESSAGE => Ok(()),
                    key => Ok(write!(self.0, " {key}={value}")?),
                }
            }
        }
        self.0.visit(&mut Writing(formatter)).map_err(|_| fmt::Error)
    }
}

impl Log for Filtered {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.filter.matches(record) {
            return;
        }
        // A journal that stands still must not stop what serves VMs.
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let notice =
            format_args!("{dropped} records of this log were dropped, since the journal did not read it");
        let notice = Record::builder().level(Level::Warn).target("daemon").args(notice).build();
        let told = dropped == 0 || self.put(&notice);
        let kept = told && self.put(record);
        if kept != (dropped == 0) {
            self.journal.wait(kept);
        }
        if !kept {
            self.dropped.fetch_add(if told { 1 } else { dropped + 1 }, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// Starts the log: of this program's modules from `level` on, and of libraries, without those that log whatever a guest causes. `fields`
/// are part of each of the journal's records.
pub fn start_logging(level: LevelFilter, fields: &[(&str, &str)]) {
    let mut logger = env_logger::Builder::new();
    // These log what a guest can cause, without limit.
    let noisy = ["virtio_queue", "vhost", "vm_memory"];
    noisy.into_iter().for_each(|library| _ = logger.filter_module(library, LevelFilter::Off));
    // Begins like one of them.
    logger.filter_module("vhost_user_vulkan", level).filter_level(level);
    logger.format_key_values(|formatter, pairs| write!(formatter, "{}", Pairs(pairs)));
    logger.target(Target::Pipe(Box::new(Lines::to_stderr())));
    let journal = is_journal(stderr()).then(|| Journal::open(fields));
    let is_journal = matches!(journal, Some(Ok(_)));
    match journal {
        Some(Ok(journal)) => {
            let filter = logger.build();
            let suffix = fields.iter().map(|(key, value)| format!(" {key}={value}")).collect();
            log::set_max_level(filter.filter());
            let each = fields.iter().map(|(key, _)| (*key).to_owned()).collect();
            let log = Filtered { filter, journal, each, suffix, dropped: AtomicU64::new(0) };
            // Nobody has set another.
            let _ = log::set_boxed_logger(Box::new(log));
        }
        Some(Err(error)) => {
            logger.init();
            log::warn!(error:%; "the journal's socket cannot be used: log lines have no fields");
        }
        None => logger.init(),
    }
    let _ = TO_JOURNAL.set(is_journal);
}

/// Returns whether the log goes to the journal. Then everything that is said should be logged, so that it has its fields.
#[must_use]
pub fn logs_to_journal() -> bool {
    TO_JOURNAL.get().copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_what_the_fields_have() {
        let pairs = [("context", 3), ("suppressed", 0)];
        let record = Record::builder().args(format_args!("context 3 is lost")).key_values(&pairs).build();
        let text = Text { record: &record, suffix: " vm=web" }.to_string();
        assert_eq!(text, "context 3 is lost suppressed=0 vm=web");
    }

    #[test]
    fn what_each_record_has_no_record_has_twice() {
        let (pairs, each) = ([("vm", "web"), ("gpu", "llvmpipe")], ["vm".to_owned()]);
        let own = Own { pairs: &pairs, each: &each };
        let record = Record::builder().args(format_args!("ready")).key_values(&own).build();
        assert_eq!(Text { record: &record, suffix: " vm=web" }.to_string(), "ready gpu=llvmpipe vm=web");
    }
}
