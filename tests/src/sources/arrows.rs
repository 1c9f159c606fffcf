//! The uses between the files of a package: an arrow leads from the file with a path to the file that defines the name at its end.
//!
//! Names are looked up as the compiler does it, through imports and re-exports of modules, so a file that takes a name from the `mod.rs` of a folder
//! has an arrow to the file that defines it. There are no arrows for declarations of modules, re-exports from below the module, imports of whole
//! modules (the paths that begin with their names count), code that no product contains, and generated files.

use super::{Tree, is_generated};
use std::collections::{BTreeMap, BTreeSet};

/// Arrows with the names that they are for.
pub type Arrows = BTreeMap<(String, String), BTreeSet<String>>;

/// The most imports of imports that the lookup follows.
const STEPS_MAX: usize = 32;

/// The place that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A module of the package.
    Module(usize),
    /// A name that a module of the package defines.
    Item(usize, String),
}

impl Tree {
    /// The arrows between the files of this package.
    #[must_use]
    pub fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (at, module) in self.modules.iter().enumerate() {
            for written in module.paths.iter().filter(|written| !written.is_unshipped) {
                let Some(Target::Item(owner, name)) = self.resolve(at, &written.path, 0) else { continue };
                let to = &self.modules[owner].file;
                let below_here = written.is_export && self.is_below(owner, at);
                if *to != module.file && !below_here && !is_generated(to) {
                    arrows.entry((module.file.clone(), to.clone())).or_default().insert(name);
                }
            }
        }
        arrows
    }

    /// The place that a path leads to from a module; `None` if it is outside of this package.
    #[must_use]
    pub fn resolve(&self, from: usize, path: &[String], steps: usize) -> Option<Target> {
        if steps > STEPS_MAX {
            return None;
        }
        let (mut target, rest) = self.start(from, path, steps)?;
        for name in rest {
            match target {
                Target::Module(module) => {
                    let unknown = || Target::Item(module, name.clone());
                    target = self.lookup(module, name, steps + 1).unwrap_or_else(unknown);
                }
                Target::Item(..) => break,
            }
        }
        Some(target)
    }

    /// The modules along a path as it is written, without imports: the last is the deepest module on the path.
    #[must_use]
    pub fn written_modules(&self, from: usize, path: &[String]) -> Vec<usize> {
        let first = path.first().map(String::as_str);
        let is_anchored = matches!(first, Some("crate" | "self" | "super")) || first == Some(&self.library);
        let is_child = first.is_some_and(|first| self.modules[from].children.contains_key(first));
        if !is_anchored && !is_child {
            return Vec::new();
        }
        let Some((Target::Module(mut module), rest)) = self.start(from, path, 0) else { return Vec::new() };
        let mut found = vec![module];
        for name in rest {
            let Some(&child) = self.modules[module].children.get(name) else { break };
            module = child;
            found.push(module);
        }
        found
    }

    /// A module is `ancestor` or below it.
    #[must_use]
    pub fn is_below(&self, module: usize, ancestor: usize) -> bool {
        let mut at = Some(module);
        while let Some(module) = at {
            if module == ancestor {
                return true;
            }
            at = self.modules[module].parent;
        }
        false
    }

    /// The module or item at the beginning of a path, and the rest of the path.
    fn start<'p>(&self, from: usize, path: &'p [String], steps: usize) -> Option<(Target, &'p [String])> {
        let (first, mut rest) = path.split_first()?;
        let target = match first.as_str() {
            "crate" | "$crate" => Target::Module(self.root_of(from)),
            "self" => Target::Module(from),
            "super" => {
                let mut module = self.modules[from].parent?;
                while let Some((_, after)) = rest.split_first().filter(|(name, _)| *name == "super") {
                    module = self.modules[module].parent?;
                    rest = after;
                }
                Target::Module(module)
            }
            name => match self.lookup(from, name, steps + 1) {
                Some(target) => target,
                None if name == self.library => Target::Module(self.library_root()?),
                None => return None,
            },
        };
        Some((target, rest))
    }

    /// The meaning of a name in a module.
    fn lookup(&self, at: usize, name: &str, steps: usize) -> Option<Target> {
        let module = &self.modules[at];
        if let Some(&child) = module.children.get(name) {
            return Some(Target::Module(child));
        }
        if module.items.contains(name) {
            return Some(Target::Item(at, name.to_owned()));
        }
        if let Some(import) = module.imports.iter().find(|import| import.name.as_deref() == Some(name)) {
            // `use name;` of another crate, and `use name::name;` of this one.
            let is_itself = import.path.len() == 1 && import.path[0] == name;
            return if is_itself { None } else { self.resolve(at, &import.path, steps + 1) };
        }
        let globs = module.imports.iter().filter(|import| import.name.is_none());
        globs.filter(|import| !import.path.is_empty() && import.path[0] != name).find_map(|import| match self
            .resolve(at, &import.path, steps + 1)?
        {
            Target::Module(other) if other != at && steps < STEPS_MAX => self.lookup(other, name, steps + 1),
            _ => None,
        })
    }

    fn root_of(&self, mut module: usize) -> usize {
        while let Some(parent) = self.modules[module].parent {
            module = parent;
        }
        module
    }

    fn library_root(&self) -> Option<usize> {
        self.modules.iter().position(|module| module.parent.is_none() && module.file.ends_with("src/lib.rs"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let arrows = Tree::of_files(files).arrows();
        let line = |((from, to), names): (&(String, String), &BTreeSet<String>)| {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            format!("{} -> {}: {}", &from[4..], &to[4..], names.join(" "))
        };
        arrows.iter().map(line).collect()
    }

    #[test]
    fn names_are_followed_to_the_file_that_defines_them() {
        let found = arrows(&[
            ("src/lib.rs", "mod a; mod b; pub use a::One;"),
            ("src/a/mod.rs", "mod x; mod y; pub use x::{One, two as other}; pub(crate) use self::y::*;"),
            ("src/a/x.rs", "pub struct One; pub fn two() {} fn f() { super::y::three(); }"),
            ("src/a/y.rs", "pub fn three() {} pub const FOUR: u8 = 4;"),
            ("src/b.rs", "use crate::a; use super::One; fn f() { a::other(assert!(crate::a::FOUR > 3)); }"),
        ]);
        assert_eq!(found, ["a/x.rs -> a/y.rs: three", "b.rs -> a/x.rs: One two", "b.rs -> a/y.rs: FOUR"]);
    }

    #[test]
    fn inner_modules_and_globs_are_seen_through_and_tests_are_not_counted() {
        let found = arrows(&[
            ("src/lib.rs", "mod a; mod b; mod c; #[cfg(test)] mod d; fn f() { c::Three; }"),
            ("src/a.rs", "mod inner { use super::super::b::*; fn f(_: Two) { std::f(); one() } }"),
            ("src/b.rs", "pub fn one() {} pub struct Two; #[cfg(test)] mod tests { use crate::a::f; }"),
            ("src/c.rs", "use crate::a::made_by_a_macro; pub struct Three; #[cfg(test)] use crate::b::Two;"),
            ("src/d.rs", "use crate::a::inner;"),
        ]);
        assert_eq!(
            found,
            ["a.rs -> b.rs: Two one", "c.rs -> a.rs: made_by_a_macro", "lib.rs -> c.rs: Three"]
        );
    }

    #[test]
    fn imports_in_circles_and_names_of_other_crates_lead_nowhere() {
        let found = arrows(&[
            ("src/lib.rs", "mod a; mod b; use log; use log::info;"),
            ("src/a.rs", "pub use super::b::*; fn f() { Nothing::f(); serde::f(); }"),
            ("src/b.rs", "pub use super::a::*; pub use super::a::Lost; pub use super::b::Lost;"),
        ]);
        // Such code is no valid Rust; the last module on the path counts as the owner of a name that cannot be found.
        assert_eq!(found, ["b.rs -> a.rs: Lost"]);
    }
}
