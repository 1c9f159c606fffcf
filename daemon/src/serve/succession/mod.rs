//! A succession: a device process of another program follows this one while a frontend is connected, or this one follows another. The broker
//! orders it, and gives both processes the ends of a socket between them.
//!
//! The first process, which serves, stops between two messages of the frontend and two requests of its driver, writes its state down, and waits. The
//! new process builds that state up, touches nothing, and says that it could serve. The first process then tells it to serve, and does nothing from
//! that message on. If anything fails before that message, only the new process ends; the first goes on serving, and frontend and guest have seen
//! a delay. Contexts keep their workers, which are processes of the program that started them; a restart gives a context a worker of the new program.

use super::handover::failure::Failure;
use crate::ipc::{self, Channel, FromSuccessor, SUCCESSION, SendError, ToSuccessor};
use rustix::event::PollFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The stage of a succession.
#[derive(Debug, Default)]
pub(super) enum Succession {
    /// There is no succession.
    #[default]
    None,
    /// The broker wants a succession, over this socket.
    Wanted(Channel),
    /// This process could not pass everything on, and tries again at this time.
    Rests(Attempt, Instant),
    /// This process comes to rest: it stops listening to the frontend once that is between two messages, until this time at the latest.
    Halts(Attempt, Instant),
}

/// The attempt of a process to come to rest.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The socket to the other process.
    pub(super) channel: Channel,
    /// The time at which this process gives the attempt up.
    pub(super) until: Instant,
}

impl Succession {
    /// Returns the time at which this process looks again, or gives a halt up.
    pub(super) fn next_due(&self) -> Option<Instant> {
        match self {
            Self::Rests(_, at) | Self::Halts(_, at) => Some(*at),
            Self::None | Self::Wanted(_) => None,
        }
    }

    /// Takes the attempt out if this process is about to stop listening to the frontend.
    pub(super) fn take_halts(&mut self) -> Option<Attempt> {
        match std::mem::take(self) {
            Self::Halts(attempt, _) => Some(attempt),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The device process could not pass everything on: it tries again in a moment, or refuses if the attempt has lasted too long.
    pub(super) fn try_again(&mut self, attempt: Attempt, reason: &str, now: Instant) {
        if now < attempt.until {
            *self = Self::Rests(attempt, now + AGAIN_AFTER);
        } else {
            refuse(&attempt.channel, reason);
        }
    }
}

/// The time for which this process tries to come to rest: workers export memory, write checkpoints and end within moments.
pub(super) const REST_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two tries.
const AGAIN_AFTER: Duration = Duration::from_millis(10);
/// The time that a frontend has to complete the message that it has begun.
pub(super) const HALT_PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 300 } else { 2 });
/// Time that the two processes have for all other steps, during which the VM is not served: less than the 5 s for which a guest's kernel waits for
/// some answers at its start.
pub(super) const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 300 } else { 2 });
/// Time for which a process that can serve waits until it is told to serve: longer than the other process has to tell it.
const TURN_PATIENCE: Duration = Duration::from_secs(30);
/// Descriptors of a state, at most: those of the guest's memory, and of each worker, resource, piece of memory and deposit.
const FILES_MAX: usize = 1 << 17;
/// Bytes of a state, at most: some for each resource of the guest.
const STATE_BYTES_MAX: usize = 16 << 20;
/// Bytes of one message.
const PIECE_BYTES: usize = 32 << 10;

/// Tells the other process that nothing is passed on. The other process may be gone.
pub(super) fn refuse(channel: &Channel, reason: &str) {
    log::debug!("no device process of another program follows: {reason}");
    let _ = channel.try_send(&ToSuccessor::NotNow { reason: reason.to_owned() }, None);
}

