//! Asks the device process for memory on behalf of the driver, and returns memory that is no longer used.
//!
//! The worker asks in steps for memory that only the driver uses, so that most allocations need not ask. A thread that asks waits for the answer. The
//! thread that reads the answer handles it at once, ahead of queued messages. The device process answers at once, or when the workers that hold the
//! memory have ended, or says that other VMs have to give memory up first.

use super::patience::patience;
use crate::ipc::{Channel, ToDevice};
use config::{DepositId, Heap, MemoryCount, MemoryId, PerHeap, Wanted};
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use std::fmt::Display;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use vulkan::{Allowance, Asked, Cancel, Deposit, HeapBudget, Interrupted, Lease, MemoryFile, Piece, Stop};

/// Bytes asked for at once.
const STEP: u64 = 64 << 20;
/// Time that an executor waits for an answer. The device process answers at once, or when workers have ended, which are killed after 2 s.
const ANSWER_MAX: Duration = patience(10);
/// Time that it waits for memory that other VMs have to give up: longer than `memory-wait` (10 min at most). Memory that is granted later goes back.
const MEMORY_MAX: Duration = patience(630);

/// Refused shaders of one context that the device process hears of, and logs within limits of its own.
const REFUSALS_TOLD: u64 = 16;

/// The memory of one context.
pub(super) struct Allowances {
    channel: Arc<Channel>,
    state: Mutex<State>,
    answered: Condvar,
    /// The number of the last deposit.
    deposits: AtomicU64,
    /// Shaders that were refused.
    refusals: AtomicU64,
    /// The device process was told that the guest asks for what `--queues` denies.
    undrawn: AtomicBool,
    /// The reference that each given-out piece of memory keeps: pieces may outlive the context.
    own: Weak<Self>,
}

