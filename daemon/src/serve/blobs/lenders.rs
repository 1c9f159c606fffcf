//! The workers whose driver lends memory to guests, and the descriptors that keep that memory until no process has it mapped.
//!
//! Some drivers' memory can be mapped only out of a device node, and such a mapping keeps nothing alive: when the driver frees the memory, or its
//! process ends, the pages get another owner, and a process that has them mapped sees that owner's data. So a worker frees lent memory when it is
//! told that all mappings are gone, and the device process holds descriptors of each such worker (*anchors*): while they are open, the kernel frees
//! nothing of it. The device process closes them as soon as the frontend has acknowledged that it unmapped all that the worker had lent. It does not
//! close them later either, because the worker's work on the GPU runs for as long.
//!
//! This file knows no sockets and no clock; only the reported mappings decide.

use crate::transport::PassedFiles;
use config::{ANCHORS_MAX, DriverMapped};
use protocol::ids::ContextId;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use shm::{device_node, is_anchor};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// All workers of the VM that lend memory.
#[derive(Debug)]
pub(in crate::serve) struct Lenders {
    /// The device nodes that memory may be mapped out of.
    devices: Vec<u64>,
    lenders: Vec<Lender>,
    /// Anchors that the launcher is told to let go of, by set.
    closing: FxHashMap<u64, Vec<OwnedFd>>,
    next_set: u64,
    orders: Vec<Order>,
}

#[derive(Debug)]
struct Lender {
    /// The worker's context; none once the worker has been told to end, or is gone.
    ctx_id: Option<ContextId>,
    anchors: Vec<OwnedFd>,
    /// The number of the set by which the launcher knows the anchors.
    set: u64,
    /// The anchors that will replace those in `anchors`.
    arriving: Vec<OwnedFd>,
    /// Offsets in the window at which the frontend has memory of this worker mapped, or may have.
    mapped: FxHashSet<u64>,
}

/// A lender, written down for another process. Its anchors are sent too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct PassedLender {
    ctx_id: ContextId,
    anchors: usize,
    mapped: Vec<u64>,
}

/// An order to the launcher, which keeps copies of the anchors in case the device process is killed.
#[derive(Debug)]
pub(in crate::serve) enum Order {
    /// Keep a copy of this anchor, in this set.
    Keep(u64, OwnedFd),
    /// Close the anchors of this set, and report that.
    LetGo(u64),
    /// Keep the anchors of this set until the frontend's process has ended, as its mappings are not known; and report that they are kept.
    KeepOn(u64),
}

impl Lenders {
    /// Makes an empty table, for GPUs with such mappable memory.
    pub(in crate::serve) fn new(mapped: impl IntoIterator<Item = DriverMapped>) -> Self {
        let devices = mapped.into_iter().filter(|mapped| mapped.types != 0).map(|mapped| mapped.device);
        let (lenders, closing, orders) = Default::default();
        Self { devices: devices.collect(), lenders, closing, next_set: 1, orders }
    }

    /// The device nodes that memory may be mapped out of.
    pub(in crate::serve) fn devices(&self) -> &[u64] {
        &self.devices
    }

    /// Returns whether another process can go on with all lenders now: each has its worker and all of its anchors, and the launcher owes nothing.
    pub(in crate::serve) fn may_pass_on(&self) -> bool {
        let is_complete = |lender: &Lender| lender.ctx_id.is_some() && lender.arriving.is_empty();
        self.closing.is_empty() && self.orders.is_empty() && self.lenders.iter().all(is_complete)
    }

    /// Writes all lenders down for another process, where [`Self::may_pass_on`] allows that, with their anchors.
    pub(in crate::serve) fn pass_on(&self) -> (Vec<PassedLender>, Vec<BorrowedFd<'_>>) {
        let passed = |lender: &Lender| {
            Some(PassedLender {
                ctx_id: lender.ctx_id?,
                anchors: lender.anchors.len(),
                mapped: lender.mapped.iter().copied().collect(),
            })
        };
        let anchors = self.lenders.iter().flat_map(|lender| &lender.anchors);
        (self.lenders.iter().filter_map(passed).collect(), anchors.map(AsFd::as_fd).collect())
    }

