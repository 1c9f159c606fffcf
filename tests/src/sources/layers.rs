//! Tables of layers: the head of a module may have one, with the modules that each of its children may use.
//!
//! ```text
//!     | module | is | may use |
//!     | --- | --- | --- |
//!     | `below` | the lower one | |
//!     | `above` | the upper one | below |
//! ```
//!
//! A table has a row for each child. A row allows other children, modules at the root of the crate, and packages; of the latter two, only those that
//! some row names count. A use is a path with `super`, `crate` or the like that leads into a child, or to a name that the parent re-exports from a
//! child.

use super::Tree;
use super::arrows::Target;
use std::collections::{BTreeMap, BTreeSet};

/// The line that begins a table.
const HEADING: &str = "//! | module | is | may use |";

/// The table of a module: the modules and packages that each child may use.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Table(BTreeMap<String, BTreeSet<String>>);

impl Table {
    /// The table in the head of a file, if there is one.
    #[must_use]
    pub fn of(code: &str) -> Option<Self> {
        let mut lines = code.lines().skip_while(|line| line.trim_end() != HEADING).skip(1);
        lines.next()?;
        let mut table = Self::default();
        for row in lines.map_while(|line| line.strip_prefix("//! | `")) {
            let (module, rest) = row.split_once('`')?;
            let uses = rest.trim_end().trim_end_matches('|').rsplit('|').next()?;
            let words = uses.split(',').map(|word| word.trim().trim_matches('`').to_owned());
            table.0.insert(module.to_owned(), words.filter(|word| !word.is_empty()).collect());
        }
        Some(table)
    }

    fn names(&self, used: &str) -> bool {
        self.0.values().any(|uses| uses.contains(used))
    }
}

impl Tree {
    /// The modules with a table.
    #[must_use]
    pub fn tables(&self) -> Vec<(usize, Table)> {
        let with_file = self.modules.iter().enumerate().filter(|(_, module)| {
            module.parent.is_none_or(|parent| self.modules[parent].file != module.file)
        });
        let table = |file: &str| Table::of(&self.source(file)?.code);
        with_file.filter_map(|(at, module)| Some((at, table(&module.file)?))).collect()
    }

    /// Returns the differences between the code below the module `head` and its table.
    #[must_use]
    pub fn against(&self, head: usize, table: &Table) -> Vec<String> {
        let parent = &self.modules[head];
        let mut wrong = Vec::new();
        for (name, &child) in &parent.children {
            if !table.0.contains_key(name) && !self.modules[child].is_unshipped {
                wrong.push(format!("{}: the table has no row for `{name}`", parent.file));
            }
        }
        for name in table.0.keys().filter(|name| !parent.children.contains_key(*name)) {
            wrong.push(format!("{}: there is no module `{name}`", parent.file));
        }
        for (at, module) in self.modules.iter().enumerate() {
            let Some(child) = self.child_above(at, head) else { continue };
            let name = &self.modules[child].name;
            let Some(allowed) = table.0.get(name) else { continue };
            for written in &module.paths {
                if let Some(used) = self.used(at, &written.path, head, table)
                    && used != *name
                    && !allowed.contains(&used)
                {
                    let (file, line, path) = (&module.file, written.line, written.path.join("::"));
                    wrong.push(format!("{file}:{line}: {name} must not use {used} ({path})"));
                }
            }
        }
        wrong
    }

    /// The name of the module or package that a path in a module uses, as the table of `head` knows it.
    fn used(&self, at: usize, path: &[String], head: usize, table: &Table) -> Option<String> {
        let modules = self.written_modules(at, path);
        if let Some(&child) = modules.iter().find(|&&module| self.modules[module].parent == Some(head)) {
            return Some(self.modules[child].name.clone());
        }
        if modules.last() == Some(&head)
            && let Some(Target::Item(owner, _)) = self.resolve(at, path, 0)
        {
            return self.child_above(owner, head).map(|child| self.modules[child].name.clone());
        }
        if let [root, top, ..] = modules[..]
            && self.modules[root].parent.is_none()
            && !self.is_below(head, top)
        {
            return Some(self.modules[top].name.clone()).filter(|name| table.names(name));
        }
        let package = path.first().filter(|name| !self.is_at_root(name) && table.names(name))?;
        (path.len() > 1 && self.resolve(at, path, 0).is_none()).then(|| package.clone())
    }

    /// A module at the root of a crate has this name.
    fn is_at_root(&self, name: &str) -> bool {
        self.modules.iter().any(|module| module.parent.is_none() && module.children.contains_key(name))
    }

    /// The child of `head` that a module is, or is below.
    fn child_above(&self, mut module: usize, head: usize) -> Option<usize> {
        loop {
            let parent = self.modules[module].parent?;
            if parent == head {
                return Some(module);
            }
            module = parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "//! Text.\n//!\n//! | module | is | may use |\n//! | --- | --- | --- |\n\
                        //! | `low` | the `lower` one | `wire` |\n//! | `high` | the other | low |\n\
                        mod low; mod high; pub use high::{One, Two};";

    fn wrong(low: &str, high: &str) -> Vec<String> {
        let root = "mod folder; mod wire;";
        let files = [
            ("src/lib.rs", root),
            ("src/folder/mod.rs", HEAD),
            ("src/folder/low.rs", low),
            ("src/folder/high/mod.rs", high),
            ("src/wire.rs", "pub struct Bytes;"),
        ];
        let tree = Tree::of_files(&files);
        let tables = tree.tables();
        assert_eq!(tables.len(), 1);
        tree.against(tables[0].0, &tables[0].1)
    }

    #[test]
    fn children_use_only_what_their_row_allows() {
        let high = "pub struct One; pub struct Two; mod x { use super::super::low; fn f() { crate::folder::low::f(); } }";
        assert_eq!(wrong("use crate::wire::Bytes; fn f() { std::f(crate::f); }", high), [] as [&str; 0]);
        let uses = [
            "use super::high::x;",
            "fn f(_: super::One) {}",
            "use crate::folder::Two;",
            "fn f() { assert!(super::high::F) }",
            "#[cfg(test)] mod tests { use super::super::high; }",
        ];
        for used in uses {
            assert_eq!(wrong(used, high).len(), 1, "{used}");
        }
        let found = wrong("", "fn one() {}\nuse crate::wire;");
        assert_eq!(found, ["src/folder/high/mod.rs:2: high must not use wire (crate::wire)"]);
    }

    #[test]
    fn each_child_has_a_row_and_each_row_a_child() {
        let head = HEAD.replace("`low`", "`lowest`");
        let files = [("src/lib.rs", head.as_str()), ("src/low.rs", ""), ("src/high.rs", "")];
        let tree = Tree::of_files(&files);
        let (head, table) = &tree.tables()[0];
        assert_eq!(tree.against(*head, table).len(), 2);
        assert_eq!(Table::of("//! | `a` | b | c |\nfn f() {}"), None);
    }
}
