//! Tests of the picture against the rules of its format.

use super::super::format::write;
use super::super::rules::check;
use super::*;
use crate::broker::TraceEvent;

const MS: u64 = 1_000_000;

fn context(key: u64, name: &str) -> TraceEvent {
    TraceEvent::Context { key, context: 3, gpu: 0, name: name.into() }
}

/// Returns a submission that took a millisecond for each stage after `at`.
fn submission(number: u64, at: u64) -> Submission {
    Submission {
        key: 1,
        queue: 1,
        number,
        submitted: at,
        ready: at + MS,
        dispatched: at + 2 * MS,
        begin: at + 3 * MS,
        end: at + 4 * MS,
        noticed: at + 5 * MS,
        measured: true,
        copies: false,
        free: false,
    }
}

fn drawn(events: impl IntoIterator<Item = TraceEvent>) -> Vec<Value> {
    let mut collected = Collected::new("web", 0, usize::MAX);
    collected.keep(TraceEvent::Gpu { gpu: 0, name: "G".into() });
    events.into_iter().for_each(|event| _ = collected.keep(event));
    let mut file = Vec::new();
    write(&mut file, &picture(&collected)).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    check(&file["traceEvents"]);
    file["traceEvents"].as_array().unwrap().clone()
}

fn slices<'a>(events: &'a [Value], cat: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["cat"] == cat && event["ph"] == "X").collect()
}

#[test]
fn stages_are_in_order_on_the_row_of_the_queue_and_on_the_gpus() {
    let told = TraceEvent::Told { key: 1, queue: 1, number: 7, at: 6 * MS };
    let busy = TraceEvent::Busy { gpu: 0, holder: Holder::Other(None), begin: 0, end: 2 * MS - 500 };
    let events = drawn([context(1, "llama"), TraceEvent::Submission(submission(7, 0)), told, busy]);
    let stages = slices(&events, "stage");
    let names: Vec<_> = stages.iter().map(|stage| stage["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["not ready", "gate", "driver", "GPU", "done"]);
    assert_eq!(stages[1]["args"]["held by, us"], json!({ "another VM": 999.5, "nobody": 0.5 }));
    assert_eq!(stages[4]["dur"], 1999.998, "until the guest was told");
    let whole = slices(&events, "submission");
    assert_eq!((&whole[0]["name"], &whole[0]["dur"]), (&json!("#7"), &json!(6000.0)));
    assert_eq!(whole[0]["args"]["gate us"], 1000.0);
    let on_gpu: Vec<_> = slices(&events, "gpu").iter().map(|slice| slice["name"].clone()).collect();
    assert_eq!(on_gpu, ["another VM", "web/3"]);
    let arrows: Vec<_> =
        events.iter().filter(|event| event["ph"] == "s").map(|e| e["name"].clone()).collect();
    assert_eq!(arrows, ["turn", "runs"]);
    let named = |what: &str| events.iter().find(|event| event["args"]["name"] == what).is_some();
    assert!(named("3 llama, queue 1") && named("VM web") && named("GPU G") && named("all VMs"));
}

#[test]
fn what_overlaps_is_on_rows_of_its_own_however_much_there_is() {
    let many =
        (1..500).map(|number| TraceEvent::Submission(submission(number, number * MS / 50 + number * 7)));
    let events = drawn([context(1, "flood")].into_iter().chain(many));
    assert_eq!(slices(&events, "submission").len(), 499);
    let rows = slices(&events, "submission").iter().map(|s| s["tid"].as_u64()).collect::<Vec<_>>();
    assert!(rows.iter().max() != rows.iter().min());
}

#[test]
fn odd_nanoseconds_do_not_make_slices_overlap() {
    // This time is so large that readers which round down lose nanoseconds.
    let at = 86_400_000_000_123;
    let many = (0..2000u64).map(|n| {
        let at = at + n * 7001;
        TraceEvent::Submission(Submission {
            key: 1,
            queue: 1,
            number: n + 1,
            submitted: at,
            ready: at + 33 + n % 7,
            dispatched: at + 1009 + n % 11,
            begin: at + 2003 + n % 13,
            end: at + 6007,
            noticed: at + 6011 + n % 17,
            ..Submission::default()
        })
    });
    let events = drawn([context(1, "odd")].into_iter().chain(many));
    let rows: std::collections::BTreeSet<_> =
        slices(&events, "submission").iter().map(|slice| slice["tid"].as_u64()).collect();
    assert_eq!(rows.len(), 1, "they follow each other");
}

#[test]
fn names_are_text_and_nothing_else() {
    let name = "\"},{\"ph\":\"X\"\n\u{1b}[31m</script>";
    let events = drawn([context(1, name), TraceEvent::Submission(submission(1, 0))]);
    assert!(events.iter().any(|event| event["args"]["name"] == format!("3 {name}, queue 1")));
    assert_eq!(slices(&events, "submission").len(), 1);
}

#[test]
fn counters_say_how_many_are_where() {
    let events = drawn([context(1, ""), TraceEvent::Submission(submission(1, 0)), {
        TraceEvent::Submission(submission(2, MS))
    }]);
    let counters: Vec<_> =
        events.iter().filter(|event| event["ph"] == "C").map(|e| e["args"].clone()).collect();
    let counts = |waits, gate, driver| json!({ "not ready": waits, "gate": gate, "driver and GPU": driver });
    assert_eq!(counters[..3], [counts(1, 0, 0), counts(1, 1, 0), counts(0, 1, 1)]);
    assert_eq!(counters.last(), Some(&counts(0, 0, 0)));
}

#[test]
fn what_was_not_over_is_shown_to_the_end() {
    let unfinished = TraceEvent::Unfinished { gpu: 0, holder: Holder::Other(Some("b".into())), since: MS };
    let end = TraceEvent::End { at: 9 * MS, lost: 0, refused: 0, dropped: 0 };
    let events = drawn([unfinished, end]);
    let slices = slices(&events, "gpu");
    assert_eq!((&slices[0]["name"], &slices[0]["dur"]), (&json!("b, not over"), &json!(8000.0)));
}

#[test]
fn an_arrow_to_the_last_moment_of_a_slice_ends_in_it_however_it_is_rounded() {
    for odd in 0..2000 {
        let at = 86_400_000_000_000 + 7 * odd;
        let last = at + 1000 + odd;
        let late = Submission {
            ready: at,
            dispatched: last,
            begin: last,
            end: last,
            noticed: last,
            ..submission(1, at)
        };
        let busy = TraceEvent::Busy { gpu: 0, holder: Holder::Other(None), begin: at, end: at + 500 };
        let events = drawn([context(1, "late"), TraceEvent::Submission(late), busy]);
        assert_eq!(events.iter().filter(|event| event["ph"] == "f").count(), 1, "its turn came");
    }
}

#[test]
fn no_arrow_leads_to_what_is_shown_later_than_it_was() {
    let others = |n| TraceEvent::Busy { gpu: 0, holder: Holder::Other(None), begin: n, end: 100 * MS + n };
    let one = submission(1, 0);
    let events = drawn((0..32).map(others).chain([context(1, "full"), TraceEvent::Submission(one)]));
    assert_eq!(slices(&events, "gpu").len(), 33);
    assert!(events.iter().all(|event| event["name"] != "runs"), "its slice is not where the GPU began it");
}
