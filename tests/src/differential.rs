//! Runs the differential suite (`tests/src/bin/differential`) natively and as a guest, and compares the outcomes line by line.
//!
//! Shaders are compiled once per change of their sources, with Debian testing's compilers. Knows no case.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::clients::Setup;
use crate::daemon::Daemon;
use crate::packages::{ClientRoot, Device, PackageRoot, Suite};
use crate::program::{LIMIT, Program, succeed};

/// The outcome of each case, by its name: the rest of its line, such as `ok 0123 4` or `skipped shaderFloat64`.
pub type Outcomes = BTreeMap<String, String>;

/// Cases that a guest with a certain Mesa skips although the device could run them.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// The features that are missing, as the cases' lines name them.
    pub missing: &'static [&'static str],
    /// The guests' suites.
    pub suites: &'static [Suite],
    /// Guests with the patched driver of Debian 13 have the gap, too, if Debian 13 is among the suites.
    pub patched: bool,
    /// The reason for the gap.
    pub reason: &'static str,
}

/// The number of cases that may end the program before the run fails.
const DEATHS_MAX: usize = 12;

/// The folder with the compiled shaders of `executable`, the suite's program.
///
/// # Errors
/// The compilers cannot be had, or do not accept a shader.
pub fn shaders(executable: &Path) -> Result<PathBuf> {
    let compilers = PackageRoot::with(Suite::Testing, &["glslang-tools"])?;
    let folder = executable.with_file_name("differential-shaders");
    fs::create_dir_all(&folder)?;
    let lock = fs::File::create(folder.join("lock"))?;
    lock.lock()?;
    let fresh = tempfile::tempdir()?;
    let mut command = Command::new(executable);
    command.arg("sources").arg(fresh.path());
    succeed(command, LIMIT)?;
    let mut changed = Vec::new();
    for entry in fs::read_dir(fresh.path())? {
        let source = entry?.path();
        let name = source.file_name().context("a source has a name")?;
        if fs::read(folder.join(name)).ok() != Some(fs::read(&source)?) {
            changed.push(source);
        }
    }
    let threads = thread::available_parallelism()?.get();
    let parts: Vec<&[PathBuf]> = changed.chunks(changed.len().div_ceil(threads).max(1)).collect();
    let wrong: Vec<String> = thread::scope(|scope| {
        let compile =
            |source: &PathBuf| compile(&compilers, source, &folder).err().map(|error| format!("{error:#}"));
        let parts = parts.into_iter();
        let running: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().filter_map(compile).collect::<Vec<_>>()))
            .collect();
        running.into_iter().flat_map(|thread| thread.join().expect("compiling does not panic")).collect()
    });
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(folder)
}

/// Compiles one source and keeps both files: the kept source shows later whether it has changed.
fn compile(compilers: &PackageRoot, source: &Path, folder: &Path) -> Result<()> {
    let name = source.file_name().context("a source has a name")?;
    let binary = folder.join(name).with_extension("spv");
    let mut command = if source.extension().is_some_and(|extension| extension == "spvasm") {
        let mut command = compilers.command("spirv-as")?;
        command.args(["--target-env", "spv1.6", "-o"]);
        command
    } else {
        let mut command = compilers.command("glslang")?;
        command.args(["--quiet", "-V", "--target-env", "vulkan1.3", "-o"]);
        command
    };
    command.arg(&binary).arg(source);
    succeed(command, LIMIT).with_context(|| format!("compiling {}", name.display()))?;
    fs::copy(source, folder.join(name))?;
    Ok(())
}

/// Runs all cases, or those whose names start with one of `only`. `start` makes the command that runs the suite's program; a program that ends within
/// a case is started again after this case, whose outcome records the end.
///
/// # Errors
/// The program cannot be started, or too many cases end it.
pub fn run(start: impl Fn() -> Result<Command>, shaders: &Path, only: &[&str]) -> Result<Outcomes> {
    let mut outcomes = Outcomes::new();
    let mut after: Option<String> = None;
    for _ in 0..DEATHS_MAX {
        let mut command = start()?;
        command.arg("run").arg(shaders);
        for start in only {
            command.args(["--only", start]);
        }
        if let Some(after) = &after {
            command.args(["--after", after]);
        }
        let (status, output) = Program::start(command)?.end_within(LIMIT)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let died_in = collect(&text, &mut outcomes);
        let Some(name) = died_in else {
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure!(status.is_some_and(|status| status.success()), "{status:?} after all cases\n{errors}");
            return Ok(outcomes);
        };
        let how = status.map_or("hanging".to_owned(), |status| status.to_string());
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rev().take(3).collect::<Vec<_>>().join(" / ");
        outcomes.insert(name.clone(), format!("died {how}: {last}"));
        after = Some(name);
    }
    bail!("too many cases ended the program: {outcomes:?}")
}

