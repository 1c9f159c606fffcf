//! Descriptors that the launcher keeps for the device process, which may be killed.
//!
//! The descriptors keep memory alive that a frontend may have mapped (see `serve::blobs::lenders`). Unless the launcher is told to release them, it
//! keeps them until the frontend's process has ended: then no process has the memory mapped.

use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The sets of descriptors that the launcher keeps.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// The frontend's process, if it is known.
    frontend: Option<Arc<OwnedFd>>,
    sets: Vec<Set>,
}

#[derive(Debug)]
struct Set {
    number: u64,
    fds: Vec<OwnedFd>,
    frontend: Option<Arc<OwnedFd>>,
    /// The launcher waits for the frontend's end.
    waits: bool,
}

impl Keeper {
    /// Says which process may map the kept descriptors from now on.
    pub(super) fn frontend(&mut self, process: Option<OwnedFd>) {
        self.frontend = process.map(Arc::new);
    }

    /// Keeps a descriptor.
    pub(super) fn keep(&mut self, number: u64, fd: OwnedFd) {
        if let Some(set) = self.sets.iter_mut().find(|set| set.number == number) {
            set.fds.push(fd);
        } else {
            let frontend = self.frontend.clone();
            self.sets.push(Set { number, fds: vec![fd], frontend, waits: false });
        }
    }

    /// Closes a set.
    pub(super) fn let_go(&mut self, number: u64) {
        self.sets.retain(|set| set.number != number);
    }

    /// Keeps a set until the frontend's process has ended, if the process is known; otherwise closes the set.
    pub(super) fn keep_on(&mut self, number: u64) {
        if let Some(set) = self.sets.iter_mut().find(|set| set.number == number) {
            set.waits = true;
        }
        self.sets.retain(|set| !set.waits || set.frontend.is_some());
    }

    /// Returns the processes whose end the launcher waits for: they are readable then.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &OwnedFd> {
        self.sets.iter().filter(|set| set.waits).filter_map(|set| set.frontend.as_deref())
    }

    /// Closes the sets whose frontend's process has ended.
    pub(super) fn look(&mut self) {
        self.sets.retain(|set| {
            let Some(process) = set.frontend.as_deref().filter(|_| set.waits) else { return true };
            readiness::look(process, PollFlags::IN).is_empty()
        });
    }

    /// Waits, as the device process is gone, for the end of every process that may have memory mapped.
    pub(super) fn wait_for_all(mut self) {
        let numbers: Vec<_> = self.sets.iter().map(|set| set.number).collect();
        numbers.into_iter().for_each(|number| self.keep_on(number));
        while !self.sets.is_empty() {
            let mut awaited: Vec<_> = self.awaited().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            if poll(&mut awaited, None).is_err_and(|error| error != rustix::io::Errno::INTR) {
                return;
            }
            self.look();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    fn frontend() -> (Child, OwnedFd) {
        let child = Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        (child, pidfd_open(pid, PidfdFlags::empty()).unwrap())
    }

    /// Returns a descriptor, and another that shows whether the first is open.
    fn kept() -> (OwnedFd, OwnedFd) {
        let (watched, kept) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        (kept, watched)
    }

    fn is_open(watched: &OwnedFd) -> bool {
        !readiness::look(watched, PollFlags::IN).contains(PollFlags::HUP)
    }

    fn has_ended(watched: &OwnedFd) -> bool {
        readiness::has_ended(watched, Duration::from_secs(600))
    }

    #[test]
    fn a_set_is_kept_until_it_is_let_go_or_the_frontend_has_ended() {
        let (mut child, process) = frontend();
        let mut keeper = Keeper::default();
        keeper.frontend(Some(process));
        let (fds, watched): (Vec<_>, Vec<_>) = (0..3).map(|_| kept()).unzip();
        for (fd, set) in fds.into_iter().zip([1, 1, 2]) {
            keeper.keep(set, fd);
        }
        keeper.let_go(2);
        keeper.keep_on(1);
        keeper.look();
        assert!(is_open(&watched[0]) && is_open(&watched[1]) && has_ended(&watched[2]));
        assert_eq!(keeper.awaited().count(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        keeper.look();
        assert!(watched.iter().all(has_ended));
        assert_eq!(keeper.awaited().count(), 0);
    }

    #[test]
    fn when_the_device_process_is_gone_the_frontend_is_waited_for() {
        let (mut child, process) = frontend();
        let mut keeper = Keeper::default();
        keeper.frontend(Some(process));
        let ((fd, watched), (stranger, strange)) = (kept(), kept());
        keeper.keep(1, fd);
        // The process of this frontend is not known.
        keeper.frontend(None);
        keeper.keep(2, stranger);
        let waits = std::thread::spawn(move || keeper.wait_for_all());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished() && is_open(&watched) && has_ended(&strange));
        child.kill().unwrap();
        child.wait().unwrap();
        waits.join().unwrap();
        assert!(has_ended(&watched));
    }
}
