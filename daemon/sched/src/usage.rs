//! The account of a context or of a tenant: its usage so far, and its submissions now.

use super::Nanos;

/// The usage of a context or a tenant, and its work now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// GPU time charged, in nanoseconds.
    pub gpu: Nanos,
    /// Time of copy engines charged, in nanoseconds. It counts against the share like the GPU's: only a worker knows which of the two did the work.
    pub copy: Nanos,
    /// Submissions completed.
    pub submissions: u64,
    /// Submissions that were dispatched without a grant. Only a worker that a guest has taken over does this; the scheduler cannot stop it.
    pub strays: u64,
    /// Time with work that could be dispatched and no submission in the driver, in nanoseconds.
    pub waiting: Nanos,
    /// Submissions in the driver.
    pub in_driver: u32,
    /// Submissions that could be dispatched now, but are not.
    pub ready: u32,
    /// The earliest time at which the first submission in the driver can have run.
    pub running_since: Option<Nanos>,
    /// True if the worker need not ask.
    pub leased: bool,
}

impl Usage {
    /// Adds the usage of two GPUs.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let mut sum = self;
        sum.add(&other);
        sum
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.gpu = self.gpu.saturating_add(other.gpu);
        self.copy = self.copy.saturating_add(other.copy);
        self.submissions = self.submissions.saturating_add(other.submissions);
        self.strays = self.strays.saturating_add(other.strays);
        self.waiting = self.waiting.saturating_add(other.waiting);
        self.in_driver = self.in_driver.saturating_add(other.in_driver);
        self.ready = self.ready.saturating_add(other.ready);
        let since = [self.running_since, other.running_since];
        self.running_since = since.into_iter().flatten().min();
        self.leased |= other.leased;
    }
}
