//! Accesses out of bounds and null descriptors, on a device that promises their results.

use anyhow::Result;
use ash::vk;

use crate::bytes::expect;
use crate::case::Case;
use crate::gpu::Gpu;
use crate::images::Picture;
use crate::kernel::{STORAGE, Slot};

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        storage_read(),
        storage_write(),
        uniform(),
        texels(),
        image(),
        null_buffer(),
        null_texels(),
        null_image(),
    ]
}

/// Runs on a device with everything switched on, robustness too.
fn case(name: &str, needs: &'static [&'static str], glsl: &str, run: fn(&Gpu) -> Result<Vec<u8>>) -> Case {
    Case::new(format!("robustness.{name}"), move |gpu| {
        gpu.require(needs)?;
        let robust = Gpu::open(&[])?;
        robust.begin_case(vec![gpu.spirv(0)]);
        run(&robust)
    })
    .glsl(glsl)
}

/// Binds `slot` as `ty` beside a storage buffer of 64 words that hold 5, and answers them.
fn answer(gpu: &Gpu, ty: vk::DescriptorType, slot: Slot) -> Result<Vec<u32>> {
    let to = gpu.buffer_of(&[5u32; 64])?;
    let types = [ty, STORAGE];
    let kernel = gpu.kernel(0).bindings(&types).build()?;
    let set = gpu.set(&kernel, &types, &[slot, Slot::Buffer(to.handle)])?;
    gpu.run(|commands| {
        gpu.bind(commands, &kernel, set);
        unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
    })?;
    Ok(to.values())
}

fn source(declaration: &str, expression: &str) -> String {
    format!(
        "layout(local_size_x = 64) in;
{declaration}
layout(binding = 1) writeonly buffer To {{ uint to[64]; }};
void main() {{ int i = int(gl_GlobalInvocationID.x); to[i] = {expression}; }}"
    )
}

fn first_half() -> Vec<u32> {
    (0..64).map(|i| if i < 32 { 100 + i } else { 0 }).collect()
}

fn numbers() -> Vec<u32> {
    (100..164).collect()
}

fn storage_read() -> Case {
    let glsl = source("layout(binding = 0) readonly buffer From { uint from[]; };", "from[i]");
    case("storage_buffer_read", &["robustBufferAccess2"], &glsl, |gpu| {
        let from = gpu.buffer_of(&numbers())?;
        expect(&answer(gpu, STORAGE, Slot::Range(from.handle, 0, 128))?, &first_half())
    })
}

fn storage_write() -> Case {
    let glsl = "layout(local_size_x = 64) in;
layout(binding = 0) buffer From { uint from[]; };
layout(binding = 1) writeonly buffer To { uint to[64]; };
void main() { uint i = gl_GlobalInvocationID.x; from[i] = 7; from[i + 0x10000000] = 8; to[i] = 1; }";
    case("storage_buffer_write", &["robustBufferAccess2"], glsl, |gpu| {
        let from = gpu.buffer_of(&numbers())?;
        answer(gpu, STORAGE, Slot::Range(from.handle, 0, 128))?;
        let expected: Vec<u32> = (0..64).map(|i| if i < 32 { 7 } else { 100 + i }).collect();
        expect(&from.values::<u32>(), &expected)
    })
}

fn uniform() -> Case {
    let glsl = source("layout(std430, binding = 0) uniform From { uint from[64]; };", "from[i]");
    case("uniform_buffer", &["robustBufferAccess2", "uniformBufferStandardLayout"], &glsl, |gpu| {
        let from = gpu.buffer_of(&numbers())?;
        let found = answer(gpu, vk::DescriptorType::UNIFORM_BUFFER, Slot::Range(from.handle, 0, 128))?;
        // The range may be rounded up to the alignment that the device names.
        expect(&found[..32], &first_half()[..32])
    })
}

fn texels() -> Case {
    let glsl = source("layout(binding = 0) uniform usamplerBuffer from;", "texelFetch(from, i * 2).x");
    case("texel_buffer", &["robustBufferAccess2"], &glsl, |gpu| {
        let from = gpu.buffer_of(&numbers())?;
        let view = gpu.buffer_view(&from, vk::Format::R32_UINT, 0, 256)?;
        let expected: Vec<u32> = (0..64).map(|i| if i < 32 { 100 + 2 * i } else { 0 }).collect();
        expect(&answer(gpu, vk::DescriptorType::UNIFORM_TEXEL_BUFFER, Slot::View(view))?, &expected)
    })
}

fn image() -> Case {
    let glsl = source(
        "layout(r32ui, binding = 0) readonly uniform uimage2D from;",
        "imageLoad(from, ivec2(i - 16, 0)).x",
    );
    case("image", &["robustImageAccess"], &glsl, |gpu| {
        let picture = Picture::storage(gpu, vk::Format::R32_UINT, 32, 1)?;
        picture.fill(gpu, &gpu.buffer_of(&numbers())?)?;
        let view = picture.view(gpu)?;
        let found =
            answer(gpu, vk::DescriptorType::STORAGE_IMAGE, Slot::Image(view, vk::ImageLayout::GENERAL))?;
        let expected: Vec<u32> = (0..64).map(|i| if (16..48).contains(&i) { 84 + i } else { 0 }).collect();
        expect(&found, &expected)
    })
}

fn null_buffer() -> Case {
    let glsl =
        source("layout(binding = 0) readonly buffer From { uint from[]; };", "from[i] + uint(from.length())");
    case("null_buffer", &["nullDescriptor"], &glsl, |gpu| {
        expect(&answer(gpu, STORAGE, Slot::Buffer(vk::Buffer::null()))?, &[0; 64])
    })
}

fn null_texels() -> Case {
    let glsl = source("layout(binding = 0) uniform usamplerBuffer from;", "texelFetch(from, i).x");
    case("null_texel_buffer", &["nullDescriptor"], &glsl, |gpu| {
        let slot = Slot::View(vk::BufferView::null());
        expect(&answer(gpu, vk::DescriptorType::UNIFORM_TEXEL_BUFFER, slot)?, &[0; 64])
    })
}

fn null_image() -> Case {
    let glsl = source(
        "layout(r32ui, binding = 0) readonly uniform uimage2D from;",
        "imageLoad(from, ivec2(i, 0)).x",
    );
    case("null_image", &["nullDescriptor"], &glsl, |gpu| {
        let slot = Slot::Image(vk::ImageView::null(), vk::ImageLayout::GENERAL);
        expect(&answer(gpu, vk::DescriptorType::STORAGE_IMAGE, slot)?, &[0; 64])
    })
}
