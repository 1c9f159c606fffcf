//! The blocks of a page that its readers type or copy: those between lines of backticks, and the indented ones.

/// The blocks that are marked with this language, such as `sh`.
#[must_use]
pub fn fenced<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let marked = page.split("\n```").skip(1).step_by(2);
    let own = marked.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    own.collect()
}

/// The indented blocks below a heading of the second level, without their indentation: the lines of each.
#[must_use]
pub fn indented<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let section = page.split("\n## ").find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'));
    let mut blocks: Vec<Vec<&str>> = Vec::new();
    let mut goes_on = false;
    for line in section.unwrap_or_default().lines() {
        let code = line.strip_prefix("    ");
        match (code, blocks.last_mut()) {
            (Some(code), Some(block)) if goes_on => block.push(code),
            (Some(code), _) => blocks.push(vec![code]),
            (None, _) => {}
        }
        goes_on = code.is_some();
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# a\n\n    one\n\n```sh\nx\ny\n```\n\n## b\n\n    two\n    three\n\ntext\n    four\n\n```toml\nz\n```\n\n```sh\n\n```\n\n## c\n\n    five\n";

    #[test]
    fn blocks_of_a_language_are_found() {
        assert_eq!(
            (fenced(PAGE, "sh"), fenced(PAGE, "toml"), fenced(PAGE, "s")),
            (vec!["x\ny", ""], vec!["z"], vec![])
        );
    }

    #[test]
    fn blocks_of_a_section_are_found() {
        assert_eq!(indented(PAGE, "b"), [vec!["two", "three"], vec!["four"]]);
        assert_eq!((indented(PAGE, "c"), indented(PAGE, "d")), (vec![vec!["five"]], vec![]));
    }
}
