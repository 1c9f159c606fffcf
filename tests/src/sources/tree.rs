//! The modules of a package: the files that declare them, the names that each defines and imports, and the paths that are written in it.

use super::conditions::{TEST, UNSHIPPED, attributes, attributes_in_impl, needs};
use super::words;
use super::{Source, below, is_generated};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItem, Item, ItemMod, ItemUse, Macro, UseTree, Visibility};

/// The modules below the folder `src` of a package.
#[derive(Debug)]
pub struct Tree {
    /// The name by which other packages know the library.
    pub library: String,
    /// All modules; parents stand before their children.
    pub modules: Vec<Module>,
    sources: BTreeMap<String, Source>,
}

/// A module: a file, or a part of one.
#[derive(Debug)]
pub struct Module {
    /// The name of the module; empty at the root of a crate.
    pub name: String,
    /// The module that declares it.
    pub parent: Option<usize>,
    /// The file with its code, relative to the repository.
    pub file: String,
    /// The folder, relative to the repository, for the files of its children.
    pub folder: PathBuf,
    /// No product contains it.
    pub is_unshipped: bool,
    /// Only tests contain it.
    pub is_test: bool,
    /// The modules that it declares, by name.
    pub children: BTreeMap<String, usize>,
    /// The names that it defines.
    pub items: BTreeSet<String>,
    /// The names that it imports.
    pub imports: Vec<Import>,
    /// The paths that are written in it.
    pub paths: Vec<Written>,
}

/// A name that `use` makes known in a module.
#[derive(Clone, Debug)]
pub struct Import {
    /// The name in this module; `None` for an import of all names of another module.
    pub name: Option<String>,
    /// The path behind `use`.
    pub path: Vec<String>,
}

/// A path in the code of a module.
#[derive(Clone, Debug)]
pub struct Written {
    /// The names of the path.
    pub path: Vec<String>,
    /// The line of its first name.
    pub line: usize,
    /// The path makes a name known to other modules.
    pub is_export: bool,
    /// The path is the one of an import.
    pub is_import: bool,
    /// No product contains the code.
    pub is_unshipped: bool,
}

impl Tree {
    /// Reads a package, such as `daemon`.
    ///
    /// # Panics
    /// A file cannot be read or parsed, or a module has no file.
    #[must_use]
    pub fn of(package: &str) -> Self {
        let library = package.rsplit('/').next().unwrap_or(package).replace('-', "_");
        let sources =
            below(&format!("{package}/src")).into_iter().map(|source| (source.path.clone(), source));
        let mut tree = Self { library, modules: Vec::new(), sources: sources.collect() };
        let is_root = |path: &&String| {
            let below = path.strip_prefix(package).unwrap_or(path);
            let parts: Vec<_> = below.trim_start_matches('/').split('/').collect();
            matches!(
                parts.as_slice(),
                ["src", "lib.rs" | "main.rs"] | ["src", "bin", _] | ["src", "bin", _, "main.rs"]
            )
        };
        let roots: Vec<_> = tree.sources.keys().filter(is_root).cloned().collect();
        for root in roots {
            let folder = Path::new(&root).parent().expect("a file has a folder").to_owned();
            tree.read(String::new(), None, root, folder, Kind::default());
        }
        tree
    }

    /// A tree of the files in `files`, paths and code; `src/lib.rs` is the root.
    #[cfg(test)]
    pub fn of_files(files: &[(&str, &str)]) -> Self {
        let source = |&(path, code): &(&str, &str)| Source { path: path.to_owned(), code: code.to_owned() };
        let sources = files.iter().map(source).map(|source| (source.path.clone(), source)).collect();
        let mut tree = Self { library: "library".to_owned(), modules: Vec::new(), sources };
        tree.read(String::new(), None, "src/lib.rs".to_owned(), "src".into(), Kind::default());
        tree
    }

    /// The files that are no part of any module.
    #[must_use]
    pub fn orphans(&self) -> Vec<&str> {
        let known: BTreeSet<_> = self.modules.iter().map(|module| module.file.as_str()).collect();
        let all = self.sources.keys().map(String::as_str);
        all.filter(|file| !is_generated(file) && !known.contains(file)).collect()
    }

    /// The text of a file.
    #[must_use]
    pub fn source(&self, file: &str) -> Option<&Source> {
        self.sources.get(file)
    }

    /// The files that no product contains.
    #[must_use]
    pub fn unshipped(&self) -> BTreeSet<&str> {
        self.files_of_only(|module| module.is_unshipped)
    }

    /// The files that only tests contain.
    #[must_use]
    pub fn only_for_tests(&self) -> BTreeSet<&str> {
        self.files_of_only(|module| module.is_test)
    }

    /// The files whose modules are all of one kind.
    fn files_of_only(&self, is_of_kind: impl Fn(&Module) -> bool + Copy) -> BTreeSet<&str> {
        let of = |kind: bool| {
            let modules = self.modules.iter().filter(move |module| is_of_kind(module) == kind);
            modules.map(|module| module.file.as_str()).collect::<BTreeSet<_>>()
        };
        of(true).difference(&of(false)).copied().collect()
    }

    fn read(
        &mut self,
        name: String,
        parent: Option<usize>,
        file: String,
        folder: PathBuf,
        kind: Kind,
    ) -> usize {
        // Generated files are not arranged by people, and so have no arrows.
        let parsed = if is_generated(&file) {
            None
        } else {
            let source = self.sources.get(&file).unwrap_or_else(|| panic!("module {name}: no file {file}"));
            Some(source.parse())
        };
        let at = self.add(name, parent, file, folder, kind);
        if let Some(parsed) = parsed {
            Reader { tree: self, module: at, kind }.visit_file(&parsed);
        }
        at
    }

