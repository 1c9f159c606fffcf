//! The tests, fuzz targets, modules, files, options and commands that the documents name exist, their links lead somewhere, and the list of documents has
//! all of them.

use std::fs;
use tests::documents::{Known, all, dead_links, one, stale, unneeded};
use tests::sources::repository;

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
