//! How far a stage has come, as the test harness tells it: what was counted, what failed, and which tests are running.

use super::Tally;
use std::collections::BTreeSet;

/// What the output of a stage has told so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Of files that are complete.
    complete: Tally,
    /// Of the file that runs.
    current: Tally,
    /// The tests that failed, by file.
    pub failed: Vec<String>,
    /// The file of tests that runs.
    file: String,
    /// Tests that the harness says to be running for long.
    long: BTreeSet<String>,
    /// The beginning of a line whose end is missing.
    begun: String,
}

impl Progress {
    /// Tests that passed and failed so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let (complete, current) = (self.complete, self.current);
        Tally { passed: complete.passed + current.passed, failed: complete.failed + current.failed }
    }

    /// Takes what was written to the stage's standard output.
    pub fn heard(&mut self, text: &str) {
        self.begun += text;
        while let Some((line, rest)) = self.begun.split_once('\n') {
            let (line, rest) = (line.to_owned(), rest.to_owned());
            self.line(&line);
            self.begun = rest;
        }
    }

    /// Takes what was written to its standard error: cargo names each file there before it runs.
    pub fn heard_of_cargo(&mut self, text: &str) {
        for line in text.lines() {
            if let Some(file) = line.trim_start().strip_prefix("Running ") {
                self.file = file.split_whitespace().rfind(|word| word.ends_with(".rs")).unwrap_or("").into();
            }
        }
    }

    /// Tests that are known to be running: those that run for more than a minute, and the one whose line has begun.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        let begun = self.begun.strip_prefix("test ").and_then(|line| line.split_once(" ... "));
        let begun = begun.map(|(name, _)| name.to_owned());
        self.long.iter().cloned().chain(begun).map(|name| self.named(&name)).collect()
    }

    fn named(&self, test: &str) -> String {
        if self.file.is_empty() { test.to_owned() } else { format!("{}: {test}", self.file) }
    }

    /// Takes `test NAME ... ok`, `test NAME has been running for over 60 seconds`, or the sum `test result: ok. 3 passed; 1 failed; …`.
    fn line(&mut self, line: &str) {
        let Some(line) = line.strip_prefix("test ") else { return };
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
                    self.failed.push(self.named(name));
                }
                _ => {}
            }
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
        assert_eq!(
            (progress.failed.as_slice(), progress.running()),
            (&["tests/gate.rs: two".to_owned()][..], vec![])
        );
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
}
