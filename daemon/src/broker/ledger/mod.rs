//! The memory of GPUs where VMs are promised more of it than there is: what each VM may hold, and which of them give some up for one that waits.
//!
//! A VM that lacks memory gets what is free. If that is not enough, others give some up, but nothing of what is reserved for them: first what they may
//! have and do not hold, then what belongs to contexts that do nothing, and last what belongs to busy ones, if the VM's turn is over. VMs
//! that wait get memory one after the other, in the order of their weight times the time for which they have waited. Those that want no more than what is
//! reserved for them come first, and wait for no turn; behind them those whose turn it is, and those with a context that holds some and wants more. A VM whose coming cost the others much time, because they had much to copy, has a longer turn.
//!
//! Knows no process and no clock: time is passed in.

#[cfg(test)]
mod tests;

use super::settings::share::WEIGHT;
use crate::ipc::RoomState;
use sched::Nanos;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The least time for which a VM keeps what it has waited for, in nanoseconds.
pub(super) const TURN: Nanos = 2_000_000_000;
/// The most, in nanoseconds.
const TURN_MAX: Nanos = 60_000_000_000;
/// A turn takes so many times as long as making room for it: the more there is to copy, the more seldom VMs take turns.
const TURN_FACTOR: Nanos = 8;
/// Time in which a VM gives up what belongs to idle contexts, in nanoseconds: it counts as busy otherwise.
const IDLE_PATIENCE: Nanos = 1_000_000_000;
/// Time in which a VM gives up memory, in nanoseconds: others are asked as well otherwise. A turn stands still for no longer in all.
const GIVE_UP_PATIENCE: Nanos = 10_000_000_000;
/// Time between two lines of the log about what one VM was refused, in nanoseconds.
const COMPLAIN_AFTER: Nanos = 60_000_000_000;
/// Time for which the memory of a VM counts whose device process has ended, in nanoseconds: its workers end later.
const GHOST: Nanos = 3_000_000_000;
/// Time after which the ledger is looked at again while a VM waits, in nanoseconds.
const LOOK: Nanos = 50_000_000;

/// The thing that a VM is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The VM may hold so many bytes; to come down to them, contexts that do something are swapped out if that is `forced`.
    May { most: u64, forced: bool },
    /// The first context of the VM that waits, which has this number, has waited for too long, or wants more than it can have.
    No { waiter: u64 },
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

/// The memory of a VM whose device process has ended: workers that are ending hold it, until a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Ghost {
    gpus: Vec<usize>,
    bytes: u64,
    until: Nanos,
}

/// The memory of one VM: on each GPU that it uses, it counts whole.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Account {
    gpus: Vec<usize>,
    weight: u32,
    reserved: u64,
    /// Bytes that it may hold, as it was told last, and whether busy contexts are swapped out for that.
    may: u64,
    forced: bool,
    /// The most that it was told and may not have heard the end of.
    heard: u64,
    state: RoomState,
    /// The time since which it waits.
    since: Option<Nanos>,
    /// The time at which the first of its contexts that wait came to be the first.
    first_since: Nanos,
    /// The time at which others were first told to make room for it.
    makes_room: Option<Nanos>,
    /// The time at which it was told to give something up.
    told: Nanos,
    /// The time at which its turn is over unless it stands still; and what was left of the turn when the VM began to wait.
    turn_until: Nanos,
    turn_left: Nanos,
    /// The VM waits for no more than fits beside that which others keep, and has not since its wait began. Its turn stands still meanwhile, for so long at most.
    fits: bool,
    still_left: Nanos,
    /// The time until which it keeps all of what is reserved for it, used or not.
    keeps_until: Nanos,
    /// The time at which the log told last that it was refused something.
    complained: Option<Nanos>,
}

impl Account {
    /// Bytes that count for it: what it may hold, or still holds.
    fn counts(&self) -> u64 {
        self.may.max(self.heard)
    }

    /// Bytes that it is never told to give up. It may not use yet what it may have, if it has not heard of it. Where others were told to make
    /// room for what is reserved, they do not come and go with each use of that.
    fn floor(&self, now: Nanos) -> u64 {
        let has_heard = self.state.most == self.may && self.keeps_until <= now;
        self.reserved.min(if has_heard { self.state.held.min(self.may) } else { self.may })
    }

    /// Bytes that it has been told to give up, and is about to.
    fn gives_up(&self, now: Nanos) -> u64 {
        let soon = now.saturating_sub(self.told) < GIVE_UP_PATIENCE;
        if soon { self.counts() - self.may } else { 0 }
    }

    /// Has the VM hold `bytes` less.
    fn lower(&mut self, bytes: u64, forced: bool, now: Nanos) -> Order {
        self.heard = self.counts();
        (self.may, self.forced, self.told) = (self.may - bytes, forced, now);
        Order::May { most: self.may, forced }
    }