#[derive(Default)]
struct State {
    next_request: u32,
    requests: FxHashMap<u32, Request>,
    credit: PerHeap<Credit>,
    /// The part of `credit` that is granted to the predecessor, until this worker takes its context over.
    borrowed: PerHeap<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Credit {
    granted: u64,
    used: u64,
}

enum Request {
    /// An executor waits for the answer, at most for this time.
    Open(Duration),
    /// No executor waits any more for the answer to this question.
    Abandoned(Question),
    /// The answer is here.
    Answered(Answer),
}

#[derive(Clone, Copy)]
enum Question {
    Memory(Wanted),
    Budget,
    CatchUp,
    Closing,
}

impl Question {
    fn message(self, request: u32) -> ToDevice {
        match self {
            Self::Memory(wanted) => ToDevice::MemoryWanted { request, wanted },
            Self::Budget => ToDevice::BudgetWanted { request },
            Self::CatchUp => ToDevice::CatchUpWanted { request },
            Self::Closing => ToDevice::ClosingWanted { request },
        }
    }
}

enum Answer {
    Granted(Granted),
    Refused,
    Budget(PerHeap<MemoryCount>),
    CaughtUp,
}

/// Memory that was granted.
struct Granted {
    memory: Option<MemoryId>,
    bytes: u64,
    file: Option<OwnedFd>,
}

impl Allowances {
    /// Makes the allowances of a context that was granted no memory yet; requests will go into `channel`.
    pub(super) fn new(channel: Arc<Channel>) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            channel,
            state: Mutex::default(),
            answered: Condvar::new(),
            deposits: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            undrawn: AtomicBool::new(false),
            own: own.clone(),
        })
    }

    /// Takes the answer `ToWorker::MemoryGranted`.
    pub(super) fn granted(&self, request: u32, memory: Option<MemoryId>, bytes: u64, file: Option<OwnedFd>) {
        self.answer(request, Answer::Granted(Granted { memory, bytes, file }));
    }

    /// Takes the answer `ToWorker::MemoryRefused`.
    pub(super) fn refused(&self, request: u32) {
        self.answer(request, Answer::Refused);
    }

    /// Takes `ToWorker::MemoryWaits`: the answer may take longer.
    pub(super) fn waits(&self, request: u32) {
        if let Some(Request::Open(patience)) = self.state.lock().requests.get_mut(&request) {
            *patience = MEMORY_MAX;
        }
    }

    /// Takes the answer `ToWorker::Budget`.
    pub(super) fn counted(&self, request: u32, memory: PerHeap<MemoryCount>) {
        self.answer(request, Answer::Budget(memory));
    }

    /// Takes the answer `ToWorker::CaughtUp`.
    pub(super) fn caught_up(&self, request: u32) {
        self.answer(request, Answer::CaughtUp);
    }

    /// Returns a piece that was made for another context, and is shown to this one.
    pub(super) fn shown(&self, memory: MemoryId) -> Piece {
        Piece::new(memory, self.held(memory))
    }

    fn answer(&self, request: u32, answer: Answer) {
        let mut state = self.state.lock();
        match state.requests.remove(&request) {
            Some(Request::Open(_)) => {
                state.requests.insert(request, Request::Answered(answer));
                self.answered.notify_all();
            }
            Some(Request::Abandoned(question)) => {
                drop(state);
                if let (Question::Memory(wanted), Answer::Granted(granted)) = (question, answer) {
                    self.decline(wanted, granted);
                }
            }
            _ => log::error!(
                "the device process answers a request that this worker has not made, which is a bug"
            ),
        }
    }

    fn decline(&self, wanted: Wanted, granted: Granted) {
        match (wanted, granted.memory) {
            (Wanted::Credit { heap, .. }, _) => {
                self.say(&ToDevice::CreditReturned { heap, bytes: granted.bytes });
            }
            (_, Some(memory)) => self.say(&ToDevice::MemoryReturned { memory }),
            (_, None) => {}
        }
    }

    fn ask(&self, wanted: Wanted, cancel: &Cancel) -> Asked<Granted> {
        Ok(match self.answer_to(Question::Memory(wanted), cancel)? {
            Some(Answer::Granted(granted)) => Some(granted),
            _ => None,
        })
    }

    /// Asks and waits for the answer. If the wait is interrupted, memory that is granted later goes back.
    fn answer_to(&self, question: Question, cancel: &Cancel) -> Asked<Answer> {
        let mut state = self.state.lock();
        let request = state.next_request;
        state.next_request = request.wrapping_add(1);
        state.requests.insert(request, Request::Open(ANSWER_MAX));
        drop(state);
        self.say(&question.message(request));
        let start = Instant::now();
        let mut state = self.state.lock();
        loop {
            let patience = match state.requests.get(&request) {
                Some(Request::Open(patience)) => *patience,
                _ => {
                    return Ok(match state.requests.remove(&request) {
                        Some(Request::Answered(answer)) => Some(answer),
                        _ => None,
                    });
                }
            };
            let stop = cancel.stop();
            if stop.is_some() || start.elapsed() > patience {
                state.requests.insert(request, Request::Abandoned(question));
                drop(state);
                if matches!(question, Question::Memory(_)) {
                    self.say(&ToDevice::MemoryWantedNoMore { request });
                }
                return if stop == Some(Stop::Interrupted) { Err(Interrupted) } else { Ok(None) };
            }
            self.answered.wait_for(&mut state, Duration::from_millis(20));
        }
    }

    /// Sends a message. The thread that reads messages notices when the device process is gone.
    fn say(&self, message: &ToDevice) {
        if let Err(error) = self.channel.send(message, None) {
            log::debug!("cannot send a message to the device process: {error}");
        }
    }

    fn held(&self, memory: MemoryId) -> Lease {
        let own = self.own.clone();
        Lease::new(move || {
            if let Some(own) = own.upgrade() {
                own.say(&ToDevice::MemoryReturned { memory });
            }
        })
    }

    fn use_credit(&self, heap: Heap, bytes: u64, cancel: &Cancel) -> Asked<()> {
        loop {
            let missing = {
                let mut state = self.state.lock();
                let credit = state.credit.of(heap);
                match credit.used.checked_add(bytes) {
                    None => return Ok(None),
                    Some(used) if used <= credit.granted => {
                        credit.used = used;
                        return Ok(Some(()));
                    }
                    Some(used) => used - credit.granted,
                }
            };
            if self.is_borrowing() {
                // The device process grants nothing to a worker that has no context yet.
                return Ok(None);
            }
            let Some(bytes) = missing.checked_next_multiple_of(STEP) else { return Ok(None) };
            let Some(granted) = self.ask(Wanted::Credit { heap, least: missing, bytes }, cancel)? else {
                return Ok(None);
            };
            let mut state = self.state.lock();
            let credit = state.credit.of(heap);
            credit.granted = credit.granted.saturating_add(granted.bytes);
        }
    }

    /// Returns the bytes of each heap that the context was granted for memory that only the driver uses, used or not.
    pub(super) fn credit_granted(&self) -> PerHeap<u64> {
        let mut state = self.state.lock();
        PerHeap::each(|heap| state.credit.of(heap).granted)
    }

    /// Takes over the credit that another worker was granted for this context. It replaces the borrowed credit and is used without asking.
    pub(super) fn take_over_credit(&self, granted: PerHeap<u64>) {
        self.borrow_credit(granted);
        self.state.lock().borrowed = PerHeap::default();
    }

    /// Borrows the credit that another worker was granted for this context, which this worker is about to take over. Borrowed credit is used without
    /// asking, and replaces what was borrowed before.
    pub(super) fn borrow_credit(&self, mut granted: PerHeap<u64>) {
        let mut state = self.state.lock();
        for heap in [Heap::Device, Heap::Host] {
            let new = *granted.of(heap);
            let before = std::mem::replace(state.borrowed.of(heap), new);
            let credit = state.credit.of(heap);
            credit.granted = (credit.granted - before).saturating_add(new);
        }
    }

    fn is_borrowing(&self) -> bool {
        let mut state = self.state.lock();
        [Heap::Device, Heap::Host].into_iter().any(|heap| *state.borrowed.of(heap) > 0)
    }

    /// Gives back the credit that is free beyond one step.
    fn free_credit(&self, heap: Heap, bytes: u64) {
        let surplus = {
            let mut state = self.state.lock();
            let credit = state.credit.of(heap);
            credit.used -= bytes;
            let free = credit.granted.saturating_sub(credit.used);
            let surplus = if free >= 2 * STEP { free - STEP } else { 0 };
            // Only the other worker may give borrowed credit back.
            let surplus = if *state.borrowed.of(heap) > 0 { 0 } else { surplus };
            state.credit.of(heap).granted -= surplus;
            surplus
        };
        if surplus > 0 {
            self.say(&ToDevice::CreditReturned { heap, bytes: surplus });
        }
    }
}

