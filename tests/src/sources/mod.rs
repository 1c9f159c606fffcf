//! The sources of this repository as the tests of its structure see them: parsed, with code for tests marked.
//!
//! `conditions` finds by attributes the code that a product never contains, `words` counts keywords and finds names, also in the bodies of macros,
//! `tree` is the modules of a package, `arrows` the uses between files, `cycles` the circles of uses, `layers` the tables of the modules that a
//! module may use. None of them knows a rule: those are the tests `tidy`, `layering` and `modules`.

pub mod arrows;
pub mod conditions;
pub mod cycles;
pub mod layers;
mod tree;
pub mod words;

pub use tree::{Module, Tree, Written};

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The packages with libraries or programs, by the folders of their manifests.
pub const PACKAGES: &[&str] = &[
    "daemon",
    "daemon/config",
    "daemon/doctor",
    "daemon/outside",
    "daemon/readiness",
    "daemon/sched",
    "daemon/shm",
    "daemon/vulkan",
    "daemon/waiting",
    "daemon/workloads",
    "protocol",
    "protocol/codegen",
    "tests",
];

/// Packages that are not part of the product; in all other packages, code is distinguished from that of their tests.
pub const TOOLS: &[&str] = &["protocol/codegen", "tests"];

/// One file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Relative to the repository.
    pub path: String,
    /// The text of the file.
    pub code: String,
}

impl Source {
    /// The generator wrote the file, or the output of the generator is compared with it.
    #[must_use]
    pub fn is_generated(&self) -> bool {
        is_generated(&self.path)
    }

    /// The syntax of the file.
    ///
    /// # Panics
    /// The file is not Rust.
    #[must_use]
    pub fn parse(&self) -> syn::File {
        syn::parse_file(&self.code).unwrap_or_else(|e| panic!("{}:{}: {e}", self.path, e.span().start().line))
    }

    /// The tokens of the file.
    ///
    /// # Panics
    /// The file is not made of tokens of Rust.
    #[must_use]
    pub fn tokens(&self) -> proc_macro2::TokenStream {
        self.code.parse().unwrap_or_else(|e| panic!("{}: {e}", self.path))
    }
}

/// A path relative to the repository belongs to a file that the generator wrote.
#[must_use]
pub fn is_generated(path: &str) -> bool {
    path.contains("/generated/") || path.starts_with("protocol/codegen/tests/golden/")
}

/// The folder of the repository.
///
/// # Panics
/// Never: this package lies in the repository.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository").into()
}

/// All Rust files below a folder of the repository, in the order of their paths; build folders are left out.
///
/// # Panics
/// The folder cannot be read.
#[must_use]
pub fn below(folder: &str) -> Vec<Source> {
    let root = repository();
    let mut found = Vec::new();
    collect(&root.join(folder), &root, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// All Rust files of all packages.
///
/// # Panics
/// A folder cannot be read, or there are next to no files.
#[must_use]
pub fn all() -> Vec<Source> {
    let found: Vec<_> = ["daemon", "protocol", "tests", "fuzz"].into_iter().flat_map(below).collect();
    assert!(found.len() > 300, "only {} files found", found.len());
    found
}

/// The files of the product that people write, and of its examples and fuzz targets. A file that its parent declares for tests is left out, whatever
/// its name; tests at the end of a file are not.
///
/// # Panics
/// A folder cannot be read, or there are next to no files.
#[must_use]
pub fn product() -> Vec<Source> {
    let trees: Vec<_> =
        PACKAGES.iter().filter(|package| !TOOLS.contains(package)).map(|package| Tree::of(package)).collect();
    let tests: BTreeSet<&str> = trees.iter().flat_map(|tree| tree.only_for_tests()).collect();
    assert!(tests.len() > 10, "only {} files of tests were found", tests.len());
    let other = ["tests/", "protocol/tests/", "protocol/codegen/"];
    let is_product = |source: &Source| {
        let is_test = tests.contains(source.path.as_str())
            || other.iter().any(|folder| source.path.starts_with(folder));
        !source.is_generated() && !is_test
    };
    all().into_iter().filter(is_product).collect()
}

fn collect(folder: &Path, root: &Path, found: &mut Vec<Source>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry of a folder").path();
        if path.is_dir() {
            if !path.ends_with("target") {
                collect(&path, root, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let code = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let path = path.strip_prefix(root).expect("a path below the repository");
            found.push(Source { path: path.to_string_lossy().into_owned(), code });
        }
    }
}
