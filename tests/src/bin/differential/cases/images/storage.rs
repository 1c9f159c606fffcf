//! Storage images: formats, dimensions, access without a format.

use anyhow::Result;
use ash::vk;

use crate::bytes::{bytes_of, expect};
use crate::case::Case;
use crate::elementwise::noise32;
use crate::gpu::Gpu;
use crate::images::{Picture, Shape};
use crate::kernel::Slot;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = FORMATS.iter().map(format).collect();
    cases.extend(dimensions());
    cases.extend(without_format());
    cases
}

/// A format: its name in GLSL, the image's type, bytes of a texel, whether it belongs to the extended ones, and the value to store at `x`, `y`.
type Format = (&'static str, vk::Format, &'static str, u64, bool, &'static str);

const SIGNED: &str = "ivec4(x - 7, -y, x * y, 1 - x)";
const UNSIGNED: &str = "uvec4(x, y * 3, x * y, x ^ y)";
const NORMAL: &str = "vec4(x / 15.0, y / 15.0, x * y / 225.0, 1.0 - x / 15.0)";
const SIGNED_NORMAL: &str = "vec4(x / 15.0, -y / 15.0, x * y / 225.0 - 0.5, 1.0)";
const FLOAT: &str = "vec4(x * 0.5, -y * 1.25, x * y, 0.125)";
const POSITIVE: &str = "vec4(x * 0.5, y * 1.25, x * y, 0.125)";

const FORMATS: &[Format] = &[
    ("rgba8", vk::Format::R8G8B8A8_UNORM, "image2D", 4, false, NORMAL),
    ("rgba8_snorm", vk::Format::R8G8B8A8_SNORM, "image2D", 4, false, SIGNED_NORMAL),
    ("rgba8ui", vk::Format::R8G8B8A8_UINT, "uimage2D", 4, false, UNSIGNED),
    ("rgba8i", vk::Format::R8G8B8A8_SINT, "iimage2D", 4, false, "ivec4(x - 7, -y, x, 1 - x)"),
    ("rgba16f", vk::Format::R16G16B16A16_SFLOAT, "image2D", 8, false, FLOAT),
    ("rgba16ui", vk::Format::R16G16B16A16_UINT, "uimage2D", 8, false, UNSIGNED),
    ("rgba16i", vk::Format::R16G16B16A16_SINT, "iimage2D", 8, false, SIGNED),
    ("rgba32f", vk::Format::R32G32B32A32_SFLOAT, "image2D", 16, false, FLOAT),
    ("rgba32ui", vk::Format::R32G32B32A32_UINT, "uimage2D", 16, false, UNSIGNED),
    ("rgba32i", vk::Format::R32G32B32A32_SINT, "iimage2D", 16, false, SIGNED),
    ("r32f", vk::Format::R32_SFLOAT, "image2D", 4, false, FLOAT),
    ("r32ui", vk::Format::R32_UINT, "uimage2D", 4, false, UNSIGNED),
    ("r32i", vk::Format::R32_SINT, "iimage2D", 4, false, SIGNED),
    ("rg32f", vk::Format::R32G32_SFLOAT, "image2D", 8, true, FLOAT),
    ("rg16f", vk::Format::R16G16_SFLOAT, "image2D", 4, true, FLOAT),
    ("r16f", vk::Format::R16_SFLOAT, "image2D", 2, true, FLOAT),
    ("r16ui", vk::Format::R16_UINT, "uimage2D", 2, true, UNSIGNED),
    ("r8ui", vk::Format::R8_UINT, "uimage2D", 1, true, UNSIGNED),
    ("r8", vk::Format::R8_UNORM, "image2D", 1, true, NORMAL),
    ("rg8", vk::Format::R8G8_UNORM, "image2D", 2, true, NORMAL),
    ("rgba16", vk::Format::R16G16B16A16_UNORM, "image2D", 8, true, NORMAL),
    ("rgb10_a2", vk::Format::A2B10G10R10_UNORM_PACK32, "image2D", 4, true, NORMAL),
    ("rgb10_a2ui", vk::Format::A2B10G10R10_UINT_PACK32, "uimage2D", 4, true, "uvec4(x, y * 3, x * y, x & 3)"),
    ("r11f_g11f_b10f", vk::Format::B10G11R11_UFLOAT_PACK32, "image2D", 4, true, POSITIVE),
];

/// Stores a pattern, loads it in a second dispatch and stores it mirrored; the result is the bytes of both.
fn format(&(name, format, ty, bytes, extended, value): &Format) -> Case {
    let source = |body: &str| {
        format!(
            "layout(local_size_x = 8, local_size_y = 8) in;
layout({name}, binding = 0) uniform {ty} from;
layout({name}, binding = 1) uniform {ty} to;
void main() {{
    int x = int(gl_GlobalInvocationID.x), y = int(gl_GlobalInvocationID.y);
    {body}
}}"
        )
    };
    Case::new(format!("images.storage.format.{name}"), move |gpu| {
        if extended {
            gpu.require(&["shaderStorageImageExtendedFormats"])?;
        }
        gpu.require_format(format, vk::FormatFeatureFlags::STORAGE_IMAGE)?;
        let pictures = [Picture::storage(gpu, format, 16, 16)?, Picture::storage(gpu, format, 16, 16)?];
        let types = [vk::DescriptorType::STORAGE_IMAGE; 2];
        let slots =
            [0, 1].map(|i| pictures[i].view(gpu).map(|view| Slot::Image(view, vk::ImageLayout::GENERAL)));
        let [first, second] = slots;
        let slots = [first?, second?];
        let (store, mirror) =
            (gpu.kernel(0).bindings(&types).build()?, gpu.kernel(1).bindings(&types).build()?);
        let (store_set, mirror_set) = (gpu.set(&store, &types, &slots)?, gpu.set(&mirror, &types, &slots)?);
        let read = [gpu.buffer(256 * bytes)?, gpu.buffer(256 * bytes)?];
        gpu.run(|commands| {
            gpu.bind(commands, &store, store_set);
            unsafe { gpu.device.cmd_dispatch(commands, 2, 2, 1) };
            gpu.barrier(commands);
            gpu.bind(commands, &mirror, mirror_set);
            unsafe { gpu.device.cmd_dispatch(commands, 2, 2, 1) };
            gpu.barrier(commands);
            pictures[0].read_into(gpu, commands, &read[0]);
            pictures[1].read_into(gpu, commands, &read[1]);
        })?;
        let [stored, mirrored] = read.map(|buffer| buffer.read());
        // A texel loaded and stored again keeps its bits.
        let texel = |index: usize| &stored[index * bytes as usize..][..bytes as usize];
        let expected: Vec<u8> = (0..256).flat_map(|i| texel(i / 16 * 16 + 15 - i % 16)).copied().collect();
        expect(&mirrored, &expected)?;
        anyhow::ensure!(stored.iter().any(|byte| *byte != 0), "nothing was stored");
        Ok(stored)
    })
    .glsl(source(&format!("imageStore(from, ivec2(x, y), {value});")))
    .glsl(source("imageStore(to, ivec2(15 - x, y), imageLoad(from, ivec2(x, y)));"))
}

fn dimensions() -> Vec<Case> {
    let case = |name: &'static str,
                view,
                size: [u32; 3],
                layers: u32,
                needs: &'static [&'static str],
                ty: &str,
                at: &str| {
        let count = size.iter().product::<u32>() * layers;
        Case::new(format!("images.storage.dimension.{name}"), move |gpu| {
            gpu.require(needs)?;
            let shape = Shape {
                view,
                size,
                layers,
                ..Shape::flat(vk::Format::R32_UINT, 1, 1, vk::ImageUsageFlags::STORAGE)
            };
            let picture = Picture::new(gpu, shape)?;
            let types = [vk::DescriptorType::STORAGE_IMAGE];
            let kernel = gpu.kernel(0).bindings(&types).push(16).build()?;
            let set =
                gpu.set(&kernel, &types, &[Slot::Image(picture.view(gpu)?, vk::ImageLayout::GENERAL)])?;
            let (from, to) =
                (gpu.buffer_of(&noise32(80, count as usize))?, gpu.buffer(4 * u64::from(count))?);
            gpu.run(|commands| {
                picture.fill_from(gpu, commands, &from);
                gpu.barrier(commands);
                gpu.bind(commands, &kernel, set);
                gpu.push(commands, &kernel, &[size[0], size[1], size[2].max(layers), count]);
                unsafe { gpu.device.cmd_dispatch(commands, count.div_ceil(64), 1, 1) };
                gpu.barrier(commands);
                picture.read_into(gpu, commands, &to);
            })?;
            expect(
                &to.values::<u32>(),
                &(0..).zip(noise32(80, count as usize)).map(|(i, word)| word ^ (i * 7)).collect::<Vec<u32>>(),
            )
        })
        .glsl(format!(
            "layout(local_size_x = 64) in;
layout(r32ui, binding = 0) uniform {ty} cells;
layout(push_constant) uniform Push {{ uvec4 size; }};
void main() {{
    uint i = gl_GlobalInvocationID.x;
    if (i >= size.w) return;
    int x = int(i % size.x), y = int(i / size.x % size.y), z = int(i / size.x / size.y);
    imageStore(cells, {at}, imageLoad(cells, {at}) ^ (i * 7));
}}"
        ))
    };
    use vk::ImageViewType as View;
    vec![
        case("1d", View::TYPE_1D, [100, 1, 1], 1, &[], "uimage1D", "x"),
        case("1d_array", View::TYPE_1D_ARRAY, [30, 1, 1], 5, &[], "uimage1DArray", "ivec2(x, z)"),
        case("2d", View::TYPE_2D, [33, 17, 1], 1, &[], "uimage2D", "ivec2(x, y)"),
        case("2d_array", View::TYPE_2D_ARRAY, [9, 7, 1], 4, &[], "uimage2DArray", "ivec3(x, y, z)"),
        case("3d", View::TYPE_3D, [8, 5, 6], 1, &[], "uimage3D", "ivec3(x, y, z)"),
        case("cube", View::CUBE, [8, 8, 1], 6, &[], "uimageCube", "ivec3(x, y, z)"),
        case(
            "cube_array",
            View::CUBE_ARRAY,
            [8, 8, 1],
            12,
            &["imageCubeArray"],
            "uimageCubeArray",
            "ivec3(x, y, z)",
        ),
    ]
}

