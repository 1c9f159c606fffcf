//! Connections of operators and of collectors of metrics: few, each with a time limit. The broker never waits for a connection.

use super::reload::listener::{Kept, Listener, Made};
use super::settings::MetricsAddress;
use super::source::Source;
use super::upgrade::passing::{Inherited, Pass, PassedListener};
use super::{control, http};
use outside::Access;
use readiness::{Events, unwatch, watch, watch_for};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sched::Nanos;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(any(test, feature = "fuzzing"))]
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The protocol that is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Control,
    Metrics,
}

/// Sockets that are listened at, and the connections there.
#[derive(Debug)]
pub(super) struct Connections {
    listeners: Vec<(Protocol, Listener)>,
    slots: Vec<Option<Connection>>,
    /// The number of connections so far.
    serial: u64,
}

#[derive(Debug)]
struct Connection {
    serial: u64,
    protocol: Protocol,
    socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// The connection is closed when the output is sent.
    last: bool,
    /// The broker sends a stream on this connection, until the peer has had enough.
    streams: Option<Streaming>,
    /// The peer has asked, and waits for the answer.
    waits: bool,
    /// The time at which the connection is dropped.
    deadline: Nanos,
}

/// The state of a connection on which the broker sends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streaming {
    /// The peer wants more.
    Wanted,
    /// The peer has said that it has had enough, or sends no more.
    Enough,
}

/// The identity of a connection; no two connections have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    slot: usize,
    serial: u64,
}

/// A whole request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A line of the control protocol.
    Line(Vec<u8>),
    /// A request for metrics.
    Http(http::Asked),
    /// The peer wants no more of its stream.
    Enough,
}

/// A peer that gets an answer when all device processes have reported their memory, or at the deadline.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) peer: Peer,
    pub(super) wants: Wants,
    pub(super) deadline: Nanos,
}

/// The answer that a peer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    Status,
    Metrics,
    /// What a drain of the GPU with this index would do.
    DrainPlan(usize),
}

/// The number of connections of each protocol at a time. One more takes the place of the connection whose time ends first, so that a peer that opens
/// connections and says nothing keeps no other peer out.
const CONNECTIONS: usize = 32;
/// Time for one request and its answer, in nanoseconds.
const PATIENCE: Nanos = 10_000_000_000;

impl Connections {
    /// Listens at `control` for the operators that `access` admits, and at `metrics`, if given, for collectors.
    pub(super) fn listen(
        (control, access): (&Path, Access),
        metrics: Option<&MetricsAddress>,
        epoll: &OwnedFd,
    ) -> io::Result<Self> {
        let mut all = Self { listeners: Vec::new(), slots: Vec::new(), serial: 0 };
        all.add_unix(Protocol::Control, control, access)?;
        warn_of_closed_folder(control, access);
        match metrics {
            None => {}
            Some(MetricsAddress::Unix(path)) => all.add_unix(Protocol::Metrics, path, Access::default())?,
            Some(MetricsAddress::Loopback(address)) => {
                all.listeners.push((Protocol::Metrics, Listener::at_port(address)?));
            }
        }
        all.begin(epoll)?;
        Ok(all)
    }

    /// Listens at sockets that an earlier program has made.
    ///
    /// # Errors
    ///
    /// A socket is missing, or the system refuses.
    pub(super) fn resume(
        passed: Vec<PassedListener>,
        inherited: &mut Inherited,
        epoll: &OwnedFd,
    ) -> io::Result<Self> {
        let mut all = Self { listeners: Vec::new(), slots: Vec::new(), serial: 0 };
        for PassedListener { is_metrics, socket, file } in passed {
            let protocol = if is_metrics { Protocol::Metrics } else { Protocol::Control };
            all.listeners.push((protocol, Listener::resume(inherited.take(socket)?, file)));
        }
        all.begin(epoll)?;
        Ok(all)
    }

    /// Passes the sockets on.
    pub(super) fn pass_on(&self, pass: &mut Pass<'_>) -> io::Result<Vec<PassedListener>> {
        let passed = self.listeners.iter().map(|(protocol, listener)| {
            Ok(PassedListener {
                is_metrics: *protocol == Protocol::Metrics,
                socket: pass(listener.as_fd())?,
                file: listener.kept().map(Kept::passed),
            })
        });
        passed.collect()
    }

