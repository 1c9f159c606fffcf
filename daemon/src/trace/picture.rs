//! A trace as events of the format: a process for the VM, with rows for each queue of its contexts, and one for each of its
//! GPUs, with a row for all VMs.

use super::collected::{Busy, Collected};
use super::format::{Entry, Picture, Row, microseconds};
use super::lanes::Lanes;
use super::occupancy::Occupancy;
use crate::broker::{Holder, Submission};
use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The process of the VM; those of GPUs follow.
const VM: u32 = 1;
/// Nanoseconds by which a stage ends before the next begins: readers may round fractions of microseconds down, and the stages would then overlap.
const APART: u64 = 2;

/// A slice on a GPU's row.
struct OnGpu {
    gpu: usize,
    begin: u64,
    end: u64,
    holder: String,
    /// The submission by its index, if the slice is a submission of the VM.
    submission: Option<usize>,
    is_over: bool,
}

/// Makes a picture of the collected events.
pub(super) fn picture(collected: &Collected) -> Picture {
    let mut draft = Draft { collected, entries: Vec::new(), arrows: 0, tids: 0, rows: FxHashMap::default() };
    draft.name_processes();
    let on_gpus = draft.gpus();
    draft.queues(&on_gpus);
    draft.counters();
    let mut about = Map::new();
    about.insert("vm".into(), collected.vm.clone().into());
    about.insert("clock".into(), "CLOCK_MONOTONIC of the host, in microseconds".into());
    about.insert("begin".into(), microseconds(collected.begin).into());
    about.insert("end".into(), microseconds(collected.end()).into());
    about.insert("missing".into(), collected.lacks().into());
    Picture { unit: "ms", about, entries: draft.entries }
}

struct Draft<'a> {
    collected: &'a Collected,
    entries: Vec<Entry>,
    arrows: u64,
    tids: u32,
    rows: FxHashMap<(Track, usize), Row>,
}

/// A track, which has several rows if its slices overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Track {
    Gpu(usize),
    Queue { context: u32, key: u64, queue: u8 },
}

/// A slice of a GPU's track by its end.
struct End {
    at: u64,
    /// The time from which the slice is shown.
    from: u64,
    row: Row,
    submission: Option<usize>,
}

/// The slices of all GPUs and their rows, in the order of their ends.
struct Ended {
    /// The slices of each GPU.
    ends: BTreeMap<usize, Vec<End>>,
    /// The row of each submission that is on a GPU, and the time from which the submission is shown there.
    rows: FxHashMap<usize, (Row, u64)>,
    occupancy: BTreeMap<usize, Occupancy>,
}