impl Allowance for Allowances {
    fn pages(&self, size: u64, cancel: &Cancel) -> Asked<MemoryFile> {
        let granted = self.ask(Wanted::Pages(size), cancel)?;
        Ok(granted.and_then(|Granted { memory, file, .. }| {
            let memory = memory?;
            let piece = Piece::new(memory, self.held(memory));
            Some(MemoryFile::new(file?, piece))
        }))
    }

    fn piece(&self, heap: Heap, bytes: u64, cancel: &Cancel) -> Asked<Piece> {
        let memory = self.ask(Wanted::Piece { heap, bytes }, cancel)?.and_then(|granted| granted.memory);
        Ok(memory.map(|memory| Piece::new(memory, self.held(memory))))
    }

    fn credit(&self, heap: Heap, bytes: u64, cancel: &Cancel) -> Asked<Lease> {
        let own = self.own.clone();
        let give_back = move || {
            if let Some(own) = own.upgrade() {
                own.free_credit(heap, bytes);
            }
        };
        Ok(self.use_credit(heap, bytes, cancel)?.map(|()| Lease::new(give_back)))
    }

    fn deposit(&self, file: BorrowedFd<'_>) -> Option<Deposit> {
        let id = DepositId(self.deposits.fetch_add(1, Ordering::Relaxed) + 1);
        let sent = self.channel.send(&ToDevice::Deposits { id }, Some(file));
        sent.inspect_err(|error| log::debug!("cannot deposit memory with the device process: {error}"))
            .ok()?;
        let own = self.own.clone();
        let take_back = move || {
            if let Some(own) = own.upgrade() {
                own.say(&ToDevice::TakesBack { id });
            }
        };
        Some(Deposit::new(id, Lease::new(take_back)))
    }

    fn closed(&self, cancel: &Cancel) -> Asked<()> {
        Ok(self.answer_to(Question::Closing, cancel)?.map(|_| ()))
    }

    fn budget(&self, cancel: &Cancel) -> Asked<PerHeap<HeapBudget>> {
        let Some(Answer::Budget(mut memory)) = self.answer_to(Question::Budget, cancel)? else {
            return Ok(None);
        };
        let mut state = self.state.lock();
        Ok(Some(PerHeap::each(|heap| {
            let MemoryCount { held, room } = *memory.of(heap);
            let Credit { granted, used } = *state.credit.of(heap);
            HeapBudget {
                used: held.saturating_sub(granted.saturating_sub(used)),
                most: held.saturating_add(room),
            }
        })))
    }

    fn caught_up(&self, cancel: &Cancel) -> Asked<()> {
        Ok(self.answer_to(Question::CatchUp, cancel)?.map(|_| ()))
    }

