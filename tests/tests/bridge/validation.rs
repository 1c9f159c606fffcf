//! Tests that the calls that workers make for a valid client's commands are valid Vulkan: the Khronos validation layer sits between worker and
//! driver, as it also does in `programs`.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use tests::completion;
use tests::packages::{ClientRoot, Suite};
use tests::validation::{findings, findings_in_differential};

#[test]
fn queries_of_vulkaninfo_are_valid() -> Result<()> {
    for suite in [Suite::Trixie, Suite::Testing, Suite::Unstable] {
        let found = findings(|socket| ClientRoot::open(suite)?.through_vtest("vulkaninfo", socket));
        let found = found.with_context(|| format!("{suite:?}"))?;
        ensure!(found.is_empty(), "{suite:?}: {found:#?}");
    }
    Ok(())
}

#[test]
#[ignore = "takes a minute of both processors"]
fn work_of_llama_is_valid() -> Result<()> {
    let model = tempfile::NamedTempFile::new()?;
    std::fs::write(model.path(), completion::model())?;
    for suite in [Suite::Testing, Suite::Unstable] {
        let found = findings(|socket| {
            let mut command = ClientRoot::open(suite)?.through_vtest("llama-completion", socket)?;
            command.args(completion::arguments(model.path(), 8));
            Ok(command)
        });
        let found = found.with_context(|| format!("{suite:?}"))?;
        ensure!(found.is_empty(), "{suite:?}: {found:#?}");
    }
    Ok(())
}

#[test]
#[ignore = "the whole differential suite once more, which takes minutes"]
fn differential_suite_is_valid() -> Result<()> {
    let program = Path::new(env!("CARGO_BIN_EXE_differential"));
    let found = findings_in_differential(program, &ClientRoot::open(Suite::Testing)?)?;
    ensure!(found.is_empty(), "{found:#?}");
    Ok(())
}
