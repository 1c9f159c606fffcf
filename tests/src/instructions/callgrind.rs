//! The files that callgrind writes (format: valgrind's manual, "Callgrind Format Specification"), with names and positions in full.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The cost of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    /// Instructions executed, without those of the guest.
    pub instructions: u64,
    /// Calls of the allocator that hand out memory.
    pub allocations: u64,
}

/// Functions of the C library that allocate.
const ALLOCATORS: &[&str] = &["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc"];

impl Profile {
    /// Reads a file that callgrind has written.
    ///
    /// # Errors
    /// The file is not one of callgrind's.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let file = File::open(file).with_context(|| format!("{}", file.display()))?;
        Self::of_lines(BufReader::new(file).lines().map_while(Result::ok))
    }

    fn of_lines(lines: impl Iterator<Item = String>) -> Result<Self> {
        let (mut total, mut guest, mut allocations) = (None, 0, 0);
        let mut lines = lines;
        let mut callee = String::new();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("cfn=") {
                callee.clear();
                callee.push_str(name);
            } else if let Some(calls) = line.strip_prefix("calls=") {
                // The next line has the cost of all these calls together.
                let cost = lines.next().context("a cost behind calls")?;
                if is_guest(&callee) {
                    guest += last_number(&cost)?;
                } else if ALLOCATORS.contains(&callee.as_str()) {
                    let count = calls.split_whitespace().next().context("a number of calls")?;
                    allocations += count.parse::<u64>()?;
                }
            } else if let Some(totals) = line.strip_prefix("totals:") {
                total = Some(last_number(totals)?);
            }
        }
        let total = total.context("no totals: was callgrind ended?")?;
        ensure!(guest > 0 && guest < total, "the guest's part is not to be told from the rest");
        Ok(Self { instructions: total - guest, allocations })
    }
}

/// Returns whether a function plays the guest: `daemon::worker::workload::publish`, however it is written.
fn is_guest(function: &str) -> bool {
    function.contains("workload") && function.contains("publish")
}

fn last_number(line: &str) -> Result<u64> {
    let last = line.split_whitespace().last().context("a line without numbers")?;
    last.parse().with_context(|| format!("no number: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Profile> {
        Profile::of_lines(text.lines().map(str::to_owned))
    }

    #[test]
    fn the_guests_part_is_left_out_and_allocations_are_counted() {
        let profile = "fn=main\n3 10\ncob=/lib/libc.so.6\ncfn=malloc\ncalls=3 0\n4 300\n\
            cfn=daemon::worker::workload::publish\ncalls=2 80\n5 1000\n\
            fn=other\n6 20\ncfn=calloc\ncalls=1 0\n7 50\ncfn=free\ncalls=4 0\n7 40\n\ntotals: 1420\n";
        assert_eq!(read(profile).unwrap(), Profile { instructions: 420, allocations: 4 });
    }

    #[test]
    fn profiles_that_say_nothing_are_refused() {
        assert!(read("fn=main\n3 10\n").is_err());
        assert!(read("fn=main\n3 10\ntotals: 10\n").is_err());
    }
}
