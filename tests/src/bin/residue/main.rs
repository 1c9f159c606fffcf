//! Looks for data of earlier tenants: one tenant fills memory of every kind and ends, the next counts the bytes that it finds.
//!
//! Each tenant is a Vulkan instance of its own, which the daemon serves in a process of its own. Prints one line: `residue: memory BYTES, workgroup
//! BYTES, own workgroup BYTES, outside BYTES`: the third counts the tenant's own bytes, the last those that a shader reads behind the end of its
//! buffer.

mod gpu;
mod shader;

use anyhow::Result;
use clap::Parser;
use gpu::Tenant;

/// Fills memory as one tenant and looks at it as another, again and again.
#[derive(Debug, Parser)]
struct Arguments {
    /// Times that memory is filled and looked at.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Memory of each type that a tenant takes.
    #[arg(long, default_value_t = 16)]
    mebibytes: u64,
    /// Only fill, say `filled`, and wait to be killed.
    #[arg(long)]
    fill: bool,
    /// Only look.
    #[arg(long)]
    look: bool,
}

/// A word that is unlikely to be in memory by chance.
const PATTERN: u32 = 0xa5c3_5ac3;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let bytes = arguments.mebibytes << 20;
    if arguments.fill {
        let mut tenant = Tenant::open()?;
        tenant.fill_memory(bytes, PATTERN)?;
        tenant.workgroup(Some(PATTERN))?;
        println!("filled");
        loop {
            std::thread::park();
        }
    }
    let (mut memory, mut workgroup, mut own, mut outside) = (0, 0, 0, 0);
    for _ in 0..arguments.rounds {
        if !arguments.look {
            let mut first = Tenant::open()?;
            first.fill_memory(bytes, PATTERN)?;
            first.workgroup(Some(PATTERN))?;
            own += first.workgroup(None)?;
        }
        let mut second = Tenant::open()?;
        workgroup += second.workgroup(None)?;
        memory += second.count_memory(bytes)?;
        outside += second.outside(PATTERN)?;
    }
    println!("residue: memory {memory}, workgroup {workgroup}, own workgroup {own}, outside {outside}");
    Ok(())
}
