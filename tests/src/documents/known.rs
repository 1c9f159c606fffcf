//! The parts of the repository that a document may name: files, modules and the names in them, tests, fuzz targets, programs, options.

use crate::sources::{PACKAGES, Source, Tree, below, repository};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Attribute, Field, ImplItem, ItemEnum, ItemFn, ItemImpl, ItemStruct, ItemTrait, TraitItem, Type};

/// Folders that are no sources.
const BUILT: &[&str] = &["target", ".git", "artifacts", "working"];

/// The parts that exist, by their names.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Files and folders, relative to the repository.
    pub paths: BTreeSet<String>,
    /// Modules, and the names that they define or import, from the name of the crate on: `daemon::serve::hangs`.
    pub names: BTreeSet<String>,
    /// The crates.
    pub crates: BTreeSet<String>,
    /// The modules with unit tests of their own, or with a module below that has some.
    pub tested: BTreeSet<String>,
    /// The modules with entry points for fuzzing, or with a module below that has some.
    pub fuzzed: BTreeSet<String>,
    /// The fields, variants, constants and methods of each type.
    pub members: BTreeMap<String, BTreeSet<String>>,
    /// The functions of test programs.
    pub test_functions: BTreeSet<String>,
    /// The programs with tests, which `--test` names.
    pub tests: BTreeSet<String>,
    /// The programs, which `--bin` names.
    pub programs: BTreeSet<String>,
    /// The examples, which `--example` names.
    pub examples: BTreeSet<String>,
    /// The packages, which `--package` names.
    pub packages: BTreeSet<String>,
    /// The commands that `.cargo/config.toml` adds to cargo's own.
    pub aliases: BTreeSet<String>,
    /// The options of the daemon and of the doctor, with their dashes.
    pub options: BTreeSet<String>,
    /// The options of the programs of this package and of the generator.
    pub tool_options: BTreeSet<String>,
    /// The daemon's subcommands.
    pub subcommands: BTreeSet<String>,
}

impl Known {
    /// Looks at the repository.
    ///
    /// # Panics
    /// A file cannot be read or parsed.
    #[must_use]
    pub fn of_repository() -> Self {
        let mut known = Self::default();
        known.add_paths(&repository(), "");
        PACKAGES.iter().for_each(|package| known.add_package(package));
        ["daemon", "protocol", "tests", "fuzz"]
            .into_iter()
            .flat_map(below)
            .for_each(|source| known.add_source(&source));
        let cargo: toml::Table =
            read(".cargo/config.toml").parse().expect("cargo's configuration is a table");
        let aliases = cargo["alias"].as_table().expect("there are aliases");
        known.aliases = aliases.keys().cloned().collect();
        known
    }

    /// A file of tests, at any depth below `tests/tests`, or a folder that is one program, has this name.
    #[must_use]
    pub fn has_test(&self, name: &str) -> bool {
        let of_tests = self.paths.iter().filter_map(|path| path.strip_prefix("tests/tests/"));
        of_tests
            .map(|path| path.trim_end_matches("/main.rs").trim_end_matches(".rs"))
            .any(|path| ends_with(path, name))
    }

    /// There is a fuzz target of this name.
    #[must_use]
    pub fn has_target(&self, name: &str) -> bool {
        self.paths.contains(&format!("fuzz/fuzz_targets/{name}.rs"))
    }

    /// A module, or a name that a module defines, ends with this path. A path that begins with a crate is looked up from there.
    #[must_use]
    pub fn has_name(&self, path: &str) -> bool {
        self.is_among(path, &self.names)
    }

    /// A module with unit tests ends with this path.
    #[must_use]
    pub fn is_tested(&self, path: &str) -> bool {
        self.is_among(path, &self.tested)
    }

    /// A module that is fuzzed ends with this path.
    #[must_use]
    pub fn is_fuzzed(&self, path: &str) -> bool {
        self.is_among(path, &self.fuzzed)
    }

    fn is_among(&self, path: &str, names: &BTreeSet<String>) -> bool {
        let first = path.split("::").next().unwrap_or_default();
        if self.crates.contains(first) {
            return names.contains(path);
        }
        let is_end = |before: &str| before.is_empty() || before.ends_with("::");
        names.iter().any(|name| name.strip_suffix(path).is_some_and(is_end))
    }

