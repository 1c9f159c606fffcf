//! Tests of workers that die by themselves, with and without a checkpoint of their contexts; the tests play the workers.

use super::broker::Broker;
use super::checkpoints::{CHECKPOINT_BYTES, CRASHES_MAX};
use super::handover::{Asker, Purpose, START_PATIENCE, Stage};
use super::restarts_tests::{
    CONTEXT, NEW, OLD, Rig, blob, heard, rig_with, signalled, submitted, taken_over,
};
use super::workers::Whose;
use crate::ipc::{Channel, FromBroker, HandOver, ToBroker, ToDevice, ToWorker};
use config::{AtFault, CHECKPOINT_AFTER, DepositId, MemoryName, PerHeap, Wanted};
use protocol::ids::ResourceId;
use protocol::virtio_gpu::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHECKPOINT: &[u8] = b"all that there is";
/// The byte that a played worker writes into its journal.
const JOURNAL: u8 = 7;
const FIRST: ToWorker = ToWorker::WriteCheckpoint { number: 1 };
const SECOND: ToWorker = ToWorker::WriteCheckpoint { number: 2 };

fn rig() -> Rig {
    rig_with(|options| options.checkpoint_after = Some(CHECKPOINT_AFTER))
}

impl Rig {
    /// Three seconds pass in which nothing happens. `self.now` stays, so later turns are before them.
    fn idles(&mut self) {
        self.idles_from(Instant::now());
    }

    fn idles_from(&mut self, begin: Instant) {
        (1..=3).for_each(|seconds| self.turn_at(begin + Duration::from_secs(seconds)));
    }

    /// A worker writes a checkpoint.
    fn writes_checkpoint(&mut self, worker: u32) {
        self.idles();
        let journal = self.hear_with_fd(worker, &ToWorker::KeepJournal);
        rustix::io::pwrite(&journal, &[JOURNAL], 0).unwrap();
        self.writes_another(worker, 1);
    }

    /// A worker that was asked for a checkpoint writes it, with this number.
    fn writes_another(&mut self, worker: u32, number: u32) {
        let file = self.hear_with_fd(worker, &ToWorker::WriteCheckpoint { number });
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size as u64, CHECKPOINT_BYTES);
        rustix::io::pwrite(&file, CHECKPOINT, 0).unwrap();
        self.mark().begins();
        let bytes = CHECKPOINT.len() as u64;
        self.say(worker, &ToDevice::CheckpointWritten { bytes, took: Duration::ZERO });
        self.executes_all();
        assert!(self.mark().ends(number));
    }

    /// The worker says that it has executed all that it was sent.
    fn executes_all(&self) {
        let page = self.server.world.hangs.page(CONTEXT).unwrap();
        page.progress().executed(self.server.world.workers.sent(CONTEXT));
    }

    /// The time of the next look.
    fn next(&self) -> Option<Instant> {
        self.server.world.checkpoints.next_due()
    }

    fn activity(&self) -> Arc<shm::Activity> {
        Arc::clone(self.server.world.hangs.page(CONTEXT).unwrap().activity())
    }

    fn mark(&self) -> Arc<shm::CheckpointMark> {
        Arc::clone(self.server.world.hangs.page(CONTEXT).unwrap().checkpoint())
    }

    /// A worker dies, and a successor is started.
    fn is_followed(&mut self, worker: u32, successor: u32) {
        self.dies(worker, |rig| rig.stage() == Some(Stage::Starts));
        self.turn();
        assert!(self.is_running());
        let heard = self.hear(successor);
        assert!(matches!(heard[0], ToWorker::Setup(_)), "{heard:?}");
        assert!(
            heard[1..].iter().all(|message| matches!(message, ToWorker::AttachResource { .. })),
            "{heard:?}"
        );
    }

    /// A successor gets the checkpoint. Returns the memory that it comes with.
    fn reads_checkpoint(&mut self, successor: u32) -> Vec<MemoryName> {
        self.say(successor, &ToDevice::Ready);
        let link = self.hear_one(successor, &ToWorker::TakeOver);
        assert!(self.killed.contains(&(successor - 1)), "it may have closed its channel only");
        let (mut memories, mut bytes, mut journals) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            match link.receive::<HandOver>().unwrap() {
                (HandOver::File { memory }, Some(_)) => memories.push(memory),
                (HandOver::Bytes(some), None) => bytes.extend(some),
                (HandOver::Journal { number }, Some(journal)) => {
                    let mut first = [0];
                    rustix::io::pread(&journal, &mut first, 0).unwrap();
                    journals.push((number, first[0]));
                }
                (HandOver::End, None) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((bytes, journals), (CHECKPOINT.to_vec(), vec![(1, JOURNAL)]));
        memories
    }
}