fn without_format() -> Vec<Case> {
    fn run(gpu: &Gpu, needs: &[&str]) -> Result<Vec<u8>> {
        gpu.require(needs)?;
        let words = noise32(81, 256);
        let picture = Picture::storage(gpu, vk::Format::R8G8B8A8_UINT, 16, 16)?;
        let types = [vk::DescriptorType::STORAGE_IMAGE, crate::kernel::STORAGE];
        let kernel = gpu.kernel(0).bindings(&types).build()?;
        let (from, cells) = (gpu.buffer_of(&words)?, gpu.buffer_of(&words)?);
        let view = Slot::Image(picture.view(gpu)?, vk::ImageLayout::GENERAL);
        let set = gpu.set(&kernel, &types, &[view, Slot::Buffer(cells.handle)])?;
        let to = gpu.buffer(1024)?;
        gpu.run(|commands| {
            picture.fill_from(gpu, commands, &from);
            gpu.barrier(commands);
            gpu.bind(commands, &kernel, set);
            unsafe { gpu.device.cmd_dispatch(commands, 16, 16, 1) };
            gpu.barrier(commands);
            picture.read_into(gpu, commands, &to);
        })?;
        Ok([to.read(), cells.read()].concat())
    }
    const HEAD: &str = "#extension GL_EXT_shader_image_load_formatted : enable
layout(binding = 1) buffer Cells { uint cells[]; };
";
    vec![
        Case::new("images.storage.read_without_format", |gpu| {
            let found = run(gpu, &["shaderStorageImageReadWithoutFormat"])?;
            let words = noise32(81, 256);
            let sums = words.iter().map(|word| word.to_le_bytes().into_iter().map(u32::from).sum()).collect::<Vec<u32>>();
            expect(&found, &[bytes_of(&words), bytes_of(&sums)].concat())
        })
        .glsl(format!(
            "{HEAD}layout(binding = 0) readonly uniform uimage2D picture;
void main() {{
    uvec4 texel = imageLoad(picture, ivec2(gl_WorkGroupID.xy));
    cells[gl_WorkGroupID.y * 16 + gl_WorkGroupID.x] = texel.x + texel.y + texel.z + texel.w;
}}"
        )),
        Case::new("images.storage.write_without_format", |gpu| {
            let found = run(gpu, &["shaderStorageImageWriteWithoutFormat"])?;
            let words = noise32(81, 256);
            let low: Vec<u32> = words.iter().map(|word| word & 255 | 0x0302_0100).collect();
            expect(&found, &[bytes_of(&low.iter().map(|word| word & 255 | 0x0302_0100).collect::<Vec<_>>()), bytes_of(&words)].concat())
        })
        .glsl(format!(
            "{HEAD}layout(binding = 0) writeonly uniform uimage2D picture;
void main() {{
    imageStore(picture, ivec2(gl_WorkGroupID.xy), uvec4(cells[gl_WorkGroupID.y * 16 + gl_WorkGroupID.x] & 255, 1, 2, 3));
}}"
        )),
    ]
}