    /// Returns whether its turn stands still, if it has it.
    fn is_still(&self, now: Nanos) -> bool {
        self.fits && self.since.is_some_and(|since| now.saturating_sub(since) < self.still_left)
    }

    fn has_turn(&self, now: Nanos) -> bool {
        if self.is_still(now) { self.turn_left > 0 } else { self.turn_until > now }
    }

    /// Returns whether a context waits that holds memory. Until it has what it waits for, it may not be able to give any up.
    fn allocates(&self) -> bool {
        self.state.least > self.state.wanted.saturating_sub(self.state.held)
    }

    /// Has the VM wait from now on.
    fn begin_to_wait(&mut self, now: Nanos) {
        if self.since.is_none() {
            (self.since, self.turn_left) = (Some(now), self.turn_until.saturating_sub(now));
        }
    }

    /// Ends the VM's wait. A new turn has this length; one that has begun goes on.
    fn end_to_wait(&mut self, turn: Nanos, now: Nanos) {
        if self.is_still(now) {
            self.turn_until = now.saturating_add(self.turn_left);
        }
        if let Some(since) = self.since.take() {
            let stood = if self.fits { now.saturating_sub(since) } else { 0 };
            self.still_left = self.still_left.saturating_sub(stood);
            if self.turn_until <= now {
                (self.turn_until, self.still_left) = (now.saturating_add(turn), GIVE_UP_PATIENCE);
            }
        }
        self.makes_room = None;
    }

    fn is_on(&self, gpu: usize) -> bool {
        self.gpus.contains(&gpu)
    }
}

impl Ledger {
    /// A VM is on these GPUs, of which VMs may hold so many bytes each, and holds nothing yet. Returns what it is told.
    pub(super) fn begins(&mut self, vm: usize, gpus: impl IntoIterator<Item = (usize, u64)>) -> Order {
        self.accounts.insert(vm, Account { weight: WEIGHT, ..Account::default() });
        self.uses(vm, gpus);
        Order::May { most: 0, forced: false }
    }

    /// A VM has no device process any more. What it had counts until its workers have ended as well.
    pub(super) fn ends(&mut self, vm: usize, now: Nanos) {
        let Some(account) = self.accounts.remove(&vm) else { return };
        let bytes = account.counts();
        self.ghosts.push(Ghost { gpus: account.gpus, bytes, until: now.saturating_add(GHOST) });
        self.ghosts.retain(|ghost| ghost.bytes > 0 && ghost.until > now);
    }

    /// A VM uses these GPUs from now on, of which VMs may hold so many bytes each.
    pub(super) fn uses(&mut self, vm: usize, gpus: impl IntoIterator<Item = (usize, u64)>) {
        let Some(account) = self.accounts.get_mut(&vm) else { return };
        account.gpus.clear();
        for (gpu, bytes) in gpus {
            self.totals.insert(gpu, bytes);
            account.gpus.push(gpu);
        }
    }

    /// A VM has this weight.
    pub(super) fn set_weight(&mut self, vm: usize, weight: u32) {
        self.accounts.entry(vm).and_modify(|account| account.weight = weight);
    }

    /// Reserves so many bytes for a VM.
    pub(super) fn reserve(&mut self, vm: usize, bytes: u64) {
        self.accounts.entry(vm).and_modify(|account| account.reserved = bytes);
    }

    /// A VM says what it holds and wants. It is not believed to hold more than it was ever let.
    pub(super) fn hears(&mut self, vm: usize, state: RoomState, now: Nanos) {
        let Some(account) = self.accounts.get_mut(&vm) else { return };
        if state.waiter != account.state.waiter {
            account.first_since = now;
        }
        let waited = account.since.is_some();
        account.state = state;
        if state.most == account.may {
            account.heard = state.held.min(account.heard);
            account.forced &= state.held > account.may;
        }
        match state.wanted > account.may.max(state.held) {
            true => account.begin_to_wait(now),
            false => account.end_to_wait(0, now),
        }
        let fits = !self.is_reserved_for_others(vm, state.wanted, now);
        self.accounts.entry(vm).and_modify(|account| account.fits = fits && (account.fits || !waited));
    }

    /// Returns whether the log may tell that a VM was refused something: guests can have it told as often as they like.
    pub(super) fn may_complain(&mut self, vm: usize, now: Nanos) -> bool {
        let Some(account) = self.accounts.get_mut(&vm) else { return false };
        let may = account.complained.is_none_or(|last| now.saturating_sub(last) >= COMPLAIN_AFTER);
        if may {
            account.complained = Some(now);
        }
        may
    }

