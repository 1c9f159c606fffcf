//! The progress of a program of tests, as the harness reports it: the counts, the failures, the times of tests, and the tests that run.

use super::tally::Tally;
use std::collections::BTreeSet;
use std::time::Duration;

/// The progress that a program's output has reported so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The program.
    title: String,
    /// The tests of runs that are complete.
    complete: Tally,
    /// The tests of the current run.
    current: Tally,
    /// The tests that are not in this run's extent.
    pub ignored: usize,
    /// The tests that failed.
    pub failed: Vec<Failure>,
    /// The times that tests took.
    pub times: Vec<(String, Duration)>,
    /// Tests that could not check everything on this machine, each with the reason.
    pub skipped: Vec<String>,
    /// The part of the output that the harness prints now.
    part: Part,
    /// The test whose output the harness repeats.
    section: Option<String>,
    /// The test of `section` as an index of `failed`, while a message of it goes on.
    telling: Option<usize>,
    /// Tests that the harness says to be running for long.
    long: BTreeSet<String>,
    /// The beginning of a line that is not complete yet.
    begun: String,
}

/// The parts of the harness's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    /// A line for each test that has ended.
    #[default]
    Verdicts,
    /// The output of tests that passed.
    Successes,
    /// The output of tests that failed.
    Failures,
}

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The name that the harness gives the test.
    name: String,
    /// The name with that of the program.
    pub test: String,
    /// The lines of its panics and errors, without their backtraces; no more than [`MESSAGE_LINES_MAX`].
    pub message: Vec<String>,
}

/// The most lines of a test's message in the summary; the output above it has all lines.
const MESSAGE_LINES_MAX: usize = 20;

/// The line with which a run of tests ends.
const SUM: &str = "test result: ";

/// The words of a test that cannot check everything on this machine, before the reason.
const SKIPPED: &str = "skipped: ";

impl Progress {
    /// The progress of a program that has printed nothing yet.
    pub(super) fn of(title: &str) -> Self {
        Self { title: title.to_owned(), ..Self::default() }
    }

    /// Tests that passed and failed so far.
    #[must_use]
    pub(super) fn tally(&self) -> Tally {
        self.complete + self.current
    }

    /// Takes the program's output. Returns the part to be shown, without the output of tests that passed.
    pub(super) fn heard(&mut self, text: &str) -> String {
        self.begun += text;
        let mut shown = String::new();
        while let Some((line, rest)) = self.begun.split_once('\n') {
            let (line, rest) = (line.to_owned(), rest.to_owned());
            self.line(&line);
            self.begun = rest;
            if self.part != Part::Successes || line.starts_with(SUM) {
                shown += &line;
                shown.push('\n');
            }
        }
        shown
    }

    /// Tests that are known to be running: those that run for more than a minute, and the one whose line has begun.
    #[must_use]
    pub(super) fn running(&self) -> Vec<String> {
        let begun = self.begun.strip_prefix("test ").and_then(|line| line.split_once(" ... "));
        let begun = begun.map(|(name, _)| name.to_owned());
        self.long.iter().cloned().chain(begun).map(|name| self.named(&name)).collect()
    }

    fn named(&self, test: &str) -> String {
        format!("{}: {test}", self.title)
    }

    fn line(&mut self, line: &str) {
        match line {
            "successes:" => (self.part, self.section, self.telling) = (Part::Successes, None, None),
            "failures:" => (self.part, self.section, self.telling) = (Part::Failures, None, None),
            _ => match line.strip_prefix("test ") {
                Some(line) if self.part == Part::Verdicts => self.verdict(line),
                _ => self.repeated(line),
            },
        }
    }

    /// Takes `NAME ... ok <1.234s>`, `NAME has been running for over 60 seconds`, or the sum `result: ok. 3 passed; 1 failed; …`. The output of the
    /// tests themselves follows, may look the same, and is ignored.
    fn verdict(&mut self, line: &str) {
        if let Some(sum) = line.strip_prefix("result: ") {
            self.complete = self.complete + Tally::of_sum(sum);
            self.current = Tally::default();
        } else if let Some((name, _)) = line.split_once(" has been running for over ") {
            self.long.insert(name.to_owned());
        } else if let Some((name, verdict)) = line.split_once(" ... ") {
            self.long.remove(name);
            let (verdict, seconds) = match verdict.rsplit_once(" <") {
                Some((verdict, seconds)) => (verdict, seconds.strip_suffix("s>")),
                None => (verdict, None),
            };
            if let Some(seconds) = seconds.and_then(|text| text.parse().ok()) {
                self.times.push((self.named(name), Duration::from_secs_f64(seconds)));
            }
            match verdict.split_whitespace().next_back() {
                Some("ok") => self.current.passed += 1,
                Some("FAILED") => {
                    self.current.failed += 1;
                    let (test, name) = (self.named(name), name.to_owned());
                    self.failed.push(Failure { name, test, message: Vec::new() });
                }
                _ => self.ignored += usize::from(verdict.starts_with("ignored")),
            }
        }
    }

