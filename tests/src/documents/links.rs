//! The links of a document: each leads to a file or folder of the repository and, if it names a heading, to one of that page. Links to other sites
//! are left out.

use super::Document;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the links of a document that lead nowhere, each with the document and the line where its passage begins.
#[must_use]
pub fn dead_links(document: &Document, root: &Path) -> Vec<String> {
    let texts = document.passages.iter().flat_map(|passage| &passage.pieces).filter(|piece| !piece.is_code);
    let links = texts.flat_map(|piece| targets(&piece.text).map(|target| (piece.line, target)));
    let dead = links.filter(|(_, target)| !leads_somewhere(target, &document.path, root));
    dead.map(|(line, target)| format!("{}:{line}: {target}", document.path)).collect()
}

/// Returns the targets of the links in a text.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

fn leads_somewhere(target: &str, from: &str, root: &Path) -> bool {
    if target.contains("://") {
        return true;
    }
    let (path, heading) = target.split_once('#').map_or((target, None), |(path, at)| (path, Some(at)));
    let page = root.join(from);
    let file = match (path, page.parent()) {
        ("", _) | (_, None) => page,
        (path, Some(folder)) => folder.join(path),
    };
    match heading {
        None => file.exists(),
        Some(heading) => fs::read_to_string(file).is_ok_and(|text| anchors(&text).contains(heading)),
    }
}

/// Returns the anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
            anchors.insert(anchor(heading.trim_start_matches('#').trim()));
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("docs")).unwrap();
        fs::write(
            folder.path().join("other.md"),
            "# What --all `adds`, or not?\n\n```sh\n# no heading\n```\n",
        )
        .unwrap();
        let page = folder.path().join("docs/page.md");
        fs::write(&page, text).unwrap();
        dead_links(&Document::new("docs/page.md", text), folder.path())
    }

    #[test]
    fn links_to_files_headings_and_other_sites_lead_somewhere() {
        let text = "# Here\n\n[a](../other.md) ![b](../other.md#what---all-adds-or-not), [`c`](page.md), [d\ne](#here),\n\
                    [f](https://example.org/#x) `[g](nowhere.md)`\n\n    [h](nowhere.md)\n";
        assert_eq!(dead(text), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        for target in [
            "other.md",
            "../docs/other.md",
            "../other.md#adds",
            "../other.md#no-heading",
            "#there",
            "page.md#",
        ] {
            let found = dead(&format!("# Here\n\n| a |\n| --- |\n| see [b]({target}) |\n"));
            assert_eq!(found, [format!("docs/page.md:5: {target}")]);
        }
    }
}
