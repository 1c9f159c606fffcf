//! The names in the documents: parts of the program, tests, options and commands that a document names must exist.
//!
//! `markdown` cuts a document into text, code spans and commands, `known` lists the parts of the repository, `names` compares the two. The kind of a
//! name follows from its form, or from the words before it. Names of other projects are recognised by their form, or stand in tables. `links` follows
//! links, `blocks` finds the commands that a page has its readers type. This module does not check the statements of documents about a name.

mod blocks;
mod commands;
mod known;
mod links;
mod markdown;
mod names;

pub use blocks::{fenced, indented};
pub use known::Known;
pub use links::dead_links;
pub use markdown::{Document, Passage, Piece};
pub use names::{stale, unneeded};

use crate::sources::repository;
use std::fs;

/// The documents at the top of the repository; those in `docs/` are found.
const AT_THE_TOP: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"];

/// All documents whose names are checked.
///
/// # Panics
/// A document cannot be read.
#[must_use]
pub fn all() -> Vec<Document> {
    let folder = fs::read_dir(repository().join("docs")).expect("there is a folder of documents");
    let names = folder.map(|entry| entry.expect("an entry of a folder").file_name());
    let names =
        names.map(|name| format!("docs/{}", name.to_string_lossy())).filter(|name| name.ends_with(".md"));
    let mut paths: Vec<_> = AT_THE_TOP.iter().map(|name| (*name).to_owned()).chain(names).collect();
    paths.sort();
    paths.iter().map(|path| one(path)).collect()
}

/// The document at a path, relative to the repository.
///
/// # Panics
/// The document cannot be read.
#[must_use]
pub fn one(path: &str) -> Document {
    let text = fs::read_to_string(repository().join(path));
    Document::new(path, &text.unwrap_or_else(|error| panic!("{path}: {error}")))
}
