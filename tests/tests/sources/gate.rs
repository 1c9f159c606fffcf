//! Tests that are not in the gate: each is marked `#[ignore]` with its reason, and tests/README.md lists it with that reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use syn::{Expr, Item, Lit, Meta};
use tests::sources::{PACKAGES, below, repository};

/// The heading of the list in tests/README.md.
const HEADING: &str = "## What --all adds";

/// The tests below these items that are marked, each as a line of the list.
fn marked(items: &[Item], path: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for item in items {
        match item {
            Item::Mod(module) => {
                let inside = module.content.as_ref().map_or(&[][..], |(_, items)| items);
                lines.extend(marked(inside, &format!("{path}::{}", module.ident)));
            }
            Item::Fn(function) => {
                let marks = function.attrs.iter().filter(|attribute| attribute.path().is_ident("ignore"));
                lines.extend(
                    marks.map(|mark| format!("- `{path}::{}`: {}", function.sig.ident, reason(&mark.meta))),
                );
            }
            _ => {}
        }
    }
    lines
}

/// The reason in a mark; empty if there is none.
fn reason(mark: &Meta) -> String {
    let Meta::NameValue(named) = mark else { return String::new() };
    let Expr::Lit(literal) = &named.value else { return String::new() };
    let Lit::Str(text) = &literal.lit else { return String::new() };
    text.value()
}

/// The name for the tests of a file: `bridge/chaos` for `tests/tests/bridge/chaos.rs`.
fn name(file: &str) -> String {
    let path = file.strip_prefix("tests/tests/").unwrap_or(file);
    Path::new(path).with_extension("").display().to_string()
}

#[test]
fn what_is_left_to_all_is_listed_with_its_reason() {
    let mut marks = BTreeSet::new();
    for source in PACKAGES.iter().flat_map(|package| below(package)) {
        marks.extend(marked(&source.parse().items, &name(&source.path)));
    }
    let readme = fs::read_to_string(repository().join("tests/README.md")).expect("tests/README.md");
    let list = readme.split_once(HEADING).expect("the list has its heading").1;
    let list = list.split("\n## ").next().unwrap_or_default();
    let listed: BTreeSet<_> =
        list.lines().filter(|line| line.starts_with("- `")).map(str::to_owned).collect();
    let unlisted: Vec<_> = marks.difference(&listed).cloned().collect();
    let stale: Vec<_> = listed.difference(&marks).cloned().collect();
    assert!(unlisted.is_empty(), "tests/README.md does not list:\n{}", unlisted.join("\n"));
    assert!(stale.is_empty(), "tests/README.md lists tests that are not marked so:\n{}", stale.join("\n"));
    let unreasoned: Vec<_> = marks.iter().filter(|mark| mark.ends_with("`: ")).collect();
    assert!(unreasoned.is_empty(), "marks without a reason: {unreasoned:?}");
}

#[test]
fn marks_are_found_with_their_reasons() {
    let file = syn::parse_file(
        "#[test] #[ignore = \"long\"] fn a() {} #[test] fn b() {} mod m { #[ignore] fn c() {} }",
    )
    .unwrap();
    assert_eq!(marked(&file.items, &name("tests/tests/vm/x.rs")), ["- `vm/x::a`: long", "- `vm/x::m::c`: "]);
}