    fn add_paths(&mut self, folder: &Path, before: &str) {
        for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let entry = entry.expect("an entry of a folder");
            let name = entry.file_name().to_string_lossy().into_owned();
            if BUILT.contains(&&*name) {
                continue;
            }
            let path = format!("{before}{name}");
            if entry.path().is_dir() {
                self.add_paths(&entry.path(), &format!("{path}/"));
            }
            self.paths.insert(path);
        }
    }

    fn add_package(&mut self, package: &str) {
        let tree = Tree::of(package);
        self.crates.insert(tree.library.clone());
        let mut paths: Vec<String> = Vec::new();
        for module in &tree.modules {
            let path = match module.parent {
                Some(parent) => format!("{}::{}", paths[parent], module.name),
                None => tree.library.clone(),
            };
            let imported = module.imports.iter().filter_map(|import| import.name.as_ref());
            self.names.extend(module.items.iter().chain(imported).map(|name| format!("{path}::{name}")));
            let parents = module.parent.map(|parent| above(&paths[parent]));
            let parents = || parents.iter().flatten().cloned();
            if module.is_test {
                self.tested.extend(parents());
                // The tests of `rings` may be in `rings_tests` beside it.
                self.tested.extend(path.strip_suffix("_tests").map(str::to_owned));
            }
            if module.name == "fuzzing" {
                self.fuzzed.extend(parents());
            }
            self.names.insert(path.clone());
            paths.push(path);
        }
        let manifest: toml::Table =
            read(&format!("{package}/Cargo.toml")).parse().expect("a manifest is a table");
        let text = |value: Option<&toml::Value>| value.and_then(toml::Value::as_str).map(str::to_owned);
        self.packages.extend(text(manifest["package"].get("name")));
        let named = |kind: &str| {
            let all = manifest.get(kind).and_then(toml::Value::as_array).cloned().unwrap_or_default();
            all.into_iter()
                .map(|one| (text(one.get("name")).unwrap_or_default(), text(one.get("path"))))
                .collect()
        };
        let found = |folder: &str, kind| self.roots(&format!("{package}/{folder}/"), named(kind));
        let (tests, programs, examples) =
            (found("tests", "test"), found("src/bin", "bin"), found("examples", "example"));
        self.tests.extend(tests);
        self.programs.extend(programs);
        self.examples.extend(examples);
    }

    /// The names of the programs in a folder, which the manifest may name otherwise.
    fn roots(&self, folder: &str, named: Vec<(String, Option<String>)>) -> BTreeSet<String> {
        let root = |path: &String| {
            let name = path.strip_prefix(folder)?;
            let name = name.strip_suffix("/main.rs").or_else(|| name.strip_suffix(".rs"))?;
            let is_renamed =
                named.iter().any(|(_, other)| other.as_ref().is_some_and(|other| path.ends_with(other)));
            (!name.contains('/') && !is_renamed).then(|| name.to_owned())
        };
        let mut names: BTreeSet<_> = self.paths.iter().filter_map(root).collect();
        names.extend(named.into_iter().map(|(name, _)| name));
        names
    }

    fn add_source(&mut self, source: &Source) {
        if source.is_generated() {
            return;
        }
        let mut items = Items::default();
        items.visit_file(&source.parse());
        for (name, members) in items.members {
            self.members.entry(name).or_default().extend(members);
        }
        if source.path.starts_with("tests/tests/") {
            self.test_functions.extend(items.functions);
        }
        let is_of_product = source.path.starts_with("daemon/") && !source.path.contains("/examples/");
        let options = if is_of_product { &mut self.options } else { &mut self.tool_options };
        options.extend(items.options);
        options.extend(["--help", "--version"].map(str::to_owned));
        if source.path.starts_with("daemon/src/cli/") {
            self.subcommands.extend(items.subcommands);
        }
    }
}

/// A module and all that it is in.
fn above(module: &str) -> Vec<String> {
    let ends = module.match_indices("::").map(|(at, _)| at).chain([module.len()]);
    ends.map(|end| module[..end].to_owned()).collect()
}

