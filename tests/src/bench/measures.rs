//! The measurements: each probe gives one row of a table or several.

use std::time::Duration;

/// The unit of the numbers of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// Nanoseconds for one.
    Time,
    /// Nanoseconds for one, shown as the number in a second.
    Rate,
    /// Nanoseconds for this number of bytes, shown as bytes in a second.
    Bandwidth(u64),
    /// A count, in all or for each thousand submissions or each second; less is better.
    Count(&'static str),
    /// The number of objects that the device allowed; it has no ratio.
    Amount(&'static str),
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The table that the row is in.
    pub group: &'static str,
    /// The name of the row.
    pub name: String,
    /// The unit of its numbers.
    pub unit: Unit,
}

/// The pace at which a client submits while its cost is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// One submission and wait after the other.
    Flat,
    /// A submission and a wait in each period.
    Every(Duration),
    /// No submissions at all.
    Idle,
}

/// The task of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Ask the program `gauge`; the time is added to the words. The key names the value that is taken from its answer.
    Gauge(String, &'static str),
    /// Ask the program `gauge` for kernels of this many microseconds, this many of them pending; the time is added here too.
    Kernels(u32, usize),
    /// Start this number of processes.
    Start(usize),
    /// Count the processor time, sleeps and signals of submissions.
    Cost(Pace),
    /// Measure the host's memory that the program's context holds.
    Memory,
    /// Run llama-bench.
    Llama,
    /// Have this number of contexts; all but one are idle.
    Contexts(usize),
    /// Ask the program `gauge` once; each key of its answer is a row.
    Once(String, &'static [&'static str]),
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// The task that gives the probe's rows.
    pub ask: Ask,
    /// The rows that it gives.
    pub rows: Vec<Row>,
}

/// The groups that are measured if none is named; llama.cpp's only if there is a llama-bench.
const USUAL: [&str; 10] =
    ["waiting", "submitting", "kernels", "copies", "mapped", "memory", "pipelines", "start", "cost", "llama"];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// All probes with a row of one of these names, or in a group of such a name; without names, those of the usual groups. `kernels` are the lengths of
/// kernels in microseconds; `llama` says whether there is a llama-bench.
#[must_use]
pub fn plan(names: &[String], kernels: &[u32], llama: bool) -> Vec<Probe> {
    let simple = [waiting(), submitting(), kernels_of(kernels), copies(), mapped(), memory(), pipelines()];
    let mut probes: Vec<Probe> = simple.into_iter().chain([programs(), costs(), scale()]).flatten().collect();
    probes.retain(|probe| {
        probe.rows.iter().any(|row| match names.is_empty() {
            true => USUAL.contains(&row.group) && (llama || row.group != "llama"),
            false => names.iter().any(|name| *name == row.group || *name == row.name),
        })
    });
    probes
}

fn gauge(group: &'static str, name: impl Into<String>, unit: Unit, words: impl Into<String>) -> Probe {
    let key = if matches!(unit, Unit::Rate) { "mean" } else { "median" };
    Probe { ask: Ask::Gauge(words.into(), key), rows: vec![Row { group, name: name.into(), unit }] }
}

fn waiting() -> Vec<Probe> {
    let probe = |name: &str, words: &str| gauge("waiting", name, Unit::Time, words);
    vec![probe("empty-wait", "empty"), probe("dispatch-wait", "dispatch"), probe("timeline-wait", "timeline")]
}

fn submitting() -> Vec<Probe> {
    vec![
        gauge("submitting", "submissions", Unit::Rate, "submissions 64"),
        gauge("submitting", "graph", Unit::Time, "graph 16 0"),
        gauge("submitting", "graph-recorded", Unit::Time, "graph 16 1"),
        gauge("submitting", "record-command", Unit::Time, "record 3000"),
        gauge("submitting", "dispatches-10000", Unit::Time, "dispatches 10000"),
    ]
}

