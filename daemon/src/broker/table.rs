//! The status as a table for people.

use super::status::{Status, Used, VmStatus};
use std::fmt::Write;

const HEAD: [&str; 13] = [
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
];
/// Columns that are words and begin on the left.
const WORDS: [usize; 3] = [0, 1, 3];

/// A line for each VM, its contexts below it, and a line for each GPU.
#[must_use]
pub(super) fn table(status: &Status) -> String {
    let mut rows: Vec<[String; 13]> = vec![HEAD.map(str::to_owned)];
    for vm in &status.vms {
        rows.push(vm_row(vm));
        for context in &vm.contexts {
            let name = format!("  {}/{} {}", vm.name, context.context, context.name);
            let none = String::new;
            let words = [name, context.state.clone(), none(), none(), percent(context.share)];
            rows.push(row(words, &context.used, context.used.cpu_seconds, none()));
        }
    }
    for gpu in &status.gpus {
        let on_it = || status.vms.iter().filter(|vm| vm.gpu.as_ref() == Some(&gpu.uuid));
        let mut sum = Used::default();
        on_it().for_each(|vm| add(&mut sum, &vm.used));
        let cpu = on_it().map(cpu).sum();
        let kills: u64 = on_it().map(|vm| vm.kills.sum()).sum();
        let weights: u32 = on_it().map(|vm| vm.weight).sum();
        let words = [
            format!("TOTAL {}", gpu.name),
            String::new(),
            weights.to_string(),
            String::new(),
            percent(gpu.utilisation),
        ];
        rows.push(row(words, &sum, cpu, kills.to_string()));
    }
    aligned(&rows)
}

fn vm_row(vm: &VmStatus) -> [String; 13] {
    let class = match vm.ceiling {
        Some(ceiling) => format!("{} <={}", vm.class, percent(ceiling)),
        None => vm.class.clone(),
    };
    let words = [vm.name.clone(), vm.state.clone(), vm.weight.to_string(), class, percent(vm.share)];
    row(words, &vm.used, cpu(vm), vm.kills.sum().to_string())
}

/// Of the workers and the device process.
fn cpu(vm: &VmStatus) -> f64 {
    vm.used.cpu_seconds + vm.device_cpu_seconds
}

fn row(
    [name, state, weight, class, share]: [String; 5],
    used: &Used,
    cpu: f64,
    kills: String,
) -> [String; 13] {
    [
        name,
        state,
        weight,
        class,
        share,
        seconds(used.gpu_seconds),
        seconds(used.copy_seconds),
        seconds(cpu),
        bytes(used.device_memory),
        bytes(used.host_memory),
        used.submissions.to_string(),
        seconds(used.waiting_seconds),
        kills,
    ]
}

fn add(sum: &mut Used, used: &Used) {
    sum.gpu_seconds += used.gpu_seconds;
    sum.copy_seconds += used.copy_seconds;
    sum.waiting_seconds += used.waiting_seconds;
    sum.submissions += used.submissions;
    sum.device_memory = sum.device_memory.saturating_add(used.device_memory);
    sum.host_memory = sum.host_memory.saturating_add(used.host_memory);
}

fn aligned(rows: &[[String; 13]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 13] = std::array::from_fn(width);
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
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

fn seconds(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1.0 => format!("{:.1}ms", seconds * 1000.0),
        seconds if seconds < 600.0 => format!("{seconds:.2}s"),
        seconds if seconds < 36_000.0 => format!("{:.1}min", seconds / 60.0),
        seconds => format!("{:.1}h", seconds / 3600.0),
    }
}

fn bytes(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or_else(
        || format!("{bytes}B"),
        |(shift, unit)| format!("{:.1}{unit}", bytes as f64 / (1u64 << shift) as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::super::status::{ContextStatus, GpuStatus};
    use super::*;

    #[test]
    fn units_are_readable() {
        let shown: Vec<_> = [0.0, 0.25, 59.5, 6000.0, 72_000.0].map(seconds).into();
        assert_eq!(shown, ["0.0ms", "250.0ms", "59.50s", "100.0min", "20.0h"]);
        let shown: Vec<_> = [0, 1023, 1024, 3 << 29].map(bytes).into();
        assert_eq!(shown, ["0B", "1023B", "1.0KiB", "1.5GiB"]);
    }

    #[test]
    fn a_vm_has_its_contexts_below_it_and_a_gpu_its_sum() {
        let used = Used { gpu_seconds: 2.0, submissions: 5, ..Used::default() };
        let context =
            ContextStatus { context: 3, name: "llama".into(), state: "alone".into(), share: 0.5, used };
        let vm = |name: &str, contexts| VmStatus {
            name: name.into(),
            state: "connected".into(),
            weight: 100,
            class: "normal".into(),
            gpu: Some("ff".into()),
            used,
            contexts,
            ..VmStatus::default()
        };
        let gpu = GpuStatus { uuid: "ff".into(), name: "GPU".into(), utilisation: 0.5 };
        let status = Status {
            gpus: vec![gpu],
            vms: vec![vm("a", vec![context]), vm("b", vec![])],
            ..Status::default()
        };
        let table = table(&status);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 5, "{table}");
        assert_eq!(lines[1][..6], ["a", "connected", "100", "normal", "0.0%", "2.00s"]);
        assert_eq!(lines[2][..5], ["a/3", "llama", "alone", "50.0%", "2.00s"]);
        assert_eq!(lines[4][..5], ["TOTAL", "GPU", "200", "50.0%", "4.00s"]);
    }
}
