//! Collects the output of a guest's command, while it runs.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The text that the command printed so far.
#[derive(Default)]
pub(super) struct Output {
    printed: Mutex<Printed>,
    grown: Condvar,
}

#[derive(Default)]
struct Printed {
    bytes: Vec<u8>,
    ended: bool,
}

impl Output {
    /// Starts a thread that reads `from` to the end; `echo` copies it to standard output.
    pub(super) fn collect(mut from: impl Read + Send + 'static, echo: bool) -> Arc<Self> {
        let output = Arc::new(Self::default());
        let collector = Arc::clone(&output);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match from.read(&mut buffer) {
                    Ok(count) if count > 0 => collector.append(&buffer[..count], echo),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => break,
                }
            }
            collector.printed.lock().ended = true;
            collector.grown.notify_all();
        });
        output
    }

    /// Everything printed until now.
    pub(super) fn so_far(&self) -> String {
        self.printed.lock().text()
    }

    /// Everything, once the machine has ended.
    pub(super) fn until_end(&self) -> String {
        let mut printed = self.printed.lock();
        self.grown.wait_while(&mut printed, |printed| !printed.ended);
        printed.text()
    }

    /// The offset behind the first `text` from byte `from` on; none if `limit` passes or the machine ends before.
    pub(super) fn wait_for(&self, text: &str, from: usize, limit: Duration) -> Option<usize> {
        let mut printed = self.printed.lock();
        self.grown.wait_while_for(
            &mut printed,
            |printed| !printed.ended && printed.find(text, from).is_none(),
            limit,
        );
        printed.find(text, from)
    }

    fn append(&self, bytes: &[u8], echo: bool) {
        if echo {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush()).ok();
        }
        self.printed.lock().bytes.extend_from_slice(bytes);
        self.grown.notify_all();
    }
}

impl Printed {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn find(&self, text: &str, from: usize) -> Option<usize> {
        let at = self.bytes.get(from..)?.windows(text.len()).position(|window| window == text.as_bytes())?;
        Some(from + at + text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_finds_text_behind_an_offset_and_gives_up_at_the_end() {
        let output = Output::collect(&b"ready, again ready"[..], false);
        let limit = Duration::from_secs(600);
        let first = output.wait_for("ready", 0, limit);
        assert_eq!(first, Some(5));
        assert_eq!(output.wait_for("ready", 5, limit), Some(18));
        assert_eq!(output.wait_for("ready", 18, limit), None);
        assert_eq!(output.until_end(), "ready, again ready");
    }
}
