//! The progress of a stage, as the test harness tells it: what was counted, what failed, and which tests are running.

use super::Tally;
use std::collections::BTreeSet;

/// The progress that the output of a stage has told so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The tests of files that are complete.
    complete: Tally,
    /// The tests of the file that runs.
    current: Tally,
    /// The tests that failed.
    pub failed: Vec<Failure>,
    /// The test whose output the harness repeats, as an index of `failed`.
    section: Option<usize>,
    /// The test of `section`, while a message of it goes on.
    telling: Option<usize>,
    /// The file of tests that runs.
    file: String,
    /// Tests that the harness says to be running for long.
    long: BTreeSet<String>,
    /// The beginning of a line whose end is missing.
    begun: String,
}

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The name that the harness gives the test.
    name: String,
    /// The name with that of the file.
    pub test: String,
    /// The lines of its panics and errors, without their backtraces; no more than [`MESSAGE_LINES_MAX`].
    pub message: Vec<String>,
}

/// More lines of a test's message are left to the output above the summary.
const MESSAGE_LINES_MAX: usize = 20;

impl Progress {
    /// Tests that passed and failed so far.
    #[must_use]
    pub(super) fn tally(&self) -> Tally {
        let (complete, current) = (self.complete, self.current);
        Tally { passed: complete.passed + current.passed, failed: complete.failed + current.failed }
    }

    /// Takes what was written to the stage's standard output.
    pub(super) fn heard(&mut self, text: &str) {
        self.begun += text;
        while let Some((line, rest)) = self.begun.split_once('\n') {
            let (line, rest) = (line.to_owned(), rest.to_owned());
            self.line(&line);
            self.begun = rest;
        }
    }

    /// Takes what was written to its standard error: cargo names each file there before it runs.
    pub(super) fn heard_of_cargo(&mut self, text: &str) {
        for line in text.lines() {
            if let Some(file) = line.trim_start().strip_prefix("Running ") {
                self.file = file.split_whitespace().rfind(|word| word.ends_with(".rs")).unwrap_or("").into();
            }
        }
    }

    /// Tests that are known to be running: those that run for more than a minute, and the one whose line has begun.
    #[must_use]
    pub(super) fn running(&self) -> Vec<String> {
        let begun = self.begun.strip_prefix("test ").and_then(|line| line.split_once(" ... "));
        let begun = begun.map(|(name, _)| name.to_owned());
        self.long.iter().cloned().chain(begun).map(|name| self.named(&name)).collect()
    }

    fn named(&self, test: &str) -> String {
        if self.file.is_empty() { test.to_owned() } else { format!("{}: {test}", self.file) }
    }

    /// Takes `test NAME ... ok`, `test NAME has been running for over 60 seconds`, or the sum `test result: ok. 3 passed; 1 failed; …`.
    fn line(&mut self, line: &str) {
        let Some(line) = line.strip_prefix("test ") else { return self.message_line(line) };
        self.telling = None;
        if let Some(sum) = line.strip_prefix("result: ") {
            self.complete.add_sum(sum);
            self.current = Tally::default();
        } else if let Some((name, _)) = line.split_once(" has been running for over ") {
            self.long.insert(name.to_owned());
        } else if let Some((name, verdict)) = line.split_once(" ... ") {
            self.long.remove(name);
            match verdict.split_whitespace().next_back() {
                Some("ok") => self.current.passed += 1,
                Some("FAILED") => {
                    self.current.failed += 1;
                    let (test, name) = (self.named(name), name.to_owned());
                    self.failed.push(Failure { name, test, message: Vec::new() });
                }
                _ => {}
            }
        }
    }

    /// Takes a line of what the harness repeats of tests that failed: `---- NAME stdout ----`, then the output of the test. Of that the
    /// message of a panic counts, or the error that the test returned; where the backtrace begins it ends.
    fn message_line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.telling = None;
            self.section = self.failed.iter().rposition(|failure| failure.name == name);
        } else if line == "failures:" {
            (self.telling, self.section) = (None, None);
        } else if line.starts_with("Error: ")
            || line.starts_with("thread '") && line.contains(" panicked at ")
        {
            self.telling = self.section;
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

impl Tally {
    /// Adds a sum as the harness prints it.
    fn add_sum(&mut self, sum: &str) {
        for part in sum.split([';', '.']) {
            let mut words = part.split_whitespace();
            if let (Some(Ok(count)), Some(kind)) = (words.next().map(str::parse::<usize>), words.next()) {
                match kind {
                    "passed" => self.passed += count,
                    "failed" => self.failed += count,
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_as_they_end_and_those_that_fail_are_named() {
        let mut progress = Progress::default();
        progress.heard_of_cargo("    Running tests/gate.rs (target/debug/deps/gate-1)\n");
        progress.heard("\nrunning 3 tests\ntest one ... ok\ntest two ... FAI");
        assert_eq!(progress.tally(), Tally { passed: 1, failed: 0 });
        assert_eq!(progress.running(), ["tests/gate.rs: two"]);
        progress.heard("LED\ntest three ... ignored\n\nfailures:\n\ntest result: FAILED. 1 passed; 1 failed; 1 ignored\n");
        assert_eq!(progress.tally(), Tally { passed: 1, failed: 1 });
        let failed: Vec<_> = progress.failed.iter().map(|failure| failure.test.as_str()).collect();
        assert_eq!((failed, progress.running()), (vec!["tests/gate.rs: two"], vec![]));
    }

    #[test]
    fn sums_of_what_is_not_made_of_tests_count() {
        let mut progress = Progress::default();
        progress.heard("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n");
        progress.heard("test one ... ok\n5 passed; 5 failed\n");
        assert_eq!(progress.tally(), Tally { passed: 13, failed: 0 });
        progress.heard("test result: FAILED. 3 passed; 2 failed; 0 ignored\n");
        assert_eq!(progress.tally(), Tally { passed: 15, failed: 2 });
    }

    #[test]
    fn tests_that_take_long_are_known_until_they_end() {
        let mut progress = Progress::default();
        progress.heard("test slow has been running for over 60 seconds\ntest mod::quick ... ok\n");
        assert_eq!(progress.running(), ["slow"]);
        progress.heard("test slow ... ok\n");
        assert_eq!((progress.running(), progress.tally().passed), (vec![], 2));
    }

    #[test]
    fn messages_of_tests_that_fail_are_kept_without_backtraces() {
        let mut progress = Progress::default();
        progress.heard("test m::one ... FAILED\ntest two ... ok\ntest three ... FAILED\n\nfailures:\n\n");
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
    fn a_long_message_is_cut() {
        let mut progress = Progress::default();
        progress.heard("test one ... FAILED\n---- one stdout ----\nError: long\n");
        (0..100).for_each(|line| progress.heard(&format!("{line}\n")));
        assert_eq!(progress.failed[0].message.len(), MESSAGE_LINES_MAX);
    }
}
