//! Independent programs give through the bridge, byte for byte, the results they give on the host's driver.

use anyhow::Result;
use std::time::Duration;
use tests::clients::{
    self, Client, Files, LLAMA, NCNN, OPERATORS, Packages, Place, Setup, VKDISPATCH, Verdict, WHISPER,
};
use tests::packages::{Device, Suite};

const LIMIT: Duration = Duration::from_secs(300);

fn same_as_on_the_host(client: &Client) -> Result<()> {
    let setup = Setup::start()?;
    let files = Files::write()?;
    let packages = Packages::open(Suite::Testing)?;
    let native = Place::Packages(&packages, Device::Native);
    let guest = Place::Packages(&packages, Device::Venus(setup.socket()));
    assert_eq!(clients::compare(client, &native, &guest, &files, LIMIT)?, Verdict::Same);
    setup.settle()?;
    Ok(())
}

#[test]
fn llama_says_the_same() -> Result<()> {
    same_as_on_the_host(&LLAMA)
}

#[test]
fn whisper_hears_the_same() -> Result<()> {
    same_as_on_the_host(&WHISPER)
}

#[test]
fn ncnn_computes_the_same() -> Result<()> {
    same_as_on_the_host(&NCNN)
}

#[test]
fn vkdispatch_computes_the_same() -> Result<()> {
    same_as_on_the_host(&VKDISPATCH)
}

#[test]
fn operators_of_llama_pass_as_on_the_host() -> Result<()> {
    same_as_on_the_host(&OPERATORS)
}
