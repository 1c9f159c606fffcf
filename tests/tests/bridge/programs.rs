//! Independent programs give through the bridge, byte for byte, the results they give on the host's driver, and the calls that workers make for their
//! commands are valid Vulkan. The tests in `bridge/clients` check llama.cpp with each Mesa.

use anyhow::{Result, ensure};
use tests::clients::{
    self, Client, Files, NCNN, OPERATORS, Packages, Place, Setup, VKDISPATCH, Verdict, WGPU, WHISPER,
};
use tests::daemon::Daemon;
use tests::packages::{Device, Suite};
use tests::program::LIMIT;
use tests::validation::found_by;

fn same_as_on_the_host(client: &Client) -> Result<()> {
    same_with(client, &[])
}

fn same_with(client: &Client, options: &[&str]) -> Result<()> {
    let setup = Setup::on(Daemon::start_validated(options)?)?;
    let files = Files::write()?;
    let packages = Packages::open(Suite::Testing)?;
    let native = Place::Packages(&packages, Device::Native);
    let guest = Place::Packages(&packages, Device::Venus(setup.socket()));
    assert_eq!(clients::compare(client, &native, &guest, &files, LIMIT)?, Verdict::Same);
    let found = found_by(setup)?;
    ensure!(found.is_empty(), "{found:#?}");
    Ok(())
}

#[test]
#[ignore = "takes minutes of both processors: one more program on a software driver"]
fn whisper_hears_the_same() -> Result<()> {
    same_as_on_the_host(&WHISPER)
}

#[test]
#[ignore = "takes minutes of both processors: one more program on a software driver"]
fn ncnn_computes_the_same() -> Result<()> {
    same_as_on_the_host(&NCNN)
}

#[test]
#[ignore = "takes minutes of both processors: one more program on a software driver"]
fn vkdispatch_computes_the_same() -> Result<()> {
    same_as_on_the_host(&VKDISPATCH)
}

#[test]
#[ignore = "takes minutes of both processors: one more program on a software driver"]
fn operators_of_llama_pass_as_on_the_host() -> Result<()> {
    same_as_on_the_host(&OPERATORS)
}

#[test]
#[ignore = "takes minutes of both processors: one more program on a software driver"]
fn wgpu_computes_the_same_where_queues_say_that_they_draw_and_finds_no_device_elsewhere() -> Result<()> {
    same_as_on_the_host(&WGPU)?;
    let outcome = same_with(&WGPU, &["--queues", "compute"]);
    ensure!(outcome.is_err_and(|error| format!("{error:#}").contains("no Vulkan device")), "it finds one");
    Ok(())
}
