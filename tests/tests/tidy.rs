//! House rules that a compiler does not check: heads of files, where `unsafe` is and how often, names, sizes.

use std::fs;
use std::path::{Path, PathBuf};

/// How often `unsafe` may stand in each place that may have it at all. A number may fall freely; it rises only in a
/// commit that changes it here. Everything else has none.
const UNSAFE: &[(&str, usize)] = &[
    ("daemon/src/shm/", 27),
    ("daemon/src/sandbox/sys.rs", 19),
    ("daemon/src/interpose.rs", 6),
    ("daemon/examples/escape.rs", 4),
    // One or two calls for each command of the allow-list, all of one form.
    ("daemon/src/vulkan/generated/", 1000),
    // A driver that only fuzzing loads.
    ("daemon/src/vulkan/fuzzing/", 95),
    ("daemon/src/vulkan/", 258),
    ("tests/src/bin/differential/", 478),
    ("tests/src/bin/gauge/", 27),
    ("tests/src/bin/hog.rs", 22),
    ("tests/src/bin/many_blobs.rs", 14),
    ("tests/src/bin/many_threads/gpu.rs", 17),
    ("tests/src/bin/residue/gpu.rs", 10),
    ("tests/src/bin/tenant/gpu.rs", 11),
    ("tests/src/bin/share_memory/gpu.rs", 14),
];

/// Files of more lines than this, tests not counted, are split.
const LINES_MAX: usize = 1000;

const FORBIDDEN_MODULES: &[&str] = &["util", "utils", "common", "misc", "helpers", "helper"];

struct Source {
    /// Relative to the repository.
    path: String,
    code: String,
}

impl Source {
    fn is_generated(&self) -> bool {
        self.path.contains("/generated/")
    }

    fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.ends_with("tests.rs") || self.path.contains("/tests/")
    }

    /// Lines of code before the tests of the file, comments cut off.
    fn code_lines(&self) -> impl Iterator<Item = &str> {
        let code = self.code.split("\n#[cfg(test)]").next().unwrap_or_default();
        code.lines().map(|line| line.split("//").next().unwrap_or_default())
    }
}

fn collect(folder: &Path, root: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(&path, root, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let code = fs::read_to_string(&path).unwrap();
            found
                .push(Source { path: path.strip_prefix(root).unwrap().to_string_lossy().into_owned(), code });
        }
    }
}

fn sources() -> Vec<Source> {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().into();
    let mut found = Vec::new();
    for member in ["daemon", "protocol", "tests", "fuzz"] {
        collect(&root.join(member), &root, &mut found);
    }
    assert!(found.len() > 30, "only {} files found", found.len());
    found
}

