//! Tests of the picture against the rules of its format.

use super::super::format::write;
use super::*;
use crate::broker::TraceEvent;

const MS: u64 = 1_000_000;

fn context(key: u64, name: &str) -> TraceEvent {
    TraceEvent::Context { key, context: 3, gpu: 0, name: name.into() }
}

/// A submission that took a millisecond for each stage after `at`.
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

/// The rules of the format that a reader depends on: fields and their types; slices of a row lie in each other or apart; both ends of an
/// arrow are in slices.
fn check(events: &Value) {
    // As Perfetto reads times: down to whole nanoseconds.
    let nanos = |value: &Value| (value.as_f64().unwrap() * 1000.0) as u64;
    let mut rows: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    type End<'a> = (&'a str, (u64, u64), u64);
    let mut arrows: BTreeMap<u64, Vec<End<'_>>> = BTreeMap::new();
    for event in events.as_array().unwrap() {
        let row = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let at = nanos(&event["ts"]);
        assert!(event["name"].is_string());
        match event["ph"].as_str().unwrap() {
            "X" => rows.entry(row).or_default().push((at, at + nanos(&event["dur"]))),
            phase @ ("s" | "f") => {
                let ends = arrows.entry(event["id"].as_u64().unwrap()).or_default();
                ends.push((if phase == "s" { "s" } else { "f" }, row, at));
            }
            "C" => assert!(event["args"].as_object().unwrap().values().all(Value::is_number)),
            "M" => assert_eq!(event["args"].as_object().unwrap().len(), 1),
            other => panic!("{other}"),
        }
    }
    for slices in rows.values_mut() {
        slices.sort_by_key(|(begin, end)| (*begin, std::cmp::Reverse(*end)));
        let mut open: Vec<u64> = Vec::new();
        for (begin, end) in slices {
            open.retain(|until| *until > *begin);
            assert!(open.iter().all(|until| *end <= *until), "{begin} to {end} is across {open:?}");
            open.push(*end);
        }
    }
    for ends in arrows.values() {
        let [("s", from, start), ("f", to, finish)] = ends[..] else { panic!("{ends:?}") };
        assert!(start <= finish, "an arrow goes back in time");
        for (row, at) in [(from, start), (to, finish)] {
            let is_in = |(begin, end): &(u64, u64)| (*begin..=*end).contains(&at);
            assert!(rows.get(&row).is_some_and(|slices| slices.iter().any(is_in)), "an arrow has no end");
        }
    }
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
    // Such that readers which round down have something to round.
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
