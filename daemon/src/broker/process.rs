//! One device process as the broker sees it: its channel and its end. A guest that took the process over can send any message, and need not read the
//! broker's messages, so the broker never waits for the process. It is a child of the broker, or the process that the broker is a thread of.

use super::upgrade::passing::{Inherited, Pass, PassedProcess};
use crate::ipc::{AtMost, Channel, FromBroker, InForce, Outbox, Replaced, ToBroker};
use crate::options::Start;
use crate::sandbox::start_device_process;
use config::BROKER_BACKLOG;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// A device process that was started and has not been reaped.
#[derive(Debug)]
pub(super) struct Process {
    life: Life,
    channel: Channel,
    outbox: Outbox<FromBroker>,
    started: Instant,
    /// The process was killed: its messages do not matter any more.
    pub(super) dying: bool,
    /// The process said that it waits for a frontend.
    pub(super) ready: bool,
    /// A frontend is connected.
    pub(super) connected: bool,
    /// The settings that the process reported at its start.
    pub(super) in_force: Option<InForce>,
    /// The replaced files that the process depends on, at most one of each kind.
    pub(super) replaced: Vec<Replaced>,
    /// The process was started by an earlier program than this one, and still runs that program.
    pub(super) is_older: bool,
}

/// The relation of a device process to the broker, on which its end depends.
#[derive(Debug)]
enum Life {
    /// A child, which this program or an earlier one has started, and its pidfd.
    Child(Pid, OwnedFd),
    /// This process, in which the broker is one thread.
    Own,
}

impl Process {
    /// The process that this broker is a thread of, whose device thread has the other end of the channel.
    pub(super) fn own(channel: Channel) -> Self {
        Self::new(Life::Own, channel)
    }