    /// Bytes that a VM lacks, if it waits.
    pub(super) fn lacks(&self, vm: usize) -> u64 {
        let account = self.accounts.get(&vm).filter(|account| account.since.is_some());
        account.map_or(0, |account| account.state.wanted.saturating_sub(account.state.held))
    }

    /// Returns when [`Self::decide`] has something to do next though nothing is heard.
    pub(super) fn next_look(&self, now: Nanos) -> Option<Nanos> {
        self.accounts.values().any(|account| account.since.is_some()).then(|| now.saturating_add(LOOK))
    }

    /// Returns what VMs are to be told. A context that has waited for as long as `patience` waits no more.
    pub(super) fn decide(&mut self, patience: Nanos, now: Nanos) -> Vec<(usize, Order)> {
        let mut orders = Vec::new();
        self.ghosts.retain(|ghost| ghost.until > now);
        let mut blocked: Vec<usize> = Vec::new();
        for vm in self.queue(now) {
            let account = &self.accounts[&vm];
            let waited = account.since.map_or(0, |since| now.saturating_sub(since.max(account.first_since)));
            if waited >= patience || self.can_never(account) {
                orders.push((vm, self.refuse(vm, now)));
                continue;
            }
            let is_to_give_up = account.heard > account.may && !account.allocates();
            if is_to_give_up && self.others_wait(vm)
                || self.is_reserved_for_others(vm, account.state.least, now)
            {
                continue;
            }
            if account.gpus.iter().any(|gpu| blocked.contains(gpu)) {
                continue;
            }
            let short: Vec<_> = account.gpus.iter().map(|gpu| (*gpu, self.missing(account, *gpu))).collect();
            if short.iter().all(|(_, missing)| *missing == 0) {
                orders.push((vm, self.grant(vm, now)));
                continue;
            }
            blocked.extend(&account.gpus);
            for (gpu, missing) in short {
                self.make_room(vm, (gpu, missing), now, &mut orders);
            }
        }
        self.let_keep(&mut orders);
        orders
    }

    /// VMs that were to give something up, and have not yet, keep it where none waits for it any more.
    fn let_keep(&mut self, orders: &mut Vec<(usize, Order)>) {
        let waiting = self.accounts.values().filter(|account| account.since.is_some());
        let awaited: Vec<usize> = waiting.flat_map(|account| account.gpus.iter().copied()).collect();
        for (vm, account) in &mut self.accounts {
            if account.heard > account.may && !account.gpus.iter().any(|gpu| awaited.contains(gpu)) {
                (account.may, account.forced) = (account.heard, false);
                orders.push((*vm, Order::May { most: account.may, forced: false }));
            }
        }
    }

