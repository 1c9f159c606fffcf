//! House rules that a compiler does not check: heads of files, where `unsafe` is and how often, names, sizes.
//!
//! The tests parse the files, so that no code escapes them behind tests, in text or in comments.

use std::collections::BTreeSet;
use std::path::Path;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Local, Macro};
use tests::sources::conditions::{TEST, attributes, needs, without_tests};
use tests::sources::words::{calls_of, idents, unsafe_count};
use tests::sources::{Source, TOOLS, all, product};

/// Places that may have unsafe code, and how much: blocks, functions, implementations, attributes, and the word in macros. A number may
/// fall freely; it rises only in a commit that changes it here. All other places have no unsafe code.
const UNSAFE: &[(&str, usize)] = &[
    ("daemon/shm/src/", 36),
    ("daemon/src/sandbox/sys.rs", 24),
    ("daemon/src/interpose.rs", 9),
    ("daemon/doctor/src/guest/virtgpu.rs", 4),
    ("daemon/examples/escape.rs", 3),
    // One or two calls for each command of the allow-list, all of one form.
    ("daemon/vulkan/src/dispatch/generated/", 441),
    ("daemon/vulkan/src/driver/generated/", 441),
    ("daemon/vulkan/src/objects/generated/", 26),
    // A driver that no product loads.
    ("daemon/vulkan/src/null/", 167),
    ("daemon/vulkan/src/", 344),
    // Tokens of the code that it generates.
    ("protocol/codegen/src/emit/", 5),
    ("tests/examples/hidden_memory_layer.rs", 23),
    ("tests/examples/loader/mod.rs", 4),
    ("tests/examples/small_floats_layer.rs", 9),
    ("tests/src/bin/differential/", 479),
    ("tests/src/bin/gauge/", 29),
    ("tests/src/bin/hog.rs", 23),
    ("tests/src/bin/lost_device/gpu.rs", 12),
    ("tests/src/bin/many_blobs.rs", 14),
    ("tests/src/bin/many_threads/gpu.rs", 17),
    ("tests/src/bin/residue/gpu.rs", 9),
    ("tests/src/bin/small_memory/", 8),
    ("tests/src/bin/tenant/gpu.rs", 9),
    ("tests/src/bin/share_memory/gpu.rs", 11),
    ("tests/src/bin/unloaded_driver/", 1),
];

/// Crates in which the compiler forbids unsafe code.
const FORBIDDING: &[&str] = &[
    "daemon/config/src/lib.rs",
    "daemon/outside/src/lib.rs",
    "daemon/readiness/src/lib.rs",
    "daemon/sched/src/lib.rs",
    "daemon/waiting/src/lib.rs",
    "protocol/src/lib.rs",
    "protocol/codegen/src/main.rs",
    "tests/src/lib.rs",
];

/// The most lines of a file, tests not counted; longer files are split.
const LINES_MAX: usize = 1000;

const FORBIDDEN_MODULES: &[&str] = &["util", "utils", "common", "misc", "helpers", "helper"];

