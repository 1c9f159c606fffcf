//! The programs that one command of cargo's compiles for all stages: the daemon, the tests, and the programs that the tests start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::watch::{Job, Outcome, watch};
use crate::program::cargo::{LINTED, cargo};

/// The programs that were compiled.
#[derive(Debug, Default)]
pub(super) struct Built {
    tests: Vec<TestProgram>,
    /// Programs and examples, by their names.
    programs: BTreeMap<String, PathBuf>,
}

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestProgram {
    /// The folder of its package, which is the package's name here.
    pub package: String,
    /// Cargo's kind of the program: `lib` and `bin` are unit tests, `test` are others.
    pub kind: String,
    pub name: String,
    executable: PathBuf,
    /// The package's folder, in which cargo would run it.
    folder: PathBuf,
}

impl Built {
    /// Compiles everything. Code that does not compile makes the outcome a failure.
    ///
    /// # Errors
    /// cargo or the compiler with lints cannot be run.
    pub(super) fn make(silence: Duration) -> Result<(Self, Outcome)> {
        let has_lints = Command::new(LINTED[0].1).arg("--version").output();
        ensure!(
            has_lints.is_ok_and(|output| output.status.success()),
            "Clippy is missing, with which everything is compiled: rustup component add clippy"
        );
        let mut command = cargo();
        command.args(["build", "--workspace", "--lib", "--bins", "--examples", "--tests"]).envs(LINTED);
        command.arg("--message-format=json-render-diagnostics");
        let mut outcome = watch(vec![Job::quiet("build", command)], 1, silence)?.remove(0);
        let built = Self::told(&std::mem::take(&mut outcome.told));
        Ok((built, outcome))
    }

    /// Reads cargo's messages, a line of JSON each.
    fn told(messages: &str) -> Self {
        let mut built = Self::default();
        for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let Some(executable) = text(&message["executable"]).map(PathBuf::from) else { continue };
            let manifest = text(&message["manifest_path"]).unwrap_or_default();
            let folder = Path::new(&manifest).parent().unwrap_or(Path::new("")).to_owned();
            let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = text(&message["target"]["name"]).unwrap_or_default();
            if message["profile"]["test"] == true {
                let kind = text(&message["target"]["kind"][0]).unwrap_or_default();
                built.tests.push(TestProgram { package, kind, name, executable, folder });
            } else {
                built.programs.insert(name, executable);
            }
        }
        built.tests.sort_by(|one, other| (&one.package, &one.name).cmp(&(&other.package, &other.name)));
        built
    }

    /// The programs of tests that `wanted` accepts, each with `threads` tests at once, and on request with tests that are marked to be ignored.
    ///
    /// # Errors
    /// The daemon was not built, or `wanted` accepts no program: the tests are gone, or have another name.
    pub(super) fn tests(
        &self,
        wanted: impl Fn(&TestProgram) -> bool,
        includes_ignored: bool,
        threads: usize,
    ) -> Result<Vec<Job>> {
        let daemon = self.path("vhost-user-vulkan")?;
        let job = |test: &TestProgram| {
            let mut command = Command::new(&test.executable);
            command.current_dir(&test.folder).env("CARGO_MANIFEST_DIR", &test.folder);
            command.env("VHOST_USER_VULKAN_DAEMON", daemon);
            // The harness of a stable compiler reports times only with this variable, which makes it behave like a nightly compiler's.
            command.env("RUSTC_BOOTSTRAP", "1").args([
                "-Zunstable-options",
                "--report-time",
                "--show-output",
            ]);
            command.arg(format!("--test-threads={threads}"));
            command.args(includes_ignored.then_some("--include-ignored"));
            Job::new(&test.title(), command)
        };
        let jobs: Vec<_> = self.tests.iter().filter(|test| wanted(test)).map(job).collect();
        ensure!(!jobs.is_empty(), "cargo built none of the test programs that this stage runs");
        Ok(jobs)
    }

    /// A program that is a check by itself.
    ///
    /// # Errors
    /// The program was not built.
    pub(super) fn program(&self, name: &str, arguments: &[&str]) -> Result<Job> {
        let mut command = Command::new(self.path(name)?);
        command.args(arguments).current_dir(crate::sources::repository());
        Ok(Job::new(name, command))
    }

    fn path(&self, name: &str) -> Result<&PathBuf> {
        self.programs.get(name).with_context(|| format!("cargo built no {name}"))
    }
}

impl TestProgram {
    /// The name of its tests in summaries.
    fn title(&self) -> String {
        if self.package == "tests" && self.kind == "test" {
            self.name.clone()
        } else {
            format!("{} ({})", self.package, if self.kind == "test" { &self.name } else { &self.kind })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_cargo_name_the_programs_and_the_tests() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/r/daemon/vulkan/Cargo.toml","target":{"kind":["lib"],"name":"vulkan"},"profile":{"test":true},"executable":"/t/vulkan-1"}
{"reason":"compiler-artifact","manifest_path":"/r/daemon/vulkan/Cargo.toml","target":{"kind":["lib"],"name":"vulkan"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/r/tests/Cargo.toml","target":{"kind":["test"],"name":"vm"},"profile":{"test":true},"executable":"/t/vm-1"}
{"reason":"compiler-artifact","manifest_path":"/r/daemon/Cargo.toml","target":{"kind":["bin"],"name":"vhost-user-vulkan"},"profile":{"test":false},"executable":"/t/vhost-user-vulkan"}
no message"#;
        let built = Built::told(messages);
        let titles: Vec<_> = built.tests.iter().map(TestProgram::title).collect();
        assert_eq!(titles, ["vm", "vulkan (lib)"]);
        assert_eq!(built.path("vhost-user-vulkan").unwrap(), Path::new("/t/vhost-user-vulkan"));
        assert_eq!(built.program("absent", &[]).err().unwrap().to_string(), "cargo built no absent");
        let jobs = built.tests(|test| test.kind == "test", false, 2).unwrap();
        assert_eq!(jobs.len(), 1);
        let none = built.tests(|test| test.name == "renamed", false, 2).err().unwrap().to_string();
        assert_eq!(none, "cargo built none of the test programs that this stage runs");
    }
}
