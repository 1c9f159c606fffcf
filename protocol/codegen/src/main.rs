//! Generator of the Venus codec: Vulkan registry and `inputs/` in, Rust under `generated/` out.

mod emit;
mod inputs;
mod ir;
mod overrides;
mod registry;
mod resolve;

use anyhow::Result;
use std::path::PathBuf;

fn main() -> Result<()> {
    let inputs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("inputs");
    let text = |n: &str| std::fs::read_to_string(inputs.join(n));
    let pin: registry::source::Pin = inputs::parse("registry.toml", &text("registry.toml")?)?;
    let xml = registry::source::load(&pin, None)?;
    let mut r = registry::Registry::default();
    r.add(&xml)?;
    r.add(&text("mesa.xml")?)?;
    let p = resolve::resolve(
        &r,
        &inputs::parse("allowlist.toml", &text("allowlist.toml")?)?,
        &inputs::parse("commands.toml", &text("commands.toml")?)?,
        &inputs::parse("overrides.toml", &text("overrides.toml")?)?,
        &pin.sha256,
    )?;
    println!(
        "{} commands {} structs {} enums {} flags {} handles {} ext",
        p.commands.len(),
        p.structs.len(),
        p.enums.len(),
        p.flags.len(),
        p.handles.len(),
        p.extensions.len()
    );
    let out = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../src/venus/generated");
    std::fs::create_dir_all(&out)?;
    for o in emit::protocol(&p)? {
        std::fs::write(out.join(&o.name), &o.text)?;
    }
    Ok(())
}
