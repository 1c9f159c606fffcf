//! The status as a table for people.

use super::status::{ContextStatus, GpuStatus, Status, Used, VmGpuStatus, VmStatus};
use super::words::{percent, seconds};
use outside::{Bytes, lines_for_terminal, visible};
use std::fmt::Write;

const HEAD: [&str; 14] = [
    "VM",
    "STATE",
    "WEIGHT",
    "CLASS",
    "SHARE",
    "GPU",
    "COPY",
    "CPU",
    "DEVICE MEM",
    "HOST MEM",
    "SUBMITTED",
    "WAITED",
    "KILLS",
    "RESTART",
];
/// Columns that are words and begin on the left.
const WORDS: [usize; 4] = [0, 1, 3, RESTART];
/// Columns that belong to a VM and not to a GPU of it.
const OF_PROCESSES: [usize; 4] = [7, 8, 9, 12];
/// The column of restarts: the number of restarts of a VM's contexts, and whether a context can be restarted.
const RESTART: usize = 13;

/// A line for each VM, its GPUs if it has several and its contexts below it, and a line for each GPU. Below the table are the GPUs with their memory,
/// the VMs with changes that wait until they are off, and whether the program was replaced.
#[must_use]
pub(in crate::broker) fn table(status: &Status) -> String {
    let mut rows: Vec<Row> = vec![HEAD.map(str::to_owned)];
    rows.extend(status.vms.iter().flat_map(|vm| vm_rows(status, vm)));
    rows.extend(status.gpus.iter().map(|gpu| gpu_row(status, gpu)));
    let memory = status.gpus.iter().map(|gpu| format!("{}: {}\n", label(status, gpu), memory(status, gpu)));
    let waits = status.vms.iter().filter_map(|vm| Some(format!("{}: {}\n", vm.name, vm.pending.as_ref()?)));
    let upgrade = status.upgrade.iter().map(|what| format!("upgrade pending, as {what}\n"));
    aligned(&rows) + &lines_for_terminal(&memory.chain(waits).chain(upgrade).collect::<String>())
}

/// The lines of one VM below the headings.
#[must_use]
pub(super) fn of_vm(status: &Status, vm: &VmStatus) -> String {
    aligned(&[vec![HEAD.map(str::to_owned)], vm_rows(status, vm)].concat())
}

type Row = [String; 14];

fn vm_rows(status: &Status, vm: &VmStatus) -> Vec<Row> {
    let mut rows = vec![vm_row(vm)];
    if vm.gpus.len() > 1 {
        rows.extend(vm.gpus.iter().map(|on| place_row(status, on)));
    }
    rows.extend(vm.contexts.iter().map(|context| context_row(status, vm, context)));
    rows
}

fn context_row(status: &Status, vm: &VmStatus, context: &ContextStatus) -> Row {
    let name = format!("  {}/{} {}", vm.name, context.context, context.name);
    let none = String::new;
    let words = [name, context.state.clone(), none(), none(), percent(context.share)];
    let mut row = row(words, &context.used, context.used.cpu_seconds, none());
    // The GPU is shown if the VM has several.
    if vm.gpus.len() > 1 {
        let all = status.gpus.iter().filter(|gpu| context.gpus.contains(&gpu.uuid));
        let all: Vec<_> = all.map(|gpu| label(status, gpu)).collect();
        row[0] = format!("{} on {}", row[0], all.join(", "));
    }
    row[RESTART] = match context.movable.as_str() {
        "" | "yes" => context.movable.clone(),
        _ => "no".to_owned(),
    };
    row
}

fn vm_row(vm: &VmStatus) -> Row {
    let class = match vm.ceiling {
        Some(ceiling) => format!("{} <={}", vm.class, percent(ceiling)),
        None => vm.class.clone(),
    };
    let words = [vm.name.clone(), vm.state.clone(), vm.weight.to_string(), class, percent(vm.share)];
    let mut row = row(words, &vm.used, cpu(vm), vm.kills.sum().to_string());
    row[RESTART] = vm.context_restarts.done.to_string();
    row
}

/// Returns the row for the usage of one GPU by a VM: columns that belong to no GPU stay empty.
fn place_row(status: &Status, on: &VmGpuStatus) -> Row {
    let none = String::new;
    let name = status.gpus.iter().find(|gpu| gpu.uuid == on.uuid).map_or_else(none, |gpu| label(status, gpu));
    let words = [format!("  on {name}"), none(), none(), none(), percent(on.share)];
    without_processes(row(words, &of_gpu(on), 0.0, none()))
}