impl Draft<'_> {
    fn name_processes(&mut self) {
        let gpus = self.collected.gpus.iter().map(|(gpu, name)| (pid(*gpu), format!("GPU {name}")));
        let names = std::iter::once((VM, format!("VM {}", self.collected.vm)));
        for (pid, name) in names.chain(gpus).collect::<Vec<_>>() {
            let row = Row { pid, tid: 0 };
            self.entries.push(Entry::about("process_name", "name", row, name.into()));
            self.entries.push(Entry::about("process_sort_index", "sort_index", row, pid.into()));
        }
    }

    /// The row of a track, which is named when it is first used.
    fn row(&mut self, track: Track, lane: usize) -> Row {
        if let Some(row) = self.rows.get(&(track, lane)) {
            return *row;
        }
        let (pid, name) = match track {
            Track::Gpu(gpu) => (pid(gpu), "all VMs".to_owned()),
            Track::Queue { context, key, queue } => {
                let name = self.collected.contexts.get(&key).map_or("", |context| &context.name);
                (VM, format!("{context} {name}, queue {queue}"))
            }
        };
        self.tids += 1;
        let row = Row { pid, tid: self.tids };
        let name = if lane == 0 { name } else { format!("{name} ({})", lane + 1) };
        self.entries.push(Entry::about("thread_name", "name", row, name.into()));
        self.entries.push(Entry::about("thread_sort_index", "sort_index", row, self.tids.into()));
        self.rows.insert((track, lane), row);
        row
    }

    /// Draws the work of the GPUs.
    fn gpus(&mut self) -> Ended {
        let collected = self.collected;
        let mut slices: Vec<OnGpu> = collected.busy.iter().map(|busy| self.others(busy)).collect();
        for (index, submission) in collected.submissions.iter().enumerate() {
            let Some(context) = collected.contexts.get(&submission.key) else { continue };
            let Submission { begin, end, .. } = *submission;
            if begin < end && !submission.free {
                let holder = format!("{}/{}", collected.vm, context.number);
                let (gpu, submission) = (context.gpu, Some(index));
                slices.push(OnGpu { gpu, begin, end, holder, submission, is_over: true });
            }
        }
        slices.sort_by_key(|slice| (slice.gpu, slice.begin, slice.end));
        let mut ended =
            Ended { ends: BTreeMap::new(), rows: FxHashMap::default(), occupancy: BTreeMap::new() };
        let mut lanes: BTreeMap<usize, Lanes> = BTreeMap::new();
        let mut times: BTreeMap<usize, Vec<(String, u64, u64)>> = BTreeMap::new();
        for slice in slices {
            let OnGpu { gpu, begin, end, holder, submission, is_over } = slice;
            let (lane, from) = lanes.entry(gpu).or_default().place(begin, end);
            let row = self.row(Track::Gpu(gpu), lane);
            let mut args = Map::new();
            if let Some(submission) = submission.and_then(|index| collected.submissions.get(index)) {
                args.insert("queue".into(), submission.queue.into());
                args.insert("number".into(), submission.number.into());
                args.insert("times".into(), measured(submission).into());
            }
            let name = if is_over { holder.clone() } else { format!("{holder}, not over") };
            self.entries.push(Entry::slice(name, "gpu", row, (from, end), args));
            ended.ends.entry(gpu).or_default().push(End { at: end, from, row, submission });
            if let Some(index) = submission {
                ended.rows.insert(index, (row, from));
            }
            times.entry(gpu).or_default().push((holder, begin, end));
        }
        ended.ends.values_mut().for_each(|ends| ends.sort_by_key(|end| end.at));
        ended.occupancy = times.into_iter().map(|(gpu, times)| (gpu, Occupancy::new(times))).collect();
        ended
    }

    fn others(&self, Busy { gpu, holder, begin, end }: &Busy) -> OnGpu {
        let vm = &self.collected.vm;
        let holder = match (holder, end) {
            (Holder::Own, Some(_)) => format!("{vm}: clears memory"),
            (Holder::Own, None) => vm.clone(),
            (Holder::Other(name), _) => name.clone().unwrap_or_else(|| "another VM".into()),
        };
        let last = end.unwrap_or_else(|| self.collected.end()).max(*begin);
        OnGpu { gpu: *gpu, begin: *begin, end: last, holder, submission: None, is_over: end.is_some() }
    }

    /// Draws the stages of submissions.
    fn queues(&mut self, on_gpus: &Ended) {
        let collected = self.collected;
        let mut tracks: BTreeMap<Track, Vec<usize>> = BTreeMap::new();
        for (index, submission) in collected.submissions.iter().enumerate() {
            let Submission { key, queue, .. } = *submission;
            let Some(context) = collected.contexts.get(&key) else { continue };
            tracks.entry(Track::Queue { context: context.number, key, queue }).or_default().push(index);
        }
        for (track, mut indices) in tracks {
            indices.sort_by_key(|index| (collected.submissions[*index].submitted, *index));
            let mut lanes = Lanes::default();
            for index in indices {
                let end = self.last(&collected.submissions[index]);
                let (lane, from) = lanes.place(collected.submissions[index].submitted, end);
                let row = self.row(track, lane);
                self.submission(index, row, from, on_gpus);
            }
        }
    }

    /// Returns when the guest learned that a submission was over, or, if that is unknown, when the worker noticed its end.
    fn last(&self, submission: &Submission) -> u64 {
        let Submission { key, queue, number, .. } = *submission;
        let told = self.collected.told.get(&(key, queue, number));
        told.map_or(submission.noticed, |at| (*at).max(submission.end))
    }

    fn submission(&mut self, index: usize, row: Row, from: u64, on_gpus: &Ended) {
        let submission = &self.collected.submissions[index];
        let Submission { key, queue, number, submitted, ready, dispatched, begin, end, .. } = *submission;
        let is_told = self.collected.told.contains_key(&(key, queue, number));
        let last = self.last(submission);
        let gpu = self.collected.contexts.get(&key).map_or(0, |context| context.gpu);
        let held = on_gpus.occupancy.get(&gpu).map(|occupancy| occupancy.within(ready, dispatched));
        let held: Map<String, Value> = held
            .unwrap_or_default()
            .into_iter()
            .map(|(holder, time)| (holder.unwrap_or("nobody").to_owned(), microseconds(time).into()))
            .collect();
        let stages = [
            ("not ready", submitted, ready),
            ("gate", ready, dispatched),
            ("driver", dispatched, begin),
            ("GPU", begin, end),
            ("done", end, last),
        ];
        let mut args = Map::new();
        for (name, begin, end) in stages {
            args.insert(format!("{name} us"), microseconds(end - begin).into());
        }
        args.insert("number".into(), number.into());
        args.insert("GPU times".into(), measured(submission).into());
        args.insert("guest told".into(), if is_told { "yes" } else { "not by the daemon" }.into());
        if from > submitted {
            args.insert("shown late by us".into(), microseconds(from - submitted).into());
        }
        self.entries.push(Entry::slice(
            format!("#{number}"),
            "submission",
            row,
            (from, last.max(from)),
            args,
        ));
        for (name, begin, end) in stages {
            let (begin, end) = (begin.max(from), end.saturating_sub(APART));
            if begin < end {
                let args = if name == "gate" { json!({ "held by, us": held }) } else { Value::Null };
                let args = if let Value::Object(args) = args { args } else { Map::new() };
                self.entries.push(Entry::slice(name, "stage", row, (begin, end), args));
            }
        }
        self.arrows(index, row, from, gpu, on_gpus);
    }

    /// Draws the arrow from the work that was on the GPU when the submission's turn came, and the arrow to the submission's own slice on the GPU.
    fn arrows(&mut self, index: usize, row: Row, from: u64, gpu: usize, on_gpus: &Ended) {
        let submission = &self.collected.submissions[index];
        let Submission { ready, dispatched, begin, .. } = *submission;
        // A reader that rounds times down has the slice end before its last moment.
        let last = self.last(submission).saturating_sub(APART);
        let within = |at: u64| at.min(last).max(from);
        if dispatched > ready && dispatched >= from {
            let ends = on_gpus.ends.get(&gpu).map_or(&[][..], Vec::as_slice);
            let next = ends.partition_point(|end| end.at <= dispatched);
            let last = next.checked_sub(1).and_then(|last| ends.get(last));
            if let Some(End { at, from, row: there, submission }) = last
                && *at > ready
                && *submission != Some(index)
            {
                let (start, finish) = (at.saturating_sub(APART).max(*from), within(dispatched));
                if start <= finish {
                    self.arrow("turn", (*there, start), (row, finish));
                }
            }
        }
        if let Some((there, shown)) = on_gpus.rows.get(&index)
            && begin >= from.max(*shown)
        {
            self.arrow("runs", (row, within(begin)), (*there, begin));
        }
    }

    fn arrow(&mut self, name: &'static str, from: (Row, u64), to: (Row, u64)) {
        self.arrows += 1;
        self.entries.extend(Entry::arrow(name, self.arrows, from, to));
    }

    /// Draws the numbers of submissions in each stage, and the memory.
    fn counters(&mut self) {
        let mut changes: Vec<(u64, [i64; 3])> = Vec::new();
        for submission in &self.collected.submissions {
            let Submission { submitted, ready, dispatched, end, .. } = *submission;
            changes.extend([
                (submitted, [1, 0, 0]),
                (ready, [-1, 1, 0]),
                (dispatched, [0, -1, 1]),
                (end, [0, 0, -1]),
            ]);
        }
        changes.sort_unstable_by_key(|(at, _)| *at);
        let mut now = [0i64; 3];
        for at in changes.chunk_by(|one, next| one.0 == next.0) {
            let before = now;
            for (_, change) in at {
                now.iter_mut().zip(change).for_each(|(count, change)| *count += change);
            }
            if let Some((at, _)) = at.first().filter(|_| now != before) {
                let counts = ["not ready", "gate", "driver and GPU"].into_iter().zip(now);
                let args = counts.map(|(name, count)| (name.to_owned(), count.into())).collect();
                self.entries.push(Entry::counter("submissions", VM, *at, args));
            }
        }
        for memory in &self.collected.memory {
            let mib = |bytes: u64| Value::from(bytes as f64 / f64::from(1 << 20));
            let args = [("device".into(), mib(memory.device)), ("host".into(), mib(memory.host))];
            let args = args.into_iter().collect();
            self.entries.push(Entry::counter("memory, MiB", VM, memory.at, args));
        }
    }
}

fn pid(gpu: usize) -> u32 {
    u32::try_from(gpu).unwrap_or(u32::MAX / 2).saturating_add(VM + 1)
}

fn measured(submission: &Submission) -> &'static str {
    if submission.measured { "measured by the GPU" } else { "concluded from dispatch and end" }
}

#[cfg(test)]
#[path = "picture_tests.rs"]
mod tests;