#[test]
fn a_successor_gets_the_checkpoint_and_all_that_the_dead_worker_did_not_execute() {
    let mut rig = rig();
    rig.say(OLD, &ToDevice::MemoryWanted { request: 1, wanted: Wanted::Pages(4096) });
    let [ToWorker::MemoryGranted { memory: Some(memory), .. }] = rig.hear(OLD)[..] else { panic!() };
    rig.writes_checkpoint(OLD);
    rig.submit(1, Some(7));
    assert_eq!(submitted(&rig.hear(OLD)), [1]);
    rig.is_followed(OLD, NEW);
    rig.submit(2, Some(8));
    rig.command(&blob(6), None);
    rig.turn();
    assert_eq!(rig.reads_checkpoint(NEW), [MemoryName::Piece(memory)]);
    let pieces = vec![memory];
    rig.say(NEW, &ToDevice::TakenOver { pieces, credit: PerHeap::default() });
    assert_eq!((rig.counts(), rig.stage()), ((1, 0), None));
    let heard = rig.hear(NEW);
    assert!(heard[0] == ToWorker::GoOn && submitted(&heard) == [1, 2], "{heard:?}");
    assert_eq!(rig.server.device.held_pieces(CONTEXT), [memory]);
    assert_eq!(rig.open(), 2);
    rig.say(NEW, &signalled(7));
    rig.say(NEW, &signalled(8));
    assert_eq!(rig.open(), 0);
    // The successor is a worker like any other, and may die too.
    rig.writes_checkpoint(NEW);
    rig.is_followed(NEW, 2);
}

/// A worker deposits memory.
fn deposits(rig: &mut Rig, worker: u32, id: u64) {
    let file = shm::create("test", 4096).unwrap();
    rig.say_with_fd(worker, &ToDevice::Deposits { id: DepositId(id) }, file);
}

#[test]
fn deposits_go_to_the_successor_with_the_checkpoint_and_are_closed_then() {
    let mut rig = rig();
    (1..=3).for_each(|id| deposits(&mut rig, OLD, id));
    rig.say(OLD, &ToDevice::TakesBack { id: DepositId(2) });
    rig.writes_checkpoint(OLD);
    rig.is_followed(OLD, NEW);
    let mut names = rig.reads_checkpoint(NEW);
    names.sort_unstable_by_key(|name| format!("{name:?}"));
    assert_eq!(names, [1, 3].map(|id| MemoryName::Deposit(DepositId(id))));
    rig.say(NEW, &ToDevice::TakenOver { pieces: Vec::new(), credit: PerHeap::default() });
    let kept = |rig: &Rig| rig.server.world.deposits.of(CONTEXT).count();
    assert_eq!(kept(&rig), 0);
    // Each worker numbers its deposits itself.
    deposits(&mut rig, NEW, 1);
    assert_eq!(kept(&rig), 1);
    rig.dies(NEW, |rig| !rig.is_running());
    assert_eq!(kept(&rig), 0);
}

#[test]
fn a_worker_whose_deposits_are_not_all_kept_has_no_checkpoint() {
    let mut rig = rig_with(|options| {
        options.checkpoint_after = Some(CHECKPOINT_AFTER);
        options.limits.deposits = 2;
    });
    (1..=5).for_each(|id| deposits(&mut rig, OLD, id));
    assert!(rig.is_running());
    rig.writes_checkpoint(OLD);
    rig.dies(OLD, |rig| !rig.is_running());
    assert_eq!(rig.stage(), None);
}

