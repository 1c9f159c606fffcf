//! Shares out the memory of GPUs if the VMs' limits add up to more memory than the GPUs have.
//!
//! A VM that lacks memory gets free memory. If that is not enough, other VMs give some up, but none that is reserved for them: first what they may hold
//! and do not, then memory of idle contexts, and last memory of busy contexts, if the turn of their VM is over. VMs that wait get memory one after the
//! other, in the order of their weight times the time for which they have waited. VMs that want no more than is reserved for them come first, and wait
//! for no turn. After them come VMs whose turn it is, VMs that have waited for half of `memory-wait`, whatever their weight, and VMs with a context that
//! holds memory and wants more. The longer it takes to make room and to come back, the longer is the turn.
//!
//! Two rules keep a VM with false claims from harming others. A VM gets no new order before it has confirmed the last one. And while a VM owes memory that
//! it was forced to give up, no other makes room for it; if it owes the memory for too long, it is asked for no more, and gets free memory only.
//!
//! This file knows no process and no clock: time is passed in. The device process ends waits that have lasted for too long.

mod account;
#[cfg(test)]
mod tests;
mod turn;

use super::settings::share::WEIGHT;
use crate::ipc::RoomState;
use account::{Account, copying};
use sched::Nanos;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use turn::Turn;

/// The least time for which a VM keeps what it has waited for, in nanoseconds.
pub(super) const TURN: Nanos = 2_000_000_000;
/// A turn is so many times as long as making room for it and coming back: the more bytes are copied, the more seldom VMs take turns.
const TURN_FACTOR: Nanos = 8;
/// The time for which a VM keeps the memory reserved for it after other VMs made room for it, in nanoseconds.
const RESERVED_KEPT: Nanos = 60_000_000_000;
/// The time in which a VM gives up the memory of idle contexts, in nanoseconds. After that, these contexts count as busy.
const IDLE_PATIENCE: Nanos = 1_000_000_000;
/// The time for which the memory of a VM counts after its device process has ended, in nanoseconds: its workers end later.
const GHOST: Nanos = 3_000_000_000;
/// Time after which the ledger is looked at again while a VM waits, in nanoseconds.
const LOOK: Nanos = 50_000_000;

/// An order to a VM: how much memory it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// The number of this order among those of the VM.
    pub(super) number: u64,
    /// Bytes that the VM may hold.
    pub(super) most: u64,
    /// To reach this limit, the VM swaps out busy contexts as well as idle ones.
    pub(super) forced: bool,
    /// Bytes of the VM's GPUs that all VMs may hold together.
    pub(super) total: u64,
}

/// The memory of the GPUs, by their indices.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Ledger {
    /// Bytes that VMs may hold of each GPU.
    totals: BTreeMap<usize, u64>,
    /// The VMs, by their indices.
    accounts: BTreeMap<usize, Account>,
    ghosts: Vec<Ghost>,
}

/// The memory of a VM whose device process has ended: its workers, which are ending, hold this memory for a limited time.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ghost {
    gpus: Vec<usize>,
    bytes: u64,
    until: Nanos,
}

impl Ledger {
    /// Adds a VM that has got a device process, with its GPUs and the bytes of each GPU that VMs may hold. The VM holds nothing yet, or as much as
    /// before if another device process had it and none of its contexts has ended with that process. Returns the order to the VM.
    pub(super) fn begins(
        &mut self,
        vm: usize,
        reserved: u64,
        gpus: impl IntoIterator<Item = (usize, u64)>,
    ) -> Order {
        let new = || Account { weight: WEIGHT, number: 1, ..Account::default() };
        self.accounts.entry(vm).or_insert_with(new).reserved = reserved;
        self.uses(vm, gpus);
        self.order(vm)
    }

    /// Removes a VM whose device process has ended. Its memory counts until its workers have ended too.
    pub(super) fn ends(&mut self, vm: usize, now: Nanos) {
        let Some(account) = self.accounts.remove(&vm) else { return };
        let bytes = account.counts();
        self.ghosts.push(Ghost { gpus: account.gpus, bytes, until: now.saturating_add(GHOST) });
        self.ghosts.retain(|ghost| ghost.bytes > 0 && ghost.until > now);
    }

