//! The rules by which a name in a document is looked up.
//!
//! | form | must be |
//! | --- | --- |
//! | `daemon/src/lib.rs`, `docs/*.md` | a path from the repository's folder on |
//! | `bridge/hangs`, `vms/reload.rs`, `generated/` | the end of a path, with or without `.rs` |
//! | `limits.rs` | a file's name |
//! | `serve::hangs`, `shm::Guard` | the end of the path of a module, or of a name in it; from a crate on if it begins with one |
//! | `Broker::end` | a type's field, variant, constant or method |
//! | `--option`, `status --json` | an option of the daemon, or of a program whose command the document names |
//! | `cargo command --bin name` | an alias or a command of cargo, and the names behind its options |
//! | a word behind "fuzz targets", "tests" | a fuzz target, a test |
//! | names behind "unit tests of", "fuzz targets of" | modules with unit tests, or with entry points for fuzzing, in them |
//! | a word in a column "shown by" or "test" | a test, unless such words are before it |

use super::commands::{in_line, in_span, unknown_options, words};
use super::known::{Known, ends_with};
use super::markdown::{Document, Passage};

/// Types of the crates that documents compare with.
const FOREIGN_TYPES: &[&str] =
    &["BackendReqHandler", "EventNotifier", "MmapLogReg", "Queue", "VringState", "VringT"];

/// Options of other programs that documents name alone, with the document and the program.
const FOREIGN_OPTIONS: &[(&str, &str)] = &[
    // cargo's
    ("docs/packaging.md", "--example"),
    ("docs/performance.md", "--release"),
    // crosvm's
    ("docs/doctor.md", "--vhost-user"),
    ("docs/snapshots.md", "--restore"),
    ("docs/snapshots.md", "--suspended-vcpus"),
    // rustc's
    ("docs/packaging.md", "--remap-path-prefix"),
];

/// The columns of tables whose cells name tests.
const EVIDENCE: &[&str] = &["shown by", "test"];

/// The kind of the words that follow in a passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Any,
    Test,
    Target,
    Tested,
    Fuzzed,
}

/// The names in a document that no part of the repository has, each with its line.
#[must_use]
pub fn stale(document: &Document, known: &Known) -> Vec<String> {
    let names_tools = names_tools(document, known);
    let mut found = Vec::new();
    for passage in &document.passages {
        for (line, span, kind) in kinds(passage) {
            let stale = in_code_span(span, kind, document, known, names_tools);
            found.extend(stale.into_iter().map(|name| format!("{}:{line}: {name}", document.path)));
        }
    }
    for (line, code) in &document.code {
        found
            .extend(in_line(code, known).into_iter().map(|name| format!("{}:{line}: {name}", document.path)));
    }
    found
}

/// The entries of the tables of exceptions that no document needs.
#[must_use]
pub fn unneeded(documents: &[Document], known: &Known) -> Vec<String> {
    let has_span =
        |document: &Document, is_it: &dyn Fn(&str) -> bool| document.spans().any(|(_, span)| is_it(span));
    let names_type = |name: &str| {
        let is_it = |span: &str| span.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"));
        documents.iter().any(|document| has_span(document, &is_it))
    };
    let types = FOREIGN_TYPES.iter().filter(|name| !names_type(name)).map(|name| (*name).to_owned());
    let names_option = |path: &str, option: &str| {
        let is_it = |span: &str| words(span).contains(&option);
        let mut documents = documents.iter().filter(|document| document.path == path);
        documents.any(|document| has_span(document, &is_it)) && !known.options.contains(option)
    };
    let options = FOREIGN_OPTIONS.iter().filter(|(path, option)| !names_option(path, option));
    types.chain(options.map(|(path, option)| format!("{path}: {option}"))).collect()
}

/// The document names the command of a program of this package, and so may explain its options.
fn names_tools(document: &Document, known: &Known) -> bool {
    let spans = document.spans().map(|(_, span)| span);
    let mut commands = spans.chain(document.code.iter().map(|(_, line)| line.as_str()));
    commands.any(|command| match words(command)[..] {
        ["cargo", alias, ..] => known.aliases.contains(alias),
        [program, ..] => known.programs.contains(program),
        [] => false,
    })
}

/// The code spans of a passage, with their lines and the kinds that the words before them give.
fn kinds(passage: &Passage) -> Vec<(usize, &str, Kind)> {
    let is_evidence = passage.column.as_deref().is_some_and(|column| EVIDENCE.contains(&column));
    let default = if is_evidence { Kind::Test } else { Kind::Any };
    let mut kind = default;
    let mut found = Vec::new();
    for piece in &passage.pieces {
        if piece.is_code {
            found.push((piece.line, piece.text.as_str(), kind));
        } else {
            kind = kind_behind(&piece.text, kind, default);
        }
    }
    found
}

