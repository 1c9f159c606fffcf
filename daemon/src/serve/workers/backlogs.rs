//! The bound on the messages that wait for workers which do not read; all workers of the VM share it.

use crate::device::{Owner, Quota};
use crate::ipc::{Bound, ToWorker};
use config::DeviceLimits;

/// The counts of the messages that wait for all workers of the VM.
#[derive(Debug)]
pub(in crate::serve) struct Backlogs {
    messages: Quota,
    bytes: Quota,
    files: Quota,
}

/// The part of one worker in the counts.
pub(in crate::serve) struct Backlog<'a> {
    all: &'a mut Backlogs,
    owner: Owner,
}

impl Backlogs {
    /// Makes the bound, with no message waiting.
    pub(in crate::serve) fn new(limits: &DeviceLimits) -> Self {
        Self {
            messages: Quota::new("worker_backlog", limits.worker_backlog as u64),
            bytes: Quota::new("worker_backlog_bytes", limits.worker_backlog_bytes as u64),
            files: Quota::new("worker_backlog_files", limits.worker_backlog_files as u64),
        }
    }

    /// Returns the bound on one worker's messages.
    pub(in crate::serve) fn of(&mut self, owner: Owner) -> Backlog<'_> {
        Backlog { all: self, owner }
    }

    /// Forgets the messages of this worker: none waits any more.
    pub(in crate::serve) fn forget(&mut self, owner: Owner) {
        let Self { messages, bytes, files } = self;
        [messages, bytes, files].into_iter().for_each(|quota| quota.give_back(owner, u64::MAX));
    }
}

impl Bound<ToWorker> for Backlog<'_> {
    fn take(&mut self, _: usize, message: &ToWorker, has_file: bool) -> Result<(), &'static str> {
        let (owner, bytes) = (self.owner, stream_bytes(message));
        let Backlogs { messages, bytes: all_bytes, files } = &mut *self.all;
        messages.check(owner, 1, &[])?;
        all_bytes.check(owner, bytes, &[])?;
        files.take(owner, has_file.into())?;
        // This succeeds, as was checked above.
        messages.take(owner, 1)?;
        all_bytes.take(owner, bytes)
    }

    fn give_back(&mut self, message: &ToWorker, has_file: bool) {
        self.all.messages.give_back(self.owner, 1);
        self.all.bytes.give_back(self.owner, stream_bytes(message));
        self.all.files.give_back(self.owner, has_file.into());
    }
}

/// Returns the bytes of the stream that a message carries, in itself or in its file.
fn stream_bytes(message: &ToWorker) -> u64 {
    match message {
        ToWorker::Submit { size, .. } => u64::from(*size),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_named_and_one_worker_leaves_others_their_share() {
        let submit = |size| ToWorker::Submit { size, inline: Vec::new(), fence: None };
        let limits = DeviceLimits {
            worker_backlog: 80,
            worker_backlog_bytes: 1 << 20,
            worker_backlog_files: 8,
            ..DeviceLimits::default()
        };
        let mut all = Backlogs::new(&limits);
        let fill = |all: &mut Backlogs, owner, message: &ToWorker, has_file| {
            let mut bound = all.of(Owner(owner));
            (0..100)
                .find_map(|before| bound.take(before, message, has_file).err().map(|limit| (before, limit)))
        };
        assert_eq!(fill(&mut all, 1, &submit(4), false), Some((70, "worker_backlog")));
        assert_eq!(fill(&mut all, 2, &submit(4), true), Some((7, "worker_backlog_files")));
        assert_eq!(fill(&mut all, 3, &submit(1 << 20), false), Some((0, "worker_backlog_bytes")));
        // A refused message has taken nothing.
        assert_eq!((all.messages.held(Owner(3)), all.files.held(Owner(2))), (0, 7));
        [1, 2, 3].into_iter().for_each(|owner| all.forget(Owner(owner)));
        let mut bound = all.of(Owner(4));
        for _ in 0..1000 {
            bound.take(0, &submit(1 << 19), true).unwrap();
            bound.give_back(&submit(1 << 19), true);
        }
    }
}