    /// Has a VM use these GPUs from now on. Each comes with the bytes that VMs may hold of it.
    pub(super) fn uses(&mut self, vm: usize, gpus: impl IntoIterator<Item = (usize, u64)>) {
        let Some(account) = self.accounts.get_mut(&vm) else { return };
        account.gpus.clear();
        for (gpu, bytes) in gpus {
            self.totals.insert(gpu, bytes);
            account.gpus.push(gpu);
        }
    }

    /// Sets the weight of a VM.
    pub(super) fn set_weight(&mut self, vm: usize, weight: u32) {
        self.accounts.entry(vm).and_modify(|account| account.weight = weight);
    }

    /// Returns whether the reserved bytes on a GPU of this VM exceed the bytes of the GPU that VMs may hold.
    pub(super) fn is_over_reserved(&self, vm: usize) -> bool {
        let reserved =
            |gpu: usize| self.on(gpu).map(|(_, account)| account.reserved).fold(0, u64::saturating_add);
        let account = self.accounts.get(&vm).filter(|account| account.reserved > 0);
        account.is_some_and(|account| account.gpus.iter().any(|gpu| reserved(*gpu) > self.total(*gpu)))
    }

    /// Takes in the report of a VM, which counts as holding at most the bytes that it was ever allowed, and waits at most for what one context can have.
    pub(super) fn hears(&mut self, vm: usize, state: RoomState, now: Nanos) {
        let Some(account) = self.accounts.get_mut(&vm) else { return };
        let held = state.held.min(account.counts());
        account.state = RoomState { held, holds: state.holds.min(held), idle: state.idle.min(held), ..state };
        if !account.is_open() {
            account.heard = held;
            account.forced &= held > account.may;
        }
        let (wanted, least) = (account.wanted(), account.least());
        let waits = state.lacks > 0 && wanted > account.may && least <= self.total_of(vm);
        let fits = !self.is_kept_by_others(vm, wanted, now);
        self.accounts.entry(vm).and_modify(|account| match waits {
            true => account.begin_to_wait(fits, now),
            false => account.end_to_wait(Turn::over(now), now),
        });
    }

    /// Returns the bytes that a VM lacks, if it waits.
    pub(super) fn lacks(&self, vm: usize) -> u64 {
        let account = self.accounts.get(&vm).filter(|account| account.since.is_some());
        account.map_or(0, |account| account.state.lacks)
    }

    /// Returns the bytes that a VM may hold, or none if it has no bound.
    pub(super) fn allows(&self, vm: usize) -> Option<u64> {
        self.accounts.get(&vm).map(|account| account.may)
    }

    /// Returns when [`Self::decide`] is to be called next if no VM reports anything.
    pub(super) fn next_look(&self, now: Nanos) -> Option<Nanos> {
        self.accounts.values().any(|account| account.since.is_some()).then(|| now.saturating_add(LOOK))
    }

    /// Returns the orders to VMs, at most one for each. Contexts wait for as long as `patience`.
    pub(super) fn decide(&mut self, patience: Nanos, now: Nanos) -> Vec<(usize, Order)> {
        let mut told = BTreeSet::new();
        self.ghosts.retain(|ghost| ghost.until > now);
        self.begin_anew(patience, now);
        self.shorten_turns(patience);
        let mut blocked: Vec<usize> = Vec::new();
        for vm in self.queue(patience, now) {
            let account = &self.accounts[&vm];
            if account.is_open()
                || account.gives_up(now) > 0
                    && (account.forced || !account.allocates())
                    && self.others_wait(vm)
                || self.is_kept_by_others(vm, account.least(), now)
                || account.gpus.iter().any(|gpu| blocked.contains(gpu))
            {
                continue;
            }
            let short: Vec<_> = account.gpus.iter().map(|gpu| (*gpu, self.missing(account, *gpu))).collect();
            if short.iter().all(|(_, missing)| *missing == 0) {
                self.grant(vm, patience, now);
                told.insert(vm);
            } else if account.owes() == 0
                || !account.forced
                || account.allocates() && !account.is_overdue(now)
            {
                blocked.extend(&account.gpus);
                short.into_iter().for_each(|short| told.extend(self.make_room(vm, short, now)));
            }
        }
        told.extend(self.let_keep(patience, now));
        told.extend(self.hear_totals(now));
        told.into_iter().map(|vm| (vm, self.order(vm))).collect()
    }