    /// Returns the socket of a connection.
    pub(super) fn socket(&self, peer: Peer) -> Option<BorrowedFd<'_>> {
        let connection = self.slots.get(peer.slot)?.as_ref().filter(|there| there.serial == peer.serial)?;
        Some(connection.socket.as_fd())
    }

    /// Takes over the connection of an operator to whom an earlier program has streamed answers.
    pub(super) fn adopt(&mut self, socket: OwnedFd, epoll: &OwnedFd, now: Nanos) -> Option<Peer> {
        let peer = self.admit(Protocol::Control, socket, epoll, now)?;
        let connection = self.slots[peer.slot].as_mut()?;
        connection.streams = Some(Streaming::Wanted);
        Some(peer)
    }

    /// Has the sockets watched, and makes room for connections.
    fn begin(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        for (index, (_, listener)) in self.listeners.iter().enumerate() {
            watch(epoll, listener, Source::Listener.token(index), Events::EPOLLIN)?;
        }
        self.slots.resize_with(2 * CONNECTIONS * self.listeners.len(), || None);
        Ok(())
    }

    fn add_unix(&mut self, protocol: Protocol, path: &Path, access: Access) -> io::Result<()> {
        self.listeners.push((protocol, Listener::at(path, access)?));
        Ok(())
    }

    /// Takes over a connection to the control socket, whose other end a test plays.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn play(&mut self, socket: UnixStream, epoll: &OwnedFd, now: Nanos) -> Peer {
        let (serial, slot) = (self.serial + 1, 0);
        self.drop_at(slot, epoll);
        self.serial = serial;
        let (protocol, streams) = (Protocol::Control, None);
        let (input, output, sent, last) = (Vec::new(), Vec::new(), 0, false);
        let deadline = now.saturating_add(PATIENCE);
        let socket = socket.into();
        let waits = false;
        let connection =
            Connection { serial, protocol, socket, input, output, sent, last, streams, waits, deadline };
        let _ = watch(epoll, &connection.socket, Source::Connection.token(slot), Events::EPOLLIN);
        self.slots[slot] = Some(connection);
        Peer { slot, serial }
    }

    /// Drops all connections, whose other ends a test plays.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn drop_all(&mut self, epoll: &OwnedFd) {
        (0..self.slots.len()).for_each(|slot| self.drop_at(slot, epoll));
    }

    /// Returns the files of the sockets that are listened at, each with the index of its listener.
    pub(super) fn files(&self) -> Vec<(usize, Kept)> {
        let all = self.listeners.iter().enumerate();
        all.filter_map(|(index, (_, listener))| Some((index, listener.kept()?.clone()))).collect()
    }

    /// Listens at sockets that were made again because their files had been removed.
    pub(super) fn take_over(&mut self, made: Vec<Made>, epoll: &OwnedFd) {
        for (index, listener) in made {
            let Some((_, place)) = self.listeners.get_mut(index) else { continue };
            let listener = listener.and_then(|listener| {
                let watched = watch(epoll, &listener, Source::Listener.token(index), Events::EPOLLIN);
                watched.map(|()| listener)
            });
            match listener {
                Ok(listener) => {
                    let path = listener.file().map(|file| file.path().display().to_string());
                    log::warn!(
                        "{}: the socket file was removed, and the broker has made it again",
                        path.unwrap_or_default()
                    );
                    *place = listener;
                }
                Err(error) => log::error!(
                    "the socket file was removed, and cannot be made again: {error}; remove the cause, and reload once more"
                ),
            }
        }
    }

    /// Removes the files of the sockets, at which the broker listens no more.
    pub(super) fn remove_sockets(&mut self) {
        for (_, listener) in self.listeners.drain(..) {
            if let Some(file) = listener.file() {
                file.remove();
            }
        }
    }

    /// Accepts the connection of a peer.
    pub(super) fn accept(&mut self, listener: usize, epoll: &OwnedFd, now: Nanos) {
        let Some((protocol, listener)) = self.listeners.get(listener) else { return };
        let socket = match listener.accept() {
            Ok(socket) => socket,
            Err(error) => return log::debug!(error:%; "a connection could not be accepted"),
        };
        let protocol = *protocol;
        self.admit(protocol, socket, epoll, now);
    }

    /// Serves a new connection.
    fn admit(&mut self, protocol: Protocol, socket: OwnedFd, epoll: &OwnedFd, now: Nanos) -> Option<Peer> {
        self.make_room(protocol, epoll);
        self.serial += 1;
        let slot = self.free_slot()?;
        let connection = Connection {
            serial: self.serial,
            protocol,
            socket,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            last: false,
            streams: None,
            waits: false,
            deadline: now.saturating_add(PATIENCE),
        };
        watch(epoll, &connection.socket, Source::Connection.token(slot), Events::EPOLLIN).ok()?;
        self.slots[slot] = Some(connection);
        Some(Peer { slot, serial: self.serial })
    }

    /// Handles an event of a connection. Returns the request, if it is whole.
    pub(super) fn event(&mut self, slot: usize, flags: Events, epoll: &OwnedFd) -> Option<(Peer, Asked)> {
        let connection = self.slots.get_mut(slot)?.as_mut()?;
        let peer = Peer { slot, serial: connection.serial };
        let step = match connection.output.is_empty() {
            _ if connection.streams.is_some() => connection.hear_reader(flags),
            false => connection.send().map(|()| None),
            true if flags.contains(Events::EPOLLIN) => connection.receive(),
            true => Err(Errno::CONNRESET),
        };
        match step {
            Ok(Some(asked)) => {
                connection.waits = true;
                let flags = if connection.output.is_empty() { Events::empty() } else { Events::EPOLLOUT };
                connection.listen_for(epoll, slot, flags);
                return Some((peer, asked));
            }
            Ok(None) if connection.is_done() => self.drop_at(slot, epoll),
            Ok(None) => connection.listen_for_more(epoll, slot),
            Err(_) => self.drop_at(slot, epoll),
        }
        None
    }

    /// Answers a request. With `last`, the connection is closed when the answer is sent.
    pub(super) fn answer(&mut self, peer: Peer, answer: Vec<u8>, last: bool, epoll: &OwnedFd, now: Nanos) {
        let slot = self.slots.get_mut(peer.slot).and_then(Option::as_mut);
        let Some(connection) = slot.filter(|connection| connection.serial == peer.serial) else { return };
        (connection.output, connection.sent, connection.last) = (answer, 0, last);
        connection.waits = false;
        connection.deadline = now.saturating_add(PATIENCE);
        match connection.send() {
            Ok(()) if !connection.is_done() => connection.listen_for_more(epoll, peer.slot),
            Ok(()) | Err(_) => self.drop_at(peer.slot, epoll),
        }
    }

    /// Sends more to a peer that reads a stream, as far as there is room. With `last`, this is the end of the stream. Nothing happens if the peer is
    /// gone. A peer that reads nothing for as long as an answer may take is dropped.
    pub(super) fn stream(&mut self, peer: Peer, more: &[u8], last: bool, epoll: &OwnedFd, now: Nanos) {
        let slot = self.slots.get_mut(peer.slot).and_then(Option::as_mut);
        let Some(connection) = slot.filter(|connection| connection.serial == peer.serial) else { return };
        connection.streams.get_or_insert(Streaming::Wanted);
        if connection.output.is_empty() || connection.sent > 0 {
            connection.deadline = now.saturating_add(PATIENCE);
        }
        connection.output.drain(..connection.sent);
        connection.sent = 0;
        connection.output.extend_from_slice(more);
        connection.last = last;
        match connection.send() {
            Ok(()) if !connection.is_done() => connection.listen_for_more(epoll, peer.slot),
            Ok(()) | Err(_) => self.drop_at(peer.slot, epoll),
        }
    }

    /// Returns how many bytes of a stream wait to be sent; none if the peer is gone.
    pub(super) fn unsent(&self, peer: Peer) -> Option<usize> {
        let connection = self.slots.get(peer.slot)?.as_ref().filter(|there| there.serial == peer.serial)?;
        Some(connection.output.len() - connection.sent.min(connection.output.len()))
    }

    /// Returns a free slot. The search begins at another slot for each connection, so that it does not find the slot that was freed last: an event of
    /// the old connection may be under way.
    fn free_slot(&self) -> Option<usize> {
        let first = (self.serial % self.slots.len() as u64) as usize;
        (first..self.slots.len()).chain(0..first).find(|slot| self.slots[*slot].is_none())
    }

    /// Drops the connection of this protocol whose time ends first, if their number is at its limit. A connection without a request is dropped before
    /// one that waits for its answer or reads a stream.
    fn make_room(&mut self, protocol: Protocol, epoll: &OwnedFd) {
        let own = || self.slots.iter().enumerate().filter_map(|(slot, taken)| Some((slot, taken.as_ref()?)));
        let own = || own().filter(|(_, connection)| connection.protocol == protocol);
        if own().count() >= CONNECTIONS
            && let Some((slot, _)) = own().min_by_key(|(_, connection)| {
                (connection.is_served(), connection.deadline, connection.serial)
            })
        {
            self.drop_at(slot, epoll);
        }
    }

    /// Returns when [`Self::drop_late`] is to be called next.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.slots.iter().flatten().map(|connection| connection.deadline).min()
    }

    /// Drops the connections that took too long.
    pub(super) fn drop_late(&mut self, epoll: &OwnedFd, now: Nanos) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].as_ref().is_some_and(|connection| connection.deadline <= now) {
                self.drop_at(slot, epoll);
            }
        }
    }

    fn drop_at(&mut self, slot: usize, epoll: &OwnedFd) {
        if let Some(connection) = self.slots.get_mut(slot).and_then(Option::take) {
            let _ = unwatch(epoll, &connection.socket);
        }
    }
}