/// The sum of a GPU. Amounts that cannot be said to be its own, because VMs on it use others as well, stay empty.
fn gpu_row(status: &Status, gpu: &GpuStatus) -> Row {
    let on_it = || status.vms.iter().filter(|vm| vm.is_on(gpu));
    let mut sum = Used::default();
    let here = on_it().flat_map(|vm| &vm.gpus).filter(|on| on.uuid == gpu.uuid);
    here.for_each(|on| add(&mut sum, &of_gpu(on)));
    let alone = on_it().all(|vm| vm.gpus.len() == 1);
    for vm in on_it() {
        sum.device_memory = sum.device_memory.saturating_add(vm.used.device_memory);
        sum.host_memory = sum.host_memory.saturating_add(vm.used.host_memory);
    }
    let kills: u64 = on_it().map(|vm| vm.kills.sum()).sum();
    let weights: u32 = on_it().map(|vm| vm.weight).sum();
    let drained = if gpu.drained { " (drained)" } else { "" };
    let name = format!("TOTAL {}{drained}", label(status, gpu));
    let words = [name, String::new(), weights.to_string(), String::new(), percent(gpu.utilisation)];
    let row = row(words, &sum, on_it().map(cpu).sum(), kills.to_string());
    if alone { row } else { without_processes(row) }
}

/// Returns the memory of a GPU in words: the held part, all of it, and the part that VMs do not hold or may not hold.
pub(super) fn memory(status: &Status, gpu: &GpuStatus) -> String {
    let (all, unpromised) = (Bytes(gpu.device_memory), Bytes(gpu.device_memory_free));
    match status.held_on(gpu) {
        Some(held) => format!(
            "VMs hold {} of {all} of memory, {} are free, {unpromised} promised to no VM",
            Bytes(held),
            Bytes(gpu.device_memory.saturating_sub(held))
        ),
        None => format!("{all} of memory, {unpromised} promised to no VM"),
    }
}

/// The name of a GPU, with the beginning of its UUID if another has the same name.
pub(super) fn label(status: &Status, gpu: &GpuStatus) -> String {
    let namesakes = status.gpus.iter().filter(|other| other.name == gpu.name).count();
    match gpu.uuid.get(..8) {
        Some(begin) if namesakes > 1 => format!("{} {begin}", gpu.name),
        _ => gpu.name.clone(),
    }
}

/// Returns the processor time of a VM's workers and device processes, in seconds.
fn cpu(vm: &VmStatus) -> f64 {
    vm.used.cpu_seconds + vm.device_cpu_seconds
}

fn of_gpu(on: &VmGpuStatus) -> Used {
    Used {
        gpu_seconds: on.gpu_seconds,
        copy_seconds: on.copy_seconds,
        waiting_seconds: on.waiting_seconds,
        submissions: on.submissions,
        ..Used::default()
    }
}

fn add(sum: &mut Used, used: &Used) {
    sum.gpu_seconds += used.gpu_seconds;
    sum.copy_seconds += used.copy_seconds;
    sum.waiting_seconds += used.waiting_seconds;
    sum.submissions += used.submissions;
}

fn row([name, state, weight, class, share]: [String; 5], used: &Used, cpu: f64, kills: String) -> Row {
    [
        name,
        state,
        weight,
        class,
        share,
        seconds(used.gpu_seconds),
        seconds(used.copy_seconds),
        seconds(cpu),
        Bytes(used.device_memory).to_string(),
        Bytes(used.host_memory).to_string(),
        used.submissions.to_string(),
        seconds(used.waiting_seconds),
        kills,
        String::new(),
    ]
}

/// The row without the columns of processes and memory, and of ended contexts.
fn without_processes(mut row: Row) -> Row {
    for column in OF_PROCESSES {
        row[column].clear();
    }
    row
}

