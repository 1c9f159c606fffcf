//! The silence of commands: how long they have printed nothing, and whether they work meanwhile. A compiler that has a small part of a busy machine
//! is silent for long and works; a test that waits in vain uses no processor.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::Duration;

use super::stat::Stat;

/// Commands may be silent and work for this many times as long as they may be silent and idle.
const WORK: u32 = 4;

/// Commands work if they use this part of one processor.
const WORKING_SHARE: f64 = 0.05;

/// The number of looks in a silence: while a machine stands still, only one look passes, however long this takes.
const LOOKS: u32 = 60;

/// The silence of commands that run side by side, since one of them printed something.
#[derive(Debug)]
pub(crate) struct Silence {
    /// The longest silence in which the commands are idle.
    max: Duration,
    /// Looks at which the commands had printed nothing.
    looks: u32,
    /// Looks at which they had not worked either.
    idle: u32,
    /// The processor time, in clock ticks, that they had used at the last look.
    used: u64,
}

/// A silence that is too long: the commands hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// The commands have printed nothing and not worked for this time.
    Idle(Duration),
    /// The commands have printed nothing for this time, though they worked.
    Working(Duration),
}

impl Silence {
    pub(crate) fn new(max: Duration) -> Self {
        Self { max, looks: 0, idle: 0, used: 0 }
    }

    /// The time between two looks.
    pub(crate) fn pause(&self) -> Duration {
        self.max / LOOKS
    }

    /// The commands have printed something.
    pub(crate) fn heard(&mut self) {
        (self.looks, self.idle) = (0, 0);
    }

    /// Takes a look at commands that have printed nothing since the last look, and that have used `used` clock ticks of processors since their start.
    pub(crate) fn look(&mut self, used: u64) -> Option<TooLong> {
        let work =
            self.pause().as_secs_f64() * WORKING_SHARE * rustix::param::clock_ticks_per_second() as f64;
        let works = used.abs_diff(self.used) as f64 >= work.max(1.0);
        self.used = used;
        self.looks += 1;
        self.idle += u32::from(!works);
        if self.idle >= LOOKS {
            Some(TooLong::Idle(self.pause() * self.idle))
        } else if self.looks >= LOOKS * WORK {
            Some(TooLong::Working(self.pause() * self.looks))
        } else {
            None
        }
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle(time) => {
                write!(to, "nothing was printed or computed for {} minutes", time.as_secs() / 60)
            }
            Self::Working(time) => write!(to, "nothing was printed for {} minutes", time.as_secs() / 60),
        }
    }
}

/// Clock ticks of processors that these processes have used, with all that they have started and that still have a parent among them.
pub(crate) fn ticks_of(roots: impl IntoIterator<Item = u32>) -> u64 {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut ticks = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Some(stat) = Stat::in_folder(&entry.path()) else { continue };
        let Some(parent) = stat.parent() else { continue };
        children.entry(parent).or_default().push(process);
        ticks
            .insert(process, stat.ticks().unwrap_or_default() + stat.ticks_of_children().unwrap_or_default());
    }
    let mut waiting: Vec<u32> = roots.into_iter().collect();
    let mut sum = 0;
    while let Some(process) = waiting.pop() {
        sum += ticks.get(&process).copied().unwrap_or_default();
        waiting.extend(children.remove(&process).unwrap_or_default());
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::eventually;
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    const MAX: Duration = Duration::from_secs(600);
    const MINUTE: Duration = Duration::from_secs(60);

    /// Looks until the silence is too long; the commands use `ticks` ticks between two looks.
    fn until_too_long(silence: &mut Silence, ticks: u64) -> (u32, TooLong) {
        let mut used = silence.used;
        for look in 1.. {
            used += ticks;
            if let Some(too_long) = silence.look(used) {
                return (look, too_long);
            }
        }
        unreachable!("a silence ends")
    }

    #[test]
    fn idle_commands_are_silent_for_less_long_than_those_that_work() {
        let idle = until_too_long(&mut Silence::new(MAX), 0);
        assert_eq!(idle, (LOOKS, TooLong::Idle(10 * MINUTE)));
        let hardly = until_too_long(&mut Silence::new(MAX), 5);
        assert_eq!(hardly, idle);
        let working = until_too_long(&mut Silence::new(MAX), 10_000);
        assert_eq!(working, (LOOKS * WORK, TooLong::Working(40 * MINUTE)));
        assert_eq!(working.1.to_string(), "nothing was printed for 40 minutes");
    }

    #[test]
    fn silence_begins_anew_when_something_is_printed() {
        let mut silence = Silence::new(MAX);
        for _ in 0..LOOKS - 1 {
            assert_eq!(silence.look(0), None);
        }
        silence.heard();
        assert_eq!(until_too_long(&mut silence, 0).0, LOOKS);
    }

    #[test]
    fn the_time_of_a_command_contains_that_of_what_it_starts() {
        let script = "(while :; do :; done) & echo $!; wait";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let mut loops = String::new();
        BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut loops).unwrap();
        let used = eventually(MAX, || ticks_of([shell.id()]) > 10);
        shell.kill().unwrap();
        shell.wait().unwrap();
        let loops = Pid::from_raw(loops.trim().parse().unwrap()).unwrap();
        kill_process(loops, Signal::KILL).unwrap();
        assert!(used);
    }
}