    fn add(
        &mut self,
        name: String,
        parent: Option<usize>,
        file: String,
        folder: PathBuf,
        kind: Kind,
    ) -> usize {
        let at = self.modules.len();
        if let Some(parent) = parent {
            self.modules[parent].children.insert(name.clone(), at);
        }
        self.modules.push(Module {
            name,
            parent,
            file,
            folder,
            is_unshipped: kind.is_unshipped,
            is_test: kind.is_test,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            imports: Vec::new(),
            paths: Vec::new(),
        });
        at
    }
}

/// Reads the code of one module, and goes on with the modules that it declares.
struct Reader<'t> {
    tree: &'t mut Tree,
    module: usize,
    kind: Kind,
}

/// The builds that contain the code that is read.
#[derive(Clone, Copy, Default)]
struct Kind {
    is_unshipped: bool,
    is_test: bool,
}

impl Reader<'_> {
    fn here(&mut self) -> &mut Module {
        &mut self.tree.modules[self.module]
    }

    fn wrote(&mut self, path: Vec<String>, line: usize) {
        let is_unshipped = self.kind.is_unshipped;
        self.here().paths.push(Written { path, line, is_export: false, is_import: false, is_unshipped });
    }

    /// Runs `read` for code behind `attributes`.
    fn behind(&mut self, attributes: &[Attribute], read: impl FnOnce(&mut Self)) {
        let before = self.kind;
        self.kind.is_unshipped |= needs(attributes, UNSHIPPED);
        self.kind.is_test |= needs(attributes, TEST);
        read(self);
        self.kind = before;
    }

    fn declared(&mut self, item: &ItemMod) {
        let (name, kind) = (item.ident.to_string(), self.kind);
        let folder = self.here().folder.join(&name);
        if let Some((_, items)) = &item.content {
            let file = self.here().file.clone();
            let module = self.tree.add(name, Some(self.module), file, folder, kind);
            let mut reader = Reader { tree: self.tree, module, kind };
            items.iter().for_each(|item| reader.visit_item(item));
            return;
        }
        let (file, folder) = match path_attribute(&item.attrs) {
            Some(path) => {
                let beside = Path::new(&self.here().file).parent().unwrap_or(Path::new("")).join(path);
                let stem = beside.file_stem().unwrap_or_default().to_owned();
                (beside.clone(), beside.with_file_name(stem))
            }
            None => {
                let in_folder = folder.join("mod.rs");
                let exists = self.tree.sources.contains_key(&*in_folder.to_string_lossy());
                (if exists { in_folder } else { folder.with_extension("rs") }, folder)
            }
        };
        let file = normal(&file).to_string_lossy().into_owned();
        self.tree.read(name, Some(self.module), file, folder, kind);
    }

    fn imported(&mut self, item: &ItemUse) {
        let is_export = !matches!(item.vis, Visibility::Inherited);
        for (import, line) in imports(item) {
            let (path, is_unshipped) = (import.path.clone(), self.kind.is_unshipped);
            self.here().paths.push(Written { path, line, is_export, is_import: true, is_unshipped });
            self.here().imports.push(import);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        self.behind(attributes(item), |reader| {
            reader.here().items.extend(name_of(item));
            match item {
                Item::Mod(module) => reader.declared(module),
                Item::Use(import) => reader.imported(import),
                _ => visit::visit_item(reader, item),
            }
        });
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        self.behind(attributes_in_impl(item), |reader| visit::visit_impl_item(reader, item));
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 || names[0].starts_with(char::is_uppercase) {
            self.wrote(names, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(name) = function.path.get_ident()
        {
            self.wrote(vec![name.to_string()], name.span().start().line);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let names: Vec<_> = call.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.wrote(names, call.path.span().start().line);
        for (path, line) in words::paths(&call.tokens) {
            self.wrote(path, line);
        }
    }
}

/// The name that an item gives to other code of its module.
fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// The imports of a `use`, one by one, with their lines.
pub(super) fn imports(item: &ItemUse) -> Vec<(Import, usize)> {
    let mut found = Vec::new();
    leaves_of(&item.tree, &mut Vec::new(), &mut found);
    found
}

fn leaves_of(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<(Import, usize)>) {
    let line = tree.span().start().line;
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves_of(&path.tree, before, found);
            before.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves_of(tree, before, found)),
        UseTree::Glob(_) => found.push((Import { name: None, path: before.clone() }, line)),
        UseTree::Name(name) if name.ident == "self" => {
            found.push((Import { name: before.last().cloned(), path: before.clone() }, line));
        }
        UseTree::Rename(rename) if rename.ident == "self" => {
            found.push((Import { name: Some(rename.rename.to_string()), path: before.clone() }, line));
        }
        UseTree::Name(syn::UseName { ident }) => {
            let path = before.iter().cloned().chain([ident.to_string()]).collect();
            found.push((Import { name: Some(ident.to_string()), path }, line));
        }
        UseTree::Rename(rename) => {
            let path = before.iter().cloned().chain([rename.ident.to_string()]).collect();
            found.push((Import { name: Some(rename.rename.to_string()), path }, line));
        }
    }
}

/// The file that `#[path = "…"]` names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let pair = attribute.meta.require_name_value().ok().filter(|pair| pair.path.is_ident("path"))?;
        match &pair.value {
            Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        }
    })
}

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(found.pop()),
            Component::CurDir => {}
            other => found.push(other),
        }
    }
    found
}