/// Passes everything on, and has the process at the other end serve.
pub(super) fn give<M: Serialize>(
    channel: &Channel,
    passed: &M,
    files: &[BorrowedFd<'_>],
    patience: Duration,
) -> Result<(), String> {
    let until = Instant::now() + patience;
    let state = ipc::encode(passed).map_err(|error| error.to_string())?;
    if state.len() > STATE_BYTES_MAX || files.len() > FILES_MAX {
        return Err("the guest has more than can be passed on".into());
    }
    let begins = (ToSuccessor::Begins { form: SUCCESSION }, None);
    let all = std::iter::once(begins)
        .chain(files.iter().map(|file| (ToSuccessor::File, Some(*file))))
        .chain(state.chunks(PIECE_BYTES).map(|piece| (ToSuccessor::State(piece.to_vec()), None)))
        .chain([(ToSuccessor::Ends, None)]);
    for (message, file) in all {
        send(channel, &message, file, until)?;
    }
    match receive(channel, until)? {
        (FromSuccessor::CanServe, _) => {}
        (FromSuccessor::Serves, _) => return Err("it serves before it is told to".into()),
    }
    send(channel, &ToSuccessor::Serve, None, until)
}

/// Receives everything.
///
/// # Errors
///
/// Nothing is passed on for now, or this program cannot take over the state that is passed on. A channel that closes, and a message that cannot be
/// read, count as a refusal for now.
pub(super) fn take<M: DeserializeOwned>(
    channel: &Channel,
    until: Instant,
) -> Result<(M, Vec<OwnedFd>), Failure> {
    match hear(channel, until)? {
        (ToSuccessor::Begins { form: SUCCESSION }, _) => {}
        (ToSuccessor::Begins { form }, _) => {
            let why = format!("it passes on state of form {form}, and this program knows form {SUCCESSION}");
            return Err(Failure::for_good(why));
        }
        _ => return Err(Failure::for_good("its first message is not the expected one")),
    }
    let (mut files, mut state) = (Vec::new(), Vec::new());
    loop {
        match hear(channel, until)? {
            (ToSuccessor::File, Some(file)) if files.len() < FILES_MAX => files.push(file),
            (ToSuccessor::File, None) => {
                return Err(Failure::for_now(
                    "no descriptor is left: raise the limit of open files (LimitNOFILE=)",
                ));
            }
            (ToSuccessor::State(piece), _) if state.len() + piece.len() <= STATE_BYTES_MAX => {
                state.extend(piece)
            }
            (ToSuccessor::Ends, _) => break,
            _ => return Err(Failure::for_good("it passes on a message that is no state")),
        }
    }
    let passed = ipc::decode(&state).map_err(|error| Failure::for_good(error.to_string()))?;
    Ok((passed, files))
}

/// Says that this process can serve, and waits until it is told to serve.
///
/// # Errors
///
/// The other process serves on for now, or sends a message that does not fit.
pub(super) fn await_turn(channel: &Channel) -> Result<(), Failure> {
    // If the other process is gone, the next read says so.
    let _ = channel.send(&FromSuccessor::CanServe, None);
    match hear(channel, Instant::now() + TURN_PATIENCE)? {
        (ToSuccessor::Serve, _) => Ok(()),
        _ => Err(Failure::for_good("it passes on more than its state")),
    }
}

/// Returns whether the process at the other end, which is gone or sends nothing more, has said that it serves.
pub(super) fn serves(channel: &Channel) -> bool {
    matches!(channel.try_receive(), Ok(Some((FromSuccessor::Serves, _))))
}

/// Receives a message of the process that serves.
///
/// # Errors
///
/// That process goes on serving for now.
fn hear(channel: &Channel, until: Instant) -> Result<(ToSuccessor, Option<OwnedFd>), Failure> {
    match receive(channel, until) {
        Ok((ToSuccessor::NotNow { reason }, _)) | Err(reason) => Err(Failure::for_now(reason)),
        Ok(heard) => Ok(heard),
    }
}

/// Sends a message as soon as there is room, until this time at the latest.
fn send(
    channel: &Channel,
    message: &ToSuccessor,
    file: Option<BorrowedFd<'_>>,
    until: Instant,
) -> Result<(), String> {
    loop {
        match channel.try_send(message, file) {
            Err(SendError::Full) => await_events(channel, PollFlags::OUT, until)?,
            sent => return sent.map_err(|error| error.to_string()),
        }
    }
}

/// Receives a message as soon as it arrives, until this time at the latest.
fn receive<M: DeserializeOwned>(channel: &Channel, until: Instant) -> Result<(M, Option<OwnedFd>), String> {
    loop {
        match channel.try_receive() {
            Ok(Some(received)) => return Ok(received),
            Ok(None) => await_events(channel, PollFlags::IN, until)?,
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn await_events(channel: &Channel, events: PollFlags, until: Instant) -> Result<(), String> {
    let left = until.saturating_duration_since(Instant::now());
    match readiness::within(channel, events, left) {
        Ok(none) if left.is_zero() && none.is_empty() => Err(
            "limit hand-on reached: the other device process does not answer in time; it is tried again later, and a VM that is powered off and on gets the new program at once".into()
        ),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
