//! This module tells the service manager the state of this process (`NOTIFY_SOCKET`), and that its loop turns (`WATCHDOG_USEC`).
//!
//! The socket is connected before a process confines itself, so that the process opens nothing later. The loop calls [`Manager::turns`] in each turn;
//! no other code reports the loop's turns. The text of the status, which a guest can change, is sent once a second at most.

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use sd_notify::NotifyState;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The service manager, if there is one.
#[derive(Debug, Default)]
pub struct Manager {
    link: Option<Link>,
    is_ready: bool,
}

/// The connection to a manager.
#[derive(Debug)]
struct Link {
    socket: UnixDatagram,
    watchdog: Option<Watchdog>,
    status: Status,
}

/// The watchdog: a manager that ends this process if no turn of the loop is reported for a while.
#[derive(Debug)]
struct Watchdog {
    /// Time between two messages: half of the manager's patience.
    pause: Duration,
    next: Instant,
}

/// The line of text that the manager shows.
#[derive(Debug)]
struct Status {
    shown: String,
    /// The earliest time at which another text may be shown.
    next: Instant,
    /// The text may have changed.
    is_stale: bool,
}

/// Least time between two texts.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// The time that a manager is asked to wait for a start that takes long, in microseconds.
const START_TIMEOUT_US: u32 = 30_000_000;
/// Time that a manager has to take a message that must not be lost.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

impl Manager {
    /// Connects to the manager that the environment names. If the manager cannot be reached, this is logged and the process goes on without it.
    #[must_use]
    pub fn of_environment() -> Self {
        let Some(place) = env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty()) else {
            return Self::default();
        };
        match connect(&place) {
            Ok(socket) => Self::new(socket, sd_notify::watchdog_enabled(), Instant::now()),
            Err(error) => {
                log::warn!("cannot send messages to the service manager at {}: {error}", place.display());
                Self::default()
            }
        }
    }

    /// A manager that a test plays at the other end of the socket.
    #[cfg(test)]
    pub(crate) fn played() -> (Self, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Self::new(ours, None, Instant::now()), theirs)
    }

    fn new(socket: UnixDatagram, patience: Option<Duration>, now: Instant) -> Self {
        let pause = patience.map(|patience| patience / 2).filter(|pause| !pause.is_zero());
        let watchdog = pause.map(|pause| Watchdog { pause, next: now });
        let status = Status { shown: String::new(), next: now, is_stale: false };
        Self { link: Some(Link { socket, watchdog, status }), is_ready: false }
    }

    /// Returns whether this process has a manager to report to.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.link.is_some()
    }

    /// Returns whether the manager was told that this process is ready.
    #[must_use]
    pub fn knows_ready(&self) -> bool {
        self.is_ready
    }

    /// Tells the manager that this process serves, or serves again after [`Self::reloading`], with its status. From now on the watchdog counts.
    pub fn ready(&mut self, status: String) {
        self.is_ready = true;
        self.tell(&[NotifyState::Ready, NotifyState::Status(&status)], SendFlags::empty());
        if let Some(link) = &mut self.link {
            link.status = Status { shown: status, next: Instant::now() + STATUS_PAUSE, is_stale: false };
        }
    }

    /// Tells the manager of a start that takes long. The manager waits for at least half a minute from now on; a longer time that it has set itself stays.
    pub fn starts_late(&mut self) {
        self.tell(&[NotifyState::ExtendTimeoutUsec(START_TIMEOUT_US)], SendFlags::DONTWAIT);
    }

    /// Tells the manager that this process reads its configuration anew; [`Self::ready`] reports the end of the reading.
    pub fn reloading(&mut self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => _ = self.tell(&[NotifyState::Reloading, now], SendFlags::empty()),
            Err(error) => log::warn!("cannot tell the service manager of the reload: {error}"),
        }
    }

    /// Tells the manager that this process ends. The manager is told nothing more.
    pub fn stopping(&mut self) {
        self.tell(&[NotifyState::Stopping], SendFlags::empty());
        self.link = None;
    }

    /// Notes that the status may have changed.
    pub fn status_changed(&mut self) {
        self.link.iter_mut().for_each(|link| link.status.is_stale = true);
    }

    /// Tells the manager that the loop turns, if that is due, and the status if it has changed. Only the loop calls this.
    pub fn turns(&mut self, now: Instant, status: impl FnOnce() -> String) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.next_beat()) {
            let told = self.tell(&[NotifyState::Watchdog], SendFlags::DONTWAIT);
            if let Some(Watchdog { pause, next }) = self.link.as_mut().and_then(|link| link.watchdog.as_mut())
            {
                *next = now + if told { *pause } else { *pause / 4 };
            }
        }
        if is_due(self.next_status()) {
            let text = status();
            let is_shown = self.link.as_ref().is_some_and(|link| link.status.shown == text);
            // A status that the manager does not take is due again after the pause.
            let is_stale = !is_shown && !self.tell(&[NotifyState::Status(&text)], SendFlags::DONTWAIT);
            if let Some(link) = &mut self.link {
                let shown = if is_stale { std::mem::take(&mut link.status.shown) } else { text };
                link.status = Status { shown, next: now + STATUS_PAUSE, is_stale };
            }
        }
    }

    /// Returns when [`Self::turns`] has a message to send, even if no event comes until then.
    #[must_use]
    pub fn next_turn(&self) -> Option<Instant> {
        self.next_beat().into_iter().chain(self.next_status()).min()
    }

    fn next_beat(&self) -> Option<Instant> {
        self.link.as_ref()?.watchdog.as_ref().filter(|_| self.is_ready).map(|watchdog| watchdog.next)
    }

    fn next_status(&self) -> Option<Instant> {
        let status = &self.link.as_ref()?.status;
        status.is_stale.then_some(status.next)
    }

    /// Sends the manager a message, and returns whether the manager has got it.
    fn tell(&mut self, states: &[NotifyState<'_>], flags: SendFlags) -> bool {
        let Some(link) = &self.link else { return false };
        let message: String = states.iter().map(|state| format!("{state}\n")).collect();
        match send(&link.socket, message.as_bytes(), flags | SendFlags::NOSIGNAL) {
            Ok(_) => true,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {
                log::debug!("the service manager does not take a message: {}", message.trim_end());
                false
            }
            Err(error) => {
                log::warn!("the link to the service manager is broken: {error}");
                self.link = None;
                false
            }
        }
    }
}

