//! The host's memory that an idle context keeps.
//!
//! Only memory that no other process has is counted: anonymous memory, memory files, and the daemon's executable once. Libraries are files that all
//! programs share, and belong to the driver; memory that a driver keeps for a program itself is kept natively, too.

use super::figures::Reading;
use super::sides::Side;
use super::taken::Taken;
use anyhow::Result;
use rustix::process::Pid;
use std::fs;
use std::time::Duration;

/// The time until no process starts or ends any more.
const SETTLED: Duration = Duration::from_millis(500);

/// The bytes of memory that a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    own: u64,
    executable: u64,
}

/// Measures the mebibytes of a program natively, and those of a guest's program in its processes on the host: its worker and the process that looks
/// after the worker; then those of the processes that the VM has in any case. The result is empty if this process may not read them.
pub(super) fn take(side: &mut Side) -> Result<Taken> {
    // The steps that every program takes at some time: compile, submit and wait.
    side.ask("dispatch 20")?;
    std::thread::sleep(SETTLED);
    let readings = match &side.stand {
        None => vec![held(side.gauge.pid()).map(|held| mebibytes(held.own)), None],
        Some(stand) => {
            let of_context = stand.processes_of_contexts()?;
            let mut of_vm = stand.processes()?;
            of_vm.retain(|process| !of_context.contains(process));
            vec![together(&of_context), together(&of_vm)]
        }
    };
    Ok(Taken::Readings(readings, None))
}

fn mebibytes(bytes: u64) -> Reading {
    Reading::of(bytes as f64 / f64::from(1 << 20))
}

/// Returns the memory that these processes hold, their executable counted once.
fn together(processes: &[Pid]) -> Option<Reading> {
    let held: Vec<Held> = processes.iter().map(|process| held(*process)).collect::<Option<_>>()?;
    let executable = held.iter().map(|held| held.executable).max()?;
    Some(mebibytes(executable + held.iter().map(|held| held.own).sum::<u64>()))
}

fn held(process: Pid) -> Option<Held> {
    let folder = format!("/proc/{}", process.as_raw_nonzero());
    let executable = fs::read_link(format!("{folder}/exe")).ok()?;
    held_of(&fs::read_to_string(format!("{folder}/smaps")).ok()?, executable.to_str()?)
}

/// Adds up the kernel's account of each mapping: a line with addresses, rights, offset, device, inode and name, then lines such as
/// `Rss: 4 kB`.
fn held_of(smaps: &str, executable: &str) -> Option<Held> {
    let (mut held, mut name) = (Held::default(), "");
    for line in smaps.lines() {
        let (key, rest) = line.split_once(char::is_whitespace)?;
        let Some(key) = key.strip_suffix(':') else {
            name = rest.splitn(5, ' ').nth(4).unwrap_or_default().trim();
            continue;
        };
        let kib = || rest.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok());
        let is_file = name.starts_with('/') && !name.starts_with("/memfd:");
        match key {
            "Rss" if !is_file => held.own += kib()? << 10,
            "Rss" if name == executable => held.executable += kib()? << 10,
            // Pages of a private mapping of a file, to which the process has written.
            "Anonymous" if is_file && name != executable => held.own += kib()? << 10,
            _ => {}
        }
    }
    Some(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_programs_share_does_not_count() {
        let smaps = "55d0-55e0 r-xp 00001000 fe:00 1234                       /usr/bin/daemon\n\
            Rss:                  40 kB\nAnonymous:             8 kB\n\
            7f00-7f10 rw-p 00000000 00:00 0 \nRss:                 100 kB\nAnonymous:           100 kB\n\
            7f20-7f30 rw-p 00000000 fe:00 77                         /usr/lib/a library.so\n\
            Rss:                 500 kB\nAnonymous:            12 kB\nVmFlags: rd wr mr\n\
            7f40-7f50 rw-s 00000000 00:01 5                          /memfd:ring (deleted)\nRss:                   4 kB\n";
        let held = held_of(smaps, "/usr/bin/daemon").unwrap();
        assert_eq!(held, Held { own: 116 << 10, executable: 40 << 10 });
    }

    #[test]
    fn this_process_holds_its_executable_and_more() {
        let held = held(rustix::process::getpid()).unwrap();
        assert!(held.own > 100 << 10 && held.executable > 100 << 10, "{held:?}");
    }
}
