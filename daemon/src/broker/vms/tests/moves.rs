//! Moves of contexts to other GPUs, as operators and device processes see them.

use super::*;
use crate::broker::control::{Answer, PlannedMove};
use crate::ipc::{GpuChange, HeldMemory, Placement, RestartTook, Unmovable};
use sched::Share;

const SPARE: [u8; 16] = [9; 16];
const CONTEXT: ContextId = ContextId(3);

/// Returns a world whose first VM has a spare GPU, and a context on its own GPU, while the second VM is on the spare one.
fn world_with_spare() -> (World, GateSide) {
    let mut world = world();
    world.say(0, &with_spares(ready_on(&[GPU, SPARE]), 1));
    world.say(1, &ready_on(&[SPARE]));
    let gate = world.begin(0, CONTEXT.0);
    world.heard(0);
    (world, gate)
}

fn move_to(gpu: &str) -> String {
    format!(r#"{{"request":"move","vm":"a","context":{},"gpu":"{gpu}"}}"#, CONTEXT.0)
}

fn share_on(world: &World, gpu: usize) -> Option<Share> {
    world.broker.gpus[gpu].share(world.broker.vms[0].tenant)
}

fn gpus(world: &mut World) -> (Vec<String>, Vec<String>) {
    let status = world.broker.status(world.now);
    let vm = &status.vms[0];
    (vm.gpus.iter().map(|on| on.uuid.clone()).collect(), vm.contexts[0].gpus.clone())
}

#[test]
fn a_context_that_moves_is_scheduled_where_it_is() {
    let (mut world, old) = world_with_spare();
    let (gpu, spare) = ("07".repeat(16), "09".repeat(16));
    assert_eq!(gpus(&mut world), (vec![gpu.clone()], vec![gpu.clone()]));
    assert_eq!((share_on(&world, 1), world.broker.weights_on(1)), (None, 100), "it is not there");
    let mut operator = world.ask(&move_to(&spare));
    operator.hears();
    let change = Some(GpuChange { from: 0, to: 1 });
    assert_eq!(world.heard(0), [FromBroker::Restart { ctx_id: CONTEXT, change }]);
    // The old worker has begun work that it will not finish there.
    old.tell(Counters { ready: 1, dispatched: 1, completed: 0 });
    world.ring(0);
    let new = world.begin_on(0, CONTEXT.0, 1);
    assert_eq!((share_on(&world, 1).is_some(), world.broker.weights_on(1)), (true, 200));
    world.say(0, &ToBroker::ContextLeaves { ctx_id: CONTEXT, gpu: 0 });
    let took = RestartTook { pause_ms: 38, total_ms: 121 };
    world.say(0, &ToBroker::Restarted { ctx_id: CONTEXT, outcome: Ok(took) });
    assert_eq!(operator.hears(), Some(Answer::Restarted { pause_ms: 38, total_ms: 121 }));
    new.tell(READY);
    world.ring(0);
    assert_eq!(new.granted(), 1);
    assert_eq!(gpus(&mut world).1, [spare]);
    // The unfinished work of the old worker delays no context.
    let other = world.begin(0, 4);
    other.tell(READY);
    world.ring(0);
    assert_eq!(other.granted(), 1);
    world.say(0, &ends(CONTEXT.0));
    assert_eq!(world.broker.weights_on(1), 100, "it is not there any more");
    assert!(!world.is_dying(0));
}

#[test]
fn a_move_that_cannot_be_is_refused_with_the_reason() {
    let (mut world, _gate) = world_with_spare();
    let refused = |world: &mut World, request: &str| world.ask(request).hears_error();
    let (gpu, spare) = ("07".repeat(16), "09".repeat(16));
    let all = format!("GPU ({gpu}), GPU ({spare})");
    let text = refused(&mut world, &move_to("radeon"));
    assert_eq!(text, format!("radeon: no GPU of a, which has {all} (a spare-gpu of the VM can be moved to)"));
    let text = refused(&mut world, &move_to("gpu"));
    assert_eq!(text, format!("gpu: more than one GPU of a, which has {all}"));
    assert_eq!(refused(&mut world, &move_to(&gpu)), format!("a/3: it is on GPU ({gpu}) already"));
    let away = move_to(&spare).replace('}', &format!(r#","from":"{spare}"}}"#));
    assert_eq!(
        refused(&mut world, &away),
        format!("a/3: it is on GPU ({spare}) already")
            .replace("it is on", "it is not on")
            .replace(" already", "")
    );
    world.broker.gpus[1].likeness.parts[2] = 7;
    let text = refused(&mut world, &move_to(&spare));
    assert_eq!(text, format!("a/3: GPU ({spare}) cannot take it over from GPU ({gpu}): its features differ"));
    assert_eq!(world.heard(0), []);
}

#[test]
fn a_context_on_several_gpus_says_which_it_leaves() {
    let mut world = world();
    world.say(0, &with_spares(ready_on(&[GPU, OTHER, SPARE]), 2));
    drop((world.begin_on(0, CONTEXT.0, 0), world.begin_on(0, CONTEXT.0, 1)));
    let (gpu, other, spare) = ("07".repeat(16), uuid(&OTHER), "09".repeat(16));
    let text = world.ask(&move_to(&spare)).hears_error();
    assert_eq!(text, format!("a/3: it is on GPU ({gpu}) and GPU ({other}): say with --from which it leaves"));
    let named = move_to(&spare).replace('}', &format!(r#","from":"{other}"}}"#));
    world.ask(&named).hears();
    let change = Some(GpuChange { from: 1, to: 2 });
    assert_eq!(world.heard(0), [FromBroker::Restart { ctx_id: CONTEXT, change }]);
}

fn uuid(bytes: &[u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const DRAIN: &str = r#"{"request":"drain","gpu":"07070707070707070707070707070707"}"#;

fn took() -> Result<RestartTook, String> {
    Ok(RestartTook { pause_ms: 38, total_ms: 121 })
}

#[test]
fn a_gpu_that_is_drained_is_left_one_context_after_the_other() {
    let (mut world, _gate) = world_with_spare();
    let _other = world.begin(0, 4);
    let mut operator = world.ask(DRAIN);
    let change = Some(GpuChange { from: 0, to: 1 });
    let place = FromBroker::Place { placement: Placement(vec![1]) };
    assert_eq!(world.heard(0), [place, FromBroker::Restart { ctx_id: CONTEXT, change }]);
    assert!(world.ask(DRAIN).hears_error().contains("is being drained: wait until that is over"));
    // The first operator has been disconnected, because this test has one slot. The drain goes on.
    let moved = world.begin_on(0, CONTEXT.0, 1);
    world.say(0, &ToBroker::ContextLeaves { ctx_id: CONTEXT, gpu: 0 });
    world.say(0, &ToBroker::Restarted { ctx_id: CONTEXT, outcome: took() });
    assert_eq!(world.heard(0), [FromBroker::Restart { ctx_id: ContextId(4), change }]);
    assert_eq!(operator.hears(), None);
    world.say(0, &ToBroker::Restarted { ctx_id: ContextId(4), outcome: Err("it may not".into()) });
    assert_eq!((world.heard(0), world.counts()), (vec![], (1, 1, Some(0.038))));
    moved.tell(READY);
    world.ring(0);
    assert_eq!(moved.granted(), 1);
    assert!(world.broker.status(world.now).gpus[0].drained);
    // A context that stayed is tried again.
    let mut operator = world.ask(DRAIN);
    assert_eq!(world.heard(0), [FromBroker::Restart { ctx_id: ContextId(4), change }]);
    world.say(0, &ToBroker::Restarted { ctx_id: ContextId(4), outcome: Err("it may not".into()) });
    let stays = Answer::Draining { context: "a/4".into(), stays: Some("it may not".into()) };
    assert_eq!(operator.hears(), Some(stays));
    assert_eq!(operator.hears(), Some(Answer::Drained { moved: 0, left: 1 }));
    world.ask(&DRAIN.replace("drain", "undrain"));
    assert_eq!(world.heard(0), [FromBroker::Place { placement: Placement(vec![0]) }]);
}

#[test]
fn a_plan_says_what_a_drain_would_do_and_changes_nothing() {
    const THIRD: [u8; 16] = [11; 16];
    let mut world = world();
    world.say(0, &with_spares(ready_on(&[GPU, SPARE, THIRD]), 1));
    world.say(1, &ready());
    let _gates = [(0, 3), (0, 4), (1, 7)].map(|(vm, number)| world.begin(vm, number));
    let memory = |contexts: &[u32], unmovable| ToBroker::Memory {
        contexts: contexts.iter().map(|number| (ContextId(*number), HeldMemory::default())).collect(),
        vm: HeldMemory::default(),
        unmovable,
        recoverable: Vec::new(),
    };
    let plan = |world: &mut World, unmovable| {
        let mut operator = world.ask(&DRAIN.replace('}', r#","dry_run":true}"#));
        assert_eq!(operator.hears(), None, "device processes have a moment to report");
        // They are not asked again if they have just reported.
        assert!(world.heard(0).iter().all(|heard| *heard == FromBroker::Report));
        world.say(0, &memory(&[3, 4], unmovable));
        world.say(1, &memory(&[7], Vec::new()));
        world.broker.answer_due(world.now);
        match operator.hears() {
            Some(Answer::DrainPlan { contexts }) => contexts,
            other => panic!("{other:?}"),
        }
    };
    let moves = |context: &str, gpu: [u8; 16]| PlannedMove {
        context: context.into(),
        gpu: Some(format!("GPU ({})", uuid(&gpu))),
        stays: None,
    };
    let contexts = plan(&mut world, Vec::new());
    assert_eq!(contexts[..2], [moves("a/3", SPARE), moves("a/4", THIRD)]);
    let why = contexts[2].stays.as_deref().unwrap_or_default();
    assert!(contexts[2].context == "b/7" && why.ends_with("give it a spare-gpu"), "{contexts:?}");
    let contexts = plan(&mut world, vec![(ContextId(3), Unmovable::Lends)]);
    let stays = Some(Unmovable::Lends.to_string());
    assert_eq!(contexts[0], PlannedMove { context: "a/3".into(), gpu: None, stays });
    assert_eq!((&contexts[1], contexts.len()), (&moves("a/4", SPARE), 3));
    assert_eq!(world.heard(0), []);
    assert!(!world.broker.status(world.now).gpus[0].drained);
}

#[test]
fn what_has_no_other_gpu_stays_on_one_that_is_drained_and_a_process_that_starts_hears_of_it() {
    let mut world = world();
    world.say(0, &with_spares(ready_on(&[GPU, SPARE]), 1));
    world.say(1, &ready());
    let _gate = world.begin(1, 7);
    let mut operator = world.ask(DRAIN);
    let Some(Answer::Draining { context, stays: Some(why) }) = operator.hears() else { panic!("it stays") };
    assert_eq!(context, "b/7");
    assert!(why.ends_with("give it a spare-gpu"), "{why}");
    assert_eq!(operator.hears(), Some(Answer::Drained { moved: 0, left: 1 }));
    assert_eq!(world.heard(1), [], "its contexts begin there still");
    // A device process ends while one of its contexts is moved, and starts anew.
    let _gate = world.begin(0, CONTEXT.0);
    let mut operator = world.ask(DRAIN);
    world.broker.vms[0].process.as_mut().unwrap().kill();
    world.broker.child_ended(0, world.now);
    let Some(Answer::Draining { context, stays: Some(why) }) = operator.hears() else {
        panic!("it has ended")
    };
    assert!(context == "a/3" && why.contains("its device process has ended"), "{context}: {why}");
    assert!(matches!(operator.hears(), Some(Answer::Draining { stays: Some(_), .. })));
    assert_eq!(operator.hears(), Some(Answer::Drained { moved: 0, left: 1 }));
    world.start_anew(0);
    world.say(0, &with_spares(ready_on(&[GPU, SPARE]), 1));
    assert_eq!(world.heard(0), [FromBroker::Place { placement: Placement(vec![1]) }]);
}
