//! This file brings into the log of the device process, within limits, the lines that workers, the probe and their drivers print.
//!
//! Each of these processes has its own socket for standard output and error, so it can change, delay or forge no line of another. The device process
//! reads the lines that have arrived, waits for no more, and drops those beyond the limits, so that a driver that prints does not wait for a reader.
//! The log names the process that printed a line, and shows the line without control characters.

use config::SHARE;
use protocol::ids::ContextId;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::fmt::{self, Display, Formatter, Write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of a line that are shown.
const LINE_BYTES: usize = 1000;
/// Bytes taken from one process before other work gets its turn.
const TURN_BYTES: usize = 64 << 10;
/// The period for which [`Budget`] counts lines.
const PERIOD: Duration = Duration::from_secs(60);

/// The number of lines that may go into the log each minute. One process leaves others a share of them ([`SHARE`]).
#[derive(Debug)]
pub(in crate::serve) struct Budget {
    limit: u32,
    begun: Instant,
    /// Periods so far.
    period: u64,
    used: u32,
    dropped: u64,
}

/// The process that prints, as the log names it.
#[derive(Clone, Debug)]
pub(in crate::serve) enum Printer {
    /// The process that asks the driver for its GPUs.
    Probe,
    /// The worker of a context whose program has this name.
    Worker(ContextId, String),
}

impl Display for Printer {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Probe => write!(formatter, "the probe"),
            Self::Worker(context, _) => write!(formatter, "the worker of context {context}"),
        }
    }
}

/// The end of the socket at which the output of one process is read.
#[derive(Debug)]
pub(in crate::serve) struct Output {
    printer: Printer,
    socket: OwnedFd,
    line: Vec<u8>,
    /// The rest of the line is not shown.
    cut: bool,
    /// The period in which the process printed last, and the number of its lines in that period.
    used: (u64, u32),
}

/// The state of a process's output: whether more may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Heard {
    /// More may come later.
    More,
    /// No more will come: no process holds the other end.
    End,
}

impl Budget {
    /// Makes a budget of `limit` lines a minute (`log_lines`).
    pub(in crate::serve) fn new(limit: u32) -> Self {
        Self { limit, begun: Instant::now(), period: 0, used: 0, dropped: 0 }
    }

    /// Returns whether a line of a process that has had `used` may be logged, and counts the line.
    fn allow(&mut self, (period, used): &mut (u64, u32), now: Instant) -> bool {
        if now.saturating_duration_since(self.begun) >= PERIOD {
            if self.dropped > 0 {
                log::warn!(
                    "limit max-log-lines reached: {} lines that workers printed were dropped; raise it to see them",
                    self.dropped
                );
            }
            *self = Self { limit: self.limit, begun: now, period: self.period + 1, used: 0, dropped: 0 };
        }
        if *period != self.period {
            (*period, *used) = (self.period, 0);
        }
        let allowed = u64::from(*used) < SHARE * u64::from(self.limit - self.used);
        if allowed {
            *used += 1;
            self.used += 1;
        } else {
            self.dropped += 1;
        }
        allowed
    }

    /// Returns whether exactly one line of the period was dropped.
    fn drops_first(&self) -> bool {
        self.dropped == 1
    }
}

