//! The terminal: its alternate screen while the view is shown, and its restoration in any case.

use super::screen::{Line, Size, Style, Tone};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::queue;
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode, size,
};
use std::io::{self, IsTerminal, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// The terminal while it shows a view. When it is dropped, or the program panics, the terminal is as it was before.
#[derive(Debug)]
pub(super) struct Terminal {
    has_colours: bool,
}

/// The terminal shows a view.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns whether a view makes sense: standard output and standard input are a terminal, which can move its cursor.
#[must_use]
pub fn is_interactive() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_dumb
}

impl Terminal {
    /// Takes over the terminal.
    ///
    /// # Errors
    ///
    /// The system refuses the settings.
    pub(super) fn take() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        // A release build aborts at a panic and drops nothing.
        HOOK.call_once(|| {
            let print = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                print(panic);
            }));
        });
        // https://no-color.org
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let terminal = Self { has_colours };
        TAKEN.store(true, Ordering::SeqCst);
        enable_raw_mode()?;
        let mut bytes = Vec::new();
        queue!(bytes, EnterAlternateScreen, Hide)?;
        write(&bytes)?;
        Ok(terminal)
    }

    /// Returns the size of the terminal.
    ///
    /// # Errors
    ///
    /// The terminal does not tell its size.
    pub(super) fn size(&self) -> io::Result<Size> {
        let (width, height) = size()?;
        Ok(Size { width: width.into(), height: height.into() })
    }

    /// Shows lines, which fill the screen.
    ///
    /// # Errors
    ///
    /// The terminal cannot be written to.
    pub(super) fn show(&mut self, lines: &[Line]) -> io::Result<()> {
        let mut bytes = Vec::new();
        queue!(bytes, BeginSynchronizedUpdate)?;
        for (y, line) in (0..).zip(lines) {
            queue!(bytes, MoveTo(0, y))?;
            for span in &line.spans {
                self.style(&mut bytes, span.style)?;
                queue!(bytes, Print(&span.text))?;
            }
        }
        queue!(bytes, SetAttribute(Attribute::Reset), EndSynchronizedUpdate)?;
        write(&bytes)
    }

    fn style(&self, bytes: &mut Vec<u8>, style: Style) -> io::Result<()> {
        queue!(bytes, SetAttribute(Attribute::Reset))?;
        if style.bold {
            queue!(bytes, SetAttribute(Attribute::Bold))?;
        }
        if style.reversed {
            queue!(bytes, SetAttribute(Attribute::Reverse))?;
        }
        // These colours are among the sixteen that each terminal has, as its user chose them.
        let colour = match style.tone {
            Tone::Plain => return Ok(()),
            Tone::Quiet => Color::DarkGrey,
            Tone::Time => Color::DarkGreen,
            Tone::Memory => Color::DarkCyan,
            Tone::Attention => Color::DarkYellow,
        };
        if self.has_colours {
            queue!(bytes, SetForegroundColor(colour))?;
        }
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal, if a view has taken it. A failure here has no remedy.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let mut bytes = Vec::new();
        let made =
            queue!(bytes, SetAttribute(Attribute::Reset), EndSynchronizedUpdate, Show, LeaveAlternateScreen);
        let _ = made.and_then(|()| write(&bytes));
        let _ = disable_raw_mode();
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Termios, tcgetattr};
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};

    /// Set for the process that panics, which is this test once more.
    const PANICS: &str = "A_PANIC_GIVES_THE_TERMINAL_BACK";

    #[test]
    fn a_panic_gives_the_terminal_back() {
        if std::env::var_os(PANICS).is_some() {
            // This is as in a release build, where a panic drops nothing.
            std::mem::forget(Terminal::take().unwrap());
            panic!("on purpose");
        }
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).and_then(|()| unlockpt(&master)).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let settings = |slave: &File| -> String {
            let settings: Termios = tcgetattr(slave).unwrap();
            format!("{settings:?}")
        };
        let (kept, before) = (slave(), settings(&slave()));
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "watch::terminal::tests::a_panic_gives_the_terminal_back", "--nocapture"]);
        child.env(PANICS, "1").stdin(slave()).stdout(slave()).stderr(Stdio::from(slave()));
        let status = child.status().unwrap();
        assert!(!status.success(), "{status}");
        assert_eq!(settings(&kept), before);
        drop((kept, child));
        let mut written = Vec::new();
        // When no process has the terminal open any more, reading fails after all that was written.
        let _ = File::from(master).read_to_end(&mut written);
        let written = String::from_utf8_lossy(&written);
        let place = |what: &str| written.find(what).unwrap_or_else(|| panic!("no {what:?} in {written:?}"));
        let (entered, left, message) = (place("\u{1b}[?1049h"), place("\u{1b}[?1049l"), place("on purpose"));
        assert!(entered < left && left < message, "{written:?}");
        assert!(place("\u{1b}[?25l") < place("\u{1b}[?25h"), "the cursor is hidden: {written:?}");
    }
}