#[test]
fn a_deposit_that_no_honest_worker_makes_costs_the_context() {
    let twice = |rig: &mut Rig| (0..2).for_each(|_| deposits(rig, OLD, 1));
    let nothing = |rig: &mut Rig| rig.say(OLD, &ToDevice::Deposits { id: DepositId(1) });
    let pipe = |rig: &mut Rig| {
        let (reads, _writes) = rustix::pipe::pipe().unwrap();
        rig.say_with_fd(OLD, &ToDevice::Deposits { id: DepositId(1) }, reads);
    };
    let ways: [&dyn Fn(&mut Rig); 3] = [&twice, &nothing, &pipe];
    for says in ways {
        let mut rig = rig();
        says(&mut rig);
        assert!(!rig.is_running());
    }
}

#[test]
fn a_message_that_meets_a_dead_worker_goes_to_its_successor() {
    let mut rig = rig();
    rig.writes_checkpoint(OLD);
    rig.dies(OLD, |_| true);
    rig.submit(1, Some(7));
    rig.is_followed(OLD, NEW);
    rig.reads_checkpoint(NEW);
    rig.say(NEW, &ToDevice::TakenOver { pieces: Vec::new(), credit: PerHeap::default() });
    assert_eq!(submitted(&rig.hear(NEW)), [1]);
}

#[test]
fn without_a_checkpoint_of_all_that_was_executed_the_context_is_lost() {
    let asked = |rig: &mut Rig| {
        rig.idles();
        rig.hear_with_fd(OLD, &ToWorker::KeepJournal);
        rig.hear_with_fd(OLD, &FIRST);
    };
    let none = |rig: &mut Rig| {
        asked(rig);
        rig.mark().begins();
        rig.say(OLD, &ToDevice::NoCheckpoint { reason: "it is busy".into(), for_now: true });
        assert!(rig.mark().ends(1));
    };
    let stale = |rig: &mut Rig| {
        rig.writes_checkpoint(OLD);
        rig.mark().changes();
    };
    let ways: [&dyn Fn(&mut Rig); 4] = [&|_| {}, &asked, &none, &stale];
    for prepares in ways {
        let mut rig = rig();
        prepares(&mut rig);
        rig.submit(1, Some(7));
        rig.dies(OLD, |rig| !rig.is_running());
        assert_eq!((rig.open(), rig.stage()), (0, None), "its fences are answered");
    }
}

#[test]
fn once_everything_is_written_down_nothing_is_looked_for_until_something_is_sent() {
    let mut rig = rig();
    assert!(rig.next().is_some(), "it was shown a resource");
    rig.writes_checkpoint(OLD);
    rig.idles();
    assert_eq!(rig.next(), None);
    rig.submit(1, None);
    rig.mark().changes();
    assert!(rig.next().is_some());
    rig.idles();
    assert!(rig.hear(OLD).contains(&SECOND));
    assert_eq!(rig.next(), None, "it is asked");
    rig.mark().begins();
    let before = Instant::now();
    rig.say(OLD, &ToDevice::NoCheckpoint { reason: "it never can".into(), for_now: false });
    assert_eq!(rig.next(), None);
    rig.submit(2, None);
    rig.idles();
    assert!(rig.next().is_some_and(|at| at >= before + Duration::from_secs(60)), "it is left alone");
    let heard = rig.hear(OLD);
    assert!(submitted(&heard) == [2] && !heard.contains(&SECOND), "{heard:?}");
}

#[test]
fn a_worker_is_looked_at_until_it_has_executed_what_it_was_sent() {
    let sends: [&dyn Fn(&mut Rig); 2] = [&|rig| rig.submit(1, None), &|rig| {
        rig.command(&Command::ResourceUnref { resource_id: ResourceId(5) }, None)
    }];
    for sends in sends {
        let mut rig = rig();
        rig.writes_checkpoint(OLD);
        rig.idles();
        assert_eq!(rig.next(), None);
        sends(&mut rig);
        rig.idles();
        assert!(rig.next().is_some(), "it has not read");
        rig.mark().changes();
        rig.hear(OLD);
        rig.idles_from(Instant::now() + Duration::from_secs(60));
        assert_eq!(rig.hear(OLD), [SECOND]);
    }
}

#[test]
fn a_worker_that_stays_writes_another_checkpoint_behind_what_it_did_for_the_hand_over() {
    let mut rig = rig();
    rig.writes_checkpoint(OLD);
    rig.idles();
    let _writes = rig.begin(NEW);
    assert_eq!(rig.next(), None);
    rig.mark().changes();
    rig.say(OLD, &ToDevice::Stays { reason: "it never can".into(), for_now: false });
    assert!(rig.next().is_some());
    rig.idles();
    assert_eq!(rig.hear(OLD), [SECOND]);
}

