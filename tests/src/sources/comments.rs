//! Documentation comments whose first sentence has no subject: it begins with a word that asks, points at something unsaid, or goes on
//! from nowhere.
//!
//! A rule is the beginning of a sentence, so it says little about the rest; the writer decides.

use super::{Source, below};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

/// Words with which no first sentence may begin.
pub const BEGINNINGS: &[&str] = &[
    "What",
    "Whatever",
    "Who",
    "Whoever",
    "Whose",
    "Whom",
    "Whether",
    "Which",
    "Where",
    "When",
    "Why",
    "How",
    "By how",
    "For how",
    "From when",
    "Since when",
    "Until when",
    "In which",
    "On which",
    "At which",
    "To which",
    "Of which",
    "With which",
    "It",
    "Its",
    "Those",
    "These",
    "They",
    "That",
    "One that",
    "One of those",
    "The same",
    "So many",
    "So long",
    "So much",
    "As",
    "Like",
    "Of",
    "And",
    "Or",
    "But",
    "Also",
    "Then",
];

/// A comment that a rule is against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offender {
    /// The line where it begins.
    pub line: usize,
    /// The first line of the comment.
    pub text: String,
}

/// The files whose comments count: those of the product and of the tests.
///
/// # Panics
/// A folder cannot be read.
#[must_use]
pub fn documented() -> Vec<Source> {
    let sources = ["daemon", "protocol", "tests"].into_iter().flat_map(below);
    sources.filter(|source| !source.is_generated()).collect()
}

/// The offenders of a file, in the order of its items; comments within the bodies of macros are not seen.
#[must_use]
pub fn offenders(source: &Source) -> Vec<Offender> {
    let mut comments = Comments::default();
    comments.visit_file(&source.parse());
    comments.offenders
}

#[derive(Default)]
struct Comments {
    offenders: Vec<Offender>,
    /// The line of the last comment that was seen: one that follows directly goes on with it.
    last: Option<usize>,
}

impl<'ast> Visit<'ast> for Comments {
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("doc")
            && let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &pair.value
        {
            let (line, end) = (text.span().start().line, text.span().end().line);
            if self.last != Some(line - 1) && has_no_subject(&text.value()) {
                let text = text.value().lines().next().unwrap_or_default().trim().to_owned();
                self.offenders.push(Offender { line, text });
            }
            self.last = Some(end);
        }
        visit::visit_attribute(self, attribute);
    }
}

/// A text begins as no sentence with a subject does.
#[must_use]
pub fn has_no_subject(text: &str) -> bool {
    let text = text.trim_start();
    BEGINNINGS.iter().any(|beginning| {
        text.strip_prefix(beginning)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_told_by_their_first_words() {
        for text in
            ["What it is.", " Whether it is.", "How long it takes", "The same for two.", "It's", "Of a ring."]
        {
            assert!(has_no_subject(text), "{text}");
        }
        for text in ["Whatsoever.", "The ring.", "Returns what it is.", "Items of it.", "`What` is it.", ""] {
            assert!(!has_no_subject(text), "{text}");
        }
    }

    #[test]
    fn first_sentences_are_looked_at_wherever_they_are_and_others_are_not() {
        let code = "//! What it is.\n//!\n//! How it is.\n\n/// The ring.\n/// Whose it is.\nstruct S {\n    /// Its end.\n    end: u8,\n}\n\
                    impl S {\n    /** Like that. */\n    fn f() {}\n}\n/// Who.\n\n/// Those.\nfn g() {}";
        let found = offenders(&Source { path: String::new(), code: code.to_owned() });
        let lines: Vec<_> = found.iter().map(|offender| offender.line).collect();
        assert_eq!(lines, [1, 8, 12, 15, 17]);
        assert_eq!(found[1].text, "Its end.");
    }
}
