//! `cargo codegen`: rewrites the generated folders, or with `--check` fails if their content is not up to date.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use codegen::registry::source;
use codegen::target::Target;
use codegen::{Inputs, emit, inputs};

/// Generates the Venus codec from the Vulkan registry and protocol/codegen/inputs.
#[derive(Debug, Parser)]
struct Arguments {
    /// The registry (vk.xml) of the version that inputs/registry.toml pins; by default it is taken from the cache or fetched.
    #[arg(long, value_name = "PATH")]
    registry: Option<PathBuf>,
    /// Write nothing; fail when a generated file is not up to date.
    #[arg(long)]
    check: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let targets = targets(&workspace, arguments.registry.as_deref())?;
    if !arguments.check {
        targets.iter().try_for_each(Target::write)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut differences = Vec::new();
    for target in &targets {
        differences.extend(target.differences()?);
    }
    for path in &differences {
        eprintln!("not up to date: {}", path.strip_prefix(&workspace).unwrap_or(path).display());
    }
    if differences.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("run `cargo codegen` and commit the result");
    Ok(ExitCode::FAILURE)
}

/// Every generated folder of the workspace with its content.
fn targets(workspace: &Path, registry: Option<&Path>) -> Result<Vec<Target>> {
    let folder = workspace.join("protocol/codegen/inputs");
    let read =
        |name: &str| fs::read_to_string(folder.join(name)).with_context(|| format!("reading inputs/{name}"));
    let pin: source::Pin = inputs::parse("registry.toml", &read("registry.toml")?)?;
    let xml = source::load(&pin, registry)?;
    let inputs = Inputs {
        registries: vec![xml.clone(), read("mesa.xml")?],
        allowlist: read("allowlist.toml")?,
        commands: read("commands.toml")?,
        overrides: read("overrides.toml")?,
        execution: read("execution.toml")?,
        replay: read("replay.toml")?,
        sha256: pin.sha256,
    };
    let protocol = inputs.resolve()?;
    let vulkan = workspace.join("daemon/vulkan/src");
    Ok(vec![
        Target {
            folder: workspace.join("protocol/src/venus/generated"),
            outputs: emit::protocol(&protocol)?,
        },
        Target { folder: vulkan.join("driver/generated"), outputs: emit::lower::driver(&protocol)? },
        Target { folder: vulkan.join("objects/generated"), outputs: emit::lower::objects(&protocol)? },
        Target { folder: vulkan.join("lowering/generated"), outputs: emit::lower::lowering(&protocol)? },
        Target { folder: vulkan.join("dispatch/generated"), outputs: emit::lower::dispatch(&protocol)? },
        Target {
            folder: workspace.join("protocol/src/spirv/generated"),
            outputs: emit::spirv::spirv(&protocol, &xml)?,
        },
    ])
}