fn aligned(rows: &[Row]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 14] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a string does not fail.
            let _ = match WORDS.contains(&column) {
                true => write!(line, "{cell:<width$}  "),
                false => write!(line, "{cell:>width$}  "),
            };
        }
        text.extend(line.trim_end().chars().map(visible));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::status::PendingStatus;
    use super::*;

    fn on(uuid: &str, gpu_seconds: f64) -> VmGpuStatus {
        VmGpuStatus { uuid: uuid.into(), gpu_seconds, submissions: 5, ..VmGpuStatus::default() }
    }

    fn vm(name: &str, gpus: Vec<VmGpuStatus>, contexts: Vec<ContextStatus>) -> VmStatus {
        let used = gpus.iter().map(of_gpu).fold(Used::default(), |mut sum, used| {
            add(&mut sum, &used);
            sum
        });
        let (name, class) = (name.into(), "normal".into());
        let state = "connected".into();
        VmStatus { name, state, weight: 100, class, gpus, used, contexts, ..VmStatus::default() }
    }

    fn gpu(uuid: &str) -> GpuStatus {
        GpuStatus {
            uuid: uuid.into(),
            name: "GPU".into(),
            utilisation: 0.5,
            device_memory: 8 << 30,
            device_memory_free: 1 << 30,
            ..GpuStatus::default()
        }
    }

    fn lines(status: &Status) -> Vec<Vec<String>> {
        let table = table(status);
        println!("{table}");
        table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn a_vm_has_its_contexts_below_it_and_a_gpu_its_sum() {
        let used = Used { gpu_seconds: 2.0, submissions: 5, ..Used::default() };
        let context = ContextStatus {
            context: 3,
            name: "llama".into(),
            state: "alone".into(),
            share: 0.5,
            used,
            queued: 0,
            movable: "yes".into(),
            recoverable: true,
            gpus: vec!["ff".into()],
        };
        let one = || vec![on("ff", 2.0)];
        let mut vms = vec![vm("a", one(), vec![context]), vm("b", one(), vec![])];
        (vms[0].used.device_memory, vms[1].used.device_memory) = (1 << 30, 2 << 30);
        let lines = lines(&Status { gpus: vec![gpu("ff")], vms, ..Status::default() });
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[1][..6], ["a", "connected", "100", "normal", "0.0%", "2.00s"]);
        assert_eq!(lines[2][..5], ["a/3", "llama", "alone", "50.0%", "2.00s"]);
        assert_eq!((lines[1][12].as_str(), lines[2].last().map(String::as_str)), ("0", Some("yes")));
        assert_eq!(lines[4][..5], ["TOTAL", "GPU", "200", "50.0%", "4.00s"]);
        assert_eq!(lines[4].len(), 12, "processes and memory are summed");
        let memory = "GPU: VMs hold 3.0GiB of 8.0GiB of memory, 5.0GiB are free, 1.0GiB promised to no VM";
        assert_eq!(lines[5].join(" "), memory);
    }

    #[test]
    fn what_waits_until_a_vm_is_off_is_told_below_the_table() {
        let keys = vec!["device-memory".to_owned(), "window-size".to_owned()];
        let mut vms = ["a", "b", "c"].map(|name| vm(name, vec![], vec![]));
        vms[1].pending = Some(PendingStatus::Restart { keys });
        vms[2].pending = Some(PendingStatus::Removal);
        let table = table(&Status { vms: vms.into(), ..Status::default() });
        let below: Vec<_> = table.lines().skip(4).collect();
        assert_eq!(
            below,
            [
                "b: restart pending when the VM is off: device-memory, window-size",
                "c: removal pending when the VM is off"
            ]
        );
    }

    #[test]
    fn what_others_named_commands_no_terminal() {
        let context = ContextStatus { name: "a\u{1b}[2Jb\u{9b}1mc\r\u{202e}d".into(), ..Default::default() };
        let vms = vec![vm("a", vec![], vec![context])];
        let status = Status { vms, ..Status::default() };
        let table = table(&status);
        assert!(table.contains("a?[2Jb?1mc??d"), "{table}");
    }

    #[test]
    fn a_vm_on_several_gpus_has_each_below_it_and_counts_for_each() {
        let two = vec![on("ff00112233", 2.0), on("ee00112233", 1.0)];
        let vms = vec![vm("a", two, vec![]), vm("b", vec![on("ee00112233", 4.0)], vec![])];
        let lines =
            lines(&Status { gpus: vec![gpu("ff00112233"), gpu("ee00112233")], vms, ..Status::default() });
        assert_eq!(lines.len(), 9);
        assert_eq!(lines[7].join(" "), "GPU ff001122: 8.0GiB of memory, 1.0GiB promised to no VM");
        assert_eq!(lines[1][..6], ["a", "connected", "100", "normal", "0.0%", "3.00s"]);
        assert_eq!(lines[2], ["on", "GPU", "ff001122", "0.0%", "2.00s", "0.0ms", "5", "0.0ms"]);
        assert_eq!(lines[3], ["on", "GPU", "ee001122", "0.0%", "1.00s", "0.0ms", "5", "0.0ms"]);
        assert_eq!(lines[5], ["TOTAL", "GPU", "ff001122", "100", "50.0%", "2.00s", "0.0ms", "5", "0.0ms"]);
        assert_eq!(lines[6], ["TOTAL", "GPU", "ee001122", "200", "50.0%", "5.00s", "0.0ms", "10", "0.0ms"]);
    }
}
