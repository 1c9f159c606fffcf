//! Records of the journal in its native protocol (systemd's "Native Journal Protocol"), sent through a socket that waits for a moment at most.
//!
//! The libraries for this protocol wait for a journal that does not read, and all VMs would wait with them. A record that is larger than the longest
//! datagram (some hundred KiB; lines of guests are far shorter) is not sent.

use log::kv::{self, Key, Value, VisitSource};
use log::{Level, Record};
use std::fmt::Display;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// The variable that names the device and inode of the journal's stream. Code that starts a process with another standard error removes the variable.
pub const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// The journal's socket.
const SOCKET: &str = "/run/systemd/journal/socket";
/// The value of the field `SYSLOG_IDENTIFIER`, by which `journalctl -t` finds records.
const IDENTIFIER: &str = "vhost-user-vulkan";
/// The time that a journal may take to make room while it reads, as in a burst of records.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longest name of a field.
const NAME_BYTES: usize = 64;

/// The way to the journal.
#[derive(Debug)]
pub(super) struct Journal {
    socket: UnixDatagram,
    /// The fields of each record.
    fields: Fields,
}

/// Fields as they are sent.
#[derive(Clone, Debug, Default)]
struct Fields(Vec<u8>);

/// Returns whether this is the journal's end of a stream (systemd.exec(5), `$JOURNAL_STREAM`).
pub(super) fn is_journal(file: impl AsFd) -> bool {
    let own = rustix::fs::fstat(file).map(|stat| format!("{}:{}", stat.st_dev, stat.st_ino));
    std::env::var(JOURNAL_STREAM).is_ok_and(|stream| own.is_ok_and(|own| own == stream))
}

impl Journal {
    /// Opens a socket whose records name this program and process.
    pub(super) fn open() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        // This shows at once whether a journal exists; an empty record is ignored.
        socket.send_to(&[], SOCKET)?;
        let mut fields = Fields::default();
        fields.put("SYSLOG_IDENTIFIER", IDENTIFIER);
        fields.put("SYSLOG_PID", std::process::id());
        Ok(Self { socket, fields })
    }

    /// Sets whether to wait for the journal at all: a journal that has not read is not waited for until it takes a record.
    pub(super) fn wait(&self, waits: bool) {
        // This call can fail only for a file that is no socket.
        let _ = self.socket.set_nonblocking(!waits);
    }

    /// Sends a record, if the journal has room for it now or soon.
    pub(super) fn send(&self, record: &Record<'_>) -> io::Result<()> {
        let bytes = self.fields.with(record).0;
        self.socket.send_to(&bytes, SOCKET).map(drop)
    }
}

impl Fields {
    /// Returns these fields and those of a record.
    fn with(&self, record: &Record<'_>) -> Self {
        let mut fields = self.clone();
        let priority = match record.level() {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 5,
            Level::Debug => 6,
            Level::Trace => 7,
        };
        fields.put("PRIORITY", priority);
        fields.put("MESSAGE", record.args());
        fields.put("TARGET", record.target());
        record.file().into_iter().for_each(|file| fields.put("CODE_FILE", file));
        record.module_path().into_iter().for_each(|module| fields.put("CODE_MODULE", module));
        record.line().into_iter().for_each(|line| fields.put("CODE_LINE", line));
        // The visitor does not fail.
        let _ = record.key_values().visit(&mut fields);
        fields
    }

    /// Adds a field. The value follows its length, so it can hold any bytes. The name is changed to one that the journal accepts.
    fn put(&mut self, name: &str, value: impl Display) {
        let Self(bytes) = self;
        let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let name: String = name.chars().map(allowed).collect();
        let name = name.trim_start_matches(|c: char| c == '_' || c.is_ascii_digit());
        bytes.extend(name.bytes().take(NAME_BYTES));
        bytes.push(b'\n');
        let value = value.to_string();
        bytes.extend((value.len() as u64).to_le_bytes());
        bytes.extend(value.bytes());
        bytes.push(b'\n');
    }
}

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        self.put(key.as_str(), value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_never_a_field() {
        let mut fields = Fields::default();
        fields.put("_way-1", "x\nPRIORITY=0");
        assert_eq!(fields.0, b"WAY_1\n\x0c\0\0\0\0\0\0\0x\nPRIORITY=0\n");
    }

    #[test]
    fn a_record_has_its_own_fields_and_those_of_each() {
        let mut each = Fields::default();
        each.put("vm", "web");
        let pairs = [("context", 3)];
        let record = Record::builder()
            .level(Level::Warn)
            .args(format_args!("lost"))
            .line(Some(7))
            .key_values(&pairs)
            .build();
        let text = String::from_utf8_lossy(&each.with(&record).0).into_owned();
        for field in ["VM\n\u{3}", "PRIORITY\n\u{1}", "MESSAGE\n\u{4}", "CONTEXT\n\u{1}", "CODE_LINE\n\u{1}"]
        {
            assert!(text.contains(field), "{field:?} in {text:?}");
        }
    }
}
