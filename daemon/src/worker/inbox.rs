//! The device process' messages, in order, read even while their executor is blocked.
//!
//! Usually the executor reads the socket itself, which saves a switch between threads per message. While the executor waits ([`Inbox::while_away`]),
//! a helper thread reads and queues messages. So the device process can go on sending, and the helper notices the end of the channel. The reading
//! thread handles some messages at once, ahead of those that are queued.

use crate::ipc::{Channel, ReceiveError, ToWorker};
use parking_lot::{Condvar, Mutex};
use rustix::event::PollFlags;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use waiting::look::Habit;
use waiting::tunables;

/// A message as it came.
#[derive(Debug)]
pub(super) struct Letter {
    /// The message itself.
    pub message: ToWorker,
    /// The descriptor that came with it.
    pub fd: Option<OwnedFd>,
    /// Position in the order of arrival, from 1.
    pub number: u64,
}

type Received = Result<(ToWorker, Option<OwnedFd>), ReceiveError>;

/// Handles a message on the thread that read it, or hands it back to be queued.
type OnArrival = Box<dyn Fn(Letter) -> Option<Letter> + Send + Sync>;

/// The receiving side of a channel.
pub(super) struct Inbox {
    shared: Arc<Shared>,
    /// The spinning of the executor's waits for messages.
    habit: Mutex<Habit>,
}

struct Shared {
    channel: Arc<Channel>,
    on_arrival: OnArrival,
    /// Messages read so far; only the thread that may read changes it.
    received: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Letter>,
    /// The executor is blocked, or about to be.
    away: bool,
    /// The helper reads the socket, so no other thread may.
    helping: bool,
    closed: bool,
    dropped: bool,
}

impl Inbox {
    /// Starts reading `channel`. `closed` runs once, on the helper thread, if the channel ends while the executor is away.
    pub(super) fn new(
        channel: Arc<Channel>,
        on_arrival: OnArrival,
        closed: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            channel,
            on_arrival,
            received: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let helper = Arc::clone(&shared);
        std::thread::Builder::new().name("inbox".into()).spawn(move || {
            if helper.help() {
                closed();
            }
        })?;
        Ok(Self { shared, habit: Mutex::new(Habit::new(tunables().look.inbox_max, tunables().look)) })
    }

    /// Returns the next message; nothing once the channel is closed. Only the executor calls this.
    pub(super) fn next(&self) -> Option<Letter> {
        let mut state = self.shared.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(letter) = state.queue.pop_front() {
                self.shared.changed.notify_all();
                return Some(letter);
            }
            if !state.helping {
                break;
            }
            self.shared.changed.wait(&mut state);
        }
        drop(state);
        loop {
            if let Some(letter) = self.shared.take(self.receive())? {
                return Some(letter);
            }
        }
    }

    /// Waits for a message. Those of programs that submit again and again come soon, and a thread that sleeps is late.
    fn receive(&self) -> Received {
        let (channel, received) = (&self.shared.channel, Cell::new(None));
        let has_come = || match channel.try_receive() {
            Ok(None) => false,
            Ok(Some(letter)) => {
                received.set(Some(Ok(letter)));
                true
            }
            Err(error) => {
                received.set(Some(Err(error)));
                true
            }
        };
        self.habit.lock().wait(has_come, |limit| match limit {
            Some(limit) => self.shared.sleep(limit),
            None => received.set(Some(channel.receive())),
        });
        received.take().unwrap_or(Err(ReceiveError::Closed))
    }

    /// Runs `block`, which may take long, while the helper reads messages.
    pub(super) fn while_away<R>(&self, block: impl FnOnce() -> R) -> R {
        self.shared.state.lock().away = true;
        self.shared.changed.notify_all();
        let result = block();
        self.shared.state.lock().away = false;
        self.shared.changed.notify_all();
        result
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.state.lock().dropped = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Takes a message that was read: nothing at the end of the channel, and no letter if the message is handled already.
    fn take(&self, received: Received) -> Option<Option<Letter>> {
        match received {
            Ok((message, fd)) => {
                let number = self.received.fetch_add(1, Ordering::Relaxed) + 1;
                Some((self.on_arrival)(Letter { message, fd, number }))
            }
            Err(error) => {
                if !matches!(error, ReceiveError::Closed) {
                    log::error!("worker ends: {error}");
                }
                None
            }
        }
    }

    /// Runs the helper's loop; returns whether it saw the channel end.
    fn help(&self) -> bool {
        let mut state = self.state.lock();
        while !state.dropped {
            state.helping = state.away && state.queue.len() < QUEUE_MAX;
            if state.helping {
                drop(state);
                let letter = self.take(self.channel.receive());
                state = self.state.lock();
                state.closed |= letter.is_none();
                state.queue.extend(letter.flatten());
            } else if state.away {
                // No more messages are read, but the end of the channel must be noticed all the same.
                self.changed.wait_for(&mut state, Duration::from_millis(100));
                state.closed |= self.hung_up();
            } else {
                // The executor may wait until only it reads the socket again.
                self.changed.notify_all();
                self.changed.wait(&mut state);
            }
            self.changed.notify_all();
            if state.closed {
                state.helping = false;
                return true;
            }
        }
        false
    }

    /// Sleeps for this time at most, or until a message can be read.
    fn sleep(&self, limit: Duration) {
        // A thread that sleeps for too short a time finds nothing.
        let _ = readiness::within(&self.channel, PollFlags::IN, limit);
    }

    fn hung_up(&self) -> bool {
        readiness::look(&self.channel, PollFlags::empty()).contains(PollFlags::HUP)
    }
}