/// Connects to a path, or to an abstract address, which begins with `@`.
fn connect(place: &OsStr) -> io::Result<UnixDatagram> {
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(place)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rig {
        manager: Manager,
        theirs: UnixDatagram,
        begin: Instant,
    }

    impl Rig {
        fn new(patience: Option<Duration>) -> Self {
            let (ours, theirs) = UnixDatagram::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            let begin = Instant::now();
            Self { manager: Manager::new(ours, patience, begin), theirs, begin }
        }

        fn heard(&self) -> Vec<String> {
            let mut bytes = [0; 4096];
            let next = || self.theirs.recv(&mut bytes).ok();
            let counts: Vec<_> = std::iter::from_fn(next).collect();
            assert!(counts.len() <= 1, "take one after the other");
            counts.iter().map(|count| String::from_utf8_lossy(&bytes[..*count]).into_owned()).collect()
        }

        fn turns(&mut self, after: Duration, status: &str) -> Vec<String> {
            self.manager.turns(self.begin + after, || status.to_owned());
            self.heard()
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn only_a_loop_that_turns_says_so_and_no_more_often_than_needed() {
        let mut rig = Rig::new(Some(10 * SECOND));
        assert!(rig.turns(SECOND, "").is_empty() && rig.manager.next_turn().is_none(), "not ready");
        rig.manager.ready("up".into());
        assert_eq!(rig.heard(), ["READY=1\nSTATUS=up\n"]);
        // While the loop does not turn, the manager is told nothing.
        assert_eq!(rig.turns(100 * SECOND, ""), ["WATCHDOG=1\n"]);
        assert_eq!(rig.manager.next_turn(), Some(rig.begin + 105 * SECOND));
        let busy = (0..4_000).flat_map(|at| rig.turns(100 * SECOND + at * SECOND / 1_000, ""));
        assert_eq!(busy.count(), 0);
        assert_eq!(rig.turns(105 * SECOND, ""), ["WATCHDOG=1\n"]);
    }

    #[test]
    fn status_is_sent_once_a_second_at_most_and_the_last_one_for_certain() {
        let mut rig = Rig::new(None);
        rig.manager.status_changed();
        assert_eq!(rig.turns(Duration::ZERO, "0"), ["STATUS=0\n"]);
        let flood = (1..1_000).flat_map(|at| {
            rig.manager.status_changed();
            rig.turns(at * SECOND / 1_000, &at.to_string())
        });
        assert_eq!(flood.count(), 0);
        assert_eq!(rig.manager.next_turn(), Some(rig.begin + SECOND));
        assert_eq!(rig.turns(SECOND, "last"), ["STATUS=last\n"]);
        assert_eq!(rig.manager.next_turn(), None, "nothing more is due");
        rig.manager.status_changed();
        assert!(rig.turns(3 * SECOND, "last").is_empty(), "the same text again");
    }

    #[test]
    fn a_reload_says_since_when_and_the_end_is_the_last_word() {
        let mut rig = Rig::new(Some(SECOND));
        rig.manager.reloading();
        let heard = rig.heard().concat();
        assert!(heard.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{heard}");
        rig.manager.ready("up".into());
        assert_eq!(rig.heard(), ["READY=1\nSTATUS=up\n"]);
        rig.manager.stopping();
        assert_eq!(rig.heard(), ["STOPPING=1\n"]);
        rig.manager.status_changed();
        assert!(rig.turns(9 * SECOND, "more").is_empty() && !rig.manager.is_there());
    }

    #[test]
    fn a_manager_that_does_not_read_holds_up_no_turn() {
        let mut rig = Rig::new(Some(SECOND));
        rig.manager.is_ready = true;
        for at in 0..2_000 {
            rig.manager.turns(rig.begin + at * SECOND, String::new);
        }
        assert!(rig.manager.is_there());
        // The next turn is reported to the manager before the manager's patience ends.
        assert_eq!(rig.manager.next_turn(), Some(rig.begin + 1_999 * SECOND + SECOND / 8));
        drop(rig.theirs);
        // A child that another test starts also has the socket until the child executes its program.
        let is_gone = (3_000..63_000).any(|at| {
            rig.manager.turns(rig.begin + at * SECOND, String::new);
            std::thread::sleep(Duration::from_millis(10));
            !rig.manager.is_there()
        });
        assert!(is_gone);
    }
}