    fn reached(&self, limit: &'static str) {
        self.say(&ToDevice::LimitReached { limit: limit.to_owned() });
    }

    fn shader_refused(&self, reason: &dyn Display) {
        log::debug!("shader refused: {reason}");
        if self.refusals.fetch_add(1, Ordering::Relaxed) < REFUSALS_TOLD {
            self.say(&ToDevice::ShaderRefused { reason: reason.to_string() });
        }
    }

    fn undrawn(&self) {
        if !self.undrawn.swap(true, Ordering::Relaxed) {
            self.say(&ToDevice::Undrawn);
        }
    }

    fn overdue(&self, command: &'static str, is_blocked: bool) {
        self.say(&ToDevice::Overdue { command: command.to_owned(), is_blocked });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    struct Rig {
        allowances: Arc<Allowances>,
        peer: Channel,
    }

    impl Rig {
        fn new() -> Self {
            let (ours, peer) = Channel::pair().unwrap();
            Self { allowances: Allowances::new(Arc::new(ours)), peer }
        }

        /// Checks the next request and answers it with so many bytes; none refuses it.
        fn answer(&self, bytes: Option<u64>) -> Wanted {
            let (message, _) = self.peer.receive::<ToDevice>().unwrap();
            let ToDevice::MemoryWanted { request, wanted } = message else { panic!("{message:?}") };
            match (bytes, wanted) {
                (None, _) => self.allowances.refused(request),
                (Some(bytes), Wanted::Credit { .. }) => self.allowances.granted(request, None, bytes, None),
                (Some(bytes), Wanted::Piece { .. }) => {
                    self.allowances.granted(request, Some(MemoryId(7)), bytes, None);
                }
                (Some(bytes), Wanted::Pages(_)) => {
                    let file = shm::create("test", bytes).unwrap();
                    self.allowances.granted(request, Some(MemoryId(7)), bytes, Some(file));
                }
            }
            wanted
        }

        fn said(&self) -> Option<ToDevice> {
            self.peer.try_receive().unwrap().map(|(message, _)| message)
        }

        fn asking<R: Send>(
            &self,
            ask: impl FnOnce(&Allowances) -> R + Send,
            bytes: Option<u64>,
        ) -> (R, Wanted) {
            std::thread::scope(|scope| {
                let asking = scope.spawn(|| ask(&self.allowances));
                let wanted = self.answer(bytes);
                (asking.join().unwrap(), wanted)
            })
        }
    }

    #[test]
    fn a_budget_is_what_is_held_and_what_there_is_room_for_and_credit_in_advance_is_not_used() {
        let rig = Rig::new();
        let cancel = Cancel::default();
        let (one, _) = rig.asking(|a| a.credit(Heap::Device, 1 << 20, &cancel).unwrap(), Some(STEP));
        let budget = std::thread::scope(|scope| {
            let asking = scope.spawn(|| rig.allowances.budget(&cancel).unwrap());
            let (message, _) = rig.peer.receive::<ToDevice>().unwrap();
            let ToDevice::BudgetWanted { request } = message else { panic!("{message:?}") };
            let device = MemoryCount { held: STEP + 5, room: 1000 };
            rig.allowances.counted(request, PerHeap { device, host: MemoryCount { held: 7, room: 2 } });
            asking.join().unwrap()
        });
        let device = HeapBudget { used: (1 << 20) + 5, most: STEP + 1005 };
        assert_eq!(budget, Some(PerHeap { device, host: HeapBudget { used: 7, most: 9 } }));
        assert_eq!(rig.said(), None, "one question");
        drop(one);
    }

    #[test]
    fn who_does_not_hear_of_its_budget_knows_none_and_owes_nothing() {
        let rig = Rig::new();
        let cancel = Cancel::default();
        cancel.cancel();
        assert_eq!(rig.allowances.budget(&cancel).unwrap(), None);
        let (message, _) = rig.peer.receive::<ToDevice>().unwrap();
        let ToDevice::BudgetWanted { request } = message else { panic!("{message:?}") };
        rig.allowances.counted(request, PerHeap::default());
        assert_eq!(rig.said(), None);
        assert!(rig.allowances.state.lock().requests.is_empty());
    }

    #[test]
    fn a_guests_end_is_told_when_its_requests_are_done() {
        let rig = Rig::new();
        let cancel = Cancel::default();
        let caught_up = std::thread::scope(|scope| {
            let asking = scope.spawn(|| Allowance::caught_up(&*rig.allowances, &cancel).unwrap());
            let (message, _) = rig.peer.receive::<ToDevice>().unwrap();
            let ToDevice::CatchUpWanted { request } = message else { panic!("{message:?}") };
            assert!(!asking.is_finished());
            rig.allowances.caught_up(request);
            asking.join().unwrap()
        });
        assert_eq!(caught_up, Some(()));
    }

    #[test]
    fn credit_is_asked_for_in_steps_and_goes_back_in_steps() {
        let rig = Rig::new();
        let cancel = Cancel::default();
        let mib = |count: u64| count << 20;
        let take = |bytes| rig.allowances.credit(Heap::Device, bytes, &cancel).unwrap();
        let (first, wanted) = rig.asking(|a| a.credit(Heap::Device, mib(1), &cancel).unwrap(), Some(STEP));
        assert_eq!(wanted, Wanted::Credit { heap: Heap::Device, least: mib(1), bytes: STEP });
        let second = take(mib(63));
        assert!(first.is_some() && second.is_some() && rig.said().is_none());
        let (third, wanted) =
            rig.asking(|a| a.credit(Heap::Device, mib(65), &cancel).unwrap(), Some(2 * STEP));
        assert_eq!(wanted, Wanted::Credit { heap: Heap::Device, least: mib(65), bytes: 2 * STEP });
        drop((first, second));
        assert_eq!(rig.said(), None);
        drop(third);
        assert_eq!(rig.said(), Some(ToDevice::CreditReturned { heap: Heap::Device, bytes: 2 * STEP }));
        // The remaining credit is used before the worker asks for more.
        assert!(take(STEP).is_some() && rig.said().is_none());
    }

    #[test]
    fn what_is_refused_is_not_there() {
        let rig = Rig::new();
        let cancel = Cancel::default();
        assert!(rig.asking(|a| a.credit(Heap::Host, 1, &cancel).unwrap(), None).0.is_none());
        assert!(rig.asking(|a| a.pages(4096, &cancel).unwrap(), None).0.is_none());
        assert!(rig.asking(|a| a.piece(Heap::Host, 4096, &cancel).unwrap(), None).0.is_none());
        assert!(rig.allowances.credit(Heap::Host, u64::MAX, &cancel).unwrap().is_none());
        assert_eq!(rig.said(), None);
    }

    #[test]
    fn a_piece_goes_back_with_the_last_who_holds_it() {
        let rig = Rig::new();
        let cancel = Cancel::default();
        let (file, wanted) = rig.asking(|a| a.pages(8192, &cancel).unwrap(), Some(8192));
        let file = file.unwrap();
        assert_eq!(wanted, Wanted::Pages(8192));
        assert_eq!(rustix::fs::fstat(file.as_fd()).unwrap().st_size, 8192);
        let again = file.piece.clone();
        drop(file);
        assert_eq!(rig.said(), None);
        drop(again);
        assert_eq!(rig.said(), Some(ToDevice::MemoryReturned { memory: MemoryId(7) }));
    }

    #[test]
    fn a_deposit_has_a_number_of_its_own_and_is_taken_back_when_it_is_dropped() {
        let rig = Rig::new();
        let file = shm::create("test", 4096).unwrap();
        let deposits: Vec<_> = (0..2).map(|_| rig.allowances.deposit(file.as_fd()).unwrap()).collect();
        for deposit in &deposits {
            let (message, fd) = rig.peer.receive::<ToDevice>().unwrap();
            assert_eq!((message, fd.is_some()), (ToDevice::Deposits { id: deposit.id }, true));
        }
        let [first, second] = [deposits[0].id, deposits[1].id];
        assert_ne!(first, second);
        assert_eq!(rig.said(), None);
        drop(deposits);
        assert_eq!(rig.said(), Some(ToDevice::TakesBack { id: first }));
        assert_eq!(rig.said(), Some(ToDevice::TakesBack { id: second }));
    }

    #[test]
    fn what_the_device_process_closes_is_waited_for() {
        let (rig, cancel) = (Rig::new(), Cancel::default());
        let closed = std::thread::scope(|scope| {
            let asking = scope.spawn(|| Allowance::closed(&*rig.allowances, &cancel));
            let (message, _) = rig.peer.receive::<ToDevice>().unwrap();
            let ToDevice::ClosingWanted { request } = message else { panic!("{message:?}") };
            rig.allowances.caught_up(request);
            asking.join().unwrap()
        });
        assert_eq!(closed.unwrap(), Some(()));
        cancel.interrupt();
        assert!(Allowance::closed(&*rig.allowances, &cancel).is_err());
    }

    #[test]
    fn what_is_granted_after_an_interruption_goes_back_and_credit_that_was_taken_over_is_used_first() {
        let rig = Rig::new();
        let cancel = Cancel::default();
        cancel.interrupt();
        assert!(rig.allowances.credit(Heap::Device, 1, &cancel).is_err());
        assert!(rig.allowances.pages(4096, &cancel).is_err() && rig.allowances.budget(&cancel).is_err());
        for bytes in [STEP, 4096] {
            rig.answer(Some(bytes));
            let said = rig.said();
            assert!(matches!(said, Some(ToDevice::MemoryWantedNoMore { .. })), "{said:?}");
        }
        let said = [rig.said(), rig.said(), rig.said(), rig.said()];
        assert!(matches!(said[0], Some(ToDevice::BudgetWanted { .. })), "{said:?}");
        assert_eq!(said[1], Some(ToDevice::CreditReturned { heap: Heap::Device, bytes: STEP }));
        assert_eq!(said[2..], [Some(ToDevice::MemoryReturned { memory: MemoryId(7) }), None]);
        cancel.resume();
        rig.allowances.take_over_credit(PerHeap { device: 3 * STEP, host: u64::MAX });
        rig.allowances.take_over_credit(PerHeap { device: 0, host: u64::MAX });
        assert_eq!(rig.allowances.credit_granted(), PerHeap { device: 3 * STEP, host: u64::MAX });
        let used = rig.allowances.credit(Heap::Device, 3 * STEP, &cancel).unwrap();
        assert!(used.is_some() && rig.said().is_none());
        drop(used);
        assert_eq!(rig.said(), Some(ToDevice::CreditReturned { heap: Heap::Device, bytes: 2 * STEP }));
    }

    #[test]
    fn borrowed_credit_is_all_that_there_is_and_goes_back_to_none() {
        let (rig, cancel) = (Rig::new(), Cancel::default());
        let take = |bytes| rig.allowances.credit(Heap::Device, bytes, &cancel).unwrap();
        let granted = |device| PerHeap { device, host: 0 };
        rig.allowances.borrow_credit(granted(4 * STEP));
        let (first, second) = (take(3 * STEP), take(STEP));
        assert!(first.is_some() && second.is_some() && take(1).is_none(), "the predecessor has no more");
        // The predecessor has returned half of its credit meanwhile; this worker gives that half up later.
        rig.allowances.borrow_credit(granted(2 * STEP));
        drop(first);
        assert_eq!(rig.said(), None, "nothing is asked for, and nothing goes back");
        rig.allowances.take_over_credit(granted(2 * STEP));
        assert_eq!(rig.allowances.credit_granted(), granted(2 * STEP));
        let third = take(STEP);
        assert!(third.is_some());
        drop((second, third));
        assert_eq!(rig.said(), Some(ToDevice::CreditReturned { heap: Heap::Device, bytes: STEP }));
    }

    #[test]
    fn a_request_waits_for_long_only_if_the_device_process_says_so() {
        let (rig, cancel) = (Rig::new(), Cancel::default());
        let patience = |request| match rig.allowances.state.lock().requests.get(&request) {
            Some(Request::Open(patience)) => Some(*patience),
            _ => None,
        };
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| rig.allowances.pages(4096, &cancel).unwrap().is_some());
            let asked = rig.peer.receive::<ToDevice>().unwrap().0;
            assert!(matches!(asked, ToDevice::MemoryWanted { request: 0, .. }), "{asked:?}");
            assert_eq!(patience(0), Some(ANSWER_MAX));
            rig.allowances.waits(0);
            rig.allowances.waits(1);
            assert_eq!((patience(0), patience(1)), (Some(MEMORY_MAX), None));
            rig.allowances.refused(0);
            assert!(!asking.join().unwrap());
        });
    }

    #[test]
    fn a_wait_ends_when_it_is_cancelled_and_a_late_answer_goes_back() {
        let rig = Rig::new();
        let cancel = Cancel::default();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| rig.allowances.pages(4096, &cancel).unwrap().is_some());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished());
            cancel.cancel();
            assert!(!waits.join().unwrap());
        });
        rig.answer(Some(4096));
        assert_eq!(rig.said(), Some(ToDevice::MemoryWantedNoMore { request: 0 }));
        assert_eq!(rig.said(), Some(ToDevice::MemoryReturned { memory: MemoryId(7) }));
    }
}
