//! The thread that reads the configuration file again, and makes sockets again whose files were removed. A file system may take any time, and the
//! broker does not wait for the file system.

use super::super::settings::{Problems, Settings, VmsFile};
use super::listener::{Kept, Made, made_again};
use crossbeam_channel::{Receiver, Sender, unbounded};
use shm::{Doorbell, Listener};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The broker's end of the channels to the thread, and the askers that wait for a result (`P`).
#[derive(Debug)]
pub(in crate::broker) struct Reader<P> {
    wanted: Sender<()>,
    read: Receiver<Reading>,
    /// Peers that wait for the result of the present reading, if there is one.
    current: Option<Vec<P>>,
    /// Peers that asked after that reading began; the file is read once more for them.
    next: Option<Vec<P>>,
    /// Reports to the broker's epoll instance that the file was read.
    _listener: Listener,
}

/// The result of one reading.
#[derive(Debug)]
pub(in crate::broker) struct Reading {
    /// The file's content, or its mistakes.
    pub(in crate::broker) settings: Result<Settings, Problems>,
    /// The sockets that were made again.
    pub(in crate::broker) made: Vec<Made>,
}

impl<P> Reader<P> {
    /// Starts the thread, which reads `file` and checks whether the files of `sockets` exist. `epoll` reports under `token` that a reading has ended.
    ///
    /// # Errors
    ///
    /// The system has no thread or no descriptor left.
    pub(in crate::broker) fn new(
        file: VmsFile,
        mut sockets: Vec<(usize, Kept)>,
        epoll: &Arc<OwnedFd>,
        token: u64,
    ) -> io::Result<Self> {
        let bell = Doorbell::new()?;
        let listener = bell.listen(epoll, token)?;
        let (wanted, requests) = unbounded();
        let (done, read) = unbounded();
        std::thread::Builder::new().name(THREAD.into()).spawn(move || {
            for () in requests {
                // Sockets come first, so that they exist when an asker gets the answer.
                let made = made_again(&mut sockets);
                if done.send(Reading { made, settings: file.read() }).is_err() {
                    break;
                }
                bell.ring();
            }
        })?;
        Ok(Self { wanted, read, current: None, next: None, _listener: listener })
    }

    /// Has the file read, and notes the peer that wants the result. Requests during a reading are answered by one more reading after it.
    pub(in crate::broker) fn ask(&mut self, who: P) {
        if self.current.is_none() {
            self.begin();
            self.current = Some(vec![who]);
        } else {
            self.next.get_or_insert_default().push(who);
        }
    }

    /// Returns whether a reading is under way.
    pub(in crate::broker) fn is_reading(&self) -> bool {
        self.current.is_some()
    }

    /// Returns the result of a reading that has come to its end, and the askers that wait for it.
    pub(in crate::broker) fn take(&mut self) -> Option<(Vec<P>, Reading)> {
        let read = self.read.try_recv().ok()?;
        let who = std::mem::replace(&mut self.current, self.next.take());
        if self.current.is_some() {
            self.begin();
        }
        Some((who.unwrap_or_default(), read))
    }

    fn begin(&self) {
        // The thread ends after this sender, so sending succeeds.
        let _ = self.wanted.send(());
    }
}

/// The thread's name.
const THREAD: &str = "reader";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// The time after which a test counts as hung.
    const LONG: Duration = Duration::from_secs(300);

    fn next(reader: &mut Reader<u32>) -> (Vec<u32>, Reading) {
        let begun = Instant::now();
        loop {
            if let Some(read) = reader.take() {
                return read;
            }
            assert!(begun.elapsed() < LONG, "nothing is read");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_asks_during_a_reading_gets_what_the_file_says_then_once_for_all() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let epoll = Arc::new(readiness::instance().unwrap());
        let file = VmsFile::new(path.path().to_owned(), log::LevelFilter::Info);
        let mut reader = Reader::new(file, Vec::new(), &epoll, 0).unwrap();
        (1..=3).for_each(|who| reader.ask(who));
        std::fs::write(path.path(), "[vm.a]\nsocket-path = \"/a\"").unwrap();
        assert_eq!(next(&mut reader).0, [1]);
        let (who, read) = next(&mut reader);
        assert_eq!((who, read.settings.unwrap().vms.len()), (vec![2, 3], 1));
        assert!(reader.take().is_none() && !reader.is_reading());
    }
}
