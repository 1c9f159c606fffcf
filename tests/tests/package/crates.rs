//! The crates of this repository have licences that `deny.toml` allows, and come from the registry: the checks of `cargo deny check licenses
//! sources`, without the minutes in which that tool is built.

use anyhow::{Context, Result, ensure};
use spdx::{Expression, ParseMode};
use std::fs;
use tests::package::{Architecture, Crates};
use tests::sources::repository;
use toml::{Table, Value};

fn deny() -> Result<Table> {
    Ok(fs::read_to_string(repository().join("deny.toml"))?.parse()?)
}

fn words<'a>(table: &'a Value, key: &str) -> Vec<&'a str> {
    table.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns whether these licences satisfy an expression.
fn is_met(expression: &str, allowed: &[&str]) -> Result<bool> {
    let expression = Expression::parse_mode(expression, ParseMode::LAX)?;
    Ok(expression.evaluate(|needed| {
        needed.addition.is_none() && needed.license.id().is_some_and(|id| allowed.contains(&id.name))
    }))
}

#[test]
fn licences_are_those_that_are_allowed() -> Result<()> {
    let deny = deny()?;
    let licences = deny.get("licenses").context("[licenses]")?;
    let allowed = words(licences, "allow");
    let exceptions =
        licences.get("exceptions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    ensure!(allowed.len() > 3, "{allowed:?}");
    for architecture in [Architecture::Amd64, Architecture::Arm64] {
        let crates = Crates::of_the_daemon(architecture)?;
        ensure!(crates.foreign().count() > 20, "{} crates", crates.foreign().count());
        for it in crates.foreign() {
            let exception = exceptions
                .iter()
                .find(|exception| exception.get("crate").and_then(Value::as_str) == Some(&it.name));
            let allowed =
                [allowed.clone(), exception.map(|exception| words(exception, "allow")).unwrap_or_default()]
                    .concat();
            ensure!(
                is_met(&it.licence, &allowed)?,
                "{} {}: {:?} is not allowed by deny.toml",
                it.name,
                it.version,
                it.licence
            );
        }
    }
    Ok(())
}

#[test]
fn every_crate_ships_the_text_of_its_licence() -> Result<()> {
    let crates = Crates::of_the_daemon(Architecture::Amd64)?;
    let mut without = Vec::new();
    for it in crates.foreign() {
        if it.licence_files()?.is_empty() {
            without.push(it.name.as_str());
        }
    }
    ensure!(without == WITHOUT_TEXT, "crates without the text of their licence: {without:?}");
    Ok(())
}

/// Crates whose archives hold no licence file. The list in `third-party.txt` names their licences; other crates ship the texts of these.
const WITHOUT_TEXT: &[&str] = &["vhost"];

#[test]
fn crates_come_from_the_registry_and_nowhere_else() -> Result<()> {
    let lock: Table = fs::read_to_string(repository().join("Cargo.lock"))?.parse()?;
    let packages = lock.get("package").and_then(Value::as_array).context("[[package]]")?;
    for package in packages {
        let source = package.get("source").and_then(Value::as_str);
        let registry =
            source.is_none_or(|source| source == "registry+https://github.com/rust-lang/crates.io-index");
        ensure!(registry, "{package}");
    }
    let sources = deny()?.get("sources").cloned().context("[sources]")?;
    ensure!(
        ["unknown-registry", "unknown-git"]
            .iter()
            .all(|key| sources.get(key).and_then(Value::as_str) == Some("deny"))
    );
    Ok(())
}

#[test]
fn expressions_are_read_as_cargo_deny_reads_them() -> Result<()> {
    for (expression, met) in [
        ("MIT OR GPL-3.0-only", true),
        ("MIT AND GPL-3.0-only", false),
        ("Apache-2.0 WITH LLVM-exception", false),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", false),
        ("MIT/Apache-2.0", true),
    ] {
        ensure!(is_met(expression, &["MIT", "Apache-2.0"])? == met, "{expression}");
    }
    Ok(())
}
