//! The machine's own GPU in a guest: it shows up under its name, and a program computes on it.
//!
//! Without a GPU the test says so and passes; with `REQUIRE_GPU=1` it fails instead, so that a GPU runner cannot skip silently.

use anyhow::{Result, ensure};
use std::time::Duration;
use tests::clients::Setup;
use tests::completion;
use tests::daemon::Daemon;
use tests::packages::{ClientRoot, Suite};
use tests::prerequisites::has_gpu;
use tests::program::succeed;

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn the_gpu_of_this_machine_computes_for_a_guest() -> Result<()> {
    if !has_gpu() {
        ensure!(std::env::var_os("REQUIRE_GPU").is_none(), "REQUIRE_GPU is set and there is no GPU");
        println!("skipped: no GPU");
        return Ok(());
    }
    let setup = Setup::on(Daemon::start_on_machine(&[])?)?;
    let folder = tempfile::tempdir()?;
    let client = ClientRoot::open(Suite::Testing)?;

    let mut vulkaninfo = client.through_vtest("vulkaninfo", setup.socket())?;
    vulkaninfo.arg("--summary");
    let summary = succeed(vulkaninfo, LIMIT)?;
    ensure!(summary.contains("Virtio-GPU Venus (") && !summary.contains("llvmpipe"), "{summary}");

    let model = folder.path().join("model.gguf");
    std::fs::write(&model, completion::model())?;
    let words = || -> Result<Vec<String>> {
        let mut llama = client.through_vtest("llama-completion", setup.socket())?;
        llama.args(completion::arguments(&model, 24 + completion::SPARE_WORDS));
        Ok(succeed(llama, LIMIT)?.split_whitespace().take(24).map(str::to_owned).collect())
    };
    let first = words()?;
    assert_eq!((first.len(), words()?), (24, first));
    Ok(())
}