fn assert_none(what: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

fn line(source: &Source, line: usize) -> String {
    let text = source.code.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
    format!("{}:{line}: {text}", source.path)
}

#[test]
fn every_file_opens_with_what_it_is() {
    let mut wrong = all();
    wrong.retain(|source| !source.code.starts_with("//! "));
    assert_none("files without a head", &wrong.into_iter().map(|source| source.path).collect::<Vec<_>>());
}

#[test]
fn unsafe_code_is_where_it_may_be_and_not_more() {
    let mut counts = vec![0; UNSAFE.len()];
    let mut wrong = Vec::new();
    for source in all() {
        let file = source.parse();
        let count = unsafe_count(&file);
        match UNSAFE.iter().position(|(place, _)| source.path.starts_with(place)) {
            Some(place) => counts[place] += count,
            None if count > 0 => wrong.push(format!("{}: {count}", source.path)),
            None => {}
        }
        let forbids = |attribute: &Attribute| {
            let words = || attribute.meta.require_list().map(|list| idents(&list.tokens)).unwrap_or_default();
            attribute.path().is_ident("forbid") && words().iter().any(|(word, _)| word == "unsafe_code")
        };
        if FORBIDDING.contains(&source.path.as_str()) && !file.attrs.iter().any(forbids) {
            wrong.push(format!("{} does not forbid it", source.path));
        }
    }
    for ((place, limit), count) in UNSAFE.iter().zip(counts) {
        if count > *limit {
            wrong.push(format!("{place}: {count}, {limit} are agreed"));
        }
    }
    assert_none("unsafe code", &wrong);
}

#[test]
fn no_module_has_a_name_that_says_nothing() {
    let is_forbidden = |source: &Source| {
        Path::new(&source.path)
            .iter()
            .any(|part| FORBIDDEN_MODULES.contains(&part.to_string_lossy().trim_end_matches(".rs")))
    };
    let wrong = all().into_iter().filter(is_forbidden).map(|source| source.path);
    assert_none("modules", &wrong.collect::<Vec<_>>());
}

#[test]
fn no_unwrap_outside_tests_and_the_generator() {
    let mut wrong = Vec::new();
    for source in product() {
        let mut file = source.parse();
        without_tests(&mut file);
        wrong.extend(calls_of(&file, "unwrap").into_iter().map(|at| line(&source, at)));
    }
    assert_none("unwrap", &wrong);
}

/// Names of clocks that follow the time of day, or count a suspension of the machine: they jump.
const JUMPING: &[&str] = &[
    "SystemTime",
    "UNIX_EPOCH",
    "Realtime",
    "RealtimeCoarse",
    "Boottime",
    "CLOCK_REALTIME",
    "CLOCK_BOOTTIME",
];

/// The only file that uses the time of day: it only writes the time into the log.
const TIME_OF_DAY: &str = "daemon/src/service/form.rs";

/// Times are measured, and timers set, by the monotonic clock, so that an operator who sets the machine's clock ends no submission and no
/// session. The code of the product names no other clock, except for the times of lines in its log.
#[test]
fn no_clock_of_the_product_jumps() {
    let mut wrong = Vec::new();
    let is_tool = |path: &str| TOOLS.iter().any(|folder| path.starts_with(&format!("{folder}/")));
    let others = |source: &Source| !source.is_generated() && source.path != TIME_OF_DAY;
    for source in all().into_iter().filter(|source| others(source) && !is_tool(&source.path)) {
        let tokens = source.code.parse().unwrap_or_else(|error| panic!("{}: {error}", source.path));
        let jumps = idents(&tokens).into_iter().filter(|(name, _)| JUMPING.contains(&name.as_str()));
        wrong.extend(jumps.map(|(_, at)| line(&source, at)));
    }
    assert_none("clocks that jump", &wrong);
}

/// The lines of attributes that keep a test from running, or from failing.
struct Marks {
    lines: Vec<usize>,
    may_be_ignored: bool,
}

impl<'ast> Visit<'ast> for Marks {
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let inside = || match &attribute.meta {
            syn::Meta::List(list) if list.path.is_ident("cfg_attr") => idents(&list.tokens),
            _ => Vec::new(),
        };
        let named = attribute.path().get_ident().map(|name| (name.to_string(), name.span().start().line));
        let marks = named.into_iter().chain(inside());
        let is_one = |name: &str| name == "should_panic" || name == "ignore" && !self.may_be_ignored;
        let lines: Vec<_> = marks.filter(|(name, _)| is_one(name)).map(|(_, line)| line).collect();
        self.lines.extend(lines);
    }
}

#[test]
fn no_test_is_expected_to_panic_and_none_is_ignored_but_those_of_programs() {
    let mut wrong = Vec::new();
    for source in all().into_iter().filter(|source| !source.is_generated()) {
        // `gate` looks at the reasons of these.
        let may_be_ignored = source.path.starts_with("tests/tests/");
        let mut marks = Marks { lines: Vec::new(), may_be_ignored };
        marks.visit_file(&source.parse());
        wrong.extend(marks.lines.into_iter().map(|at| line(&source, at)));
    }
    assert_none("tests", &wrong);
}

/// The names of bounds so wide that only a hang reaches them.
const WIDE: &[&str] = &["LONG", "LIMIT", "PATIENCE", "END_MAX", "limit"];

/// The times that a file measures, and its assertions.
struct Measured {
    /// `elapsed` itself, and the names of variables with its value.
    times: BTreeSet<String>,
    /// The tokens of each assertion, with its line.
    asserted: Vec<(proc_macro2::TokenStream, usize)>,
}

impl<'ast> Visit<'ast> for Measured {
    fn visit_local(&mut self, local: &'ast Local) {
        let takes_time = |init: &syn::LocalInit| {
            let mut calls = Times(false);
            calls.visit_expr(&init.expr);
            calls.0
        };
        if local.init.as_ref().is_some_and(takes_time) {
            let mut names = Names(&mut self.times);
            names.visit_pat(&local.pat);
        }
        visit::visit_local(self, local);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        if ["assert", "ensure", "debug_assert"].contains(&name.as_str()) {
            self.asserted.push((call.tokens.clone(), call.path.span().start().line));
        }
    }
}

/// Finds calls of `elapsed`, but none in closures and blocks.
struct Times(bool);

