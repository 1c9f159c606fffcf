//! Restarts of contexts, as operators and device processes see them.

use super::*;
use crate::broker::control::Answer;
use crate::ipc::{RestartStage, RestartTook, Unmovable};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// An operator who waits for an answer.
pub(super) struct Operator(BufReader<UnixStream>);

impl World {
    fn restart(&mut self, context: u32) -> Operator {
        self.ask(&format!(r#"{{"request":"restart","vm":"a","context":{context}}}"#))
    }

    pub(super) fn ask(&mut self, request: &str) -> Operator {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        self.broker.connections.play(theirs, &self.broker.epoll, self.now);
        writeln!(ours, "{request}").unwrap();
        self.broker.connection(0, Events::EPOLLIN, self.now);
        Operator(BufReader::new(ours))
    }

    pub(super) fn counts(&mut self) -> (u64, u64, Option<f64>) {
        let counts = self.broker.status(self.now).vms[0].context_restarts;
        (counts.done, counts.failed, counts.last_pause_seconds)
    }
}

impl Operator {
    pub(super) fn hears(&mut self) -> Option<Answer> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    pub(super) fn hears_error(&mut self) -> String {
        match self.hears() {
            Some(Answer::Error { error }) => error,
            other => panic!("{other:?}"),
        }
    }
}

const CONTEXT: ContextId = ContextId(3);

/// A world in which the first VM has a context.
fn world_with_context() -> World {
    let mut world = world();
    world.say(0, &ready());
    world.begin(0, CONTEXT.0);
    world
}

fn restarting(stage: RestartStage) -> Option<Answer> {
    Some(Answer::Restarting { stage: stage.to_string() })
}

fn restarted(outcome: Result<RestartTook, String>) -> ToBroker {
    ToBroker::Restarted { ctx_id: CONTEXT, outcome }
}

const TOOK: RestartTook = RestartTook { pause_ms: 38, total_ms: 121 };

#[test]
fn an_operator_hears_how_far_a_restart_is_and_what_it_took() {
    let mut world = world_with_context();
    let mut operator = world.restart(CONTEXT.0);
    assert_eq!(world.heard(0), [FromBroker::Restart { ctx_id: CONTEXT, change: None }]);
    assert_eq!(operator.hears(), restarting(RestartStage::Starts));
    let now = world.now;
    // The operator gets one line for all these reports.
    for stage in [RestartStage::Moves, RestartStage::Starts, RestartStage::Rests] {
        world.say(0, &ToBroker::Restarting { ctx_id: CONTEXT, stage });
    }
    world.broker.restarts_due(now);
    assert_eq!(operator.hears(), None);
    let soon = now + 200_000_000;
    world.broker.restarts_due(soon);
    assert_eq!(operator.hears(), restarting(RestartStage::Rests));
    world.broker.restarts_due(soon + 200_000_000);
    assert_eq!(operator.hears(), None, "nothing is new");
    world.broker.restarts_due(soon + 3_000_000_000);
    assert_eq!(operator.hears(), restarting(RestartStage::Rests), "so that the connection lives");
    world.say(0, &restarted(Ok(TOOK)));
    assert_eq!(operator.hears(), Some(Answer::Restarted { pause_ms: 38, total_ms: 121 }));
    assert_eq!((world.counts(), world.broker.next_restart()), ((1, 0, Some(0.038)), None));
    // No operator has asked for another restart.
    world.say(0, &restarted(Ok(TOOK)));
    assert!(!world.is_dying(0));
    assert_eq!(world.counts(), (1, 0, Some(0.038)));
}

#[test]
fn a_restart_that_fails_says_why_in_few_words_and_a_context_has_one_at_a_time() {
    let mut world = world_with_context();
    let mut other = world.restart(4);
    assert_eq!(other.hears_error(), "a/4: no such context; a has [3]");
    let mut operator = world.restart(CONTEXT.0);
    operator.hears();
    let mut second = world.restart(CONTEXT.0);
    assert_eq!(second.hears_error(), "a/3: it is being restarted already");
    assert_eq!(world.heard(0).len(), 1);
    // The first operator has been disconnected, because this test has one slot. The restart goes on.
    world.say(0, &restarted(Err("bad \u{1b}[2J".repeat(1000))));
    assert_eq!((world.counts(), world.is_dying(0)), ((0, 1, None), false));
    let mut operator = world.restart(CONTEXT.0);
    operator.hears();
    world.say(0, &restarted(Err("bad \u{1b}[2J".repeat(1000))));
    let error = operator.hears_error();
    assert!(error.starts_with("a/3: not restarted, and it goes on as before: bad ?[2J"), "{error}");
    assert!(error.len() < 600, "{error}");
}

#[test]
fn whoever_waits_for_a_context_that_ends_or_a_device_process_that_does_is_told() {
    let mut world = world_with_context();
    let mut operator = world.restart(CONTEXT.0);
    operator.hears();
    world.say(0, &ends(CONTEXT.0));
    assert!(operator.hears_error().ends_with("it has ended"));
    world.begin(0, CONTEXT.0);
    let mut operator = world.restart(CONTEXT.0);
    operator.hears();
    world.broker.vms[0].process.as_mut().unwrap().kill();
    world.broker.child_ended(0, world.now);
    assert!(operator.hears_error().contains("its device process has ended"));
    assert_eq!(world.counts(), (0, 2, None));
}

#[test]
fn a_device_process_that_does_not_answer_is_not_waited_for_for_ever() {
    let mut world = world_with_context();
    let options = &mut world.broker.vms[0].settings.options;
    options.hangs.max_submit_time = Some(Duration::from_secs(3600));
    options.driver_timeout = Duration::from_secs(60);
    let mut operator = world.restart(CONTEXT.0);
    operator.hears();
    // The device process itself calls a restart off before that: its worker may wait for a submission that runs for an hour.
    let patience = (600 + 3600 + 60) * 1_000_000_000;
    world.broker.restarts_due(world.now + patience - 1);
    assert!(matches!(operator.hears(), Some(Answer::Restarting { .. })));
    assert_eq!(world.broker.next_restart(), Some(world.now + patience));
    world.broker.restarts_due(world.now + patience);
    assert!(operator.hears_error().contains("does not answer"));
    assert_eq!(world.broker.next_restart(), None);
}

#[test]
fn of_each_context_it_is_told_whether_it_can_be_restarted() {
    let mut world = world_with_context();
    world.begin(0, 4);
    let movable = |world: &mut World| {
        let contexts = world.broker.status(world.now).vms[0].contexts.clone();
        contexts.into_iter().map(|context| context.movable).collect::<Vec<_>>()
    };
    assert_eq!(movable(&mut world), ["", ""]);
    let contexts = vec![(CONTEXT, held(9)), (ContextId(4), held(9)), (ContextId(5), held(9))];
    let unmovable = vec![(ContextId(4), Unmovable::Lends), (ContextId(6), Unmovable::Lends)];
    world.say(0, &ToBroker::Memory { contexts, vm: held(9), unmovable, recoverable: vec![ContextId(4)] });
    assert_eq!(movable(&mut world), ["yes".to_owned(), Unmovable::Lends.to_string()]);
}

#[test]
fn a_context_that_has_another_worker_is_counted_and_has_no_checkpoint_yet() {
    let mut world = world_with_context();
    let told = |world: &mut World| {
        let vm = world.broker.status(world.now).vms.swap_remove(0);
        (vm.context_recoveries, vm.contexts[0].recoverable)
    };
    assert_eq!(told(&mut world), (0, false));
    let contexts = vec![(CONTEXT, held(9))];
    let recoverable = vec![CONTEXT, ContextId(9)];
    world.say(0, &ToBroker::Memory { contexts, vm: held(9), unmovable: vec![], recoverable });
    assert_eq!(told(&mut world), (0, true));
    world.say(0, &ToBroker::Recovered { ctx_id: ContextId(9) });
    assert_eq!(told(&mut world), (0, true), "there is no such context");
    world.say(0, &ToBroker::Recovered { ctx_id: CONTEXT });
    assert_eq!(told(&mut world), (1, false));
}
