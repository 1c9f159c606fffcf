//! `cargo run -p tests --bin doc-subjects [FOLDER...]`: prints the documentation comments whose first sentence has no subject, and how many
//! each folder has.

use clap::Parser;
use std::collections::BTreeMap;
use tests::sources::comments::{documented, offenders};

#[derive(Parser)]
#[command(about = "Find documentation comments whose first sentence has no subject")]
struct Arguments {
    /// Look below these folders only, such as daemon/src/serve
    folders: Vec<String>,
    /// Print the counts only
    #[arg(long)]
    counts: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let is_asked = |path: &str| {
        arguments.folders.is_empty()
            || arguments.folders.iter().any(|folder| path.starts_with(folder.as_str()))
    };
    let mut counts = BTreeMap::new();
    for source in documented().into_iter().filter(|source| is_asked(&source.path)) {
        for offender in offenders(&source) {
            if !arguments.counts {
                println!("{}:{}: {}", source.path, offender.line, offender.text);
            }
            *counts.entry(source.folder().to_owned()).or_insert(0) += 1;
        }
    }
    for (folder, count) in &counts {
        // A row of the table in `tidy`.
        println!("    (\"{folder}\", {count}),");
    }
    println!("{} in all", counts.values().sum::<usize>());
}
