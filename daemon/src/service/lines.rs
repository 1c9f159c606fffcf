//! Standard error, written without ever waiting for its reader.
//!
//! The reader of standard error may stop reading: a pipe is full, a terminal is stopped. A process that serves VMs must not stop with it. So the
//! process drops a line that finds no room, and before the next line that finds room it writes the number of dropped lines. A flag of the descriptor
//! would avoid the wait but change the descriptor for each process that has the same file open. So this process opens the file itself, or sets a flag
//! for each call.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{Errno, write};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{IoSlice, Stderr, stderr};
use std::os::fd::{AsFd, OwnedFd};

/// Standard error, and the number of lines that have not been written to it.
#[derive(Debug)]
pub(super) struct Lines {
    way: Way,
    stderr: Stderr,
    dropped: u64,
    /// The last line was written in part.
    is_cut: bool,
}

/// A way to write without waiting.
#[derive(Debug)]
enum Way {
    /// The pipe or terminal is opened once more.
    Own(OwnedFd),
    /// A socket, which gets the flag with each call.
    Socket,
    /// A file, which has room or fails.
    File,
    /// A pipe of another user; this process asks before each write whether there is room.
    Asked,
}

/// The bytes that fit into a pipe that reports room (`PIPE_BUF`).
const PIPE_ROOM: usize = 4096;

impl Lines {
    /// Determines the kind of standard error. The caller calls this before the process confines itself.
    pub(super) fn to_stderr() -> Self {
        let stderr = stderr();
        let kind = fstat(&stderr).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
        let again = || open("/proc/self/fd/2", flags, Mode::empty());
        let way = match kind {
            Ok(FileType::Socket) => Way::Socket,
            Ok(FileType::Fifo | FileType::CharacterDevice) => again().map_or(Way::Asked, Way::Own),
            _ => Way::File,
        };
        Self { way, stderr, dropped: 0, is_cut: false }
    }

    /// Returns lines that go to this non-blocking pipe or socket.
    #[cfg(test)]
    pub(super) fn to(file: OwnedFd) -> Self {
        Self { way: Way::Own(file), stderr: stderr(), dropped: 0, is_cut: false }
    }

    /// Writes a whole line, or drops it. The `notice` of dropped lines is written with the line or not at all, so that the notice takes no room that
    /// a line could have.
    pub(super) fn put_line(&mut self, line: &str, notice: impl FnOnce(u64) -> String) {
        let written = match self.dropped {
            0 => self.put(line.as_bytes()),
            dropped => {
                let end = if self.is_cut { "\n" } else { "" };
                self.put([end, notice(dropped).as_str(), line].concat().as_bytes())
            }
        };
        self.dropped = if written.is_ok() { 0 } else { self.dropped + 1 };
    }

    /// Writes all bytes at once, or returns the reason why none or only some were written.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let written = loop {
            let written = match &self.way {
                Way::Own(file) => write(file, bytes),
                Way::Socket => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    sendmsg(&self.stderr, &[IoSlice::new(bytes)], &mut SendAncillaryBuffer::default(), flags)
                }
                Way::File => write(&self.stderr, bytes),
                Way::Asked => match has_room(&self.stderr) {
                    true => write(&self.stderr, &bytes[..bytes.len().min(PIPE_ROOM)]),
                    false => Err(Errno::AGAIN),
                },
            };
            if written != Err(Errno::INTR) {
                break written;
            }
        };
        match written {
            Ok(count) if count == bytes.len() => {
                self.is_cut = false;
                Ok(())
            }
            Ok(count) => {
                self.is_cut = count > 0;
                Err(Errno::AGAIN)
            }
            Err(error) => Err(error),
        }
    }
}

/// Writes a line to standard error, or drops it if there is no room: a process that ends with an error must not wait.
pub fn print_error(line: &str) {
    Lines::to_stderr().put_line(&format!("{line}\n"), |_| String::new());
}

/// Returns whether a write would not wait, as far as the system tells.
fn has_room(file: impl AsFd) -> bool {
    let mut asked = [PollFd::new(&file, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().contains(PollFlags::OUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Read, Write};

    #[test]
    fn lines_without_room_are_dropped_and_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        let mut lines = Lines::to(writer.into());
        let notice = |dropped| format!("{dropped} were dropped\n");
        let line = "x".repeat(999) + "\n";
        (0..1000).for_each(|_| lines.put_line(&line, notice));
        let dropped = lines.dropped;
        assert!(dropped > 900 && dropped < 1000, "{dropped}");
        let mut half = vec![0; (1000 - usize::try_from(dropped).unwrap()) * 1000];
        reader.read_exact(&mut half).unwrap();
        lines.put_line("next\n", notice);
        drop(lines);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("{dropped} were dropped\nnext\n"));
    }

    #[test]
    fn room_is_found_and_missed() {
        let (_reader, mut writer) = io::pipe().unwrap();
        assert!(has_room(&writer));
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
        while writer.write(&[0; 4096]).is_ok() {}
        assert!(!has_room(&writer));
    }
}
