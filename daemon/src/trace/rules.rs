//! The rules of the Trace Event Format that a reader depends on, for the tests of the picture and for fuzzing.

use serde_json::Value;
use std::collections::BTreeMap;

/// Checks that fields exist with their types, that slices of a row lie inside each other or apart, and that both ends of an arrow are in slices.
pub(super) fn check(events: &Value) {
    // Times are rounded as Perfetto does: down to whole nanoseconds.
    let nanos = |value: &Value| (value.as_f64().expect("a time is a number") * 1000.0) as u64;
    let number = |value: &Value| value.as_u64().expect("it is a whole number");
    let fields = |value: &Value| value.as_object().expect("it is an object").clone();
    let mut rows: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    type End<'a> = (&'a str, (u64, u64), u64);
    let mut arrows: BTreeMap<u64, Vec<End<'_>>> = BTreeMap::new();
    for event in events.as_array().expect("there is a list of events") {
        let row = (number(&event["pid"]), number(&event["tid"]));
        let at = nanos(&event["ts"]);
        assert!(event["name"].is_string());
        match event["ph"].as_str().expect("an event has a phase") {
            "X" => rows.entry(row).or_default().push((at, at + nanos(&event["dur"]))),
            phase @ ("s" | "f") => {
                let ends = arrows.entry(number(&event["id"])).or_default();
                ends.push((if phase == "s" { "s" } else { "f" }, row, at));
            }
            "C" => assert!(fields(&event["args"]).values().all(Value::is_number)),
            "M" => assert_eq!(fields(&event["args"]).len(), 1),
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
            let is_there = rows.get(&row).is_some_and(|slices| slices.iter().any(is_in));
            assert!(is_there, "an arrow ends at {at}, where no slice is");
        }
    }
}