/// Reads the outcome of each case from a program's output. A line without its end names the case in which the program ended.
///
/// # Errors
/// The program ended within a case.
pub fn parse(text: &str) -> Result<Outcomes> {
    let mut outcomes = Outcomes::new();
    match collect(text, &mut outcomes) {
        Some(name) => bail!("the program ended in {name}"),
        None => Ok(outcomes),
    }
}

/// Adds the outcomes in a program's output; returns the name of the case that the program ended in.
fn collect(text: &str, outcomes: &mut Outcomes) -> Option<String> {
    for line in text.split_inclusive('\n') {
        let (name, outcome) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        if !line.ends_with('\n') {
            return Some(name.to_owned());
        }
        outcomes.insert(name.to_owned(), outcome.to_owned());
    }
    None
}

/// Returns the differences between device and guest for which `gaps` has no row.
#[must_use]
pub fn differences(native: &Outcomes, guest: &Outcomes, suite: Suite, gaps: &[Gap]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, expected) in native {
        if expected.starts_with("died ") && NATIVE_DEATHS.iter().any(|(case, _)| case == name) {
            println!("{name}: the driver ends the program natively, nothing to compare with");
            continue;
        }
        let outcome = guest.get(name).map_or("was not run", String::as_str);
        let missing = outcome.strip_prefix("skipped ");
        if !(expected.starts_with("ok ") || expected.starts_with("skipped ")) {
            found.push(format!("{name}: natively {expected}"));
        }
        if outcome != expected && !missing.is_some_and(|missing| is_gap(missing, suite, gaps)) {
            found.push(format!("{name}: {outcome}, natively {expected}"));
        }
    }
    let more = guest.keys().filter(|name| !native.contains_key(*name));
    found.extend(more.map(|name| format!("{name}: only in the guest")));
    found
}

/// Returns the rows of `gaps` that a run of all cases in the guest did not need.
#[must_use]
pub fn stale(guest: &Outcomes, suite: Suite, gaps: &[Gap]) -> Vec<&'static str> {
    let missed =
        |missing: &&str| guest.values().any(|outcome| outcome.strip_prefix("skipped ") == Some(*missing));
    let of_suite = gaps.iter().filter(|gap| gap.suites.contains(&suite));
    of_suite.flat_map(|gap| gap.missing).copied().filter(|missing| !missed(missing)).collect()
}

fn is_gap(missing: &str, suite: Suite, gaps: &[Gap]) -> bool {
    gaps.iter().any(|gap| gap.suites.contains(&suite) && gap.missing.contains(&missing))
}

/// Runs all cases as a guest with the Mesa of `client`, through the bridge, on a daemon with further `options`. Each case must have the outcome of
/// `native`, unless a row of `gaps` says why not, and each row of `gaps` must be needed. Returns the daemon's log.
///
/// # Errors
/// An outcome differs or a row is not needed, or the program cannot be run.
pub fn compare(
    program: &Path,
    client: &ClientRoot,
    native: &Outcomes,
    gaps: &[Gap],
    options: &[&str],
) -> Result<String> {
    let suite = client.suite();
    // Guests see heaps of the size of their quota, by default less than the machine has.
    let setup = Setup::on(Daemon::start_with(&[&["--host-memory", "1024GiB"], options].concat())?)?;
    let start = || client.own(program, Device::Venus(setup.socket()));
    let found = run(start, &shaders(program)?, &[])?;
    println!("natively {:?} (ok, skipped, other), in the guest {:?}", tally(native), tally(&found));
    let differing = differences(native, &found, suite, gaps);
    ensure!(differing.is_empty(), "{suite:?}:\n{}", differing.join("\n"));
    // A program that releases an object in use, as far as the daemon can tell, has broken valid usage, which none of the cases does.
    let log = setup.daemon().log();
    ensure!(!log.contains("waited for 1 s for a submission"), "{suite:?}:\n{log}");
    let stale = stale(&found, suite, gaps);
    ensure!(stale.is_empty(), "not missing any more: {stale:?}");
    Ok(log)
}

