//! Lines of styled text of an exact size, for a terminal.

use outside::visible;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: usize,
    pub(super) height: usize,
}

/// The look of a text. Without colours the terminal shows only bold and reversed text as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) tone: Tone,
    pub(super) bold: bool,
    pub(super) reversed: bool,
}

/// The meaning of a text, which its colour shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    /// Less important.
    Quiet,
    /// The GPU's time.
    Time,
    /// Memory.
    Memory,
    /// Worth a look.
    Attention,
}

impl Style {
    pub(super) const PLAIN: Self = Self { tone: Tone::Plain, bold: false, reversed: false };
    pub(super) const BOLD: Self = Self { bold: true, ..Self::PLAIN };

    pub(super) const fn toned(tone: Tone) -> Self {
        Self { tone, ..Self::PLAIN }
    }
}

/// A piece of text in one style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) text: String,
    pub(super) style: Style,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) spans: Vec<Span>,
}

impl Line {
    /// Appends text. Characters that would command the terminal are replaced.
    pub(super) fn push(&mut self, text: &str, style: Style) -> &mut Self {
        let text: String = text.chars().map(seen).collect();
        if !text.is_empty() {
            self.spans.push(Span { text, style });
        }
        self
    }

    /// Appends the spans of another line.
    pub(super) fn append(&mut self, other: Self) -> &mut Self {
        self.spans.extend(other.spans);
        self
    }

    /// Returns the width of the line, in characters of a terminal.
    pub(super) fn width(&self) -> usize {
        self.spans.iter().map(|span| span.text.width()).sum()
    }

    /// Returns the line with an exact width: cut, or filled up with spaces.
    pub(super) fn fitted(mut self, width: usize) -> Self {
        if self.width() > width {
            let mut left = width;
            for span in &mut self.spans {
                span.text = cut(&span.text, left);
                left -= span.text.width();
            }
            self.spans.retain(|span| !span.text.is_empty());
        }
        let missing = width - self.width();
        self.push(&" ".repeat(missing), Style::PLAIN);
        self
    }

    /// Returns the whole line reversed, without colours, which would be hard to read in reversed text.
    pub(super) fn reversed(mut self) -> Self {
        for span in &mut self.spans {
            span.style = Style { tone: Tone::Plain, reversed: true, ..span.style };
        }
        self
    }

    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }
}

/// Returns a character as it is shown. A character without a width would appear in the place of another, so it is replaced.
fn seen(c: char) -> char {
    match visible(c) {
        c if c.width() == Some(0) => '?',
        c => c,
    }
}

/// Returns as much of a text as fits.
fn cut(text: &str, width: usize) -> String {
    let mut left = width;
    let fits = |c: &char| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    };
    text.chars().take_while(fits).collect()
}

/// Returns a text of an exact width that begins on the left. A mark stands for the end of a longer one.
pub(super) fn left(text: &str, width: usize) -> String {
    let text: String = text.chars().map(seen).collect();
    let mut fitted =
        if text.width() > width && width > 0 { cut(&text, width - 1) + "…" } else { cut(&text, width) };
    fitted.push_str(&" ".repeat(width - fitted.width()));
    fitted
}

/// Returns a text of an exact width that ends on the right.
pub(super) fn right(text: &str, width: usize) -> String {
    let fitted = left(text, text.width().min(width));
    " ".repeat(width - fitted.width()) + &fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_width_that_is_wanted() {
        let mut line = Line::default();
        line.push("ab", Style::BOLD).push("名名", Style::PLAIN);
        for (width, text) in [(0, ""), (1, "a"), (3, "ab "), (4, "ab名"), (5, "ab名 "), (7, "ab名名 ")] {
            let fitted = line.clone().fitted(width);
            assert_eq!((fitted.text().as_str(), fitted.width()), (text, width));
        }
    }

    #[test]
    fn text_is_cut_with_a_mark_and_by_its_width() {
        assert_eq!(left("training", 5), "trai…");
        assert_eq!(left("名名名", 4), "名… ");
        assert_eq!(left("web", 5), "web  ");
        assert_eq!(right("web", 5), "  web");
        assert_eq!(right("training", 5), "trai…");
        assert_eq!((left("web", 0), right("web", 0)), (String::new(), String::new()));
    }

    #[test]
    fn no_command_of_a_terminal_gets_into_a_line() {
        let mut line = Line::default();
        line.push("a\u{1b}]0;title\u{7}\r\n\u{9b}2J\u{202e}e\u{301}", Style::PLAIN);
        assert_eq!(line.text(), "a?]0;title????2J?e?");
        assert_eq!(left("\u{1b}[2J", 5), "?[2J ");
    }
}
