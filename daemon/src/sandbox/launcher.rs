//! The launcher: a small process that starts workers and probes for the device process.
//!
//! Because of the launcher, the device process, which reads a hostile guest's requests, can be forbidden to open files and to execute
//! programs. The launcher reads no guest byte and loads no driver, and it has one thread, so that it may fork. It ends, with all its
//! children, when the device process is gone, or later if it has to keep memory alive that a frontend may have mapped.

use super::cgroup::WorkerGroup;
use super::child::{self, Program};
use super::keeper::Keeper;
use super::watch::Watch;
use crate::ipc::{
    AtMost, Channel, ChildRole, DriverFamily, FromLauncher, Outbox, OutboxError, ReceiveError, SendError,
    ToLauncher,
};
use config::LAUNCHER_BACKLOG;
use outside::SocketFile;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

/// Runs the launcher until the device process is gone.
pub fn run(channel: Channel, program: &mut Program) -> ExitCode {
    let (children, outbox, keeper) = Default::default();
    let watch = Watch::of_drivers();
    let mut launcher = Launcher { channel, children, output: None, outbox, at_end: None, keeper, watch };
    let ready = launcher.tell(FromLauncher::Ready { lacks: program.lacks() });
    let result = ready.and_then(|()| launcher.serve(program));
    launcher.end();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("the launcher of workers ends: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Launcher {
    channel: Channel,
    children: Vec<Started>,
    /// The output socket of the child that is started next.
    output: Option<OwnedFd>,
    /// The messages that the device process has not read yet.
    outbox: Outbox<FromLauncher>,
    at_end: Option<AtEnd>,
    keeper: Keeper,
    watch: Watch,
}

struct Started {
    number: u32,
    pidfd: OwnedFd,
    /// The pipe in which the child reports its start or end; it reaches its end when no process holds the other end any more.
    report: io::PipeReader,
}

/// The files to remove at the end.
struct AtEnd {
    /// The VM's socket, which is watched.
    socket: Option<SocketFile>,
    others: Vec<SocketFile>,
}

impl Launcher {
    fn serve(&mut self, program: &mut Program) -> io::Result<()> {
        loop {
            let (hears, ended) = self.wait()?;
            // The highest first, so that the other indices stay right.
            for at in ended.into_iter().rev() {
                let Started { number, pidfd, report } = self.children.swap_remove(at);
                let status = status(&pidfd, report);
                let out_of_memory =
                    was_killed(&status) && program.group.as_mut().is_some_and(WorkerGroup::explains_a_kill);
                self.tell(FromLauncher::Ended { child: number, status, out_of_memory })?;
            }
            self.keeper.look();
            self.look()?;
            self.flush()?;
            if hears && !self.obey_all(program)? {
                return Ok(());
            }
        }
    }

    /// Reports the files that were replaced since the last look.
    fn look(&mut self) -> io::Result<()> {
        for what in self.watch.look() {
            self.tell(FromLauncher::Replaced(what))?;
        }
        Ok(())
    }

    /// Carries out the orders of the device process. Returns whether the device process still exists.
    fn obey_all(&mut self, program: &Program) -> io::Result<bool> {
        loop {
            match self.channel.try_receive() {
                Ok(Some((message, fd))) => self.obey(program, message, fd)?,
                Ok(None) => return Ok(true),
                Err(ReceiveError::Closed) => return Ok(false),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Waits for a message of the device process or the end of children. Returns whether a message has come, and the children that have ended.
    fn wait(&self) -> io::Result<(bool, Vec<usize>)> {
        let wanted = if self.outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut ready = vec![PollFd::new(&self.channel, wanted)];
        ready.extend(self.children.iter().map(|child| PollFd::new(&child.pidfd, PollFlags::IN)));
        ready.extend(self.watch.awaited().map(|events| PollFd::new(events, PollFlags::IN)));
        ready.extend(self.keeper.awaited().map(|process| PollFd::new(process, PollFlags::IN)));
        loop {
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let children = &ready[1..=self.children.len()];
        let ended = children.iter().enumerate().filter(|(_, fd)| happened(fd)).map(|(at, _)| at).collect();
        Ok((ready[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR), ended))
    }

    fn obey(&mut self, program: &Program, message: ToLauncher, fd: Option<OwnedFd>) -> io::Result<()> {
        match message {
            ToLauncher::Output => self.output = fd,
            ToLauncher::Start { child, role, family } => {
                if let Err(error) = self.start(program, child, role, family, fd) {
                    let status = Err(error.to_string());
                    self.tell(FromLauncher::Ended { child, status, out_of_memory: false })?;
                }
            }
            ToLauncher::Kill { child } => {
                for started in self.children.iter().filter(|started| started.number == child) {
                    // A child that has ended already cannot be killed again.
                    let _ = pidfd_send_signal(&started.pidfd, Signal::KILL);
                }
            }
            ToLauncher::Frontend => self.keeper.frontend(fd),
            ToLauncher::Keep { set } => {
                if let Some(fd) = fd {
                    self.keeper.keep(set, fd);
                }
            }
            ToLauncher::LetGo { set } => {
                self.keeper.let_go(set);
                self.tell(FromLauncher::Released { set })?;
            }
            ToLauncher::KeepOn { set } => {
                self.keeper.keep_on(set);
                self.tell(FromLauncher::Released { set })?;
            }
            ToLauncher::Watch { family } => {
                let socket = self.at_end.as_ref().and_then(|at_end| at_end.socket.as_ref());
                self.watch.begin(family, socket);
                self.look()?;
            }
            // Only the first order counts; the device process sends it before it hears of a guest.
            ToLauncher::RemoveAtEnd { socket, others } if self.at_end.is_none() => {
                let socket = socket.map(|(path, identity)| SocketFile::known(path, identity));
                self.at_end =
                    Some(AtEnd { socket, others: others.into_iter().flat_map(SocketFile::at).collect() });
            }
            ToLauncher::RemoveAtEnd { .. } => {}
            ToLauncher::LeaveAtEnd => self.at_end = None,
        }
        Ok(())
    }

    fn start(
        &mut self,
        program: &Program,
        number: u32,
        role: ChildRole,
        family: DriverFamily,
        channel: Option<OwnedFd>,
    ) -> io::Result<()> {
        let (Some(channel), Some(output)) = (channel, self.output.take()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (pid, report) = child::start(program, role, family, [&channel, &output])?;
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
                return Err(error.into());
            }
        };
        log::debug!(pid:% = Pid::as_raw_nonzero(pid); "{role:?} started");
        self.children.push(Started { number, pidfd, report });
        Ok(())
    }

    /// Sends the device process a message, now or when the device process reads again.
    fn tell(&mut self, message: FromLauncher) -> io::Result<()> {
        match self.outbox.send(&self.channel, message, None, &mut backlog()) {
            // The device process is gone, as the next look at the channel shows too.
            Ok(()) | Err(OutboxError::Send(SendError::Io(_))) => Ok(()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.outbox.flush(&self.channel, &mut backlog()) {
            Ok(()) => Ok(()),
            Err(SendError::Io(_)) => {
                self.outbox.clear();
                Ok(())
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn end(self) {
        for child in &self.children {
            let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
        }
        let files = self.at_end.iter().flat_map(|at_end| at_end.socket.iter().chain(&at_end.others));
        files.for_each(SocketFile::remove);
        for child in self.children {
            let _ = waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED);
        }
        self.keeper.wait_for_all();
    }
}

/// Returns the bound on the messages that wait for the device process.
fn backlog() -> AtMost {
    let (name, most) = LAUNCHER_BACKLOG;
    AtMost(name, most)
}

/// Returns whether a child was ended by SIGKILL, whichever process sent it.
fn was_killed(status: &Result<i32, String>) -> bool {
    matches!(status, Ok(status) if status & 0x7f == Signal::KILL.as_raw())
}

/// Returns how a child ended: by its report, if the child was not the program itself, or else by the system.
fn status(pidfd: &OwnedFd, mut report: io::PipeReader) -> Result<i32, String> {
    let waited = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    let mut said = Vec::new();
    // The read ends, because the child held the only other end of the pipe.
    let _ = report.read_to_end(&mut said);
    if let Some(reported) = child::reported(&said) {
        return reported;
    }
    match waited {
        Ok(Some(status)) => Ok(child::wait_status(&status)),
        _ => Err("its end was missed".to_owned()),
    }
}