    /// The VMs that wait, in the order in which they get memory.
    fn queue(&self, now: Nanos) -> Vec<usize> {
        let waiting = self.accounts.iter().filter_map(|(vm, account)| {
            let waited = now.saturating_sub(account.since?);
            let patience = u128::from(waited) * u128::from(account.weight);
            let first =
                (account.state.wanted > account.reserved, !account.has_turn(now), !account.allocates());
            Some((first, Reverse(patience), *vm))
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(.., vm)| vm).collect()
    }

    /// Returns whether the context of a VM that waits wants more than there is.
    fn can_never(&self, account: &Account) -> bool {
        account.gpus.iter().any(|gpu| account.state.least > self.total(*gpu))
    }

    /// Returns whether a VM cannot have so many bytes, whatever others give up.
    fn is_reserved_for_others(&self, vm: usize, bytes: u64, now: Nanos) -> bool {
        let kept = |gpu: usize| {
            let others = self.accounts.iter().filter(|(other, account)| **other != vm && account.is_on(gpu));
            others.map(|(_, account)| account.floor(now)).fold(bytes, u64::saturating_add)
        };
        self.accounts[&vm].gpus.iter().any(|gpu| kept(*gpu) > self.total(*gpu))
    }

    fn others_wait(&self, vm: usize) -> bool {
        self.accounts.iter().any(|(other, account)| *other != vm && account.since.is_some())
    }

    fn total(&self, gpu: usize) -> u64 {
        self.totals.get(&gpu).copied().unwrap_or(u64::MAX)
    }

    /// Bytes of a GPU that no VM may hold.
    fn free(&self, gpu: usize) -> u64 {
        let on_it = self.accounts.values().filter(|account| account.is_on(gpu));
        let ghosts = self.ghosts.iter().filter(|ghost| ghost.gpus.contains(&gpu)).map(|ghost| ghost.bytes);
        let taken = on_it.map(Account::counts).chain(ghosts).fold(0, u64::saturating_add);
        self.total(gpu).saturating_sub(taken)
    }

    /// Bytes that have to become free before a VM gets what it wants.
    fn missing(&self, account: &Account, gpu: usize) -> u64 {
        account.state.wanted.saturating_sub(account.counts()).saturating_sub(self.free(gpu))
    }

    fn refuse(&mut self, vm: usize, now: Nanos) -> Order {
        self.accounts.entry(vm).and_modify(|account| account.end_to_wait(0, now));
        Order::No { waiter: self.accounts.get(&vm).map_or(0, |account| account.state.waiter) }
    }

    /// A VM gets what it wants, and more if no other waits, so that it need not ask so often.
    fn grant(&mut self, vm: usize, now: Nanos) -> Order {
        let others_wait = self.others_wait(vm);
        let gpus = self.accounts[&vm].gpus.iter();
        let free = gpus.map(|gpu| self.free(*gpu)).min().unwrap_or(0);
        let Some(account) = self.accounts.get_mut(&vm) else { return Order::No { waiter: 0 } };
        let wanted = account.state.wanted;
        let left = free.saturating_sub(wanted.saturating_sub(account.counts()));
        account.may = if others_wait { wanted } else { wanted.saturating_add(left / 4) };
        account.heard = account.counts();
        let took = account.makes_room.map(|begun| now.saturating_sub(begun));
        let turn = took.map_or(0, |took| took.saturating_mul(TURN_FACTOR).clamp(TURN, TURN_MAX));
        if took.is_some() && wanted <= account.reserved {
            account.keeps_until = now.saturating_add(TURN_MAX);
        }
        account.forced = false;
        account.end_to_wait(turn, now);
        Order::May { most: account.may, forced: false }
    }

    /// Has VMs on a GPU give up what is missing for one: others, and itself what belongs to its idle contexts, or to its busy ones if others cannot
    /// give up as much.
    fn make_room(
        &mut self,
        vm: usize,
        (gpu, mut missing): (usize, u64),
        now: Nanos,
        orders: &mut Vec<(usize, Order)>,
    ) {
        let RoomState { wanted, .. } = self.accounts[&vm].state;
        let is_urgent = wanted <= self.accounts[&vm].reserved;
        let is_too_much = self.is_reserved_for_others(vm, wanted, now);
        let others = self.accounts.iter().filter(|(_, account)| account.is_on(gpu));
        let mut others: Vec<_> =
            others.map(|(other, account)| (*other == vm, account.turn_until, *other)).collect();
        others.sort_unstable();
        let before = orders.len();
        let given_up = others.iter().map(|(.., other)| self.accounts[other].gives_up(now));
        let given_up = given_up.fold(0, u64::saturating_add);
        missing = missing.saturating_sub(given_up);
        for way in [Way::Unused, Way::Idle, Way::Busy { is_urgent }] {
            let others = others.iter().filter(|(is_itself, ..)| !is_itself || way.is_for_itself(is_too_much));
            for (.., other) in others {
                let Some(account) = self.accounts.get_mut(other) else { continue };
                missing = missing.saturating_sub(give_up((*other, account), missing, way, now, orders));
            }
        }
        if orders.len() > before || given_up > 0 {
            self.accounts.entry(vm).and_modify(|account| _ = account.makes_room.get_or_insert(now));
        }
    }
}

/// The kind of memory that a VM gives up.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Memory that it may have and does not.
    Unused,
    /// Memory of contexts that do nothing.
    Idle,
    /// Memory of any context, if the VM's turn is over or another has to have what is reserved for it.
    Busy { is_urgent: bool },
}

impl Way {
    /// Returns whether a VM gives up something for itself in this way, if others cannot give up what it wants.
    fn is_for_itself(self, is_too_much: bool) -> bool {
        match self {
            Self::Unused => false,
            Self::Idle => true,
            Self::Busy { .. } => is_too_much,
        }
    }
}

/// Has a VM give up to `missing` bytes in one way. Returns how many.
fn give_up(
    (vm, account): (usize, &mut Account),
    missing: u64,
    way: Way,
    now: Nanos,
    orders: &mut Vec<(usize, Order)>,
) -> u64 {
    let held = account.state.held.min(account.may);
    let (most, forced) = match way {
        // It may not have heard yet that it may have so much.
        Way::Unused if account.state.most != account.may => return 0,
        Way::Unused => (account.may - held, account.forced),
        Way::Idle => (account.state.idle.min(account.may), false),
        Way::Busy { is_urgent } if is_urgent || !account.has_turn(now) => (account.may, true),
        Way::Busy { .. } => return 0,
    };
    // What idle contexts were to give up and do not is given up by busy ones.
    let is_late = forced
        && !account.forced
        && account.counts() > account.may
        && now.saturating_sub(account.told) >= IDLE_PATIENCE;
    let bytes = most.min(account.may - account.floor(now)).min(missing);
    if bytes > 0 || is_late {
        orders.push((vm, account.lower(bytes, forced, now)));
    }
    bytes
}
