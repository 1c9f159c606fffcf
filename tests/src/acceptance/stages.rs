//! The table of stages: what each runs, which tools of the machine it needs, and how long it should take.

use std::time::Duration;

use super::built::TestProgram;
use crate::prerequisites::{self as tools, Tool};

/// The part of the acceptance run that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The checks of each change.
    Gate,
    /// Everything.
    All,
}

/// One stage: what it runs, and how its outcome counts.
pub struct Stage {
    /// The name by which the user selects the stage.
    pub name: &'static str,
    pub(super) work: Work,
    /// The tools that it needs beyond a compiler.
    pub(super) tools: &'static [&'static [Tool]],
    /// The time that its part of the gate should take, beside other stages, on two processors that do nothing else; a stage that takes
    /// longer causes a warning.
    pub(super) budget: Duration,
    pub(super) needs_gpu: bool,
    pub(super) lane: Lane,
}

/// The lanes of stages, which run side by side after the stage `build`. In each, one stage follows the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Tests; they spend much of their time waiting.
    Tests,
    /// Emulated machines, and further stages that would make the lane of tests too long.
    Machines,
    /// Products that are made and then tried: the guest's driver, the package, and programs that are counted.
    Makes,
}

/// The work of a stage.
pub(super) enum Work {
    /// A command of cargo's that compiles nothing that other stages run.
    Cargo(&'static [&'static str]),
    /// Compiling the programs that other stages run.
    Build,
    /// A script of the repository's, and its argument.
    Script(&'static str, &'static str),
    /// A program that is a check by itself.
    Program { name: &'static str, arguments: &'static [&'static str] },
    /// Programs of tests, `lanes` of them side by side, each with `threads` tests at once.
    Tests { are: fn(&TestProgram) -> bool, lanes: usize, threads: usize },
}

/// A look for mistakes in the comments of all libraries of this repository, such as a link that leads nowhere. No page is written.
const DOC: &[&str] = &["test", "--doc", "--workspace", "--config=build.rustdoc='.ci/rustdoc-check'"];

/// All stages of an extent, those of each lane in their order.
#[must_use]
pub fn stages(extent: Extent) -> Vec<Stage> {
    let cargo = |name, seconds, arguments| Stage::new(name, seconds, Work::Cargo(arguments));
    let program = |name, seconds, program, arguments| {
        Stage::new(name, seconds, Work::Program { name: program, arguments })
    };
    // Tests that wait for other processes leave room for more tests than there are processors.
    let tests =
        |name, seconds, lanes, threads, are| Stage::new(name, seconds, Work::Tests { are, lanes, threads });
    let package: &[_] = match extent {
        Extent::Gate => &[tools::PACKAGE],
        Extent::All => &[tools::PACKAGE, tools::SYSTEMS, tools::ARM64],
    };
    let mut stages = vec![
        cargo("fmt", 20, &["fmt", "--all", "--check"]),
        Stage::new("build", 150, Work::Build),
        tests("sources", 30, 1, 2, |test| test.is("sources")),
        // The stage `patched` installs the driver that this stage makes. This stage takes some seconds if the machine already has the driver.
        Stage::new("driver", 400, Work::Script("guest-driver-patches/build", "--path"))
            .needing(&[tools::SYSTEMS])
            .within(Lane::Makes),
        cargo("doc", 60, DOC).within(Lane::Machines),
        program("codegen", 20, "codegen", &["--check"]).needing(&[&[tools::PIP]]),
        program("features", 5, "features-doc", &["--check"]),
        tests("unit", 90, 2, 2, TestProgram::is_of_units),
        tests("generator", 30, 2, 2, |test| test.kind == "test" && test.package != "tests")
            .needing(&[&[tools::PIP]]),
        tests("behaviour", 420, 1, 4, |test| test.is("behaviour")).needing(&[tools::CLIENTS]),
        // An emulated machine has one processor, so two machines keep two busy; more would starve each other, and take memory.
        tests("vm", 240, 1, 2, |test| test.is("vm")).needing(&[tools::CLIENTS]).within(Lane::Machines),
        tests("patched", 120, 1, 2, |test| test.is("patched"))
            .needing(&[tools::SYSTEMS])
            .within(Lane::Machines),
        // The stage `bridge` has the most programs at once: if other work also needs the processors, a single machine would get little of them.
        tests("bridge", 300, 1, 3, |test| test.is("bridge")).needing(&[tools::CLIENTS]),
        tests("package", 600, 1, 2, |test| test.is("package")).needing(package).within(Lane::Makes),
        program("instructions", 300, "instructions", &[]).needing(&[&[tools::VALGRIND]]).within(Lane::Makes),
        Stage { needs_gpu: true, ..tests("gpu", 120, 1, 1, |test| test.is("gpu_smoke")) },
    ];
    if extent == Extent::All {
        // This stage is the last, because it takes longest and finds errors that are not expected.
        stages.push(program("fuzz", 600, "fuzz", &[]).needing(&[&[tools::CXX]]));
    }
    stages
}

impl Stage {
    fn new(name: &'static str, seconds: u64, work: Work) -> Self {
        Self {
            name,
            work,
            tools: &[],
            budget: Duration::from_secs(seconds),
            needs_gpu: false,
            lane: Lane::Tests,
        }
    }

    fn within(self, lane: Lane) -> Self {
        Self { lane, ..self }
    }

    fn needing(self, tools: &'static [&'static [Tool]]) -> Self {
        Self { tools, ..self }
    }

    /// Returns whether the stage runs programs that the stage `build` makes.
    #[must_use]
    pub(super) fn needs_build(&self) -> bool {
        matches!(self.work, Work::Program { .. } | Work::Tests { .. })
    }

    /// Returns whether the stage compiles the programs that other stages run.
    #[must_use]
    pub(super) fn is_build(&self) -> bool {
        matches!(self.work, Work::Build)
    }
}

impl TestProgram {
    /// The program of this name in `tests/tests`.
    fn is(&self, name: &str) -> bool {
        self.package == "tests" && self.kind == "test" && self.name == name
    }

    fn is_of_units(&self) -> bool {
        self.kind == "lib" || self.kind == "bin"
    }
}