/// A path ends with these parts.
pub(super) fn ends_with(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The types of a file with their members, its functions, and its options and subcommands.
#[derive(Default)]
struct Items {
    members: BTreeMap<String, BTreeSet<String>>,
    functions: BTreeSet<String>,
    options: BTreeSet<String>,
    subcommands: BTreeSet<String>,
}

impl Items {
    fn add(&mut self, of: String, members: impl Iterator<Item = String>) {
        self.members.entry(of).or_default().extend(members);
    }
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        let fields = item.fields.iter().filter_map(|field| Some(field.ident.as_ref()?.to_string()));
        self.add(item.ident.to_string(), fields);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        let variants: Vec<_> = item.variants.iter().map(|variant| variant.ident.to_string()).collect();
        if item.attrs.iter().any(|attribute| names_in(attribute, "derive").contains(&"Subcommand".to_owned()))
        {
            self.subcommands.extend(variants.iter().map(|name| kebab(name)));
        }
        self.add(item.ident.to_string(), variants.into_iter());
        visit::visit_item_enum(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if let Type::Path(path) = &*item.self_ty
            && let Some(last) = path.path.segments.last()
        {
            let name = |item: &ImplItem| match item {
                ImplItem::Fn(item) => Some(item.sig.ident.to_string()),
                ImplItem::Const(item) => Some(item.ident.to_string()),
                _ => None,
            };
            self.add(last.ident.to_string(), item.items.iter().filter_map(name));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        let name = |item: &TraitItem| match item {
            TraitItem::Fn(item) => Some(item.sig.ident.to_string()),
            TraitItem::Const(item) => Some(item.ident.to_string()),
            _ => None,
        };
        self.add(item.ident.to_string(), item.items.iter().filter_map(name));
        visit::visit_item_trait(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.functions.insert(item.sig.ident.to_string());
        visit::visit_item_fn(self, item);
    }

    fn visit_field(&mut self, field: &'ast Field) {
        let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        self.options.extend(field.attrs.iter().filter_map(|attribute| option(attribute, &name)));
    }

    /// Programs without a table of options compare arguments with text.
    fn visit_expr_binary(&mut self, comparison: &'ast syn::ExprBinary) {
        if let (syn::BinOp::Eq(_), syn::Expr::Lit(literal)) = (&comparison.op, &*comparison.right)
            && let syn::Lit::Str(text) = &literal.lit
            && text.value().starts_with("--")
        {
            self.options.insert(text.value());
        }
        visit::visit_expr_binary(self, comparison);
    }
}

/// The identifiers of an attribute such as `#[derive(…)]`.
fn names_in(attribute: &Attribute, name: &str) -> Vec<String> {
    let list = attribute.meta.require_list().ok().filter(|list| list.path.is_ident(name));
    let names = list.map(|list| crate::sources::words::idents(&list.tokens)).unwrap_or_default();
    names.into_iter().map(|(name, _)| name).collect()
}

/// The option that `#[arg(long)]` or `#[arg(long = "…")]` makes of a field.
fn option(attribute: &Attribute, field: &str) -> Option<String> {
    let list = attribute.meta.require_list().ok().filter(|list| list.path.is_ident("arg"))?;
    let tokens: Vec<_> = list.tokens.clone().into_iter().map(|token| token.to_string()).collect();
    let begins = |at: usize| at == 0 || tokens[at - 1] == ",";
    let at = tokens.iter().enumerate().find(|(at, token)| *token == "long" && begins(*at))?.0;
    let own = tokens.get(at + 1).filter(|next| *next == "=").and_then(|_| tokens.get(at + 2));
    let name = own.map_or_else(
        || field.trim_start_matches("r#").replace('_', "-"),
        |name| name.trim_matches('"').to_owned(),
    );
    Some(format!("--{name}"))
}

fn kebab(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_members_are_found() {
        let code = r#"
            #[derive(Clone, Subcommand)]
            enum Command { SwapOut { #[arg(long, value_name = "PATH")] control_socket: u8 }, Status }
            #[derive(Args)]
            struct Options { #[arg(value_name = "long")] file: u8, #[arg(short, long = "gpu")] gpus: u8 }
            impl Options { const MOST: u8 = 1; fn check() -> bool { word == "--check" } }
        "#;
        let mut items = Items::default();
        items.visit_file(&syn::parse_str(code).unwrap());
        assert_eq!(items.options, ["--check", "--control-socket", "--gpu"].map(str::to_owned).into());
        assert_eq!(items.subcommands, ["status", "swap-out"].map(str::to_owned).into());
        assert_eq!(items.members["Options"], ["MOST", "check", "file", "gpus"].map(str::to_owned).into());
    }
}