/// Warns of a folder that keeps members of the group with access from the control socket.
fn warn_of_closed_folder(control: &Path, access: Access) {
    if let Some(group) = access.group
        && let Some(folder) = outside::closed_folder(control, group)
    {
        let (control, folder) = (control.display(), folder.display());
        log::warn!(
            "group {group} does not reach {control}: its members may not pass {folder}; let them (`chmod o+x {folder}`), or name a path in another folder"
        );
    }
}

impl Connection {
    fn receive(&mut self) -> Result<Option<Asked>, Errno> {
        let mut bytes = [0; 4096];
        let count = match recv(&self.socket, bytes.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Errno::CONNRESET),
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.input.extend_from_slice(&bytes[..count.min(bytes.len())]);
        match self.protocol {
            Protocol::Metrics => Ok(match http::read(&self.input) {
                http::Asked::Incomplete => None,
                asked => Some(Asked::Http(asked)),
            }),
            Protocol::Control => self.take_line(),
        }
    }

    /// Sends more of a stream, and reads whether the peer has had enough: the peer says this by any byte, or by closing its side.
    fn hear_reader(&mut self, flags: Events) -> Result<Option<Asked>, Errno> {
        if flags.contains(Events::EPOLLOUT) {
            self.send()?;
        }
        if flags.contains(Events::EPOLLIN) && self.streams == Some(Streaming::Wanted) {
            self.streams = Some(Streaming::Enough);
            return Ok(Some(Asked::Enough));
        }
        match flags.intersects(Events::EPOLLHUP | Events::EPOLLERR) {
            true => Err(Errno::CONNRESET),
            false => Ok(None),
        }
    }

