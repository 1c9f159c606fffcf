//! The tests, fuzz targets, modules, files, options and commands that the documents name exist.

use tests::documents::{Known, all, stale, unneeded};

#[test]
fn what_documents_name_exists() {
    let (known, documents) = (Known::of_repository(), all());
    let spans: usize = documents.iter().map(|document| document.spans().count()).sum();
    assert!(documents.len() > 20 && spans > 1000, "{spans} names in {} documents", documents.len());
    let stale: Vec<_> = documents.iter().flat_map(|document| stale(document, &known)).collect();
    assert!(stale.is_empty(), "names of what does not exist:\n{}", stale.join("\n"));
    let unneeded = unneeded(&documents, &known);
    assert!(unneeded.is_empty(), "exceptions that no document needs: {unneeded:?}");
}
