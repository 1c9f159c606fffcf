//! The form of log lines, the same everywhere:
//!
//! ```text
//! 2026-11-27T17:39:23Z WARN  vm=web program=train context 3 is lost: an operator ended it (2 more like it)
//! ```
//!
//! A line has time (UTC) and level only if the receiver of the log adds none itself: the journal has a field for each. Names of VM and program come
//! before the message; other values follow the message as `key=value`, in quotation marks if they would not be one word.

use log::kv::{self, Key, Source, ToKey, Value, VisitSource, VisitValue};
use log::{Level, Record};
use outside::Quoted;
use std::fmt::{self, Display, Formatter};
use std::time::SystemTime;

/// The keys of values that stand before the message, in their order.
const BEFORE: [&str; 2] = ["vm", "program"];
/// The key of the number of a context, which each message about a context names itself.
const CONTEXT: &str = "context";
/// The key of the number of lines that were left out.
const SUPPRESSED: &str = "suppressed";

/// The key-values of a record, with the VM that all records of the process are about, and without missing values (`None`).
pub(super) struct Complete<'a> {
    pub pairs: &'a dyn Source,
    pub vm: Option<&'a str>,
}

impl Source for Complete<'_> {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn VisitSource<'kvs>) -> Result<(), kv::Error> {
        if let Some(vm) = self.vm {
            visitor.visit_pair("vm".to_key(), Value::from(vm))?;
        }
        self.pairs.visit(&mut Rest { visitor, has_vm: self.vm.is_some() })
    }
}

/// Passes a record's own values on.
struct Rest<'a, 'kvs> {
    visitor: &'a mut dyn VisitSource<'kvs>,
    has_vm: bool,
}

impl<'kvs> VisitSource<'kvs> for Rest<'_, 'kvs> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        match key.as_str() == "vm" && self.has_vm || is_missing(&value) {
            true => Ok(()),
            false => self.visitor.visit_pair(key, value),
        }
    }
}

fn is_missing(value: &Value<'_>) -> bool {
    struct Missing(bool);
    impl VisitValue<'_> for Missing {
        fn visit_any(&mut self, _: Value<'_>) -> Result<(), kv::Error> {
            Ok(())
        }

        fn visit_null(&mut self) -> Result<(), kv::Error> {
            self.0 = true;
            Ok(())
        }
    }
    let mut missing = Missing(false);
    value.visit(&mut missing).is_ok() && missing.0
}

/// The text of a record whose key-values are complete.
pub(super) struct Text<'a>(pub &'a Record<'a>);

impl Display for Text<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let pairs = self.0.key_values();
        for key in BEFORE {
            if let Some(value) = pairs.get(key.to_key()) {
                write!(formatter, "{key}={} ", Word(&value))?;
            }
        }
        write!(formatter, "{}", self.0.args())?;
        if let Some(count) = pairs.get(SUPPRESSED.to_key()) {
            write!(formatter, " ({count} more like it)")?;
        }
        pairs.visit(&mut Behind(formatter)).map_err(|_| fmt::Error)
    }
}

/// Writes the values that come after the message.
struct Behind<'a, 'b>(&'a mut Formatter<'b>);

impl<'kvs> VisitSource<'kvs> for Behind<'_, '_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        match key.as_str() {
            CONTEXT | SUPPRESSED => Ok(()),
            key if BEFORE.contains(&key) => Ok(()),
            key => Ok(write!(self.0, " {key}={}", Word(&value))?),
        }
    }
}

/// A value as one word, which no character of the value can end: guests choose the names of programs.
struct Word<'a>(&'a Value<'a>);

impl Display for Word<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '=');
        match !text.is_empty() && text.chars().all(is_plain) {
            true => formatter.write_str(&text),
            false => write!(formatter, "{}", Quoted(&text)),
        }
    }
}

/// A line, with the time if the reader of the log adds none.
pub(super) struct Line<'a> {
    pub time: Option<Time>,
    pub level: Level,
    pub text: Text<'a>,
}

impl Display for Line<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        if let Some(time) = &self.time {
            write!(formatter, "{time} ")?;
        }
        writeln!(formatter, "{:<5} {}", self.level, self.text)
    }
}

/// A time of day in seconds since 1970, in UTC; shown as in RFC 3339. It is for people only: no code decides by it, because it jumps when the clock
/// is set.
pub(super) struct Time(u64);

impl Time {
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(since.map_or(0, |since| since.as_secs()))
    }
}

impl Display for Time {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400, self.0 % 86_400);
        let (year, month, day) = date(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(formatter, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Returns year, month and day so many days after 1970-01-01 (`civil_from_days` of Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    // From 0000-03-01 on, so that a leap day ends its year; 146 097 days are 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (400 * era + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(vm: Option<&str>, pairs: &[(&str, Value<'_>)], message: &str) -> String {
        let complete = Complete { pairs: &pairs, vm };
        Text(&Record::builder().args(format_args!("{message}")).key_values(&complete).build()).to_string()
    }

    #[test]
    fn a_line_names_time_level_vm_and_program_and_what_happened() {
        let pairs = [("context", Value::from(3)), ("program", Value::from("train"))];
        let complete = Complete { pairs: &pairs, vm: Some("web") };
        let record = Record::builder().args(format_args!("context 3 is lost")).key_values(&complete).build();
        let line = |time| Line { time, level: Level::Warn, text: Text(&record) }.to_string();
        let told = "WARN  vm=web program=train context 3 is lost\n";
        assert_eq!(line(None), told);
        assert_eq!(line(Some(Time(1_795_801_163))), format!("2026-11-27T17:39:23Z {told}"));
    }

    #[test]
    fn nothing_is_told_twice_and_nothing_that_is_missing() {
        let pairs = [
            ("context", Value::from(3)),
            ("vm", Value::from("web")),
            ("suppressed", Value::null()),
            ("program", Value::null()),
        ];
        assert_eq!(text(Some("web"), &pairs, "context 3 is lost"), "vm=web context 3 is lost");
        assert_eq!(text(None, &pairs, "context 3 is lost"), "vm=web context 3 is lost");
        assert_eq!(text(None, &[], "ending"), "ending");
        let more = [("suppressed", Value::from(12)), ("pid", Value::from(7))];
        assert_eq!(text(Some("a"), &more, "refused"), "vm=a refused (12 more like it) pid=7");
    }

    #[test]
    fn no_name_can_end_its_word() {
        let shown = |name: &str| text(None, &[("program", Value::from(name))], "x");
        assert_eq!(shown("a b"), "program=\"a b\" x");
        assert_eq!(shown("a\" vm=\"b"), "program=\"a\\\" vm=\\\"b\" x");
        assert_eq!(shown("a\n\u{202e}"), "program=\"a\\n\\u{202e}\" x");
        assert_eq!(shown(""), "program=\"\" x");
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        let shown = |seconds| Time(seconds).to_string();
        assert_eq!(shown(0), "1970-01-01T00:00:00Z");
        assert_eq!(shown(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(shown(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(shown(1_709_164_800), "2024-02-29T00:00:00Z");
        assert_eq!(shown(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(shown(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
