//! A connection to a control socket: one request, and the lines that answer it.

use super::super::control::{Answer, Request};
use super::super::report::status::Status;
use super::{ClientError, refused};
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer.
pub(super) const ANSWER_BYTES: u64 = 256 << 20;

/// Asks the broker that listens at `socket`.
///
/// # Errors
///
/// No broker answers, or the broker refuses.
pub fn ask(socket: &Path, request: &Request) -> Result<Answer, ClientError> {
    Stream::open(socket, request).map(|(answer, _)| answer)
}

/// Asks the daemon that listens at `socket` for its status.
///
/// # Errors
///
/// As [`ask`].
pub fn status(socket: &Path) -> Result<Status, ClientError> {
    status_of(socket, ask(socket, &Request::Status)?)
}

/// Asks as [`status`] does, and waits no longer than `limit` for the whole answer.
pub(super) fn status_within(socket: &Path, limit: Duration) -> Result<Status, ClientError> {
    let until = Some(Instant::now() + limit);
    status_of(socket, Stream::open_until(socket, &Request::Status, limit, until)?.0)
}

fn status_of(socket: &Path, answer: Answer) -> Result<Status, ClientError> {
    match answer {
        Answer::Status(status) => Ok(status),
        _ => Err(ClientError::Protocol(socket.to_owned(), "no status".into())),
    }
}

/// The lines that a broker sends after its answer.
#[derive(Debug)]
pub struct Stream {
    path: PathBuf,
    lines: BufReader<Patient>,
}

impl Stream {
    /// Asks the broker that listens at `socket`. Returns its answer, and the connection for the lines that follow.
    ///
    /// # Errors
    ///
    /// As [`ask`].
    pub fn open(socket: &Path, request: &Request) -> Result<(Answer, Self), ClientError> {
        Self::open_until(socket, request, PATIENCE, None)
    }

    /// Asks as [`Self::open`] does, and waits for each step as long as `patience`, but not beyond `until`.
    fn open_until(
        socket: &Path,
        request: &Request,
        patience: Duration,
        until: Option<Instant>,
    ) -> Result<(Answer, Self), ClientError> {
        let failed = |error| ClientError::Socket(socket.to_owned(), error);
        let mut stream = outside::connect(socket, patience).map_err(failed)?;
        stream.set_read_timeout(Some(patience)).map_err(failed)?;
        let wrong = |error: serde_json::Error| ClientError::Protocol(socket.to_owned(), error.to_string());
        let mut line = serde_json::to_vec(request).map_err(wrong)?;
        line.push(b'\n');
        stream.write_all(&line).map_err(failed)?;
        let mut stream = Self { path: socket.to_owned(), lines: BufReader::new(Patient { stream, until }) };
        match stream.next_line(ANSWER_BYTES)? {
            None => Err(failed(io::ErrorKind::UnexpectedEof.into())),
            Some(Answer::Error { error }) => Err(refused(&error)),
            Some(answer) => Ok((answer, stream)),
        }
    }

    /// Returns the next line, of at most `bytes_max` bytes, or none if the broker sends no more. Waits for the line as long as for an answer.
    ///
    /// # Errors
    ///
    /// The broker sends no line in time, or a line of another form.
    pub fn next_line<T: DeserializeOwned>(&mut self, bytes_max: u64) -> Result<Option<T>, ClientError> {
        let mut line = Vec::new();
        let read = self.lines.by_ref().take(bytes_max).read_until(b'\n', &mut line);
        read.map_err(|error| ClientError::Socket(self.path.clone(), error))?;
        let wrong = |error: serde_json::Error| ClientError::Protocol(self.path.clone(), error.to_string());
        (!line.is_empty()).then(|| serde_json::from_slice(&line).map_err(wrong)).transpose()
    }

    /// The connection. Any byte that is sent on it ends the broker's stream.
    pub fn socket(&self) -> &UnixStream {
        &self.lines.get_ref().stream
    }
}

/// A connection that is read no longer than until a deadline, if it has a deadline, however many bytes come before.
#[derive(Debug)]
struct Patient {
    stream: UnixStream,
    until: Option<Instant>,
}

impl Read for Patient {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(until) = self.until else { return self.stream.read(bytes) };
        let left = until.saturating_duration_since(Instant::now());
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it has not answered in time");
        if left.is_zero() {
            return Err(late());
        }
        self.stream.set_read_timeout(Some(left))?;
        let read = self.stream.read(bytes);
        read.map_err(|error| if error.kind() == io::ErrorKind::WouldBlock { late() } else { error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_daemon_that_sends_bytes_and_no_answer_is_waited_for_until_the_moment_and_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let drip = std::thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            // The peer writes for ten times as long as the limit.
            for _ in 0..400 {
                let _ = peer.write_all(b" ");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let error = status_within(&path, Duration::from_millis(200)).unwrap_err().to_string();
        assert!(error.contains("it has not answered in time"), "{error}");
        drip.join().unwrap();
    }
}