impl<'ast> Visit<'ast> for Times {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.0 |= call.method == "elapsed";
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {}

    fn visit_block(&mut self, _: &'ast syn::Block) {}
}

/// The names that a pattern binds.
struct Names<'n>(&'n mut BTreeSet<String>);

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.0.insert(pattern.ident.to_string());
    }
}

impl Measured {
    fn of(file: &syn::File) -> Self {
        let mut measured = Self { times: ["elapsed".to_owned()].into(), asserted: Vec::new() };
        measured.visit_file(file);
        measured
    }

    /// The lines of assertions that bound a measured time from above by a bound that is not wide.
    fn narrow_bounds(&self) -> Vec<usize> {
        let narrow = self.asserted.iter().filter(|(tokens, _)| self.is_narrow(&words(tokens)));
        narrow.map(|(_, line)| *line).collect()
    }

    fn is_narrow(&self, words: &[String]) -> bool {
        words.iter().enumerate().any(|(at, word)| {
            let call = if words.get(at + 1).is_some_and(|next| next == "(") { 2 } else { 0 };
            let is_bounded =
                self.times.contains(word) && words.get(at + 1 + call).is_some_and(|next| next == "<");
            let mut bound = words[at + 1..].iter().skip(call + 1).skip_while(|word| *word == "=");
            is_bounded && !bound.next().is_some_and(|name| WIDE.contains(&name.as_str()))
        })
    }
}

/// Tokens as words; parentheses are tokens of their own.
fn words(tokens: &proc_macro2::TokenStream) -> Vec<String> {
    let word = |token| match token {
        proc_macro2::TokenTree::Group(group) => {
            [vec!["(".to_owned()], words(&group.stream()), vec![")".to_owned()]].concat()
        }
        other => vec![other.to_string()],
    };
    tokens.clone().into_iter().flat_map(word).collect()
}

/// A slow or busy machine may change figures, but not the results of tests: `cargo bench-gpu` and `cargo shares` measure figures.
#[test]
fn no_test_passes_by_the_speed_of_the_machine() {
    let mut wrong = Vec::new();
    // This file has examples of such assertions.
    let sources = all()
        .into_iter()
        .filter(|source| !source.is_generated() && source.path != "tests/tests/sources/tidy.rs");
    for source in sources {
        let file = source.parse();
        wrong.extend(Measured::of(&file).narrow_bounds().into_iter().map(|at| line(&source, at)));
        let tries =
            idents(&source.tokens()).into_iter().filter(|(word, _)| word == "TRIES" || word == "RETRIES");
        wrong.extend(tries.map(|(_, at)| line(&source, at) + " tries something again until it works"));
    }
    assert_none("tests that a busy machine decides", &wrong);
}

#[test]
fn bounds_of_time_are_told_apart() {
    let narrow = |assertion: &str| {
        let code = format!("fn f() {{ let (took, mistook) = (start.elapsed(), 1); {assertion} }}");
        Measured::of(&syn::parse_file(&code).unwrap()).narrow_bounds().len()
    };
    for assertion in [
        "assert!(took < SAFETY_POLL);",
        "ensure!(start.elapsed() <= 2 * SECOND, \"late\");",
        "assert!(\n    all_is_well && (took\n        < SAFETY_POLL)\n);",
    ] {
        assert_eq!(narrow(assertion), 1, "{assertion}");
    }
    for assertion in ["assert!(start.elapsed() < LONG);", "ensure!(took >= AGE && other < 3);"] {
        assert_eq!(narrow(assertion), 0, "{assertion}");
    }
}

#[test]
fn no_file_is_endless() {
    let mut wrong = Vec::new();
    for source in all().into_iter().filter(|source| !source.is_generated()) {
        let of_tests = |item: &&Item| needs(attributes(item), TEST);
        let lines = |item: &Item| item.span().end().line + 1 - item.span().start().line;
        let tests: usize = source.parse().items.iter().filter(of_tests).map(lines).sum();
        let left = source.code.lines().count() - tests;
        if left > LINES_MAX {
            wrong.push(format!("{}: {left} lines", source.path));
        }
    }
    assert_none("files to split", &wrong);
}

#[test]
fn open_points_name_an_issue() {
    let mark = ["TO", "DO"].concat();
    let is_open = |line: &str| line.contains(&mark) && !line.contains(&format!("{mark}(#"));
    let mut wrong = Vec::new();
    for source in all() {
        let open = source.code.lines().enumerate().filter(|(_, text)| is_open(text));
        wrong.extend(open.map(|(at, _)| line(&source, at + 1)));
    }
    assert_none("open points", &wrong);
}