    /// Marks VMs that came to other GPUs, to tell them how much all VMs may hold together there. Returns these VMs.
    fn hear_totals(&mut self, now: Nanos) -> Vec<usize> {
        let is_other =
            |(vm, account): &(&usize, &Account)| !account.is_open() && account.total != self.total_of(**vm);
        let others: Vec<_> = self.accounts.iter().filter(is_other).map(|(vm, _)| *vm).collect();
        for vm in &others {
            self.accounts.entry(*vm).and_modify(|account| {
                account.number += 1;
                // A VM that owes bytes gets no more time for giving them up.
                account.told = if account.owes() == 0 { now } else { account.told };
            });
        }
        others
    }

    /// Shortens turns that began when fewer others waited, so that the VMs that wait now get their turns.
    fn shorten_turns(&mut self, patience: Nanos) {
        if self.next_look(0).is_none() {
            return;
        }
        let waiting = |vm: usize| self.others(vm).filter(|other| other.since.is_some()).count();
        let waiting: Vec<_> = self.accounts.keys().map(|vm| (*vm, waiting(*vm))).collect();
        for (vm, others) in waiting.into_iter().filter(|(_, others)| *others > 0) {
            self.accounts.entry(vm).and_modify(|account| {
                account.turn.shorten(turn_max(patience, others));
            });
        }
    }

    /// Begins waits anew that have lasted for `patience`: their context has been refused by now, so a VM that still waits waits for another one.
    fn begin_anew(&mut self, patience: Nanos, now: Nanos) {
        let late = self.accounts.values_mut().filter(|account| account.since.is_some());
        let late = late.filter(|account| account.waited(now) >= patience);
        late.for_each(|account| account.wait_anew(now));
    }

    /// Lets VMs keep memory that they were told to give up and have not given up yet, if no VM waits for it any more. Returns these VMs. VMs that may
    /// have begun to copy get a turn, so that they do not have to begin again at once.
    fn let_keep(&mut self, patience: Nanos, now: Nanos) -> Vec<usize> {
        let waiting = self.accounts.values().filter(|account| account.since.is_some());
        let awaited: Vec<usize> = waiting.flat_map(|account| account.gpus.iter().copied()).collect();
        let mut keep = Vec::new();
        for (vm, account) in &mut self.accounts {
            let is_awaited = account.gpus.iter().any(|gpu| awaited.contains(gpu));
            if account.owes() == 0 || account.is_open() || is_awaited {
                continue;
            }
            if account.forced {
                account.has_at_least(turn_length(copying(account.owes()), patience, 1), now);
            }
            account.raise(account.counts(), now);
            keep.push(*vm);
        }
        keep
    }

