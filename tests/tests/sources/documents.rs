//! The tests, fuzz targets, modules, files, options and commands that the documents name exist, their links lead somewhere, and the list of documents has
//! all of them.

use std::fs;
use tests::documents::{Known, all, dead_links, one, stale, unneeded};
use tests::sources::{product, repository};

/// The documents with links beside those whose names are checked.
const MORE: &[&str] =
    &["CHANGELOG.md", "fuzz/README.md", "guest-driver-patches/README.md", "tests/README.md"];

#[test]
fn what_documents_name_exists() {
    let (known, documents) = (Known::of_repository(), all());
    let spans: usize = documents.iter().map(|document| document.spans().count()).sum();
    assert!(documents.len() > 20 && spans > 1000, "{spans} names in {} documents", documents.len());
    let stale: Vec<_> = documents.iter().flat_map(|document| stale(document, &known)).collect();
    assert!(stale.is_empty(), "names of things that do not exist:\n{}", stale.join("\n"));
    let unneeded = unneeded(&documents, &known);
    assert!(unneeded.is_empty(), "exceptions that no document needs: {unneeded:?}");
}

#[test]
fn links_lead_somewhere() {
    let documents: Vec<_> = all().into_iter().chain(MORE.iter().map(|path| one(path))).collect();
    let dead: Vec<_> = documents.iter().flat_map(|document| dead_links(document, &repository())).collect();
    assert!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
}

#[test]
fn the_list_of_documents_has_all_of_them() {
    let list = fs::read_to_string(repository().join("docs/README.md")).expect("there is a list of documents");
    let names = fs::read_dir(repository().join("docs")).expect("there is a folder of documents");
    let names =
        names.map(|entry| entry.expect("an entry of a folder").file_name().to_string_lossy().into_owned());
    let is_listed = |name: &String| name == "README.md" || list.contains(&format!("({name})"));
    let unlisted: Vec<_> = names.filter(|name| name.ends_with(".md") && !is_listed(name)).collect();
    assert!(unlisted.is_empty(), "docs/README.md does not list {unlisted:?}");
}

/// Files of the product that name a version of Mesa although they do nothing for it: what guests are told, and the generator of a document.
const ABOUT_MESA: &[&str] = &[
    "daemon/doctor/src/guest/checks.rs",
    "daemon/doctor/src/libraries.rs",
    "daemon/examples/features-doc.rs",
];

#[test]
fn one_table_names_each_file_that_does_something_for_a_version_of_mesa() {
    let page = fs::read_to_string(repository().join("docs/hardware.md")).expect("the page is there");
    let table = page.split("## What each Mesa needs").nth(1).expect("the page has this part");
    let table = table.split("\n## ").next().expect("a part has text");
    let needed: Vec<_> = product()
        .into_iter()
        .filter(|source| names_a_mesa(&source.code) && !ABOUT_MESA.contains(&source.path.as_str()))
        .map(|source| source.path)
        .collect();
    assert!(needed.len() > 10, "only {needed:?} name a version of Mesa");
    let unlisted: Vec<_> = needed.iter().filter(|path| !table.contains(&format!("`{path}`"))).collect();
    assert!(unlisted.is_empty(), "docs/hardware.md does not say what these do for which Mesa: {unlisted:?}");
    let listed = table.split('`').filter(|span| span.ends_with(".rs"));
    let idle: Vec<_> = listed.filter(|path| !needed.iter().any(|needed| needed == path)).collect();
    assert!(idle.is_empty(), "these files name no version of Mesa: {idle:?}");
}

/// Returns whether a text names a version of Mesa, such as `Mesa before 26.2`.
fn names_a_mesa(text: &str) -> bool {
    let is_version = |word: &str| {
        let (year, number) = word.split_once('.').unwrap_or_default();
        year.len() == 2
            && year.bytes().all(|digit| digit.is_ascii_digit())
            && number.starts_with(|c: char| c.is_ascii_digit())
    };
    text.match_indices("Mesa ").any(|(at, _)| text[at..].split_whitespace().skip(1).take(4).any(is_version))
}