/// The kind of a word behind a text, if the word before it was of the kind `before`.
fn kind_behind(text: &str, before: Kind, default: Kind) -> Kind {
    let behind = [
        ("unit test ", Kind::Tested),
        ("unit tests of ", Kind::Tested),
        ("simulations in ", Kind::Tested),
        ("fuzz targets of ", Kind::Fuzzed),
        ("fuzz target ", Kind::Target),
        ("fuzz targets ", Kind::Target),
        ("test ", Kind::Test),
        ("tests ", Kind::Test),
    ];
    match behind.iter().find(|(words, _)| text.to_lowercase().ends_with(words)) {
        Some((_, kind)) => *kind,
        // A list goes on.
        None if [", ", " and ", " or ", ", and "].contains(&text) => before,
        None => default,
    }
}

/// The stale names of a code span.
fn in_code_span(
    span: &str,
    kind: Kind,
    document: &Document,
    known: &Known,
    names_tools: bool,
) -> Vec<String> {
    let unless = |is_known: bool| if is_known { Vec::new() } else { vec![span.to_owned()] };
    if span.starts_with("--") {
        let is_foreign = |option: &str| FOREIGN_OPTIONS.contains(&(&document.path, option));
        return unknown_options(&words(span), |option| {
            known.options.contains(option)
                || names_tools && known.tool_options.contains(option)
                || is_foreign(option)
        });
    }
    if span.contains(char::is_whitespace) {
        return in_span(span, known);
    }
    let is_path_of_code = span.contains("::") && span.split("::").all(is_identifier);
    if is_word(span) || is_path_of_code {
        return unless(match kind {
            Kind::Tested => known.is_tested(span),
            Kind::Fuzzed => known.is_fuzzed(span),
            _ if is_path_of_code => is_known_in_code(span, known),
            Kind::Test => known.has_test(span) || known.test_functions.contains(span),
            Kind::Target => known.has_target(span),
            Kind::Any => true,
        });
    }
    let braces = expanded(span);
    let missing = braces.into_iter().filter(|path| !is_path(path, known));
    missing.collect()
}

/// A path such as `serve::hangs`, `Broker::end` or `shm::Guard::new` names something.
fn is_known_in_code(path: &str, known: &Known) -> bool {
    let (before, last) = path.rsplit_once("::").expect("it has two parts");
    let of_type = before.rsplit("::").next().unwrap_or(before);
    if !of_type.starts_with(char::is_uppercase) {
        return known.has_name(path);
    }
    let has_member = known.members.get(of_type).is_some_and(|members| members.contains(last));
    has_member && (before == of_type || known.has_name(before)) || FOREIGN_TYPES.contains(&of_type)
}

/// The path names a file or folder, or is not one of this repository: absolute, with a placeholder, or with letters that no module has.
fn is_path(path: &str, known: &Known) -> bool {
    let is_own_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let (folder, rest) = path.split_once('/').unwrap_or(("", path));
    if path.contains(['<', '$', '…']) || path.contains("://") {
        return true;
    }
    if !folder.is_empty() && known.paths.contains(folder) {
        let path = path.trim_end_matches('/');
        return rest.is_empty() || known.paths.iter().any(|there| fits(there, path));
    }
    let end = path.strip_prefix("*/").unwrap_or(path);
    let stem = end.strip_suffix(".rs").unwrap_or(end).trim_end_matches('/');
    let is_own = !end.starts_with('/') && (end.contains('/') || end != stem) && !stem.is_empty();
    if !is_own || !stem.split('/').all(|part| !part.is_empty() && part.chars().all(is_own_letter)) {
        return true;
    }
    let end = end.trim_end_matches('/');
    known.paths.iter().any(|there| ends_with(there, end) || ends_with(there.trim_end_matches(".rs"), end))
}

/// A path fits one that may have asterisks.
fn fits(path: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => path == pattern,
        Some((begin, end)) => path.strip_prefix(begin).is_some_and(|rest| {
            let within = rest.find('/').unwrap_or(rest.len());
            (0..=within).filter_map(|at| rest.get(at..)).any(|rest| fits(rest, end))
        }),
    }
}

/// Each of the texts that `a/{b,c}` stands for.
fn expanded(text: &str) -> Vec<String> {
    let parts = text.split_once('{').and_then(|(begin, rest)| Some((begin, rest.split_once('}')?)));
    let Some((begin, (middle, end))) = parts else { return vec![text.to_owned()] };
    middle.split(',').flat_map(|part| expanded(&format!("{begin}{part}{end}"))).collect()
}