fn kernels_of(lengths: &[u32]) -> Vec<Probe> {
    let probe = |(length, (how, pending)): (u32, (&str, usize))| {
        let name = format!("kernel-{}-{how}", length_name(length));
        let rows = vec![Row { group: "kernels", name, unit: Unit::Rate }];
        Probe { ask: Ask::Kernels(length, pending), rows }
    };
    let each = lengths.iter().flat_map(|length| [(*length, ("one", 1)), (*length, ("four", 4))]);
    each.map(probe).collect()
}

/// Microseconds as they stand in names: 50us, 500us, 2ms.
fn length_name(microseconds: u32) -> String {
    match microseconds >= 1000 && microseconds.is_multiple_of(1000) {
        true => format!("{}ms", microseconds / 1000),
        false => format!("{microseconds}us"),
    }
}

fn size_name(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1024 * MIB => format!("{}GiB", bytes / (1024 * MIB)),
        _ if bytes >= MIB => format!("{}MiB", bytes / MIB),
        _ => format!("{}KiB", bytes / KIB),
    }
}

fn copies() -> Vec<Probe> {
    let sizes = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, 1024 * MIB];
    let plain = sizes.into_iter().map(|bytes| (bytes, "", 0));
    let with = [MIB, 64 * MIB].into_iter().map(|bytes| (bytes, "-memcpy", 1));
    let probe = |(bytes, how, memcpy)| {
        ["upload", "download"].map(|way| {
            let name = format!("{way}{how}-{}", size_name(bytes));
            gauge("copies", name, Unit::Bandwidth(bytes), format!("{way} {bytes} {memcpy}"))
        })
    };
    plain.chain(with).flat_map(probe).collect()
}

fn mapped() -> Vec<Probe> {
    // Reads of uncached memory are slow.
    let kinds = [("host", 16 * MIB, 16 * MIB), ("coherent", 16 * MIB, 2 * MIB), ("visible", 16 * MIB, MIB)];
    let probe = |(kind, write, read)| {
        [("write", write), ("read", read)].map(|(way, bytes)| {
            gauge("mapped", format!("{way}-{kind}"), Unit::Bandwidth(bytes), format!("{way} {kind} {bytes}"))
        })
    };
    kinds.into_iter().flat_map(probe).collect()
}

fn memory() -> Vec<Probe> {
    let probes = |kind: &str| {
        [64 * KIB, MIB, 64 * MIB].map(|bytes| {
            done_and_called(
                "memory",
                &format!("{kind}-{}", size_name(bytes)),
                &format!("allocate {kind} {bytes}"),
            )
        })
    };
    // A program waits until its memory is mapped.
    let host = probes("host").map(|[done, _]| [done]);
    probes("device").into_iter().flatten().chain(host.into_iter().flatten()).collect()
}

/// A measure that ends when the host has done the work, and one that ends when the program goes on.
fn done_and_called(group: &'static str, name: &str, words: &str) -> [Probe; 2] {
    [("", 1), ("-call", 0)]
        .map(|(end, done)| gauge(group, format!("{name}{end}"), Unit::Time, format!("{words} {done}")))
}

fn pipelines() -> Vec<Probe> {
    let mut probes = done_and_called("pipelines", "pipelines-1", "pipelines 1 1").to_vec();
    probes.push(gauge("pipelines", "pipelines-500", Unit::Time, "pipelines 500 8 1"));
    probes
}

fn rows(group: &'static str, names: &[&str], unit: Unit) -> Vec<Row> {
    names.iter().map(|name| Row { group, name: (*name).to_owned(), unit }).collect()
}

fn programs() -> Vec<Probe> {
    vec![
        Probe { ask: Ask::Start(1), rows: rows("start", &["start-up", "start-and-end"], Unit::Time) },
        Probe { ask: Ask::Start(16), rows: rows("start", &["start-16"], Unit::Time) },
        Probe { ask: Ask::Llama, rows: rows("llama", &["llama-prompt", "llama-generate"], Unit::Rate) },
    ]
}

