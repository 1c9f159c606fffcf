//! The files of a package use each other in small cycles at most, its folders in none, and a folder has few files.
//!
//! A failure prints each arrow of the cycle, and the names that make it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tests::sources::arrows::Arrows;
use tests::sources::cycles::{common_folder, cycles, described};
use tests::sources::{Module, PACKAGES, Tree, is_generated};

/// The most files that a cycle may have.
const FILES_IN_A_CYCLE: usize = 3;

/// The most Rust files that a folder may have; generated files and tests do not count.
const FILES_IN_A_FOLDER: usize = 16;

/// Fails if a cycle has more than `most` places. `files` are arrows between files, and `places` gives the place in which each file counts.
fn assert_small(files: &Arrows, places: &BTreeMap<String, String>, most: usize) {
    let place = |file| places.get(file).map_or(file, String::as_str);
    let mut arrows = Arrows::new();
    for ((from, to), names) in files {
        let (from, to) = (place(from), place(to));
        if from != to {
            arrows.entry((from.to_owned(), to.to_owned())).or_default().extend(names.iter().cloned());
        }
    }
    let mut wrong = String::new();
    for cycle in cycles(&arrows).iter().filter(|cycle| cycle.len() > most) {
        let folder = common_folder(cycle);
        let ways = described(cycle, files, place, &folder);
        wrong += &format!("{} on a cycle in {folder}, at most {most} may be:\n{ways}", cycle.len());
    }
    assert!(wrong.is_empty(), "cycles:\n{wrong}");
}

#[test]
fn files_use_each_other_in_small_cycles_at_most() {
    let arrows = PACKAGES.iter().flat_map(|package| Tree::of(package).arrows()).collect();
    assert_small(&arrows, &BTreeMap::new(), FILES_IN_A_CYCLE);
}

#[test]
fn folders_use_each_other_in_no_cycle() {
    let (mut arrows, mut places) = (Arrows::new(), BTreeMap::new());
    for package in PACKAGES {
        let tree = Tree::of(package);
        places.extend(folders(&tree));
        arrows.extend(tree.arrows());
    }
    assert_small(&arrows, &places, 1);
}

/// The folder of each file. `x.rs` with children in `x/` belongs to `x`, and a file beside the root of a crate is a place of its own.
fn folders(tree: &Tree) -> BTreeMap<String, String> {
    let shipped = || tree.modules.iter().filter(|module| !module.is_unshipped);
    let beside = |module: &Module| Path::new(&module.file).parent().unwrap_or(Path::new("")).to_owned();
    let used: BTreeSet<_> = shipped().map(beside).collect();
    let roots: BTreeSet<_> = shipped().filter(|module| module.parent.is_none()).map(beside).collect();
    let place = |module: &Module| {
        let folder = if used.contains(&module.folder) { module.folder.clone() } else { beside(module) };
        if roots.contains(&folder) { module.file.clone() } else { folder.to_string_lossy().into_owned() }
    };
    // A file's module comes before the modules within it, and decides the file's place.
    tree.modules.iter().rev().map(|module| (module.file.clone(), place(module))).collect()
}

#[test]
fn a_folder_has_few_files() {
    let mut found = BTreeMap::<_, usize>::new();
    for package in PACKAGES {
        let tree = Tree::of(package);
        let unshipped = tree.unshipped();
        let files: BTreeSet<_> = tree.modules.iter().map(|module| module.file.as_str()).collect();
        for file in files.into_iter().filter(|file| !unshipped.contains(file) && !is_generated(file)) {
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            *found.entry(folder.to_owned()).or_default() += 1;
        }
    }
    found.retain(|_, files| *files > FILES_IN_A_FOLDER);
    assert!(found.is_empty(), "files of folders, at most {FILES_IN_A_FOLDER} may be: {found:#?}");
}

#[test]
fn each_file_is_a_module() {
    for package in PACKAGES {
        assert_eq!(Tree::of(package).orphans(), [] as [&str; 0]);
    }
}