#[test]
fn a_ring_that_is_awake_is_looked_at_as_it_needs_no_message_to_execute_something() {
    let mut rig = rig();
    rig.writes_checkpoint(OLD);
    let activity = rig.activity();
    activity.wakes();
    rig.idles();
    rig.mark().changes();
    activity.sleeps();
    rig.idles_from(Instant::now() + Duration::from_secs(60));
    assert_eq!(rig.hear(OLD), [SECOND]);
}

#[test]
fn a_command_that_waits_is_not_interrupted_for_a_checkpoint() {
    let mut rig = rig();
    rig.hear(OLD);
    rig.activity().wakes();
    rig.mark().changes();
    rig.idles();
    rig.idles_from(Instant::now() + Duration::from_secs(60));
    assert_eq!(rig.hear(OLD), []);
    assert!(rig.next().is_some(), "it may end at any time");
    rig.activity().sleeps();
    rig.idles_from(Instant::now() + Duration::from_secs(120));
    assert_eq!(rig.hear(OLD), [ToWorker::KeepJournal, FIRST]);
}

#[test]
fn the_broker_hears_which_contexts_would_survive_and_not_of_one_that_is_being_handed_over() {
    let (ours, broker) = Channel::pair().unwrap();
    let mut rig = rig_with(|options| {
        options.checkpoint_after = Some(CHECKPOINT_AFTER);
        options.broker = Some(Broker::connect(ours.into_socket()));
    });
    let recoverable = |rig: &mut Rig| {
        broker.send(&FromBroker::Report, None).unwrap();
        rig.turn();
        let mut reports = heard(&broker).into_iter();
        reports.find_map(|message| match message {
            ToBroker::Memory { recoverable, .. } => Some(recoverable),
            _ => None,
        })
    };
    assert_eq!(recoverable(&mut rig), Some(vec![]), "it has no checkpoint");
    rig.writes_checkpoint(OLD);
    assert_eq!(recoverable(&mut rig), Some(vec![CONTEXT]));
    rig.server.hand_over(CONTEXT, None, (Asker::Operator, Purpose::Restart));
    assert!(rig.mark().current().is_some());
    assert_eq!(recoverable(&mut rig), Some(vec![]));
}

#[test]
fn a_worker_that_was_killed_has_not_died_by_itself() {
    let mut rig = rig();
    rig.writes_checkpoint(OLD);
    let workers = &mut rig.server.world.workers;
    workers.is_heard_no_more(CONTEXT);
    assert_eq!(workers.may_be_followed(CONTEXT), Ok(()));
    workers.flush(Whose::Worker(CONTEXT));
    assert!(workers.may_be_followed(CONTEXT).is_err(), "a worker whose channel cannot be watched is killed");
    rig.server.lose_unexplained(CONTEXT);
    assert!(!rig.is_running());
}

#[test]
fn what_a_worker_has_executed_is_not_sent_to_its_successor_and_its_fences_are_answered() {
    let mut rig = rig();
    rig.writes_checkpoint(OLD);
    rig.submit(1, Some(7));
    rig.submit(2, Some(8));
    rig.executes_all();
    rig.submit(3, Some(9));
    assert_eq!(submitted(&rig.hear(OLD)), [1, 2, 3]);
    rig.is_followed(OLD, NEW);
    assert_eq!(rig.open(), 1, "those of what is executed are passed, as nothing is in the driver");
    rig.reads_checkpoint(NEW);
    rig.say(NEW, &taken_over());
    assert_eq!(submitted(&rig.hear(NEW)), [3]);
    rig.say(NEW, &signalled(9));
    assert_eq!(rig.open(), 0);
}

#[test]
fn a_worker_that_dies_with_work_in_the_driver_loses_its_context() {
    let mut rig = rig();
    rig.writes_checkpoint(OLD);
    let progress = Arc::clone(rig.server.world.hangs.page(CONTEXT).unwrap().progress());
    progress.submits();
    rig.submit(1, Some(7));
    rig.dies(OLD, |rig| !rig.is_running());
    assert_eq!((rig.open(), rig.stage()), (0, None));
}

