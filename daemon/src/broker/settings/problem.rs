//! The mistakes in a configuration file: each with its table, its key and its line, and the text that shows all of them.

use super::options::shown;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use toml::Value;
use toml::de::{DeTable, DeValue};

/// All mistakes in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems {
    /// The file's path and a colon, or nothing.
    file: String,
    /// The first mistakes, by their places in the file.
    first: Vec<Problem>,
    /// The number of all mistakes.
    count: usize,
}

/// The most mistakes of one file that are shown.
const SHOWN_MAX: usize = 20;

impl Problems {
    /// Returns the mistake that the file as a whole cannot be read.
    pub(super) fn of_file(what: impl Into<String>) -> Self {
        Self::of(vec![Problem::of_key("", "", what)])
    }

    /// Returns the mistakes in the syntax of this text, one for each line.
    pub(super) fn of_syntax(text: &str, errors: Vec<toml::de::Error>) -> Self {
        let place = |error: &toml::de::Error| Some(error.span().map_or(0, |span| span.start));
        let what = |error: &toml::de::Error| error.message().replace('\n', ", ");
        let all = errors.iter().map(|error| (place(error), Problem::of_key("", "", what(error))));
        let mut all = numbered(text, all.collect());
        all.dedup_by_key(|problem| problem.line);
        Self::of(all)
    }

    fn of(all: Vec<Problem>) -> Self {
        let count = all.len();
        let first = all.into_iter().take(SHOWN_MAX).map(Problem::on_one_line).collect();
        Self { file: String::new(), first, count }
    }

    /// Returns the same mistakes as those of the file at a path.
    pub(super) fn in_file(self, path: &Path) -> Self {
        Self { file: format!("{}: ", path.display()), ..self }
    }
}

/// One line for a single mistake, or a heading and a line for each.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, first, count } = self;
        if let ([only], 1) = (first.as_slice(), count) {
            return write!(f, "{file}{only}");
        }
        write!(f, "{file}{count} mistakes:")?;
        first.iter().try_for_each(|problem| write!(f, "\n  {problem}"))?;
        match count - first.len() {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// One mistake: its place, and a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// The line, from 1, once it was determined.
    line: Option<usize>,
    /// The name of the table as in its heading, without brackets; empty outside of all tables.
    table: String,
    /// The key; empty if the mistake concerns no key or several.
    key: String,
    what: String,
}

impl Problem {
    pub(super) fn of_key(table: &str, key: &str, what: impl Into<String>) -> Self {
        Self { line: None, table: table.into(), key: key.into(), what: what.into() }
    }

    pub(super) fn of_vm(name: &str, key: &str, what: impl Into<String>) -> Self {
        Self::of_key(&table_of_vm(name), key, what)
    }

    /// Replaces control characters by spaces, and hidden ones by question marks: keys and values of the file may hold line breaks, and commands to a
    /// terminal.
    fn on_one_line(self) -> Self {
        let shown = |c: char| if c.is_control() { ' ' } else { outside::visible(c) };
        let clean = |text: String| text.chars().map(shown).collect();
        Self { line: self.line, table: clean(self.table), key: clean(self.key), what: clean(self.what) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, table, key, what } = self;
        line.map_or(Ok(()), |line| write!(f, "line {line}: "))?;
        if !table.is_empty() {
            write!(f, "[{table}] ")?;
        }
        if !key.is_empty() {
            write!(f, "{key}: ")?;
        }
        f.write_str(what)
    }
}

/// Returns the name of a VM's table, as in its heading: the VM's name is quoted if it has characters that a bare key cannot have.
pub(super) fn table_of_vm(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match !name.is_empty() && name.bytes().all(is_bare) {
        true => format!("vm.{name}"),
        false => format!("vm.{}", shown(&Value::String(name.to_owned()))),
    }
}

/// The mistakes found so far.
#[derive(Debug, Default)]
pub(super) struct Found(Vec<Problem>);

impl Found {
    pub(super) fn add(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        self.0.extend(problems);
    }

    /// Returns the value if the result has one, and otherwise notes the problem.
    pub(super) fn right<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.add(problem)).ok()
    }

    /// Returns the read value if no problems were found.
    ///
    /// # Errors
    ///
    /// All problems, in the order of the file.
    pub(super) fn none_or<T>(self, read: T, places: &Places<'_>) -> Result<T, Problems> {
        if self.0.is_empty() {
            return Ok(read);
        }
        let all = self.0.into_iter().map(|problem| (places.of(&problem), problem));
        Err(Problems::of(numbered(places.text, all.collect())))
    }
}

/// The places of tables and keys in a file, as numbers of bytes from its beginning.
#[derive(Debug)]
pub(super) struct Places<'a> {
    text: &'a str,
    /// The places by the table, named as in its heading, and the key.
    keys: BTreeMap<(String, String), usize>,
}

impl<'a> Places<'a> {
    /// Looks for the keys outside of all tables, those of all VMs, and those of each VM.
    pub(super) fn new(text: &'a str, file: &DeTable<'_>) -> Self {
        let mut places = Self { text, keys: BTreeMap::new() };
        places.note("", file);
        let defaults = file.get("defaults").and_then(|value| value.get_ref().as_table());
        defaults.into_iter().for_each(|defaults| places.note("defaults", defaults));
        if let Some(vms) = file.get("vm").and_then(|value| value.get_ref().as_table()) {
            places.note("vm", vms);
            for (name, vm) in vms {
                if let DeValue::Table(vm) = vm.get_ref() {
                    places.note(&table_of_vm(name.get_ref()), vm);
                }
            }
        }
        places
    }

    fn note(&mut self, table: &str, keys: &DeTable<'_>) {
        for key in keys.keys() {
            self.keys.insert((table.to_owned(), key.get_ref().to_string()), key.span().start);
        }
    }

    /// Returns the place of a mistake: that of its key, or if the key is missing, that of its table's heading.
    fn of(&self, problem: &Problem) -> Option<usize> {
        let place = |table: &str, key: &str| self.keys.get(&(table.to_owned(), key.to_owned())).copied();
        let heading = || match problem.table.strip_prefix("vm.") {
            None => place("", &problem.table),
            Some(_) => self.keys.iter().find_map(|((table, name), place)| {
                (table == "vm" && table_of_vm(name) == problem.table).then_some(*place)
            }),
        };
        place(&problem.table, &problem.key).or_else(heading)
    }
}

/// Returns problems with the numbers of their lines, in the order of their places in a text.
fn numbered(text: &str, mut placed: Vec<(Option<usize>, Problem)>) -> Vec<Problem> {
    placed.sort_by_key(|(place, _)| *place);
    let (mut line, mut rest) = (1, text.bytes().enumerate().peekable());
    let number = |(place, problem): (Option<usize>, Problem)| {
        let Some(place) = place else { return problem };
        while let Some((_, byte)) = rest.next_if(|(at, _)| *at < place) {
            line += usize::from(byte == b'\n');
        }
        Problem { line: Some(line), ..problem }
    };
    placed.into_iter().map(number).collect()
}