/// The outcomes of all cases on the host's driver, which a process finds out once.
///
/// # Errors
/// The program cannot be run.
pub fn natively(program: &Path) -> Result<&'static Outcomes> {
    static OUTCOMES: OnceLock<Result<Outcomes, String>> = OnceLock::new();
    let ask = || {
        let client = ClientRoot::open(Suite::Testing)?;
        run(|| client.own(program, Device::Native), &shaders(program)?, &[])
    };
    let outcomes = OUTCOMES.get_or_init(|| ask().map_err(|error| format!("{error:#}")));
    outcomes.as_ref().map_err(|error| anyhow!("{error}"))
}

/// Counts the cases that ended in each way: ok, skipped, other.
#[must_use]
pub fn tally(outcomes: &Outcomes) -> (usize, usize, usize) {
    let count = |start: &str| outcomes.values().filter(|outcome| outcome.starts_with(start)).count();
    let (ok, skipped) = (count("ok "), count("skipped "));
    (ok, skipped, outcomes.len() - ok - skipped)
}

/// Cases in which a fault of the driver ends programs of the host on some machines: these outcomes are not compared.
const NATIVE_DEATHS: &[(&str, &str)] =
    &[("subgroups.types.float16", "lavapipe 26.1 on processors with AVX512-FP16")];

/// The suites with a Mesa of up to 25.0.
const UP_TO_25_0: &[Suite] = &[Suite::Jammy, Suite::Noble, Suite::Trixie];

/// Features that a guest cannot have although the host's driver can.
pub const GAPS: &[Gap] = &[
    Gap {
        missing: &["maintenance8"],
        suites: &[Suite::Jammy, Suite::Noble, Suite::Trixie, Suite::Testing, Suite::Unstable],
        patched: true,
        reason: "Mesa's driver does not know the extension up to 26.2",
    },
    Gap {
        missing: &[
            "VK_KHR_map_memory2",
            "globalPriorityQuery",
            "hostImageCopy",
            "maintenance6",
            "maintenance7",
            "nestedCommandBuffer",
        ],
        suites: UP_TO_25_0,
        patched: true,
        reason: "Mesa's driver passes the extension through from 25.1 on",
    },
    Gap {
        missing: &[
            "computeDerivativeGroupQuads",
            "pipelineRobustness",
            "shaderBufferFloat32AtomicAdd",
            "shaderBufferFloat32AtomicMinMax",
            "shaderExpectAssume",
            "shaderFloatControls2",
            "shaderImageFloat32AtomicAdd",
            "shaderImageFloat32AtomicMinMax",
            "shaderImageInt64Atomics",
            "shaderMaximalReconvergence",
            "shaderQuadControl",
            "shaderReplicatedComposites",
            "shaderSharedFloat32AtomicAdd",
            "shaderSharedFloat32AtomicMinMax",
            "shaderSubgroupRotate",
            "shaderSubgroupRotateClustered",
            "workgroupMemoryExplicitLayout",
        ],
        suites: UP_TO_25_0,
        patched: false,
        reason: "Mesa's driver passes the extension through from 25.1 on, or with our patches",
    },
    Gap {
        missing: &["maintenance5"],
        suites: &Suite::UBUNTU,
        patched: true,
        reason: "Mesa's driver passes the extension through from 25.0 on",
    },
    Gap {
        missing: &["cooperativeMatrix"],
        suites: UP_TO_25_0,
        patched: false,
        reason: "Mesa's driver passes the extension through from 26.0 on, or with our patches",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(text: &str) -> (Outcomes, Option<String>) {
        let mut outcomes = Outcomes::new();
        let died_in = collect(text, &mut outcomes);
        (outcomes, died_in)
    }

    #[test]
    fn a_line_without_its_end_names_the_case_the_program_died_in() {
        let (found, died_in) = outcomes("a ok 1 4\nb skipped shaderFloat64\nc");
        assert_eq!((found.len(), died_in.as_deref()), (2, Some("c")));
        assert_eq!(found["b"], "skipped shaderFloat64");
    }

    #[test]
    fn differences_are_bits_cases_and_features_without_a_reason() {
        let (native, _) = outcomes("a ok 1 4\nb ok 2 4\nc ok 3 4\nd failed why\ne skipped x\n");
        let (guest, _) = outcomes("a ok 1 4\nb ok 9 4\nc skipped y\nd failed why\ne skipped x\n");
        let gaps = [Gap { missing: &["y", "z"], suites: &[Suite::Trixie], patched: true, reason: "old" }];
        let found = differences(&native, &guest, Suite::Trixie, &gaps);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(differences(&native, &guest, Suite::Testing, &gaps).len(), 3);
        assert_eq!(differences(&native, &Outcomes::new(), Suite::Testing, &[]).len(), 6);
        assert_eq!(stale(&guest, Suite::Trixie, &gaps), ["z"]);
    }
}