    /// The VMs that wait, in the order in which they get memory.
    fn queue(&self, patience: Nanos, now: Nanos) -> Vec<usize> {
        let waiting = self.accounts.iter().filter(|(_, account)| account.since.is_some());
        let waiting = waiting.map(|(vm, account)| {
            let waited = account.waited(now);
            let is_late = waited >= patience / 2;
            let weight = if is_late { 1 } else { account.weight };
            let is_urgent = account.wanted() <= account.reserved;
            let first = (!is_urgent, account.turn.is_over(now), !is_late, !account.allocates());
            (first, Reverse(u128::from(waited) * u128::from(weight)), *vm)
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(.., vm)| vm).collect()
    }

    /// Returns whether a VM cannot get so many bytes, whatever others give up.
    fn is_kept_by_others(&self, vm: usize, bytes: u64, now: Nanos) -> bool {
        let kept = |gpu: usize| {
            let others = self.on(gpu).filter(|(other, _)| *other != vm);
            others.map(|(_, account)| account.keeps(now)).fold(bytes, u64::saturating_add)
        };
        self.accounts[&vm].gpus.iter().any(|gpu| kept(*gpu) > self.total(*gpu))
    }

    /// The VMs on a GPU.
    fn on(&self, gpu: usize) -> impl Iterator<Item = (usize, &Account)> {
        let all = self.accounts.iter().filter(move |(_, account)| account.is_on(gpu));
        all.map(|(vm, account)| (*vm, account))
    }

    /// The other VMs on the GPUs of a VM.
    fn others(&self, vm: usize) -> impl Iterator<Item = &Account> {
        let own = &self.accounts[&vm];
        let others = self.accounts.iter().filter(move |(other, _)| **other != vm);
        others.map(|(_, account)| account).filter(|account| account.shares_with(own))
    }

    fn others_wait(&self, vm: usize) -> bool {
        self.others(vm).any(|account| account.since.is_some())
    }

    fn total(&self, gpu: usize) -> u64 {
        self.totals.get(&gpu).copied().unwrap_or(u64::MAX)
    }

    /// Bytes of a VM's GPUs that all VMs may hold together.
    fn total_of(&self, vm: usize) -> u64 {
        self.accounts[&vm].gpus.iter().map(|gpu| self.total(*gpu)).min().unwrap_or(u64::MAX)
    }

    /// Bytes of a GPU that count as held by no VM.
    fn free(&self, gpu: usize) -> u64 {
        let held = self.on(gpu).map(|(_, account)| account.counts());
        let ghosts = self.ghosts.iter().filter(|ghost| ghost.gpus.contains(&gpu)).map(|ghost| ghost.bytes);
        let taken = held.chain(ghosts).fold(0, u64::saturating_add);
        self.total(gpu).saturating_sub(taken)
    }

    /// Bytes that have to become free before a VM gets what it wants.
    fn missing(&self, account: &Account, gpu: usize) -> u64 {
        account.wanted().saturating_sub(account.counts()).saturating_sub(self.free(gpu))
    }

    /// Returns the order that a VM gets now.
    fn order(&mut self, vm: usize) -> Order {
        let total = self.total_of(vm);
        self.accounts.entry(vm).and_modify(|account| account.total = total);
        let Account { number, may, forced, .. } = self.accounts[&vm];
        Order { number, most: may, forced, total }
    }

    /// Gives a VM the memory that it wants, and more if no other waits, so that it need not ask so often.
    fn grant(&mut self, vm: usize, patience: Nanos, now: Nanos) {
        let others_wait = self.others_wait(vm);
        let gpus = self.accounts[&vm].gpus.iter();
        let free = gpus.map(|gpu| self.free(*gpu)).min().unwrap_or(0);
        let turn = self.turn_of(vm, patience, now);
        let Some(account) = self.accounts.get_mut(&vm) else { return };
        let wanted = account.wanted();
        let left = free.saturating_sub(wanted.saturating_sub(account.counts()));
        account.raise(if others_wait { wanted } else { wanted.saturating_add(left / 4) }, now);
        if account.makes_room.is_some() && wanted <= account.reserved {
            account.keeps_until = now.saturating_add(RESERVED_KEPT);
        }
        account.end_to_wait(turn, now);
    }

    /// Returns the turn of a VM that gets the memory that it waits for: none if it has not waited. VMs that wait, or made room for it, wait for the
    /// end of the turn. The VM's own time of coming back counts into the turn, and some time after it.
    fn turn_of(&self, vm: usize, patience: Nanos, now: Nanos) -> Turn {
        let account = &self.accounts[&vm];
        let made_room = |other: &Account| account.makes_room.is_some_and(|begun| other.told >= begun);
        let others = self.others(vm).filter(|other| other.since.is_some() || made_room(other)).count();
        let took = account.makes_room.map_or(0, |begun| now.saturating_sub(begun));
        match account.makes_room.is_some() || account.waited(now) > 0 {
            true => {
                let back = account.comes_back();
                let least = back.saturating_add(TURN).min(patience / 2);
                let mut cost = took.saturating_add(back);
                if account.state.back_ms == 0 {
                    // No program of the VM has come back yet, so the time can only be guessed.
                    cost = cost.max(copying(account.state.lacks));
                }
                Turn::begin(turn_length(cost, patience, others).max(least), least, now)
            }
            false => Turn::over(now),
        }
    }

    /// Has VMs on a GPU give up the bytes that a VM lacks. Other VMs give up theirs; the VM itself gives up memory of its idle contexts, and of its
    /// busy ones if others cannot give up as much. Returns the VMs that get an order.
    fn make_room(&mut self, vm: usize, (gpu, mut missing): (usize, u64), now: Nanos) -> BTreeSet<usize> {
        let wanted = self.accounts[&vm].wanted();
        let is_urgent = wanted <= self.accounts[&vm].reserved;
        let is_too_much = self.is_kept_by_others(vm, wanted, now);
        let given_up = self.on(gpu).map(|(_, account)| account.gives_up(now)).fold(0, u64::saturating_add);
        let asked = self.on(gpu).filter(|(_, account)| !account.is_open());
        let mut asked: Vec<_> =
            asked.map(|(other, account)| (other == vm, account.turn.end(now), other)).collect();
        asked.sort_unstable();
        missing = missing.saturating_sub(given_up);
        let (mut told, mut is_forced) = (BTreeSet::new(), false);
        for way in [Way::Unused, Way::Idle, Way::Busy { is_urgent }] {
            let asked = asked.iter().filter(|(is_itself, ..)| !is_itself || way.is_for_itself(is_too_much));
            for (.., other) in asked {
                let account = self.accounts.get_mut(other);
                let Some(bytes) = account.and_then(|account| give_up(account, missing, way, now)) else {
                    continue;
                };
                missing = missing.saturating_sub(bytes);
                is_forced |= matches!(way, Way::Busy { .. });
                told.insert(*other);
            }
        }
        for other in &told {
            self.accounts.entry(*other).and_modify(|account| account.number += 1);
        }
        if !told.is_empty() || given_up > 0 {
            // The time before belongs to the turns of others: the cost of making room begins when busy contexts are told to go.
            self.accounts.entry(vm).and_modify(|account| {
                let since = account.makes_room.filter(|_| !is_forced);
                account.makes_room = since.or(Some(now));
            });
        }
        told
    }
}

/// The kind of memory that a VM gives up.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Memory that the VM may hold and does not hold.
    Unused,
    /// Memory of contexts that do nothing.
    Idle,
    /// Memory of any context, if the VM's turn is over or another VM needs the memory that is reserved for it.
    Busy { is_urgent: bool },
}

