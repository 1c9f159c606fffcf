//! Checks SPIR-V modules as the daemon does before a driver sees them: `check-modules PATH...`.
//!
//! The device offers every feature. A module is checked as in `vkCreateShaderModule`, and once more as in a pipeline without specialisation, whose
//! sizes are the defaults. Refused modules are printed with the reason.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use protocol::spirv::{Device, Error, Limits, check, enabled};

#[derive(Parser)]
#[command(about = "Check SPIR-V modules as the daemon does")]
struct Arguments {
    /// Modules, and folders that are searched for `*.spv`.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Refuse all stages but compute, as without `--queues all`.
    #[arg(long)]
    compute: bool,
    /// `maxComputeWorkGroupSize`.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "1024,1024,64")]
    workgroup_size: Vec<u32>,
    /// `maxComputeWorkGroupInvocations`.
    #[arg(long, default_value_t = 1024)]
    workgroup_invocations: u32,
    /// `maxComputeSharedMemorySize`.
    #[arg(long, default_value_t = 48 << 10)]
    workgroup_bytes: u32,
    /// `maxBoundDescriptorSets`.
    #[arg(long, default_value_t = 32)]
    descriptor_sets: u32,
    /// The limit of numbers that instructions make and constants hold, `shader_cost`.
    #[arg(long, default_value_t = Limits::DEFAULT.cost)]
    cost: u64,
}

/// The result of a module's check.
enum Verdict {
    Accepted,
    /// Pipelines can be made of the module only if it is specialised.
    Unspecialised(Error),
    /// The module needs a part of the device that is not offered.
    NotOffered(Error),
    Refused(Error),
}

impl Arguments {
    fn judge(&self, words: &[u32]) -> Verdict {
        let capabilities = enabled(|_| true);
        let check = |specialisation| {
            let device = Device {
                version: 0x1_0600,
                has_capability: &|number| capabilities.contains(&number),
                graphics: !self.compute,
                workgroup_size: [0, 1, 2].map(|at: usize| self.workgroup_size.get(at).copied().unwrap_or(1)),
                workgroup_invocations: self.workgroup_invocations,
                workgroup_bytes: self.workgroup_bytes,
                descriptor_sets: self.descriptor_sets,
                specialisation,
            };
            check(words, &device, &Limits { cost: self.cost, ..Limits::DEFAULT })
        };
        match check(None) {
            Err(error) if error.kind.is_for_another_device() => return Verdict::NotOffered(error),
            Err(error) => return Verdict::Refused(error),
            Ok(_) => {}
        }
        let with_defaults = check(Some(HashMap::new()));
        let launched = with_defaults
            .and_then(|module| module.entry_points.iter().try_for_each(|entry_point| entry_point.launch));
        launched.map_or_else(Verdict::Unspecialised, |()| Verdict::Accepted)
    }
}

#[derive(Default)]
struct Counts {
    modules: u32,
    accepted: u32,
    unspecialised: u32,
    not_offered: u32,
    refused: u32,
}

/// All modules below a path, or the one module that it names.
fn modules(path: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).with_context(|| path.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "spv") {
            modules(&path, found)?;
        }
    }
    Ok(())
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut found = Vec::new();
    for path in &arguments.paths {
        modules(path, &mut found)?;
    }
    found.sort();
    let mut folders: BTreeMap<&Path, Counts> = BTreeMap::new();
    for path in &found {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let (words, _) = bytes.as_chunks();
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let counts = folders.entry(path.parent().unwrap_or(Path::new(""))).or_default();
        counts.modules += 1;
        let (what, error) = match arguments.judge(&words) {
            Verdict::Accepted => {
                counts.accepted += 1;
                continue;
            }
            Verdict::Unspecialised(error) => {
                counts.unspecialised += 1;
                ("no pipeline without specialisation", error)
            }
            Verdict::NotOffered(error) => {
                counts.not_offered += 1;
                ("not offered", error)
            }
            Verdict::Refused(error) => {
                counts.refused += 1;
                ("refused", error)
            }
        };
        println!("{}: {what}: {error}", path.display());
    }
    for (folder, counts) in &folders {
        let Counts { modules, accepted, unspecialised, not_offered, refused } = counts;
        println!(
            "{}: {modules} modules, {accepted} accepted, {unspecialised} accepted and no pipeline without specialisation, \
             {not_offered} need what is not offered, {refused} refused",
            folder.display()
        );
    }
    Ok(ExitCode::from(u8::from(folders.values().any(|counts| counts.refused > 0))))
}