    /// Takes a line of the part in which the harness repeats the output of tests: `---- NAME stdout ----`, then the output of the test. For a failed
    /// test the message of its panic is kept, or the error that it returned, up to the backtrace.
    fn repeated(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            (self.telling, self.section) = (None, Some(name.to_owned()));
        }
        let Some(section) = &self.section else { return };
        if let Some(reason) = line.strip_prefix(SKIPPED) {
            let skipped = format!("{}: {reason}", self.named(section));
            // Some tests print the reason on both streams.
            if self.skipped.last() != Some(&skipped) {
                self.skipped.push(skipped);
            }
        }
        if line.starts_with("Error: ") || line.starts_with("thread '") && line.contains(" panicked at ") {
            self.telling = self.failed.iter().rposition(|failure| failure.name == *section);
        } else if ["stack backtrace:", "Stack backtrace:", "note: "].iter().any(|end| line.starts_with(end)) {
            self.telling = None;
        }
        if let Some(failure) = self.telling.and_then(|at| self.failed.get_mut(at))
            && failure.message.len() < MESSAGE_LINES_MAX
            && !line.is_empty()
        {
            failure.message.push(line.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress::of("gate")
    }

    #[test]
    fn tests_are_counted_as_they_end_and_those_that_fail_are_named() {
        let mut progress = progress();
        progress.heard("\nrunning 3 tests\ntest one ... ok\ntest two ... FAI");
        assert_eq!(progress.tally(), Tally { passed: 1, failed: 0 });
        assert_eq!(progress.running(), ["gate: two"]);
        progress.heard("LED\ntest three ... ignored, takes long\n\nfailures:\n\ntest result: FAILED. 1 passed; 1 failed; 1 ignored\n");
        assert_eq!((progress.tally(), progress.ignored), (Tally { passed: 1, failed: 1 }, 1));
        let failed: Vec<_> = progress.failed.iter().map(|failure| failure.test.as_str()).collect();
        assert_eq!((failed, progress.running()), (vec!["gate: two"], vec![]));
    }

    #[test]
    fn sums_of_what_is_not_made_of_tests_count() {
        let mut progress = progress();
        progress.heard("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n");
        progress.heard("test one ... ok\n5 passed; 5 failed\n");
        assert_eq!(progress.tally(), Tally { passed: 13, failed: 0 });
        progress.heard("test result: FAILED. 3 passed; 2 failed; 0 ignored\n");
        assert_eq!(progress.tally(), Tally { passed: 15, failed: 2 });
    }

    #[test]
    fn tests_that_take_long_are_known_until_they_end() {
        let mut progress = progress();
        progress.heard("test slow has been running for over 60 seconds\ntest mod::quick ... ok\n");
        assert_eq!(progress.running(), ["gate: slow"]);
        progress.heard("test slow ... ok <61.5s>\n");
        assert_eq!((progress.running(), progress.tally().passed), (vec![], 2));
        assert_eq!(progress.times, [("gate: slow".to_owned(), Duration::from_millis(61_500))]);
    }

    #[test]
    fn messages_of_tests_that_fail_are_kept_without_backtraces() {
        let mut progress = progress();
        progress
            .heard("test m::one ... FAILED <1.0s>\ntest two ... ok\ntest three ... FAILED\n\nfailures:\n\n");
        progress.heard("---- m::one stdout ----\nsaid before\n\nthread 'm::one' (7) panicked at src/x.rs:1:2:\nassertion failed");
        progress.heard("\n  left: 1\nstack backtrace:\n   0: <unknown>\nthread 'm::one' (7) panicked at src/y.rs:3:4:\nanother\n");
        progress.heard("note: run with more\nError: it said so\n\n---- three stdout ----\nError: it is wrong\n\nCaused by:\n    it is\n\n");
        progress.heard("Stack backtrace:\n   0: <unknown>\n\n\nfailures:\n    m::one\n    three\n\ntest result: FAILED. 1 passed; 2 failed\n");
        progress.heard("Error: of nobody\n");
        let messages: Vec<_> = progress.failed.iter().map(|failure| failure.message.join("|")).collect();
        let one = "thread 'm::one' (7) panicked at src/x.rs:1:2:|assertion failed|  left: 1|\
                   thread 'm::one' (7) panicked at src/y.rs:3:4:|another|Error: it said so";
        assert_eq!(messages, [one, "Error: it is wrong|Caused by:|    it is"]);
    }

    #[test]
    fn what_tests_print_that_pass_is_not_shown_but_what_they_skip_is_known() {
        let mut progress = progress();
        let shown = progress.heard(
            "test one ... ok\ntest two ... FAILED\n\nsuccesses:\n\n---- one stdout ----\nit went well\ntest inner ... FAILED\nskipped: no GPU\nskipped: no GPU\n\n\nsuccesses:\n    one\n\n\
             failures:\n\n---- two stdout ----\nError: bad\nskipped: not that\n\nfailures:\n    two\n\ntest result: FAILED. 1 passed; 1 failed\n",
        );
        assert_eq!(shown.matches("went well").count() + shown.matches("successes").count(), 0, "{shown}");
        assert!(
            shown.contains("test two ... FAILED") && shown.contains("Error: bad") && shown.contains("result")
        );
        assert_eq!(progress.skipped, ["gate: one: no GPU", "gate: two: not that"]);
        assert_eq!((progress.failed.len(), progress.tally()), (1, Tally { passed: 1, failed: 1 }));
        assert_eq!(progress.failed[0].message[0], "Error: bad");
    }

    #[test]
    fn a_long_message_is_cut() {
        let mut progress = progress();
        progress.heard("test one ... FAILED\nfailures:\n---- one stdout ----\nError: long\n");
        (0..100).for_each(|line| drop(progress.heard(&format!("{line}\n"))));
        assert_eq!(progress.failed[0].message.len(), MESSAGE_LINES_MAX);
    }
}