impl Way {
    /// Returns whether the VM that wants memory gives up this kind itself. `is_too_much`: the other VMs cannot give up enough.
    fn is_for_itself(self, is_too_much: bool) -> bool {
        match self {
            Self::Unused => false,
            Self::Idle => true,
            Self::Busy { .. } => is_too_much,
        }
    }
}

/// Has a VM give up at most `missing` bytes of one kind. Returns their number, if the VM gets an order.
fn give_up(account: &mut Account, missing: u64, way: Way, now: Nanos) -> Option<u64> {
    let held = account.state.held.min(account.may);
    let (most, forced) = match way {
        Way::Unused => (account.may - held, account.forced),
        Way::Idle => (account.state.idle.saturating_sub(account.owes()).min(account.may), account.forced),
        Way::Busy { is_urgent } if is_urgent || account.turn.is_over(now) => (account.may, true),
        Way::Busy { .. } => return None,
    };
    // If idle contexts do not give up their memory in time, busy contexts give theirs up.
    let is_late =
        forced && !account.forced && account.owes() > 0 && now.saturating_sub(account.told) >= IDLE_PATIENCE;
    let most = if account.is_overdue(now) { 0 } else { most };
    let bytes = most.min(account.may - account.floor(now)).min(missing);
    (bytes > 0 || is_late).then(|| {
        account.lower(bytes, forced, now);
        bytes
    })
}

/// Returns the length of a turn whose beginning cost so much time, while so many others wait for its end. If all turns are this long, the others get
/// theirs within half of `patience`: the other half is for making room.
fn turn_length(cost: Nanos, patience: Nanos, others: usize) -> Nanos {
    let most = turn_max(patience, others);
    cost.saturating_mul(TURN_FACTOR).clamp(TURN.min(most), most)
}

/// Returns the length of the longest turn while so many others wait.
fn turn_max(patience: Nanos, others: usize) -> Nanos {
    patience / 2 / Nanos::try_from(others.max(1)).unwrap_or(Nanos::MAX)
}