    /// Starts a device process for the VM of this name.
    pub(super) fn start(vm: &str, start: &Start) -> io::Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        // The channel is still empty, so it has room.
        channel.send(start, None).map_err(io::Error::other)?;
        Self::of_child(start_device_process(vm, theirs.into_socket())?, channel)
    }

    /// A device process that a test plays at the other end of the channel.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn played() -> io::Result<(Self, Channel)> {
        let (channel, theirs) = Channel::pair()?;
        let child = std::process::Command::new("/bin/sleep").arg("1000").spawn()?;
        Ok((Self::of_child(child, channel)?, theirs))
    }

    fn of_child(mut child: Child, channel: Channel) -> io::Result<Self> {
        let pid = Pid::from_child(&child);
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error.into());
            }
        };
        Ok(Self::new(Life::Child(pid, pidfd), channel))
    }

    fn new(life: Life, channel: Channel) -> Self {
        Self {
            life,
            channel,
            outbox: Outbox::default(),
            started: Instant::now(),
            dying: false,
            ready: false,
            connected: false,
            in_force: None,
            replaced: Vec::new(),
            is_older: false,
        }
    }

    /// Returns the state that another program needs to go on with the process; none if it is this very process. `pass` passes a descriptor on.
    pub(super) fn pass_on(&self, pass: &mut Pass<'_>) -> io::Result<Option<PassedProcess>> {
        let Life::Child(pid, pidfd) = &self.life else { return Ok(None) };
        let waiting = self.outbox.waiting().map(|(message, _)| message.clone());
        Ok(Some(PassedProcess {
            pid: pid.as_raw_nonzero().get(),
            pidfd: pass(pidfd.as_fd())?,
            channel: pass(self.channel.as_fd())?,
            waiting: waiting.collect(),
            age: self.age(),
            dying: self.dying,
            ready: self.ready,
            connected: self.connected,
            in_force: self.in_force.clone(),
            // The replaced program is left out: the new one takes over now.
            replaced: self.replaced.iter().filter(|what| !what.is_program()).cloned().collect(),
        }))
    }

    /// Goes on with a process of an earlier program.
    ///
    /// # Errors
    ///
    /// The PID cannot be that of a child, or descriptors are missing.
    pub(super) fn resume(passed: PassedProcess, inherited: &mut Inherited) -> io::Result<Self> {
        let pid = Some(passed.pid).filter(|pid| *pid > 1).and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        let (pidfd, channel) = (inherited.take(passed.pidfd)?, inherited.take(passed.channel)?);
        let mut process = Self::new(Life::Child(pid, pidfd), Channel::from_socket(channel));
        for message in passed.waiting {
            process.outbox.keep(message, None, &mut backlog()).map_err(io::Error::other)?;
        }
        Ok(Self {
            started: Instant::now().checked_sub(passed.age).unwrap_or(process.started),
            dying: passed.dying,
            ready: passed.ready,
            connected: passed.connected,
            in_force: passed.in_force,
            replaced: passed.replaced,
            is_older: true,
            ..process
        })
    }

    /// Notes that a file was replaced, if that is new.
    pub(super) fn note_replaced(&mut self, what: Replaced) {
        let is_known = |known: &Replaced| std::mem::discriminant(known) == std::mem::discriminant(&what);
        if !self.replaced.iter().any(is_known) {
            self.replaced.push(what);
        }
    }

    /// Returns the process's channel.
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns the pidfd that tells the end of the process, if it is another process than this one.
    pub(super) fn pidfd(&self) -> Option<&OwnedFd> {
        match &self.life {
            Life::Child(_, pidfd) => Some(pidfd),
            Life::Own => None,
        }
    }

    /// Returns whether it is another process than this one.
    pub(super) fn is_child(&self) -> bool {
        matches!(self.life, Life::Child(..))
    }

    /// Returns the PID of the process.
    pub(super) fn pid(&self) -> u32 {
        match &self.life {
            Life::Child(pid, _) => pid.as_raw_nonzero().get().unsigned_abs(),
            Life::Own => std::process::id(),
        }
    }

    /// Returns the processor time that the process has used, without the broker's own.
    pub(super) fn cpu_time(&self) -> Duration {
        match &self.life {
            Life::Child(..) => cpu_time(self.pid()).unwrap_or_default(),
            Life::Own => own_cpu_time().saturating_sub(thread_cpu_time()),
        }
    }

    /// Returns the age of the process.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns a message of the process, if one has come.
    ///
    /// # Errors
    ///
    /// The process is gone, or sends bytes that are no message.
    pub(super) fn receive(&self) -> Result<Option<(ToBroker, Option<OwnedFd>)>, String> {
        self.channel.try_receive().map_err(|error| error.to_string())
    }

    /// Sends a message now, or when the process reads again. Returns whether some messages wait.
    ///
    /// # Errors
    ///
    /// The process is gone, or does not read its messages.
    pub(super) fn send(&mut self, message: FromBroker) -> Result<bool, String> {
        self.send_with(message, None)
    }

    /// Sends a message with a descriptor, as [`Self::send`] does.
    ///
    /// # Errors
    ///
    /// As those of [`Self::send`].
    pub(super) fn send_with(
        &mut self,
        message: FromBroker,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<bool, String> {
        let sent = self.outbox.send(&self.channel, message, file, &mut backlog());
        sent.map(|()| !self.outbox.is_empty()).map_err(|error| error.to_string())
    }

    /// Sends the messages that wait, as far as there is room. Returns whether some still wait.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub(super) fn flush(&mut self) -> Result<bool, String> {
        let sent = self.outbox.flush(&self.channel, &mut backlog());
        sent.map(|()| !self.outbox.is_empty()).map_err(|error| error.to_string())
    }

    /// Asks the process to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the process, with which its workers end. If it is this process, the broker's thread ends and the device thread goes on.
    pub(super) fn kill(&mut self) {
        self.dying = true;
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // A child may have ended already.
        self.pidfd().into_iter().for_each(|pidfd| _ = pidfd_send_signal(pidfd, signal));
    }

    /// Reaps the process after its end was seen, and returns its exit status.
    pub(super) fn reap(&mut self) -> io::Result<ExitStatus> {
        match &mut self.life {
            Life::Child(pid, _) => reap(*pid),
            Life::Own => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Reaps a child that has ended.
fn reap(child: Pid) -> io::Result<ExitStatus> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the bound on the messages that wait for a device process.
fn backlog() -> AtMost {
    let (name, most) = BROKER_BACKLOG;
    AtMost(name, most)
}

/// Returns the processor time that this process has used.
pub(super) fn own_cpu_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Returns the processor time that this thread has used.
pub(super) fn thread_cpu_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

fn clock(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Processor time that a process has used, as the system counts it.
fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Fields 14 and 15, in ticks. The name, which is field 2, can hold anything, and ends with the last parenthesis.
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{VmGroup, VmOptions};
    use crate::sandbox::GroupLimits;

    #[test]
    fn a_device_process_reads_what_the_broker_starts_it_with() {
        let words = "--socket-path=/a --socket-mode=620 --gpu=x --gpu=y --movable --queues=all --memory=memfd \
                     --map-device-memory=never --max-submit-time=9s --device-memory=12.5% --host-memory=1GiB \
                     --sandbox=degraded --zero-memory=off --log-level=debug --restart-every=150 \
                     --waiting-without=spin,hold";
        let group =
            Some(VmGroup { path: "/group".into(), part: GroupLimits { memory: Some(7), tasks: None } });
        let options = VmOptions::of_words(words.split_whitespace()).unwrap();
        let start = Start { options, awaits_room: true, group, follows: false };
        let (ours, theirs) = Channel::pair().unwrap();
        ours.send(&start, None).unwrap();
        assert_eq!(theirs.receive::<Start>().unwrap().0, start);
    }

    /// The time after which a test counts as hung.
    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn processor_time_of_this_process_is_found() {
        let before = cpu_time(std::process::id()).unwrap();
        let begun = Instant::now();
        while cpu_time(std::process::id()).unwrap() <= before {
            assert!(begun.elapsed() < LONG, "it stays {before:?}");
        }
        assert_eq!(cpu_time(u32::MAX), None);
    }
}