fn costs() -> Vec<Probe> {
    let paces = [("flat", Pace::Flat), ("1000Hz", every(1000)), ("200Hz", every(200)), ("idle", Pace::Idle)];
    let probe = |(name, pace)| {
        let (ms, each) = if pace == Pace::Idle { ("ms/s", "/s") } else { ("ms/1000", "/1000") };
        let row =
            |what: &str, unit| Row { group: "cost", name: format!("{what}-{name}"), unit: Unit::Count(unit) };
        let times = [("cpu", ms), ("host-cpu", ms)];
        let counts = ["host-sleeps", "kicks", "calls", "requests"].map(|name| (name, each));
        let rows = times.into_iter().chain(counts);
        Probe { ask: Ask::Cost(pace), rows: rows.map(|(what, unit)| row(what, unit)).collect() }
    };
    let memory = rows("cost", &["memory-context", "memory-vm"], Unit::Count("MiB"));
    paces.into_iter().map(probe).chain([Probe { ask: Ask::Memory, rows: memory }]).collect()
}

fn every(hertz: u64) -> Pace {
    Pace::Every(Duration::from_micros(1_000_000 / hertz))
}

fn scale() -> Vec<Probe> {
    let row = |name: String, unit| Row { group: "scale", name, unit };
    let mut probes = Vec::new();
    for contexts in [1, 8, 64] {
        let names =
            ["dispatch-of", "start-of"].map(|what| row(format!("{what}-{contexts}-contexts"), Unit::Time));
        // With one context there are no others to start.
        let rows = names.into_iter().take(contexts.min(2)).collect();
        probes.push(Probe { ask: Ask::Contexts(contexts), rows });
    }
    for objects in [1000, 10_000, 100_000] {
        let keys: &[&str] = &["first", "last", "beside"];
        let rows = keys.iter().map(|key| row(format!("objects-{objects}-{key}"), Unit::Time)).collect();
        probes.push(Probe { ask: Ask::Once(format!("objects {objects} 100"), keys), rows });
    }
    for maps in [100, 1000, 10_000] {
        let keys: &[&str] = &["first", "last", "beside", "count"];
        let unit = |key: &str| if key == "count" { Unit::Amount("maps") } else { Unit::Time };
        let rows = keys.iter().map(|key| row(format!("maps-{maps}-{key}"), unit(key))).collect();
        probes.push(Probe { ask: Ask::Once(format!("maps {maps} 65536"), keys), rows });
    }
    // A push of constants, a dispatch and a barrier are about 150 bytes of the wire's.
    for (mebibytes, commands) in [(1, 21_000), (8, 168_000), (64, 1_344_000)] {
        let name = format!("record-{mebibytes}MiB");
        probes.push(gauge("scale", name, Unit::Time, format!("record {commands}")));
    }
    probes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_of_rows_are_unique() {
        let all: Vec<String> = ["scale"].into_iter().chain(USUAL).map(str::to_owned).collect();
        let rows: Vec<Row> = plan(&all, &[50, 2000], true).into_iter().flat_map(|probe| probe.rows).collect();
        let names: HashSet<&String> = rows.iter().map(|row| &row.name).collect();
        assert_eq!(names.len(), rows.len());
        assert!(
            names.contains(&"kernel-2ms-four".to_owned())
                && names.contains(&"upload-memcpy-64MiB".to_owned())
        );
    }

    #[test]
    fn a_name_chooses_a_row_or_a_group() {
        let names = |words: &[&str]| -> Vec<String> {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            plan(&words, &[50], false).iter().map(|probe| probe.rows[0].name.clone()).collect()
        };
        assert_eq!(
            names(&["empty-wait", "pipelines"]),
            ["empty-wait", "pipelines-1", "pipelines-1-call", "pipelines-500"]
        );
        assert!(!names(&[]).iter().any(|name| name.contains("objects") || name.contains("llama")));
    }
}
