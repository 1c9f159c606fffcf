//! The descriptors of GPU memory that workers have deposited: should a worker die, its memory is still there, and its successor gets the descriptors
//! with the checkpoint.
//!
//! A descriptor is all that this process has of that memory: this process neither maps the memory nor asks about it. When the last descriptor is
//! closed, the kernel's driver frees the memory, which may take long; so [`Closer`](super::closer::Closer) closes them.

use crate::device::{Owner, Quota};
use crate::transport::PassedFiles;
use config::{DepositId, DeviceLimits, SHARE};
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use shm::may_be_memory;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The deposits of all contexts: a context has only those of its present worker.
#[derive(Debug)]
pub(in crate::serve) struct Deposits {
    quota: Quota,
    /// The number of descriptors of all contexts that may wait to be closed when another deposit comes.
    closing_max: u64,
    contexts: FxHashMap<ContextId, Account>,
}

/// The deposits of one context.
#[derive(Debug)]
struct Account {
    /// The holder for which the deposits count.
    owner: Owner,
    files: FxHashMap<DepositId, Arc<OwnedFd>>,
    /// A deposit was refused.
    is_incomplete: bool,
    /// Descriptors of this context that were given to be closed since none waited to be closed.
    closing: u64,
}

/// The deposits of one context, written down for another process. Their descriptors are sent in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct PassedDeposits {
    ctx_id: ContextId,
    owner: Owner,
    is_incomplete: bool,
    ids: Vec<DepositId>,
}