impl Output {
    /// Makes the end at which a process's output is read, and the end to be given to that process.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub(in crate::serve) fn new(printer: Printer) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::of(printer, ours.into()), theirs.into()))
    }

    /// Makes the reading end for a process that another device process has started.
    pub(in crate::serve) fn of(printer: Printer, socket: OwnedFd) -> Self {
        Self { printer, socket, line: Vec::new(), cut: false, used: (0, 0) }
    }

    /// Logs the lines that have arrived, a bounded number of them.
    pub(in crate::serve) fn hear(&mut self, budget: &mut Budget) -> Heard {
        self.read(|printer, line, used| log_line(printer, line, used, budget))
    }

    /// Hands complete lines on, with the process that printed them and its count.
    fn read(&mut self, mut put: impl FnMut(&Printer, &[u8], &mut (u64, u32))) -> Heard {
        let mut bytes = [0; 4096];
        for _ in 0..TURN_BYTES / bytes.len() {
            match recv(&self.socket, bytes.as_mut_slice(), RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) => return Heard::More,
                Ok((_, 0)) | Err(_) => {
                    self.put(&mut put);
                    return Heard::End;
                }
                Ok((count, _)) => self.take(&bytes[..count.min(bytes.len())], &mut put),
            }
        }
        Heard::More
    }

    fn take(&mut self, bytes: &[u8], put: &mut impl FnMut(&Printer, &[u8], &mut (u64, u32))) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            let room = LINE_BYTES.saturating_sub(self.line.len());
            self.cut |= text.len() > room;
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                self.put(put);
            }
        }
    }

    fn put(&mut self, put: &mut impl FnMut(&Printer, &[u8], &mut (u64, u32))) {
        if std::mem::take(&mut self.cut) {
            self.line.extend_from_slice(b" ...");
        }
        if !self.line.is_empty() {
            put(&self.printer, &self.line, &mut self.used);
        }
        self.line.clear();
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn log_line(printer: &Printer, line: &[u8], used: &mut (u64, u32), budget: &mut Budget) {
    if budget.allow(used, Instant::now()) {
        let (context, program) = match printer {
            Printer::Probe => (None, None),
            Printer::Worker(context, program) => (Some(context.0), Some(program.as_str())),
        };
        log::warn!(context, program; "{printer} prints: {}", shown(line));
    } else if budget.drops_first() {
        log::warn!(
            "limit max-log-lines reached: lines that {printer} and others print are dropped for up to a minute"
        );
    }
}

/// Returns a line that no reader takes for another: without characters that move a cursor or change the order of others; backslashes are doubled.
fn shown(line: &[u8]) -> String {
    let mut shown = String::with_capacity(line.len());
    for character in String::from_utf8_lossy(line).chars() {
        let _ = match character {
            '\'' | '"' | '\u{fffd}' => shown.write_char(character),
            '\t' => shown.write_char(' '),
            character => write!(shown, "{}", character.escape_debug()),
        };
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    struct Rig {
        output: Output,
        theirs: UnixStream,
        lines: Vec<String>,
    }

    impl Rig {
        fn new() -> Self {
            let (output, theirs) = Output::new(Printer::Probe).unwrap();
            let theirs = UnixStream::from(theirs);
            theirs.set_nonblocking(true).unwrap();
            Self { output, theirs, lines: Vec::new() }
        }

        fn hear(&mut self) -> Heard {
            self.output.read(|_, line, _| self.lines.push(shown(line)))
        }
    }

    #[test]
    fn lines_come_as_they_are_ended_and_the_last_at_the_end() {
        let mut rig = Rig::new();
        rig.theirs.write_all(b"one\n\ntw").unwrap();
        assert_eq!(rig.hear(), Heard::More);
        assert_eq!(rig.lines, ["one"]);
        rig.theirs.write_all(b"o\nthree").unwrap();
        rig.theirs.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(rig.hear(), Heard::End);
        assert_eq!(rig.lines, ["one", "two", "three"]);
    }

    #[test]
    fn a_line_is_cut_and_cannot_be_taken_for_another() {
        let mut rig = Rig::new();
        rig.theirs.write_all(&[b'x'; 10 * LINE_BYTES]).unwrap();
        rig.theirs.write_all(b"\r\n\x1b[2J\x00\xff\\ \"\xe2\x80\xae\n").unwrap();
        assert_eq!(rig.hear(), Heard::More);
        assert_eq!(rig.lines[0], "x".repeat(LINE_BYTES) + " ...");
        assert_eq!(rig.lines[1], "\\u{1b}[2J\\0\u{fffd}\\\\ \"\\u{202e}");
        assert!(rig.output.line.capacity() <= 2 * LINE_BYTES);
    }

    #[test]
    fn one_turn_takes_a_bounded_part_of_a_flood() {
        let mut rig = Rig::new();
        let mut sent = 0;
        while let Ok(count) = rig.theirs.write(&[b'\n'; 4096]) {
            sent += count;
        }
        assert!(sent > TURN_BYTES, "{sent}");
        assert_eq!(rig.hear(), Heard::More);
        assert!(rig.theirs.write(b"\n").is_ok() && rig.lines.is_empty());
    }

    #[test]
    fn a_minute_has_so_many_lines_and_one_process_leaves_others_some() {
        let mut budget = Budget::new(600);
        let now = Instant::now();
        let (mut flood, mut other) = ((0, 0), (0, 0));
        assert_eq!((0..10_000).filter(|_| budget.allow(&mut flood, now)).count(), 525);
        assert_eq!((0..10).filter(|_| budget.allow(&mut other, now)).count(), 10);
        assert_eq!(budget.dropped, 10_000 - 525);
        assert!((0..10_000).filter(|_| budget.allow(&mut (0, 0), now)).count() <= 65);
        assert!(budget.allow(&mut flood, now + PERIOD));
        assert_eq!((budget.used, flood.1), (1, 1));
    }
}