/// A text is one word of code: a name of a test, a target or a module.
fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn known() -> Known {
        Known {
            paths: set(&[
                "daemon",
                "daemon/src",
                "daemon/src/lib.rs",
                "daemon/src/serve/hangs.rs",
                "daemon/src/serve",
                "fuzz",
                "fuzz/fuzz_targets/trace.rs",
                "tests",
                "tests/tests/behaviour/quotas.rs",
                "tests/tests/bridge/hangs.rs",
                "tests/tests/bridge/main.rs",
            ]),
            names: set(&[
                "daemon",
                "daemon::serve",
                "daemon::serve::hangs",
                "shm",
                "shm::guard",
                "shm::guard::Guard",
            ]),
            crates: set(&["daemon", "shm"]),
            tested: set(&["daemon", "daemon::serve", "daemon::serve::hangs", "shm", "shm::guard"]),
            fuzzed: set(&["daemon", "daemon::serve"]),
            members: [("Broker".to_owned(), set(&["end"])), ("Guard".to_owned(), set(&["new"]))].into(),
            test_functions: set(&["no_clock_jumps"]),
            aliases: set(&["soak"]),
            options: set(&["--gpu", "--strikes"]),
            tool_options: set(&["--hours"]),
            ..Known::default()
        }
    }

    fn stale_in(text: &str) -> Vec<String> {
        stale(&Document::new("x.md", text), &known())
    }

    #[test]
    fn names_that_exist_are_not_stale_and_those_of_others_are_not_looked_at() {
        for text in [
            "`daemon/src/lib.rs`, `daemon/`, `daemon/src/{lib,serve/hangs}.rs`, `daemon/src/serve/h*`, `serve/hangs.rs`",
            "`bridge/hangs`, `serve/`, `hangs.rs`, `/run/x.rs`, `hw/virtio/vhost.c`, `a.b/c`, `daemon/<name>`, `x/NAME`",
            "`serve::hangs`, `daemon::serve`, `shm::guard::Guard`, `Broker::end`, `guard::Guard::new`, `VringT::get_ref`",
            "`--gpu 3 --strikes=4`, `anything`, `gpu`, `f::g(h)`, `a b/c`",
            "`--hours` of `cargo soak`",
            "fuzz targets `trace`, tests `bridge`, `quotas` and `no_clock_jumps`, unit tests of `hangs` and `shm`",
            "fuzz targets of `serve`",
            "| shown by |\n| - |\n| `quotas` (with `--gpu`), unit tests of `serve::hangs` and `guard`; `bridge/hangs` |",
        ] {
            assert_eq!(stale_in(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn stale_names_are_found() {
        for (text, stale) in [
            ("`daemon/src/main.rs`", "daemon/src/main.rs"),
            ("`daemon/src/{lib,serve/hang}.rs`", "daemon/src/serve/hang.rs"),
            ("`daemon/src/g*`", "daemon/src/g*"),
            ("`daemon/hangs.rs`", "daemon/hangs.rs"),
            ("`bridge/chaos`", "bridge/chaos"),
            ("`ridge/hangs`", "ridge/hangs"),
            ("`hang.rs`", "hang.rs"),
            ("`serves/`", "serves/"),
            ("`serve::blame`", "serve::blame"),
            ("`hangs::serve`", "hangs::serve"),
            ("`daemon::hangs`", "daemon::hangs"),
            ("`shm::Guard`", "shm::Guard"),
            ("`Broker::stop`", "Broker::stop"),
            ("`Breaker::end`", "Breaker::end"),
            ("`lock::Guard::new`", "lock::Guard::new"),
            ("`--strike 3`", "--strike"),
            ("`--hours 3`", "--hours"),
            ("`cargo churn`", "cargo churn"),
            ("    cargo churn", "cargo churn"),
            ("fuzz targets `trace` and `broker`", "broker"),
            ("the test `quota`", "quota"),
            ("unit tests of `blame`", "blame"),
            ("unit tests of `shm`, `shm::guard::Guard`", "shm::guard::Guard"),
            ("fuzz targets of `shm`", "shm"),
            ("the unit test `shm::doorbell`", "shm::doorbell"),
            ("| test |\n| - |\n| `bridge`, `hang` |", "hang"),
            ("| shown by |\n| - |\n| unit tests of `hangs`; `hang` |", "hang"),
            ("| shown by |\n| - |\n| fuzz targets `trace`, `hangs` |", "hangs"),
        ] {
            let found = stale_in(text);
            assert!(found.len() == 1 && found[0].ends_with(&format!(": {stale}")), "{text}: {found:?}");
        }
    }
}
