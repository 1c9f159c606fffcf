//! Markdown as far as names need it: passages of text with code spans, cells of tables with the names of their columns, and lines of code.

/// A document in pieces.
#[derive(Clone, Debug)]
pub struct Document {
    /// The path, relative to the repository.
    pub path: String,
    /// Paragraphs and cells of tables.
    pub passages: Vec<Passage>,
    /// The lines of blocks of code, each with its number; a line that ends with a backslash is joined with the next one.
    pub code: Vec<(usize, String)>,
}

/// A paragraph, or a cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The head of the table's column.
    pub column: Option<String>,
    /// Text and code spans by turns.
    pub pieces: Vec<Piece>,
}

/// A piece of a passage: text, or a span between backticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The line where the piece begins.
    pub line: usize,
    /// The text without backticks; the end of a line is a space.
    pub text: String,
    /// The piece is a code span.
    pub is_code: bool,
}

impl Document {
    /// Cuts a text into pieces.
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        let mut reader = Reader::default();
        for (at, line) in text.lines().enumerate() {
            reader.line(at + 1, line);
        }
        reader.end_paragraph();
        Self { path: path.to_owned(), passages: reader.passages, code: reader.code }
    }

    /// All code spans, with their lines.
    pub fn spans(&self) -> impl Iterator<Item = (usize, &str)> {
        let pieces = self.passages.iter().flat_map(|passage| &passage.pieces);
        pieces.filter(|piece| piece.is_code).map(|piece| (piece.line, piece.text.as_str()))
    }
}

#[derive(Default)]
struct Reader {
    passages: Vec<Passage>,
    code: Vec<(usize, String)>,
    /// The paragraph so far, with the line where it begins.
    paragraph: Option<(usize, String)>,
    /// The columns of the table to which the line before belongs.
    columns: Vec<String>,
    is_fenced: bool,
    /// The last line of code continues in the next line.
    goes_on: bool,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            self.end_paragraph();
            self.is_fenced = !self.is_fenced;
        } else if self.is_fenced || (line.starts_with("    ") && self.paragraph.is_none()) {
            self.code_line(number, trimmed);
        } else if trimmed.is_empty() {
            self.end_paragraph();
            self.columns.clear();
        } else if trimmed.starts_with('|') {
            self.end_paragraph();
            self.row(number, trimmed);
        } else {
            // An item of a list is a passage of its own.
            if ["- ", "* ", "#"].iter().any(|mark| trimmed.starts_with(mark)) {
                self.end_paragraph();
            }
            let (_, text) = self.paragraph.get_or_insert_with(|| (number, String::new()));
            text.push_str(trimmed);
            text.push('\n');
        }
    }

    fn code_line(&mut self, number: usize, line: &str) {
        let (text, goes_on) = line.strip_suffix('\\').map_or((line, false), |text| (text, true));
        match self.code.last_mut().filter(|_| self.goes_on) {
            Some((_, last)) => last.push_str(text),
            None => self.code.push((number, text.to_owned())),
        }
        self.goes_on = goes_on;
    }

    fn row(&mut self, number: usize, line: &str) {
        // A bar within a cell has a backslash before it.
        let line = line.replace("\\|", "\u{0}");
        let cells: Vec<_> =
            line.trim_matches('|').split('|').map(|cell| cell.replace('\u{0}', "|")).collect();
        if self.columns.is_empty() {
            self.columns = cells.iter().map(|cell| cell.trim().to_owned()).collect();
        }
        for (at, cell) in cells.iter().enumerate() {
            let column = Some(self.columns.get(at).cloned().unwrap_or_default());
            self.passages.push(Passage { column, pieces: pieces(number, cell.trim()) });
        }
    }

    fn end_paragraph(&mut self) {
        if let Some((number, text)) = self.paragraph.take() {
            self.passages.push(Passage { column: None, pieces: pieces(number, text.trim_end()) });
        }
    }
}

/// Text and code spans by turns. A span ends with as many backticks as it begins with; without an end it is text.
fn pieces(first: usize, text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut piece = |from: usize, text_before: &str, text: &str, is_code| {
        if !text.is_empty() {
            let line = first + from + text_before.matches('\n').count();
            pieces.push(Piece { line, text: text.replace('\n', " "), is_code });
        }
    };
    let mut rest = 0;
    let mut search = 0;
    while let Some(begin) = text[search..].find('`').map(|at| at + search) {
        let ticks = &text[begin..][..text[begin..].bytes().take_while(|byte| *byte == b'`').count()];
        let inside = begin + ticks.len();
        let Some(end) = end_of_span(text, inside, ticks) else {
            search = inside;
            continue;
        };
        piece(0, &text[..rest], &text[rest..begin], false);
        let span = &text[inside..end];
        let trimmed = if ticks.len() > 1 { span.trim() } else { span };
        piece(0, &text[..inside], trimmed, true);
        rest = end + ticks.len();
        search = rest;
    }
    piece(0, &text[..rest], &text[rest..], false);
    pieces
}

/// The place where exactly these backticks end a span.
fn end_of_span(text: &str, from: usize, ticks: &str) -> Option<usize> {
    let mut at = from;
    loop {
        let begin = at + text[at..].find('`')?;
        let count = text[begin..].bytes().take_while(|byte| *byte == b'`').count();
        if count == ticks.len() {
            return Some(begin);
        }
        at = begin + count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_spans_cells_and_code_are_told_apart() {
        let text = "# A `title`\n\nText `one\ntwo` and\n``a`b``, `open\n\n    cargo x \\\n        --y\n\n- item\n    `deep`\n\n\
                    | what | shown by |\n| --- | --- |\n| `a\\|b` | `t`, u |\n\n```sh\n# `no span`\n```\n";
        let document = Document::new("x.md", text);
        let spans: Vec<_> = document.spans().collect();
        assert_eq!(spans, [(1, "title"), (3, "one two"), (5, "a`b"), (11, "deep"), (15, "a|b"), (15, "t")]);
        assert_eq!(document.code, [(7, "cargo x --y".to_owned()), (18, "# `no span`".to_owned())]);
        let evidence = |passage: &&Passage| passage.column.as_deref() == Some("shown by");
        let cell = document.passages.iter().rfind(evidence).unwrap();
        let text: Vec<_> = cell.pieces.iter().map(|piece| (&*piece.text, piece.is_code)).collect();
        assert_eq!(text, [("t", true), (", u", false)]);
    }
}
