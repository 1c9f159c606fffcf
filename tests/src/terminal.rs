//! A terminal for programs under test: a pseudo-terminal of the kernel with an emulator (`vt100`) behind it, which knows the screen that a person
//! would see.

use crate::daemon::eventually;
use crate::guest::PATIENCE;
use anyhow::{Context, Result, ensure};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, ExitStatus, Stdio};

/// The marks around a picture (synchronised updates, DEC mode 2026).
const PICTURE_BEGINS: &[u8] = b"\x1b[?2026h";
const PICTURE_ENDS: &[u8] = b"\x1b[?2026l";

/// A program at a terminal of its own. Dropping it kills the program.
pub struct Terminal {
    child: Child,
    master: File,
    screen: vt100::Parser,
    /// Everything that the program wrote.
    written: Vec<u8>,
    /// The settings of the terminal before the program began.
    before: Termios,
}

impl Terminal {
    /// Starts a command at a terminal of this size, as a shell would.
    ///
    /// # Errors
    /// There is no terminal to be had, or no such program.
    pub fn start(command: &Command, width: u16, height: u16) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        tcsetwinsize(&master, size(width, height))?;
        let name = ptsname(&master, Vec::new())?;
        let open = || File::options().read(true).write(true).open(name.to_str().unwrap_or_default());
        let slave = open().context("the terminal cannot be opened")?;
        let before = tcgetattr(&slave)?;
        // `setsid` makes the terminal the one of a new session, and becomes the program. The process that runs the tests may ignore signals.
        let mut in_session = Command::new("setsid");
        in_session.args(["--ctty", "env", "--default-signal"]);
        in_session.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => in_session.env(key, value),
                None => in_session.env_remove(key),
            };
        }
        in_session.env_remove("NO_COLOR").env("TERM", "xterm-256color");
        in_session.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        in_session.stdin(Stdio::from(slave.try_clone()?)).stdout(slave.try_clone()?).stderr(slave);
        let child = in_session.spawn().context("starting setsid")?;
        fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
        let master = File::from(master);
        let screen = vt100::Parser::new(in_use(height)?, in_use(width)?, 0);
        Ok(Self { child, master, screen, written: Vec::new(), before })
    }

    /// The program's process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Changes the size of the terminal, which a signal reports to the program, and waits until the program has drawn two pictures more: a key that
    /// arrives together with the signal may be lost (crossterm handles only one of the two).
    ///
    /// # Errors
    /// The terminal is gone, or the program draws no more.
    pub fn resize(&mut self, width: u16, height: u16) -> Result<()> {
        self.look();
        self.screen.screen_mut().set_size(in_use(height)?, in_use(width)?);
        let before = self.pictures();
        tcsetwinsize(&self.master, size(width, height))?;
        let drawn = eventually(PATIENCE, || {
            self.look();
            self.pictures() >= before + 2
        });
        ensure!(drawn, "it draws no more\n{}", self.lines().join("\n"));
        Ok(())
    }

    /// The number of complete pictures that the program has drawn.
    fn pictures(&self) -> usize {
        self.written.windows(PICTURE_ENDS.len()).filter(|bytes| *bytes == PICTURE_ENDS).count()
    }

    /// Presses keys, given as the bytes that a terminal sends for them.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.master.write_all(keys.as_bytes())?)
    }

    /// Takes in the program's output so far. Returns the screen that a person sees.
    pub fn look(&mut self) -> &vt100::Screen {
        let mut bytes = [0; 65536];
        loop {
            match self.master.read(&mut bytes) {
                // The last process has closed the terminal, which Linux reports as an error.
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    self.screen.process(&bytes[..count]);
                    self.written.extend_from_slice(&bytes[..count]);
                }
            }
        }
        self.screen.screen()
    }

    /// The lines of the screen, without the spaces at their ends.
    pub fn lines(&mut self) -> Vec<String> {
        let width = self.look().size().1;
        self.screen.screen().rows(0, width.get()).map(|line| line.trim_end().to_owned()).collect()
    }

    /// Everything that the program wrote so far.
    pub fn written(&mut self) -> &[u8] {
        self.look();
        &self.written
    }

    /// Returns whether a picture has begun and is not complete, according to the program's marks.
    fn is_drawing(&self) -> bool {
        let last = |mark: &[u8]| self.written.windows(mark.len()).rposition(|bytes| bytes == mark);
        last(PICTURE_BEGINS) > last(PICTURE_ENDS)
    }

    /// Waits until the lines of a complete picture are as wanted, and returns them.
    ///
    /// # Errors
    /// No such picture comes in time.
    pub fn until(&mut self, what: &str, is: impl Fn(&[String]) -> bool) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let came = eventually(PATIENCE, || {
            lines = self.lines();
            !self.is_drawing() && is(&lines)
        });
        ensure!(came, "not seen: {what}\n{}", lines.join("\n"));
        println!("{what}:\n{}\n", lines.join("\n"));
        Ok(lines)
    }

    /// Sends the program a signal.
    ///
    /// # Errors
    /// The program is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid(), signal)?)
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// The program does not end.
    pub fn end(&mut self) -> Result<ExitStatus> {
        let mut status = None;
        let ended = eventually(PATIENCE, || {
            self.look();
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        ensure!(ended, "it goes on\n{}", self.lines().join("\n"));
        self.look();
        status.context("it has ended")
    }

    /// Checks that the terminal is as it was before the program began: its settings, its screen, its cursor, its colours.
    ///
    /// # Errors
    /// The error names the difference.
    pub fn check_given_back(&mut self) -> Result<()> {
        let now = tcgetattr(&self.master)?;
        let (before, now) = (format!("{:?}", self.before), format!("{now:?}"));
        ensure!(now == before, "settings were\n{before}\nand are\n{now}");
        let screen = self.look();
        ensure!(!screen.alternate_screen(), "the alternate screen is left on");
        ensure!(!screen.hide_cursor(), "the cursor is left hidden");
        let is_plain = screen.fgcolor() == vt100::Color::Default && !screen.bold() && !screen.inverse();
        ensure!(is_plain, "a style is left on");
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn in_use(length: u16) -> Result<NonZero<u16>> {
    NonZero::new(length).context("a terminal without characters")
}

fn size(width: u16, height: u16) -> Winsize {
    Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 }
}