/// The most messages that are queued here; more stay in the socket and then with the device process. Each can be as large as an inline
/// submission.
const QUEUE_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::ids::ResourceId;
    use std::sync::mpsc;

    fn message(id: u32) -> ToWorker {
        ToWorker::DetachResource { resource_id: ResourceId(id) }
    }

    fn id(letter: Option<Letter>) -> u32 {
        match letter {
            Some(Letter { message: ToWorker::DetachResource { resource_id }, .. }) => resource_id.0,
            other => panic!("{other:?}"),
        }
    }

    fn inbox() -> (Inbox, Channel, mpsc::Receiver<()>) {
        let (ours, peer) = Channel::pair().unwrap();
        let (sender, closed) = mpsc::channel();
        let inbox = Inbox::new(Arc::new(ours), Box::new(Some), move || sender.send(()).unwrap()).unwrap();
        (inbox, peer, closed)
    }

    #[test]
    fn messages_stay_in_order_however_often_the_executor_is_away() {
        let (inbox, peer, _closed) = inbox();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..5_000).for_each(|id| peer.send(&message(id), None).unwrap()));
            for expected in 0..5_000 {
                assert_eq!(id(inbox.next()), expected);
                match expected % 100 {
                    0 => inbox.while_away(|| std::thread::sleep(Duration::from_millis(1))),
                    50 => inbox.while_away(|| ()),
                    _ => (),
                }
            }
        });
    }

    #[test]
    fn messages_handled_on_arrival_are_not_queued_and_numbers_count_all() {
        let (ours, peer) = Channel::pair().unwrap();
        let (sender, handled) = mpsc::channel();
        let on_arrival = move |letter: Letter| match letter.number % 2 {
            0 => Some(letter),
            _ => {
                sender.send(id(Some(letter))).unwrap();
                None
            }
        };
        let inbox = Inbox::new(Arc::new(ours), Box::new(on_arrival), || ()).unwrap();
        inbox.while_away(|| {
            (1..=4).for_each(|id| peer.send(&message(id), None).unwrap());
            assert_eq!(handled.iter().take(2).collect::<Vec<_>>(), [1, 3]);
        });
        let letter = inbox.next().unwrap();
        assert_eq!((letter.number, id(Some(letter))), (2, 2));
        assert_eq!(id(inbox.next()), 4);
    }

    #[test]
    fn while_the_executor_is_away_sending_goes_on_up_to_a_bound() {
        let (inbox, peer, _closed) = inbox();
        let sent = inbox.while_away(|| {
            let mut sent = 0;
            let mut refused = 0;
            // The thread that takes them may have to wait for a processor, but not for ever.
            while refused < if (sent as usize) < QUEUE_MAX { 120_000 } else { 20 } {
                match peer.try_send(&message(sent), None) {
                    Ok(()) => (sent, refused) = (sent + 1, 0),
                    Err(_) => {
                        refused += 1;
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            }
            sent
        });
        assert!(sent as usize >= QUEUE_MAX, "{sent}");
        (0..sent).for_each(|expected| assert_eq!(id(inbox.next()), expected));
    }

    #[test]
    fn the_end_is_noticed_while_away_even_when_nothing_more_can_be_queued() {
        for flood in [0, 10_000] {
            let (inbox, peer, closed) = inbox();
            inbox.while_away(|| {
                for _ in 0..flood {
                    if peer.try_send(&message(0), None).is_err() {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
                drop(peer);
                closed.recv_timeout(Duration::from_secs(300)).unwrap();
            });
            assert!(inbox.next().is_none());
        }
    }

    #[test]
    fn the_end_is_noticed_while_waiting() {
        let (inbox, peer, _closed) = inbox();
        peer.send(&message(3), None).unwrap();
        drop(peer);
        assert_eq!(id(inbox.next()), 3);
        assert!(inbox.next().is_none());
    }
}