    /// Goes on with the lenders of another process. The launcher of this process is to keep copies of their anchors.
    ///
    /// # Errors
    ///
    /// A descriptor is missing, or is no anchor.
    pub(in crate::serve) fn resume(
        &mut self,
        passed: Vec<PassedLender>,
        files: &mut PassedFiles,
    ) -> io::Result<()> {
        for PassedLender { ctx_id, anchors, mapped } in passed {
            for left in (0..anchors).rev() {
                let left = u32::try_from(left).unwrap_or(u32::MAX);
                self.anchor(ctx_id, Some(files.take()?), left).map_err(io::Error::other)?;
            }
            mapped.into_iter().for_each(|offset| self.mapped(ctx_id, offset));
        }
        Ok(())
    }

    /// Another process has the lenders, and its launcher keeps their anchors: the launcher of this process lets go of them.
    pub(in crate::serve) fn leave(&mut self) {
        for Lender { set, anchors, .. } in std::mem::take(&mut self.lenders) {
            self.let_go((set, anchors));
        }
    }

    /// Returns whether memory may be mapped out of this device node.
    pub(in crate::serve) fn knows(&self, device: u64) -> bool {
        self.devices.contains(&device)
    }

    /// A worker sends an anchor, and says how many follow.
    ///
    /// # Errors
    ///
    /// The mistake of the worker, for the log.
    pub(in crate::serve) fn anchor(
        &mut self,
        ctx_id: ContextId,
        fd: Option<OwnedFd>,
        left: u32,
    ) -> Result<(), &'static str> {
        let fd = fd.ok_or("an anchor without a descriptor")?;
        let is_one = device_node(&fd).is_some_and(|device| is_anchor(device, &self.devices));
        if !is_one {
            return Err("an anchor that is no device of the driver");
        }
        let at = self.position(ctx_id);
        let arriving = &mut self.lenders[at].arriving;
        if arriving.len() >= ANCHORS_MAX {
            return Err("limit reached: anchors");
        }
        arriving.push(fd);
        if left == 0 { self.adopt(at) } else { Ok(()) }
    }

    /// All anchors of a worker have arrived.
    fn adopt(&mut self, at: usize) -> Result<(), &'static str> {
        let set = self.next_set;
        let anchors = std::mem::take(&mut self.lenders[at].arriving);
        for anchor in &anchors {
            let copy = anchor.try_clone().map_err(|_| "no descriptor is left for an anchor")?;
            self.orders.push(Order::Keep(set, copy));
        }
        self.next_set += 1;
        let lender = &mut self.lenders[at];
        let old = (lender.set, std::mem::replace(&mut lender.anchors, anchors));
        lender.set = set;
        self.let_go(old);
        Ok(())
    }

    /// Returns whether memory that a worker lends outlives the worker.
    pub(in crate::serve) fn is_anchored(&self, ctx_id: ContextId) -> bool {
        self.lenders.iter().any(|lender| lender.ctx_id == Some(ctx_id) && !lender.anchors.is_empty())
    }

    /// The frontend is about to map memory of a worker.
    pub(in crate::serve) fn mapped(&mut self, ctx_id: ContextId, offset: u64) {
        let at = self.position(ctx_id);
        self.lenders[at].mapped.insert(offset);
    }

    /// Notes that the frontend has removed its mapping at an offset.
    pub(in crate::serve) fn unmapped(&mut self, offset: u64) {
        for lender in &mut self.lenders {
            lender.mapped.remove(&offset);
        }
        self.close();
    }

    /// A worker is told to end, or is gone; none of its memory will be mapped any more.
    pub(in crate::serve) fn ends(&mut self, ctx_id: ContextId) {
        for lender in self.lenders.iter_mut().filter(|lender| lender.ctx_id == Some(ctx_id)) {
            lender.ctx_id = None;
        }
        self.close();
    }

    /// The frontend has dropped every mapping by itself.
    pub(in crate::serve) fn unmapped_all(&mut self) {
        self.lenders.iter_mut().for_each(|lender| lender.mapped.clear());
        self.close();
    }

    /// The frontend has disconnected without unmapping, and every worker was told to end.
    pub(in crate::serve) fn frontend_gone(&mut self) {
        for Lender { set, anchors, mapped, .. } in std::mem::take(&mut self.lenders) {
            if mapped.is_empty() {
                self.let_go((set, anchors));
            } else if !anchors.is_empty() {
                self.orders.push(Order::KeepOn(set));
                self.closing.insert(set, anchors);
            }
        }
    }

    /// Takes the orders that the launcher is to be given.
    pub(in crate::serve) fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Returns the anchors of a set that can be closed now, as the launcher has carried out its order.
    pub(in crate::serve) fn released(&mut self, set: u64) -> Vec<OwnedFd> {
        self.closing.remove(&set).unwrap_or_default()
    }

    fn position(&mut self, ctx_id: ContextId) -> usize {
        self.lenders.iter().position(|lender| lender.ctx_id == Some(ctx_id)).unwrap_or_else(|| {
            let (set, anchors, arriving, mapped) = Default::default();
            self.lenders.push(Lender { ctx_id: Some(ctx_id), anchors, set, arriving, mapped });
            self.lenders.len() - 1
        })
    }

    /// Lets go of workers that have ended and have no mapped memory.
    fn close(&mut self) {
        let done = |lender: &mut Lender| lender.ctx_id.is_none() && lender.mapped.is_empty();
        for Lender { set, anchors, .. } in self.lenders.extract_if(.., done).collect::<Vec<_>>() {
            self.let_go((set, anchors));
        }
    }

    /// Has the launcher close its copies first, so that a thread that the kernel may keep waiting closes the last copies.
    fn let_go(&mut self, (set, anchors): (u64, Vec<OwnedFd>)) {
        if !anchors.is_empty() {
            self.orders.push(Order::LetGo(set));
            self.closing.insert(set, anchors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::PollFlags;
    use rustix::fs::makedev;
    use std::fs::File;
    use std::time::Duration;

    const A: ContextId = ContextId(1);
    const B: ContextId = ContextId(2);

    /// Makes a table for memory out of `/dev/zero`: the other nodes of that driver are anchors.
    fn lenders() -> Lenders {
        Lenders::new([DriverMapped { types: 1, device: makedev(1, 5) }, DriverMapped::default()])
    }

    /// A launcher that the tests play, which keeps copies until it is told to let go of them.
    #[derive(Default)]
    struct Keeper {
        kept: Vec<(u64, OwnedFd)>,
        /// Sets that wait for the end of the frontend's process.
        waiting: Vec<u64>,
    }

    impl Keeper {
        fn obey(&mut self, lenders: &mut Lenders) {
            for order in lenders.take_orders() {
                let set = match order {
                    Order::Keep(set, fd) => {
                        self.kept.push((set, fd));
                        continue;
                    }
                    Order::LetGo(set) => {
                        self.kept.retain(|(of, _)| *of != set);
                        set
                    }
                    Order::KeepOn(set) => {
                        self.waiting.push(set);
                        set
                    }
                };
                assert!(!lenders.released(set).is_empty());
            }
        }
    }

    /// A terminal, whose other end tells when the anchor is closed.
    struct Anchor {
        watched: OwnedFd,
        given: Option<OwnedFd>,
        device: u64,
    }

    impl Anchor {
        /// Returns whether the anchor is open after the keeper has obeyed all orders.
        fn stays(&self, keeper: &mut Keeper, lenders: &mut Lenders) -> bool {
            keeper.obey(lenders);
            self.is_open()
        }

        /// Returns whether the anchor is closed after the keeper has obeyed all orders.
        fn goes(&self, keeper: &mut Keeper, lenders: &mut Lenders) -> bool {
            keeper.obey(lenders);
            self.has_ended()
        }

        fn has_ended(&self) -> bool {
            readiness::has_ended(&self.watched, Duration::from_secs(600))
        }

        fn new() -> Self {
            let watched = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR).unwrap();
            rustix::pty::unlockpt(&watched).unwrap();
            let name = rustix::pty::ptsname(&watched, Vec::new()).unwrap();
            let given = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
            let given = OwnedFd::from(given);
            let device = device_node(&given).unwrap();
            Self { watched, given: Some(given), device }
        }

        fn is_open(&self) -> bool {
            !readiness::look(&self.watched, PollFlags::IN).contains(PollFlags::HUP)
        }

        /// A table for a driver whose anchors are terminals.
        fn lenders(&self) -> Lenders {
            let device = makedev(rustix::fs::major(self.device), 1 << 19);
            Lenders::new([DriverMapped { types: 1, device }])
        }
    }

    #[test]
    fn anchors_stay_until_the_last_mapping_of_a_dead_worker_is_gone_and_no_longer() {
        let mut anchor = Anchor::new();
        let mut lenders = anchor.lenders();
        let mut keeper = Keeper::default();
        lenders.anchor(A, anchor.given.take(), 0).unwrap();
        lenders.mapped(A, 0x1000);
        lenders.mapped(A, 0x2000);
        lenders.mapped(B, 0x3000);
        assert!(lenders.is_anchored(A) && !lenders.is_anchored(B));
        lenders.unmapped(0x1000);
        lenders.ends(A);
        lenders.unmapped(0x3000);
        assert!(anchor.stays(&mut keeper, &mut lenders));
        lenders.unmapped(0x2000);
        assert!(anchor.goes(&mut keeper, &mut lenders));
        assert!(!lenders.is_anchored(A));
    }

    #[test]
    fn a_worker_that_lives_keeps_its_anchors_and_one_of_which_nothing_is_mapped_does_not() {
        let mut anchor = Anchor::new();
        let mut lenders = anchor.lenders();
        let mut keeper = Keeper::default();
        lenders.anchor(A, anchor.given.take(), 0).unwrap();
        lenders.mapped(A, 0x1000);
        lenders.unmapped(0x1000);
        assert!(anchor.stays(&mut keeper, &mut lenders) && lenders.is_anchored(A));
        lenders.ends(A);
        assert!(anchor.goes(&mut keeper, &mut lenders));
    }

    #[test]
    fn another_context_with_the_same_id_is_another_worker() {
        let mut anchor = Anchor::new();
        let mut lenders = anchor.lenders();
        let mut keeper = Keeper::default();
        lenders.anchor(A, anchor.given.take(), 0).unwrap();
        lenders.mapped(A, 0x1000);
        lenders.ends(A);
        assert!(!lenders.is_anchored(A));
        lenders.mapped(A, 0x2000);
        lenders.ends(A);
        lenders.unmapped(0x2000);
        assert!(anchor.stays(&mut keeper, &mut lenders));
    }

    #[test]
    fn a_frontend_that_drops_its_mappings_needs_no_anchors_and_one_that_vanished_does() {
        let (mut dropped, mut vanished) = (Anchor::new(), Anchor::new());
        let mut lenders = dropped.lenders();
        let mut keeper = Keeper::default();
        lenders.anchor(A, dropped.given.take(), 0).unwrap();
        lenders.mapped(A, 0x1000);
        lenders.ends(A);
        lenders.unmapped_all();
        assert!(dropped.goes(&mut keeper, &mut lenders));
        lenders.anchor(A, vanished.given.take(), 0).unwrap();
        lenders.mapped(A, 0x1000);
        lenders.ends(A);
        lenders.frontend_gone();
        assert!(vanished.stays(&mut keeper, &mut lenders));
        assert_eq!(keeper.waiting, keeper.kept.iter().map(|(set, _)| *set).collect::<Vec<_>>());
        drop(keeper);
        assert!(vanished.has_ended());
    }

    #[test]
    fn new_anchors_replace_the_old_ones_when_all_are_there() {
        let (mut old, mut new) = (Anchor::new(), Anchor::new());
        let mut lenders = old.lenders();
        let mut keeper = Keeper::default();
        lenders.anchor(A, old.given.take(), 0).unwrap();
        lenders.anchor(A, new.given.take(), 1).unwrap();
        assert!(old.stays(&mut keeper, &mut lenders) && new.is_open());
        lenders.anchor(A, Anchor::new().given.take(), 0).unwrap();
        assert!(old.goes(&mut keeper, &mut lenders) && new.is_open());
    }

    #[test]
    fn another_process_keeps_what_is_lent_and_this_one_lets_go_then() {
        let mut anchor = Anchor::new();
        let (mut old, mut new) = (anchor.lenders(), anchor.lenders());
        let (mut keeper, mut keeper_of_new) = (Keeper::default(), Keeper::default());
        old.anchor(A, anchor.given.take(), 0).unwrap();
        old.mapped(A, 0x1000);
        assert!(!old.may_pass_on(), "its launcher was not told yet");
        assert!(anchor.stays(&mut keeper, &mut old) && old.may_pass_on());
        let (passed, anchors) = old.pass_on();
        let anchors: Vec<_> = anchors.into_iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let missing = anchor.lenders().resume(passed.clone(), &mut PassedFiles::from(Vec::new()));
        assert!(missing.is_err());
        let strange = vec![OwnedFd::from(File::open("/dev/zero").unwrap())];
        assert!(anchor.lenders().resume(passed.clone(), &mut PassedFiles::from(strange)).is_err());
        new.resume(passed, &mut PassedFiles::from(anchors)).unwrap();
        keeper_of_new.obey(&mut new);
        assert!(new.is_anchored(A));
        old.leave();
        keeper.obey(&mut old);
        assert!(keeper.kept.is_empty() && keeper.waiting.is_empty());
        drop(old);
        new.ends(A);
        assert!(anchor.stays(&mut keeper_of_new, &mut new), "it is mapped");
        assert!(!new.may_pass_on(), "its worker is gone, and the frontend unmaps it at any moment");
        new.unmapped(0x1000);
        assert!(anchor.goes(&mut keeper_of_new, &mut new) && new.may_pass_on());
    }

    #[test]
    fn what_is_no_device_of_the_driver_is_no_anchor() {
        let open = |path: &str| Some(OwnedFd::from(File::open(path).unwrap()));
        let mut lenders = lenders();
        assert!(lenders.knows(makedev(1, 5)) && !lenders.knows(makedev(1, 7)) && !lenders.knows(0));
        assert!(lenders.anchor(A, None, 0).is_err());
        for wrong in ["/dev/zero", "/", "/proc/self/maps", "/dev/tty"] {
            if let Ok(file) = File::open(wrong) {
                assert!(lenders.anchor(A, Some(file.into()), 0).is_err(), "{wrong}");
            }
        }
        assert!(!lenders.is_anchored(A));
        (0..ANCHORS_MAX).for_each(|_| lenders.anchor(A, open("/dev/full"), 1).unwrap());
        assert_eq!(lenders.anchor(A, open("/dev/full"), 1), Err("limit reached: anchors"));
        let mut none = Lenders::new([DriverMapped::default()]);
        assert!(none.anchor(A, open("/dev/full"), 0).is_err());
    }
}
