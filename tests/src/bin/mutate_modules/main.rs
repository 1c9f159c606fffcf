//! Mutates real shader modules and has a daemon make pipelines of them: `mutate-modules PATH... [--count N]`.
//!
//! Counts the modules that the daemon refuses, those that the driver makes or refuses, and workers that die, which may show an incomplete check.

mod layout;
mod mutation;

use anyhow::{Context as _, Result};
use clap::Parser;
use layout::{Layout, bindings};
use mutation::mutated;
use protocol::venus::generated as venus;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tests::daemon::Daemon;
use tests::guest::Gpu;
use tests::guest::device::Device;
use tests::guest::ring::REPLY;
use tests::random::Random;

#[derive(Parser)]
#[command(about = "Mutate shader modules and count the workers that die of them")]
struct Arguments {
    /// Modules, and folders of modules.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Modules to make.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// The number that decides which.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder that the modules which end workers are written to.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Leave the modules as they are.
    #[arg(long)]
    unchanged: bool,
    /// Modules of more bytes are left out.
    #[arg(long, default_value_t = 32 << 10)]
    bytes_max: u64,
}

/// The result for a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The daemon refused the module, or a pipeline of it.
    Refused,
    /// The driver, or a limit of the daemon's, made no pipeline of it.
    Failed,
    /// A pipeline was made.
    Made,
    /// The worker died, or was ended because it did not answer.
    Died,
}

fn modules(path: &Path, bytes_max: u64, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(path).with_context(|| path.display().to_string())? {
        let entry = entry?;
        if entry.path().is_dir() {
            modules(&entry.path(), bytes_max, found)?;
        } else if entry.path().extension().is_some_and(|end| end == "spv")
            && entry.metadata()?.len() <= bytes_max
        {
            found.push(entry.path());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u32>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

fn result(device: &mut Device, command: impl FnOnce(&mut protocol::cursor::Writer<'_>)) -> Result<i32> {
    device.query(command, |reply| {
        let _number = reply.u32()?;
        Ok(reply.u32()? as i32)
    })
}

/// `VK_ERROR_INVALID_SHADER_NV`.
const INVALID: i32 = -1_000_012_000;

/// Makes a module and a pipeline of it; an error if the worker does not answer.
fn make(vulkan: &mut Device, words: &[u32], layout: &Layout) -> Result<End> {
    let (device, module) = (vulkan.device, venus::ShaderModule(vulkan.new_id()));
    let code_size = size_of_val(words) as u64;
    let info = venus::ShaderModuleCreateInfo { code_size, p_code: Some(words), ..Default::default() };
    let create =
        venus::CreateShaderModule { device, p_create_info: Some(&info), p_shader_module: Some(&module) };
    match result(vulkan, |w| create.encode(REPLY, w))? {
        0 => {}
        INVALID => return Ok(End::Refused),
        _ => return Ok(End::Failed),
    }
    let pipelines = [venus::Pipeline(vulkan.new_id())];
    let stage = venus::PipelineShaderStageCreateInfo {
        stage: venus::ShaderStageFlags::COMPUTE,
        module,
        p_name: Some(c"main"),
        ..Default::default()
    };
    let layout = layout.make(vulkan)?;
    let infos = [venus::ComputePipelineCreateInfo { stage, layout, ..Default::default() }];
    let create = venus::CreateComputePipelines {
        device,
        pipeline_cache: Default::default(),
        create_info_count: 1,
        p_create_infos: Some(&infos),
        p_pipelines: Some(&pipelines),
    };
    Ok(match result(vulkan, |w| create.encode(REPLY, w))? {
        0 => End::Made,
        INVALID => End::Refused,
        _ => End::Failed,
    })
}

fn main() -> Result<()> {
    env_logger::init();
    let arguments = Arguments::parse();
    let mut paths = Vec::new();
    for path in &arguments.paths {
        modules(path, arguments.bytes_max, &mut paths)?;
    }
    paths.sort();
    anyhow::ensure!(!paths.is_empty(), "no modules");
    let daemon = Daemon::start()?;
    let gpu: Arc<Gpu> = Arc::new(daemon.guest()?);
    let mut vulkan = Device::create_with_all_features(&gpu, "mutants")?;
    let mut ends: BTreeMap<End, u64> = BTreeMap::new();
    for number in 0..arguments.count {
        let mut random = Random::new(arguments.seed << 32 | number);
        let path = match arguments.unchanged {
            true => &paths[number as usize % paths.len()],
            false => &paths[random.below(paths.len() as u64) as usize],
        };
        let original = read(path)?;
        let words = if arguments.unchanged { original.clone() } else { mutated(&original, &mut random) };
        let end = make(&mut vulkan, &words, &Layout::of(&bindings(&original))).unwrap_or(End::Died);
        *ends.entry(end).or_default() += 1;
        if arguments.unchanged && end != End::Made {
            println!("{number}: {end:?}: {}", path.display());
        }
        if end == End::Died {
            println!("{number}: died of a mutant of {}", path.display());
            if let Some(folder) = &arguments.keep {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                std::fs::write(folder.join(format!("{number}.spv")), bytes)?;
                std::fs::copy(path, folder.join(format!("{number}.original")))?;
            }
            let _gone = gpu.destroy_context(vulkan.context);
            vulkan = Device::create_with_all_features(&gpu, "mutants")?;
        }
    }
    println!("{ends:?}");
    Ok(())
}