    fn take_line(&mut self) -> Result<Option<Asked>, Errno> {
        match self.input.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let rest = self.input.split_off(end + 1);
                let line = std::mem::replace(&mut self.input, rest);
                Ok(Some(Asked::Line(line)))
            }
            None if self.input.len() > control::REQUEST_BYTES => Err(Errno::MSGSIZE),
            None => Ok(None),
        }
    }

    fn send(&mut self) -> Result<(), Errno> {
        while self.sent < self.output.len() {
            match send(&self.socket, &self.output[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        if !self.last {
            self.output.clear();
            self.sent = 0;
        }
        Ok(())
    }

    /// Returns whether the peer has asked and is waiting for an answer or reading a stream.
    fn is_served(&self) -> bool {
        self.waits || self.streams.is_some()
    }

    fn is_done(&self) -> bool {
        self.last && self.sent >= self.output.len()
    }

    fn listen_for_more(&self, epoll: &OwnedFd, slot: usize) {
        let input = match self.streams {
            Some(Streaming::Wanted) => Events::EPOLLIN,
            None if self.output.is_empty() => Events::EPOLLIN,
            None | Some(Streaming::Enough) => Events::empty(),
        };
        let output = if self.output.is_empty() { Events::empty() } else { Events::EPOLLOUT };
        let flags = input | output;
        self.listen_for(epoll, slot, flags);
    }

    fn listen_for(&self, epoll: &OwnedFd, slot: usize, flags: Events) {
        // The connection is watched as long as it has a slot.
        let _ = watch_for(epoll, &self.socket, Source::Connection.token(slot), flags);
    }
}
