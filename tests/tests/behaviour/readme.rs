//! The file of two VMs in README, and those of the common tasks in the page about sharing, contain the settings that the pages describe.

use anyhow::{Context, Result, ensure};
use std::fs;
use tests::broker::{Broker, vhost_user_vulkan};
use tests::documents::fenced;
use tests::sources::repository;

/// The files of VMs below a heading of a page, or on all of it.
fn files(path: &str, heading: Option<&str>) -> Result<Vec<String>> {
    let page = fs::read_to_string(repository().join(path))?;
    let section =
        |heading: &str| page.split("\n## ").find(|section| section.starts_with(heading)).map(str::to_owned);
    let text =
        heading.map_or(Some(page.clone()), section).with_context(|| format!("{path} has no {heading:?}"))?;
    Ok(fenced(&text, "toml").into_iter().map(str::to_owned).collect())
}

/// The names of the VMs in a file and the keys of their tables, but for the sockets, which lie in a folder of the test.
fn tables(file: &str) -> Result<Vec<(String, String)>> {
    let file: toml::Table = file.parse()?;
    let vms = file["vm"].as_table().context("the file names VMs")?;
    let keys = |table: &toml::Value| -> Result<String> {
        let mut table = table.as_table().context("a VM has a table")?.clone();
        table.remove("socket-path").context("a VM has a socket")?;
        Ok(table.to_string())
    };
    vms.iter().map(|(name, table)| Ok((name.clone(), keys(table)?))).collect()
}

#[test]
fn two_vms_of_readme_share_three_to_one() -> Result<()> {
    let files = files("README.md", None)?;
    let [file] = &files[..] else { anyhow::bail!("README has files {files:?}") };
    let tables = tables(file)?;
    let vms: Vec<_> = tables.iter().map(|(name, keys)| (name.as_str(), keys.as_str())).collect();
    let broker = Broker::start("", &vms)?;
    let status = broker.status()?;
    let weights: Vec<_> =
        status["vms"].as_array().context("VMs")?.iter().map(|vm| vm["weight"].as_u64()).collect();
    ensure!(weights == [Some(300), Some(100)], "{weights:?}");
    Ok(())
}

#[test]
fn files_of_common_tasks_are_files_that_the_broker_takes() -> Result<()> {
    let files = files("docs/sharing.md", Some("Common tasks"))?;
    ensure!(
        files.len() == 2 && files[0].contains("weight = 300") && files[1].contains("device-memory"),
        "{files:?}"
    );
    for file in files {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("vms.toml");
        fs::write(&path, &file)?;
        let said = vhost_user_vulkan()?.arg("--config").arg(path).arg("--check-config").output()?;
        ensure!(said.status.success(), "{file}\n{}", String::from_utf8_lossy(&said.stderr));
    }
    Ok(())
}