fn assert_none(what: &str, wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_opens_with_what_it_is() {
    let without =
        sources().into_iter().filter(|source| !source.code.starts_with("//! ")).map(|source| source.path);
    assert_none("files without a head", without.collect());
}

/// Crates in which the compiler forbids it; the word may occur there in text and in generated tokens.
const FORBIDDING: &[(&str, &str)] = &[
    ("daemon/sched/", "daemon/sched/src/lib.rs"),
    ("protocol/src/", "protocol/src/lib.rs"),
    ("protocol/codegen/", "protocol/codegen/src/main.rs"),
    ("tests/", "tests/src/lib.rs"),
];

#[test]
fn unsafe_code_is_where_it_may_be_and_not_more() {
    let mut counts = vec![0; UNSAFE.len()];
    let mut wrong = Vec::new();
    for source in sources() {
        let agreed = UNSAFE.iter().any(|(place, _)| source.path.starts_with(place));
        let forbidding = FORBIDDING.iter().find(|(place, _)| source.path.starts_with(place));
        if let (Some((_, root)), false) = (forbidding, agreed) {
            if source.path == *root && !source.code.contains("#![forbid(unsafe_code)]") {
                wrong.push(format!("{root} does not forbid it"));
            }
            continue;
        }
        let words =
            source.code_lines().flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
        let count = words.filter(|&word| word == "unsafe").count();
        match UNSAFE.iter().position(|(place, _)| source.path.starts_with(place)) {
            Some(place) => counts[place] += count,
            None if count > 0 => wrong.push(format!("{}: {count}", source.path)),
            None => {}
        }
    }
    for ((place, limit), count) in UNSAFE.iter().zip(counts) {
        if count > *limit {
            wrong.push(format!("{place}: {count}, {limit} are agreed"));
        }
    }
    assert_none("unsafe code", wrong);
}

#[test]
fn no_module_has_a_name_that_says_nothing() {
    let is_forbidden = |source: &Source| {
        Path::new(&source.path)
            .iter()
            .any(|part| FORBIDDEN_MODULES.contains(&part.to_string_lossy().trim_end_matches(".rs")))
    };
    assert_none("modules", sources().into_iter().filter(is_forbidden).map(|source| source.path).collect());
}

#[test]
fn no_unwrap_outside_tests_and_the_generator() {
    let mut wrong = Vec::new();
    for source in sources() {
        if source.is_test() || source.is_generated() || source.path.starts_with("protocol/codegen") {
            continue;
        }
        for line in source.code_lines().filter(|line| line.contains(".unwrap()")) {
            wrong.push(format!("{}: {}", source.path, line.trim()));
        }
    }
    assert_none("unwrap", wrong);
}

#[test]
fn no_test_is_ignored_or_expected_to_panic() {
    // Put together here, so that this file is not among the findings.
    let marks = ["ignore", "should_panic"].map(|mark| format!("#[{mark}"));
    let has_mark = |source: &Source| marks.iter().any(|mark| source.code.contains(mark.as_str()));
    assert_none("tests", sources().into_iter().filter(has_mark).map(|source| source.path).collect());
}

/// Bounds so wide that only what hangs reaches them, by their names.
const WIDE: &[&str] = &["LONG", "LIMIT", "PATIENCE", "END_MAX", "limit"];

/// The times that a file measures: `elapsed()` itself, and what it is called afterwards.
fn measured(source: &Source) -> Vec<String> {
    let bound = source.code.lines().filter_map(|line| {
        let (names, value) = line.trim().strip_prefix("let ")?.split_once(" = ")?;
        value.contains(".elapsed()").then(|| names.replace(['(', ')'], "").replace("mut ", ""))
    });
    let names: Vec<String> = bound.collect();
    let names = names.iter().flat_map(|names| names.split(", "));
    names.map(str::to_owned).chain(["elapsed()".to_owned()]).collect()
}

/// An upper bound of a measured time in a line of an assertion, unless it is a wide one.
fn narrow_bound<'l>(line: &'l str, measured: &[String]) -> Option<&'l str> {
    measured.iter().find_map(|time| {
        let (before, behind) = line.split_once(&format!("{time} <"))?;
        let whole = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let bound = behind.trim_start_matches('=').trim_start();
        let name = bound.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        (whole && !WIDE.contains(&name)).then_some(bound)
    })
}

/// What a machine that is slow or busy decides is a figure: `cargo bench-gpu` and `cargo shares` measure it.
#[test]
fn no_test_passes_by_the_speed_of_the_machine() {
    let mut wrong = Vec::new();
    // This file has examples.
    for source in sources().into_iter().filter(|source| !source.path.ends_with("tests/tidy.rs")) {
        let measured = measured(&source);
        for line in source.code.lines() {
            let asserts = ["assert!(", "ensure!("].iter().any(|mark| line.contains(mark));
            if asserts && narrow_bound(line, &measured).is_some() {
                wrong.push(format!("{}: {}", source.path, line.trim()));
            }
        }
        let words = source.code.split(|c: char| !c.is_alphanumeric() && c != '_');
        let tries = words.filter(|word| ["TRIES", "RETRIES"].contains(word)).count();
        if tries > 0 {
            wrong.push(format!("{} tries something again until it works", source.path));
        }
    }
    assert_none("tests that a busy machine decides", wrong);
}

#[test]
fn bounds_of_time_are_told_apart() {
    let measured = ["took".to_owned(), "elapsed()".to_owned()];
    let narrow = |line| narrow_bound(line, &measured).is_some();
    assert!(
        narrow("assert!(took < SAFETY_POLL);") && narrow("ensure!(start.elapsed() <= 2 * SECOND, \"late\");")
    );
    assert!(!narrow("assert!(start.elapsed() < LONG);") && !narrow("ensure!(took >= AGE && mistook < 3);"));
}

#[test]
fn no_file_is_endless() {
    let mut wrong = Vec::new();
    for source in sources().into_iter().filter(|source| !source.is_generated()) {
        let lines = source.code_lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{}: {lines} lines", source.path));
        }
    }
    assert_none("files to split", wrong);
}

#[test]
fn open_points_name_an_issue() {
    let mark = ["TO", "DO"].concat();
    let mut wrong = Vec::new();
    for source in sources() {
        for line in
            source.code.lines().filter(|line| line.contains(&mark) && !line.contains(&format!("{mark}(#")))
        {
            wrong.push(format!("{}: {}", source.path, line.trim()));
        }
    }
    assert_none("open points", wrong);
}