/// The reason why a deposit is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Refused {
    /// The worker breaks a rule that an honest worker keeps: the reason, for the log.
    Mistake(&'static str),
    /// The limit of this name is reached, for the first time.
    Limit(&'static str),
    /// The limit is still reached.
    LimitAgain,
}

impl Deposits {
    /// Makes a table without deposits, which takes as many as the limits allow.
    pub(in crate::serve) fn new(limits: &DeviceLimits) -> Self {
        let quota = Quota::new("deposits", limits.deposits as u64);
        Self { quota, closing_max: limits.deposits as u64, contexts: FxHashMap::default() }
    }

    /// A context's worker deposits a descriptor, which counts for its `owner`; `closing` descriptors of all contexts wait to be closed.
    ///
    /// # Errors
    ///
    /// The descriptor is not kept, and is returned with the reason.
    pub(in crate::serve) fn keep(
        &mut self,
        (ctx_id, owner): (ContextId, Owner),
        id: DepositId,
        file: OwnedFd,
        closing: u64,
    ) -> Result<(), (Refused, OwnedFd)> {
        let new = || Account { owner, files: FxHashMap::default(), is_incomplete: false, closing: 0 };
        let account = self.contexts.entry(ctx_id).or_insert_with(new);
        if closing == 0 {
            account.closing = 0;
        }
        // Only a context that has many of these descriptors is to blame.
        let is_flooded = closing > self.closing_max;
        if is_flooded && account.closing > self.closing_max / SHARE {
            return Err((Refused::Mistake("deposits that come and go faster than they can be closed"), file));
        }
        if account.files.contains_key(&id) {
            return Err((Refused::Mistake("two deposits of one number"), file));
        }
        if !may_be_memory(&file) {
            return Err((Refused::Mistake("a deposit that is no memory"), file));
        }
        let room = if is_flooded { Err("deposits") } else { self.quota.take(account.owner, 1) };
        if let Err(limit) = room {
            account.closing += 1;
            let is_first = !std::mem::replace(&mut account.is_incomplete, true);
            return Err((if is_first { Refused::Limit(limit) } else { Refused::LimitAgain }, file));
        }
        account.files.insert(id, Arc::new(file));
        Ok(())
    }

    /// A context's worker has freed the memory of a deposit. Returns the descriptor, to be closed, unless it is being sent to a successor.
    pub(in crate::serve) fn take_back(&mut self, ctx_id: ContextId, id: DepositId) -> Option<OwnedFd> {
        let account = self.contexts.get_mut(&ctx_id)?;
        let file = account.files.remove(&id)?;
        self.quota.give_back(account.owner, 1);
        account.closing += 1;
        Arc::into_inner(file)
    }

    /// Returns whether all deposits of a context's worker are kept. Once one was refused, no checkpoint of that worker is complete.
    pub(in crate::serve) fn are_complete(&self, ctx_id: ContextId) -> bool {
        self.contexts.get(&ctx_id).is_none_or(|account| !account.is_incomplete)
    }

    /// Returns the deposits of a context.
    pub(in crate::serve) fn of(
        &self,
        ctx_id: ContextId,
    ) -> impl Iterator<Item = (DepositId, Arc<OwnedFd>)> + '_ {
        let account = self.contexts.get(&ctx_id);
        account.into_iter().flat_map(|account| &account.files).map(|(id, file)| (*id, Arc::clone(file)))
    }

    /// Writes all deposits down for another process, with their descriptors.
    pub(in crate::serve) fn pass_on(&self) -> (Vec<PassedDeposits>, Vec<BorrowedFd<'_>>) {
        let passed = |(ctx_id, account): (&ContextId, &Account)| PassedDeposits {
            ctx_id: *ctx_id,
            owner: account.owner,
            is_incomplete: account.is_incomplete,
            ids: account.files.keys().copied().collect(),
        };
        let files = self.contexts.values().flat_map(|account| account.files.values());
        (self.contexts.iter().map(passed).collect(), files.map(|file| file.as_fd()).collect())
    }

    /// Goes on with the deposits of another process.
    ///
    /// # Errors
    ///
    /// A descriptor is missing.
    pub(in crate::serve) fn resume(
        &mut self,
        passed: Vec<PassedDeposits>,
        files: &mut PassedFiles,
    ) -> io::Result<()> {
        for PassedDeposits { ctx_id, owner, is_incomplete, ids } in passed {
            self.quota.hold(owner, ids.len() as u64);
            let file = |id| Ok((id, Arc::new(files.take()?)));
            let files = ids.into_iter().map(file).collect::<io::Result<_>>()?;
            self.contexts.insert(ctx_id, Account { owner, files, is_incomplete, closing: 0 });
        }
        Ok(())
    }

    /// The context has another worker now, or none. Returns the descriptors, to be closed.
    pub(in crate::serve) fn forget(&mut self, ctx_id: ContextId) -> Vec<OwnedFd> {
        let Some(Account { owner, files, .. }) = self.contexts.remove(&ctx_id) else { return Vec::new() };
        self.quota.give_back(owner, files.len() as u64);
        files.into_values().filter_map(Arc::into_inner).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const A: ContextId = ContextId(1);
    const B: ContextId = ContextId(2);
    const LIMIT: usize = 8;

    fn deposits() -> Deposits {
        Deposits::new(&DeviceLimits { deposits: LIMIT, ..DeviceLimits::default() })
    }

    fn memory() -> OwnedFd {
        shm::create("test", 4096).unwrap()
    }

    impl Deposits {
        fn deposit(&mut self, ctx_id: ContextId, id: u64) -> Result<(), Refused> {
            let kept = self.keep((ctx_id, Owner(ctx_id.0.into())), DepositId(id), memory(), 0);
            kept.map_err(|(refused, _)| refused)
        }
    }

    #[test]
    fn a_deposit_is_kept_until_it_is_taken_back_or_its_worker_is_another() {
        let mut deposits = deposits();
        (1..=3).for_each(|id| deposits.deposit(A, id).unwrap());
        deposits.deposit(B, 1).unwrap();
        assert!(deposits.take_back(A, DepositId(2)).is_some());
        assert!(deposits.take_back(A, DepositId(2)).is_none(), "once");
        let mut of: Vec<_> = deposits.of(A).map(|(id, _)| id.0).collect();
        of.sort_unstable();
        assert_eq!(of, [1, 3]);
        // A descriptor that is being sent to a successor is closed when that has ended.
        let given: Vec<_> = deposits.of(A).take(1).collect();
        assert_eq!(deposits.forget(A).len(), 1);
        assert_eq!(given.iter().filter(|(_, file)| Arc::strong_count(file) == 1).count(), 1);
        assert_eq!((deposits.of(A).count(), deposits.of(B).count()), (0, 1));
    }

    #[test]
    fn beyond_the_limit_a_worker_has_no_checkpoint_and_others_have_their_share() {
        let mut deposits = deposits();
        let kept = (1..).find(|id| deposits.deposit(A, *id).is_err()).unwrap() - 1;
        assert!(kept > 0 && kept < LIMIT as u64);
        assert!(!deposits.are_complete(A));
        assert_eq!(deposits.deposit(A, 100), Err(Refused::LimitAgain), "the log has one line");
        deposits.deposit(B, 1).unwrap();
        assert!(deposits.are_complete(B));
        // The next worker may have fewer deposits.
        assert_eq!(deposits.forget(A).len() as u64, kept);
        deposits.deposit(A, 1).unwrap();
        assert!(deposits.are_complete(A));
    }

    #[test]
    fn what_no_honest_worker_deposits_is_refused() {
        let mut deposits = deposits();
        deposits.deposit(A, 1).unwrap();
        assert!(matches!(deposits.deposit(A, 1), Err(Refused::Mistake(_))));
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        let file = File::open("/proc/self/stat").unwrap().into();
        for (id, none) in [reads, writes, file].into_iter().enumerate() {
            let refused = deposits.keep((A, Owner(1)), DepositId(10 + id as u64), none, 0);
            assert!(matches!(refused, Err((Refused::Mistake(_), _))));
        }
        let node = File::open("/dev/zero").unwrap().into();
        assert!(deposits.keep((A, Owner(1)), DepositId(2), node, 0).is_ok());
    }
    #[test]
    fn one_that_deposits_faster_than_can_be_closed_is_told_from_others() {
        let mut deposits = deposits();
        let most = LIMIT as u64;
        let keep = |deposits: &mut Deposits, ctx_id: ContextId, id, closing| {
            let owner = Owner(ctx_id.0.into());
            deposits.keep((ctx_id, owner), DepositId(id), memory(), closing).map_err(|(refused, _)| refused)
        };
        for id in 1..=5 {
            keep(&mut deposits, A, id, 1).unwrap();
            deposits.take_back(A, DepositId(id));
        }
        assert_eq!(keep(&mut deposits, B, 1, most + 1), Err(Refused::Limit("deposits")));
        assert!(matches!(keep(&mut deposits, A, 6, most + 1), Err(Refused::Mistake(_))));
        // Descriptors that were closed count no more.
        keep(&mut deposits, A, 7, 0).unwrap();
        assert_eq!(keep(&mut deposits, A, 8, most + 1), Err(Refused::Limit("deposits")));
    }
}