#[test]
fn the_older_checkpoint_counts_while_another_is_written() {
    let mut rig = rig();
    rig.writes_checkpoint(OLD);
    rig.activity().wakes();
    rig.say(OLD, &ToDevice::JournalFills);
    rig.turn_at(Instant::now() + Duration::from_secs(60));
    rig.hear_with_fd(OLD, &SECOND);
    rig.say(OLD, &ToDevice::CheckpointWritten { bytes: 1, took: Duration::ZERO });
    // The worker dies before its page names the other checkpoint.
    rig.submit(1, Some(7));
    rig.is_followed(OLD, NEW);
    rig.reads_checkpoint(NEW);
    rig.say(NEW, &taken_over());
    assert_eq!(submitted(&rig.hear(NEW)), [1]);
}

#[test]
fn a_busy_worker_is_asked_when_it_executes_what_no_journal_has() {
    let mut rig = rig();
    rig.writes_checkpoint(OLD);
    rig.activity().wakes();
    let later = Instant::now() + Duration::from_secs(60);
    (0..4).for_each(|seconds| rig.turn_at(later + Duration::from_secs(seconds)));
    assert_eq!(rig.hear(OLD), [], "the journal has all that it executes");
    for seconds in 4..8 {
        rig.mark().changes();
        rig.turn_at(later + Duration::from_secs(seconds));
    }
    rig.writes_another(OLD, 2);
}

#[test]
fn a_context_that_is_ended_stays_ended() {
    let mut rig = rig();
    rig.writes_checkpoint(OLD);
    rig.submit(1, Some(7));
    rig.say(
        OLD,
        &ToDevice::Lost { at_fault: Some(AtFault::Guest), reason: "the stream makes no sense".into() },
    );
    assert!(!rig.is_running() && rig.open() == 0);
    let mut rig = self::rig();
    rig.writes_checkpoint(OLD);
    rig.server.world.kill(CONTEXT, "an operator ended it");
    assert!(!rig.is_running());
}

#[test]
fn a_successor_that_cannot_go_on_costs_the_context_and_nothing_stays_counted() {
    let ends: [&dyn Fn(&mut Rig); 4] = [
        &|rig| rig.dies(NEW, |rig| !rig.is_running()),
        &|rig| {
            rig.say(
                NEW,
                &ToDevice::Lost { at_fault: Some(AtFault::Predecessor), reason: "no snapshot".into() },
            )
        },
        &|rig| rig.say(NEW, &taken_over()),
        &|rig| rig.turn_at(Instant::now() + 2 * START_PATIENCE),
    ];
    for ends in ends {
        let mut rig = rig();
        rig.say(OLD, &ToDevice::MemoryWanted { request: 1, wanted: Wanted::Pages(4096) });
        rig.hear(OLD);
        rig.writes_checkpoint(OLD);
        rig.submit(1, Some(7));
        rig.is_followed(OLD, NEW);
        ends(&mut rig);
        assert!(!rig.is_running() && rig.open() == 0);
        assert_eq!((rig.counts(), rig.stage()), ((0, 1), None));
    }
}

#[test]
fn a_context_whose_workers_die_again_and_again_is_given_up() {
    let mut rig = rig();
    let last = CRASHES_MAX as u32 - 1;
    for worker in OLD..last {
        rig.writes_checkpoint(worker);
        rig.is_followed(worker, worker + 1);
        rig.reads_checkpoint(worker + 1);
        rig.say(worker + 1, &taken_over());
        rig.hear(worker + 1);
    }
    rig.writes_checkpoint(last);
    rig.submit(1, Some(7));
    rig.dies(last, |rig| !rig.is_running());
    assert_eq!((rig.open(), rig.counts()), (0, (u64::from(last), 0)));
}

#[test]
fn a_worker_that_answers_what_it_was_not_asked_ends_its_context() {
    for bytes in [CHECKPOINT_BYTES + 1, 0] {
        let mut rig = rig();
        if bytes > 0 {
            rig.idles();
        }
        rig.say(OLD, &ToDevice::CheckpointWritten { bytes, took: Duration::ZERO });
        assert!(!rig.is_running(), "{bytes} bytes");
    }
}
