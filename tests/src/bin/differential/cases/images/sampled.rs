//! Sampled images and samplers: dimensions, filters, addresses, borders, levels, comparisons, views.

use anyhow::Result;
use ash::vk;

use crate::bytes::{bytes_of, expect, expect_near, from_bytes};
use crate::case::Case;
use crate::elementwise::noise32;
use crate::gpu::{Buffer, Gpu};
use crate::images::{Picture, Shape};
use crate::kernel::{STORAGE, Slot};

const COMBINED: vk::DescriptorType = vk::DescriptorType::COMBINED_IMAGE_SAMPLER;
const SAMPLED: vk::ImageUsageFlags = vk::ImageUsageFlags::SAMPLED;
const RED: vk::Format = vk::Format::R32_SFLOAT;

/// All cases of this module.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = dimensions();
    cases.extend(addresses());
    cases.extend(samplers());
    cases.extend(levels());
    cases.extend(lookups());
    cases.extend(formats());
    cases.extend(views());
    cases.extend(descriptors());
    cases
}

/// 64 invocations that each store `vec4 found` for their number `i` (an `int`).
fn source(head: &str, sampler: &str, body: &str) -> String {
    format!(
        "{head}
layout(local_size_x = 64) in;
layout(binding = 0) uniform {sampler} from;
layout(binding = 1) writeonly buffer To {{ vec4 to[]; }};
void main() {{
    int i = int(gl_GlobalInvocationID.x);
    vec4 found = vec4(0);
    {body}
    to[i] = found;
}}"
    )
}

fn sample(gpu: &Gpu, view: vk::ImageView, sampler: vk::Sampler) -> Result<Vec<u8>> {
    let to = gpu.buffer(1024)?;
    let types = [COMBINED, STORAGE];
    let kernel = gpu.kernel(0).bindings(&types).build()?;
    let set = gpu.set(&kernel, &types, &[Slot::Sampled(view, sampler), Slot::Buffer(to.handle)])?;
    gpu.run(|commands| {
        gpu.bind(commands, &kernel, set);
        unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
    })?;
    Ok(to.read())
}

fn reds(bytes: &[u8]) -> Vec<f32> {
    from_bytes::<[f32; 4]>(bytes).into_iter().map(|texel| texel[0]).collect()
}

/// A square of floats: texel `(x, y)` is `x + 10 y`.
fn grid(gpu: &Gpu) -> Result<Picture> {
    let texels: Vec<f32> = (0..64).map(|i| (i % 8) as f32 + 10.0 * (i / 8) as f32).collect();
    let picture = Picture::sampled(gpu, RED, 8, 8, &gpu.buffer_of(&texels)?)?;
    Ok(picture)
}

fn nearest() -> vk::SamplerCreateInfo<'static> {
    vk::SamplerCreateInfo::default().max_lod(vk::LOD_CLAMP_NONE)
}

fn linear() -> vk::SamplerCreateInfo<'static> {
    nearest().mag_filter(vk::Filter::LINEAR).min_filter(vk::Filter::LINEAR)
}

fn dimensions() -> Vec<Case> {
    let case = |name: &'static str,
                view,
                size: [u32; 3],
                layers: u32,
                needs: &'static [&'static str],
                sampler: &str,
                at: &str| {
        Case::new(format!("images.sampled.dimension.{name}"), move |gpu| {
            gpu.require(needs)?;
            let texels: Vec<f32> = (0..64).map(|i| i as f32).collect();
            let shape = Shape { view, size, layers, ..Shape::flat(RED, 1, 1, SAMPLED) };
            let picture = Picture::new(gpu, shape)?;
            picture.fill(gpu, &gpu.buffer_of(&texels)?)?;
            let found = sample(gpu, picture.view(gpu)?, gpu.sampler(&nearest())?)?;
            let cube = [vk::ImageViewType::CUBE, vk::ImageViewType::CUBE_ARRAY].contains(&view);
            if cube {
                // Face 4 looks along z; its texels are hit in the middle.
                let at = |i: usize| if i < 4 { 16.0 + i as f32 } else { 0.0 };
                expect(&reds(&found), &(0..64).map(at).collect::<Vec<_>>())?;
            } else {
                expect(&reds(&found), &texels)?;
            }
            Ok(found)
        })
        .glsl(source("", sampler, &format!("found = {at};")))
    };
    use vk::ImageViewType as View;
    let face = "i < 4 ? textureLod(from, DIRECTION, 0) : vec4(0)";
    vec![
        case("1d", View::TYPE_1D, [64, 1, 1], 1, &[], "sampler1D", "textureLod(from, (i + 0.5) / 64, 0)"),
        case(
            "1d_array",
            View::TYPE_1D_ARRAY,
            [16, 1, 1],
            4,
            &[],
            "sampler1DArray",
            "textureLod(from, vec2((i % 16 + 0.5) / 16, i / 16), 0)",
        ),
        case(
            "2d",
            View::TYPE_2D,
            [8, 8, 1],
            1,
            &[],
            "sampler2D",
            "textureLod(from, (vec2(i % 8, i / 8) + 0.5) / 8, 0)",
        ),
        case(
            "2d_array",
            View::TYPE_2D_ARRAY,
            [4, 4, 1],
            4,
            &[],
            "sampler2DArray",
            "textureLod(from, vec3((vec2(i % 4, i / 4 % 4) + 0.5) / 4, i / 16), 0)",
        ),
        case(
            "3d",
            View::TYPE_3D,
            [4, 4, 4],
            1,
            &[],
            "sampler3D",
            "textureLod(from, (vec3(i % 4, i / 4 % 4, i / 16) + 0.5) / 4, 0)",
        ),
        case(
            "cube",
            View::CUBE,
            [2, 2, 1],
            6,
            &[],
            "samplerCube",
            &face.replace("DIRECTION", "vec3(i % 2 == 0 ? -0.5 : 0.5, i / 2 == 0 ? 0.5 : -0.5, 1)"),
        ),
        case(
            "cube_array",
            View::CUBE_ARRAY,
            [2, 2, 1],
            12,
            &["imageCubeArray"],
            "samplerCubeArray",
            &face.replace("DIRECTION", "vec4(i % 2 == 0 ? -0.5 : 0.5, i / 2 == 0 ? 0.5 : -0.5, 1, 0)"),
        ),
    ]
}

fn addresses() -> Vec<Case> {
    use vk::SamplerAddressMode as Mode;
    /// The texel that a coordinate `at`, also outside of 0 to 7, addresses; `None` for the border.
    fn texel(mode: Mode, at: i32) -> Option<i32> {
        match mode {
            Mode::REPEAT => Some(at.rem_euclid(8)),
            Mode::MIRRORED_REPEAT => {
                Some(if at.rem_euclid(16) < 8 { at.rem_euclid(8) } else { 7 - at.rem_euclid(8) })
            }
            Mode::CLAMP_TO_EDGE => Some(at.clamp(0, 7)),
            Mode::MIRROR_CLAMP_TO_EDGE => Some(if at < 0 { -1 - at } else { at }.min(7)),
            _ => (0..8).contains(&at).then_some(at),
        }
    }
    let case = |name: &str, mode: Mode, needs: &'static [&'static str]| {
        Case::new(format!("images.sampler.address.{name}"), move |gpu| {
            gpu.require(needs)?;
            let info = nearest()
                .address_mode_u(mode)
                .address_mode_v(mode)
                .border_color(vk::BorderColor::FLOAT_OPAQUE_WHITE);
            let found = sample(gpu, grid(gpu)?.view(gpu)?, gpu.sampler(&info)?)?;
            let expected: Vec<f32> =
                (0..64).map(|i| texel(mode, i - 24).map_or(1.0, |x| x as f32 + 30.0)).collect();
            expect(&reds(&found), &expected)?;
            Ok(found)
        })
        .glsl(source(
            "",
            "sampler2D",
            "found = textureLod(from, vec2((i - 24 + 0.5) / 8, 3.5 / 8), 0);",
        ))
    };
    vec![
        case("repeat", Mode::REPEAT, &[]),
        case("mirrored_repeat", Mode::MIRRORED_REPEAT, &[]),
        case("clamp_to_edge", Mode::CLAMP_TO_EDGE, &[]),
        case("clamp_to_border", Mode::CLAMP_TO_BORDER, &[]),
        case("mirror_clamp_to_edge", Mode::MIRROR_CLAMP_TO_EDGE, &["samplerMirrorClampToEdge"]),
    ]
}

fn samplers() -> Vec<Case> {
    const OUTSIDE: &str = "found = textureLod(from, vec2(2 + i, -3), 0);";
    let border = |name: &str, color, expected: [f32; 4]| {
        Case::new(format!("images.sampler.border.{name}"), move |gpu| {
            let mode = vk::SamplerAddressMode::CLAMP_TO_BORDER;
            let info = nearest().address_mode_u(mode).address_mode_v(mode).border_color(color);
            let picture = Picture::new(gpu, Shape::flat(vk::Format::R8G8B8A8_UNORM, 8, 8, SAMPLED))?;
            let found = sample(gpu, picture.view(gpu)?, gpu.sampler(&info)?)?;
            expect(&from_bytes::<[f32; 4]>(&found), &[expected; 64])
        })
        .glsl(source("", "sampler2D", OUTSIDE))
    };
    vec![
        border("transparent_black", vk::BorderColor::FLOAT_TRANSPARENT_BLACK, [0.0; 4]),
        border("opaque_black", vk::BorderColor::FLOAT_OPAQUE_BLACK, [0.0, 0.0, 0.0, 1.0]),
        border("opaque_white", vk::BorderColor::FLOAT_OPAQUE_WHITE, [1.0; 4]),
        Case::new("images.sampler.border.custom", |gpu| {
            gpu.require(&["customBorderColors", "customBorderColorWithoutFormat"])?;
            let color = vk::ClearColorValue { float32: [0.25, 0.5, 0.75, 0.125] };
            let mut custom = vk::SamplerCustomBorderColorCreateInfoEXT::default().custom_border_color(color);
            let mode = vk::SamplerAddressMode::CLAMP_TO_BORDER;
            let info = nearest()
                .address_mode_u(mode)
                .address_mode_v(mode)
                .border_color(vk::BorderColor::FLOAT_CUSTOM_EXT)
                .push_next(&mut custom);
            let picture = Picture::new(gpu, Shape::flat(vk::Format::R32G32B32A32_SFLOAT, 8, 8, SAMPLED))?;
            let found = sample(gpu, picture.view(gpu)?, gpu.sampler(&info)?)?;
            expect(&from_bytes::<[f32; 4]>(&found), &[[0.25, 0.5, 0.75, 0.125]; 64])
        })
        .glsl(source("", "sampler2D", OUTSIDE)),
        Case::new("images.sampler.linear", |gpu| {
            gpu.require_format(RED, vk::FormatFeatureFlags::SAMPLED_IMAGE_FILTER_LINEAR)?;
            let info = linear()
                .address_mode_u(vk::SamplerAddressMode::CLAMP_TO_EDGE)
                .address_mode_v(vk::SamplerAddressMode::CLAMP_TO_EDGE);
            let found = sample(gpu, grid(gpu)?.view(gpu)?, gpu.sampler(&info)?)?;
            // Halfway between texels is their mean.
            let expected: Vec<f64> =
                (0..64).map(|i| f64::from(i % 7) + 0.5 + 10.0 * f64::from(i / 7 % 7) + 5.0).collect();
            expect_near(
                &reds(&found).iter().map(|red| f64::from(*red)).collect::<Vec<_>>(),
                &expected,
                0.01,
            )?;
            Ok(found)
        })
        .glsl(source(
            "",
            "sampler2D",
            "found = textureLod(from, vec2(i % 7 + 1, i / 7 % 7 + 1) / 8, 0);",
        )),
        Case::new("images.sampler.anisotropic", |gpu| {
            gpu.require(&["samplerAnisotropy"])?;
            let info =
                linear().anisotropy_enable(true).max_anisotropy(gpu.limits().max_sampler_anisotropy.min(8.0));
            sample(gpu, grid(gpu)?.view(gpu)?, gpu.sampler(&info)?)
        })
        .glsl(source(
            "",
            "sampler2D",
            "found = textureGrad(from, vec2(i % 8, i / 8) / 8, vec2(0.3, 0), vec2(0, 0.05));",
        )),
        Case::new("images.sampler.unnormalized", |gpu| {
            let mode = vk::SamplerAddressMode::CLAMP_TO_EDGE;
            let info = vk::SamplerCreateInfo::default()
                .address_mode_u(mode)
                .address_mode_v(mode)
                .unnormalized_coordinates(true);
            let found = sample(gpu, grid(gpu)?.view(gpu)?, gpu.sampler(&info)?)?;
            expect(
                &reds(&found),
                &(0..64).map(|i| (i % 8) as f32 + 10.0 * (i / 8) as f32).collect::<Vec<_>>(),
            )?;
            Ok(found)
        })
        .glsl(source("", "sampler2D", "found = textureLod(from, vec2(i % 8, i / 8) + 0.5, 0);")),
        Case::new("images.sampler.minimum", |gpu| {
            gpu.require(&["samplerFilterMinmax"])?;
            gpu.require_format(RED, vk::FormatFeatureFlags::SAMPLED_IMAGE_FILTER_MINMAX)?;
            let mut reduction =
                vk::SamplerReductionModeCreateInfo::default().reduction_mode(vk::SamplerReductionMode::MIN);
            let mode = vk::SamplerAddressMode::CLAMP_TO_EDGE;
            let info = linear().address_mode_u(mode).address_mode_v(mode).push_next(&mut reduction);
            let found = sample(gpu, grid(gpu)?.view(gpu)?, gpu.sampler(&info)?)?;
            expect(
                &reds(&found),
                &(0..64).map(|i| (i % 7) as f32 + 10.0 * (i / 7 % 7) as f32).collect::<Vec<_>>(),
            )?;
            Ok(found)
        })
        .glsl(source(
            "",
            "sampler2D",
            "found = textureLod(from, vec2(i % 7 + 1, i / 7 % 7 + 1) / 8, 0);",
        )),
    ]
}

/// Levels of 16, 8, 4, 2 and 1 texels: level `l` holds `100 l`.
fn mips(gpu: &Gpu) -> Result<Picture> {
    let picture = Picture::new(gpu, Shape { levels: 5, ..Shape::flat(RED, 16, 16, SAMPLED) })?;
    for level in 0..5u32 {
        let side = 16 >> level;
        let texels = gpu.buffer_of(&vec![100.0 * level as f32; (side * side) as usize])?;
        let region = [picture.region(level)];
        gpu.run(|commands| unsafe {
            let layout = vk::ImageLayout::GENERAL;
            gpu.device.cmd_copy_buffer_to_image(commands, texels.handle, picture.image, layout, &region);
        })?;
    }
    Ok(picture)
}

fn levels() -> Vec<Case> {
    let case = |name: &str,
                info: fn() -> vk::SamplerCreateInfo<'static>,
                body: &str,
                expected: Option<fn(i32) -> f64>| {
        Case::new(format!("images.sampler.level.{name}"), move |gpu| {
            let found = sample(gpu, mips(gpu)?.view(gpu)?, gpu.sampler(&info())?)?;
            if let Some(expected) = expected {
                let reds: Vec<f64> = reds(&found).iter().map(|red| f64::from(*red)).collect();
                expect_near(&reds, &(0..64).map(expected).collect::<Vec<_>>(), 0.02)?;
            }
            Ok(found)
        })
        .glsl(source("", "sampler2D", body))
    };
    const EACH: &str = "found = textureLod(from, vec2(0.5), i / 8.0 - 1.0);";
    fn smooth() -> vk::SamplerCreateInfo<'static> {
        nearest().mipmap_mode(vk::SamplerMipmapMode::LINEAR)
    }
    vec![
        case(
            "nearest",
            nearest,
            "found = textureLod(from, vec2(0.5), i % 5 + 0.25);",
            Some(|i| 100.0 * f64::from(i % 5)),
        ),
        case("linear", smooth, EACH, Some(|i| (100.0 * (f64::from(i) / 8.0 - 1.0)).clamp(0.0, 400.0))),
        case(
            "clamped",
            || smooth().min_lod(1.0).max_lod(2.5),
            EACH,
            Some(|i| (100.0 * (f64::from(i) / 8.0 - 1.0)).clamp(100.0, 250.0)),
        ),
        case(
            "biased",
            || smooth().mip_lod_bias(1.5),
            EACH,
            Some(|i| (100.0 * (f64::from(i) / 8.0 + 0.5)).clamp(0.0, 400.0)),
        ),
        case(
            "from_gradient",
            nearest,
            "float s = exp2(i % 5) / 16.0; found = textureGrad(from, vec2(0.5), vec2(s, 0), vec2(0, s));",
            Some(|i| 100.0 * f64::from(i % 5)),
        ),
        case(
            "fetched",
            nearest,
            "found = texelFetch(from, ivec2(0), i % 5);",
            Some(|i| 100.0 * f64::from(i % 5)),
        ),
        case(
            "queried",
            nearest,
            "found = vec4(textureSize(from, i % 5).x + 1000 * textureQueryLevels(from));",
            Some(|i| f64::from((16 >> (i % 5)) + 5000)),
        ),
    ]
}

fn lookups() -> Vec<Case> {
    let case = |name: &str, needs: &'static [&'static str], body: &str, expected: fn(i32) -> [f32; 4]| {
        Case::new(format!("images.lookup.{name}"), move |gpu| {
            gpu.require(needs)?;
            let info = nearest()
                .address_mode_u(vk::SamplerAddressMode::CLAMP_TO_EDGE)
                .address_mode_v(vk::SamplerAddressMode::CLAMP_TO_EDGE);
            let found = sample(gpu, grid(gpu)?.view(gpu)?, gpu.sampler(&info)?)?;
            expect(&from_bytes::<[f32; 4]>(&found), &(0..64).map(expected).collect::<Vec<_>>())
        })
        .glsl(source("", "sampler2D", body))
    };
    fn at(x: i32, y: i32) -> f32 {
        x.clamp(0, 7) as f32 + 10.0 * y.clamp(0, 7) as f32
    }
    vec![
        case(
            "fetch_offset",
            &[],
            "found = texelFetchOffset(from, ivec2(i % 4 + 2, i / 8 % 4 + 3), 0, ivec2(2, -3));",
            |i| [at(i % 4 + 4, i / 8 % 4), 0.0, 0.0, 1.0],
        ),
        case(
            "offset",
            &[],
            "found = textureLodOffset(from, (vec2(i % 8, i / 8) + 0.5) / 8, 0, ivec2(-1, 1));",
            |i| [at(i % 8 - 1, i / 8 + 1), 0.0, 0.0, 1.0],
        ),
        case("gather", &[], "found = textureGather(from, vec2(i % 7 + 1, i / 7 % 7 + 1) / 8);", |i| {
            let (x, y) = (i % 7, i / 7 % 7);
            [at(x, y + 1), at(x + 1, y + 1), at(x + 1, y), at(x, y)]
        }),
        case(
            "gather_offsets",
            &["shaderImageGatherExtended"],
            "const ivec2 offsets[4] = {ivec2(0), ivec2(2, 0), ivec2(0, 2), ivec2(-1)};
    found = textureGatherOffsets(from, vec2(i % 7 + 1, i / 7 % 7 + 1) / 8, offsets);",
            |i| {
                let (x, y) = (i % 7, i / 7 % 7);
                [at(x, y), at(x + 2, y), at(x, y + 2), at(x - 1, y - 1)]
            },
        ),
        case(
            "projected",
            &[],
            "found = textureProjLod(from, vec3((vec2(i % 8, i / 8) + 0.5) / 4, 2), 0);",
            |i| [at(i % 8, i / 8), 0.0, 0.0, 1.0],
        ),
    ]
}

fn formats() -> Vec<Case> {
    let case = |name: &str, format: vk::Format, bytes: usize, sampler: &str| {
        Case::new(format!("images.sampled.format.{name}"), move |gpu| {
            gpu.require_format(format, vk::FormatFeatureFlags::SAMPLED_IMAGE)?;
            let texels = bytes_of(&noise32(90, 256))[..64 * bytes].to_vec();
            let picture = Picture::sampled(gpu, format, 8, 8, &gpu.buffer_of(&texels)?)?;
            sample(gpu, picture.view(gpu)?, gpu.sampler(&nearest())?)
        })
        .glsl(source("", sampler, "found = vec4(texelFetch(from, ivec2(i % 8, i / 8), 0));"))
    };
    vec![
        case("r8_unorm", vk::Format::R8_UNORM, 1, "sampler2D"),
        case("rg8_snorm", vk::Format::R8G8_SNORM, 2, "sampler2D"),
        case("bgra8_unorm", vk::Format::B8G8R8A8_UNORM, 4, "sampler2D"),
        case("rgba8_srgb", vk::Format::R8G8B8A8_SRGB, 4, "sampler2D"),
        case("rgb565", vk::Format::R5G6B5_UNORM_PACK16, 2, "sampler2D"),
        case("rgba4", vk::Format::R4G4B4A4_UNORM_PACK16, 2, "sampler2D"),
        case("a2b10g10r10", vk::Format::A2B10G10R10_UNORM_PACK32, 4, "sampler2D"),
        case("e5b9g9r9", vk::Format::E5B9G9R9_UFLOAT_PACK32, 4, "sampler2D"),
        case("r16_unorm", vk::Format::R16_UNORM, 2, "sampler2D"),
        case("rgba16_uint", vk::Format::R16G16B16A16_UINT, 8, "usampler2D"),
        case("rg32_sint", vk::Format::R32G32_SINT, 8, "isampler2D"),
        Case::new("images.sampled.format.bc1", |gpu| {
            gpu.require(&["textureCompressionBC"])?;
            let blocks = gpu.buffer_of(&noise32(91, 8))?;
            let picture = Picture::sampled(gpu, vk::Format::BC1_RGBA_UNORM_BLOCK, 8, 8, &blocks)?;
            sample(gpu, picture.view(gpu)?, gpu.sampler(&nearest())?)
        })
        .glsl(source("", "sampler2D", "found = texelFetch(from, ivec2(i % 8, i / 8), 0);")),
    ]
}

fn views() -> Vec<Case> {
    const FETCH: &str = "found = vec4(texelFetch(from, ivec2(i % 8, i / 8), 0));";
    fn part(level: u32, layer: u32, layers: u32) -> vk::ImageSubresourceRange {
        vk::ImageSubresourceRange {
            aspect_mask: vk::ImageAspectFlags::COLOR,
            base_mip_level: level,
            level_count: 1,
            base_array_layer: layer,
            layer_count: layers,
        }
    }
    fn filled(gpu: &Gpu, shape: Shape, texels: &Buffer) -> Result<Picture> {
        let picture = Picture::new(gpu, shape)?;
        picture.fill(gpu, texels)?;
        Ok(picture)
    }
    vec![
        Case::new("images.view.swizzled", |gpu| {
            let texels = noise32(92, 64);
            let picture = Picture::sampled(gpu, vk::Format::R8G8B8A8_UINT, 8, 8, &gpu.buffer_of(&texels)?)?;
            let components = vk::ComponentMapping {
                r: vk::ComponentSwizzle::A,
                g: vk::ComponentSwizzle::R,
                b: vk::ComponentSwizzle::ONE,
                a: vk::ComponentSwizzle::ZERO,
            };
            let view = picture.view_as(gpu, &vk::ImageViewCreateInfo::default().components(components))?;
            let found = sample(gpu, view, gpu.sampler(&nearest())?)?;
            let expected: Vec<[f32; 4]> =
                texels.iter().map(|word| [(word >> 24) as f32, (word & 255) as f32, 1.0, 0.0]).collect();
            expect(&from_bytes::<[f32; 4]>(&found), &expected)
        })
        .glsl(source("", "usampler2D", FETCH)),
        Case::new("images.view.of_another_format", |gpu| {
            let texels = noise32(93, 64);
            let flags = vk::ImageCreateFlags::MUTABLE_FORMAT;
            let shape = Shape { flags, ..Shape::flat(vk::Format::R8G8B8A8_UNORM, 8, 8, SAMPLED) };
            let picture = filled(gpu, shape, &gpu.buffer_of(&texels)?)?;
            let view =
                picture.view_as(gpu, &vk::ImageViewCreateInfo::default().format(vk::Format::R16G16_UINT))?;
            let found = sample(gpu, view, gpu.sampler(&nearest())?)?;
            let expected: Vec<[f32; 4]> =
                texels.iter().map(|word| [(word & 65535) as f32, (word >> 16) as f32, 0.0, 1.0]).collect();
            expect(&from_bytes::<[f32; 4]>(&found), &expected)
        })
        .glsl(source("", "usampler2D", FETCH)),
        Case::new("images.view.of_one_layer", |gpu| {
            let texels: Vec<f32> = (0..256).map(|i| i as f32).collect();
            let shape = Shape {
                view: vk::ImageViewType::TYPE_2D_ARRAY,
                layers: 4,
                ..Shape::flat(RED, 8, 8, SAMPLED)
            };
            let picture = filled(gpu, shape, &gpu.buffer_of(&texels)?)?;
            let info = vk::ImageViewCreateInfo::default()
                .view_type(vk::ImageViewType::TYPE_2D)
                .subresource_range(part(0, 2, 1));
            let found = sample(gpu, picture.view_as(gpu, &info)?, gpu.sampler(&nearest())?)?;
            expect(&reds(&found), &texels[128..192])
        })
        .glsl(source("", "sampler2D", FETCH)),
        Case::new("images.view.of_one_level", |gpu| {
            let picture = mips(gpu)?;
            let info = vk::ImageViewCreateInfo::default()
                .view_type(vk::ImageViewType::TYPE_2D)
                .subresource_range(part(1, 0, 1));
            let found = sample(gpu, picture.view_as(gpu, &info)?, gpu.sampler(&nearest())?)?;
            expect(&reds(&found), &[100.0; 64])
        })
        .glsl(source("", "sampler2D", FETCH)),
        Case::new("images.view.of_a_slice", |gpu| {
            gpu.require(&["sampler2DViewOf3D"])?;
            let texels: Vec<f32> = (0..256).map(|i| i as f32).collect();
            let flags = vk::ImageCreateFlags::from_raw(0x20000);
            let shape = Shape {
                view: vk::ImageViewType::TYPE_3D,
                size: [8, 8, 4],
                flags,
                ..Shape::flat(RED, 8, 8, SAMPLED)
            };
            let picture = filled(gpu, shape, &gpu.buffer_of(&texels)?)?;
            let info = vk::ImageViewCreateInfo::default()
                .view_type(vk::ImageViewType::TYPE_2D)
                .subresource_range(part(0, 3, 1));
            let found = sample(gpu, picture.view_as(gpu, &info)?, gpu.sampler(&nearest())?)?;
            expect(&reds(&found), &texels[192..])
        })
        .glsl(source("", "sampler2D", FETCH)),
        Case::new("images.view.of_linear_image", |gpu| {
            let texels: Vec<f32> = (0..64).map(|i| i as f32).collect();
            let shape = Shape { tiling: vk::ImageTiling::LINEAR, ..Shape::flat(RED, 8, 8, SAMPLED) };
            let picture = Picture::new(gpu, shape)?;
            let at = vk::ImageSubresource::default().aspect_mask(vk::ImageAspectFlags::COLOR);
            let layout = unsafe { gpu.device.get_image_subresource_layout(picture.image, at) };
            let mapped = unsafe {
                gpu.device.map_memory(picture.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())
            }?;
            for (y, row) in texels.chunks(8).enumerate() {
                let target = unsafe {
                    mapped.cast::<u8>().add((layout.offset + y as u64 * layout.row_pitch) as usize)
                };
                unsafe { std::ptr::copy_nonoverlapping(bytes_of(row).as_ptr(), target, 32) };
            }
            let found = sample(gpu, picture.view(gpu)?, gpu.sampler(&nearest())?)?;
            expect(&reds(&found), &texels)
        })
        .glsl(source("", "sampler2D", FETCH)),
    ]
}

fn descriptors() -> Vec<Case> {
    const SEPARATE: &str = "layout(local_size_x = 64) in;
layout(binding = 0) uniform texture2D picture;
layout(binding = 1) uniform sampler how;
layout(binding = 2) writeonly buffer To { float to[]; };
void main() { int i = int(gl_GlobalInvocationID.x); to[i] = textureLod(sampler2D(picture, how), (vec2(i % 8, i / 8) + 0.5) / 8, 0).x; }";
    vec![
        Case::new("images.descriptor.separate_sampler", |gpu| {
            let types = [vk::DescriptorType::SAMPLED_IMAGE, vk::DescriptorType::SAMPLER, STORAGE];
            let (kernel, to) = (gpu.kernel(0).bindings(&types).build()?, gpu.buffer(256)?);
            let view = Slot::Image(grid(gpu)?.view(gpu)?, vk::ImageLayout::GENERAL);
            let set = gpu.set(&kernel, &types, &[view, Slot::Sampler(gpu.sampler(&nearest())?), Slot::Buffer(to.handle)])?;
            gpu.run(|commands| {
                gpu.bind(commands, &kernel, set);
                unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
            })?;
            expect(&to.values::<f32>(), &(0..64).map(|i| (i % 8) as f32 + 10.0 * (i / 8) as f32).collect::<Vec<_>>())
        })
        .glsl(SEPARATE),
        Case::new("images.descriptor.immutable_sampler", |gpu| {
            let samplers = [gpu.sampler(&nearest())?];
            let binding = |binding, ty| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(ty)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            };
            let bindings = [
                binding(0, vk::DescriptorType::SAMPLED_IMAGE),
                binding(1, vk::DescriptorType::SAMPLER).immutable_samplers(&samplers),
                binding(2, STORAGE),
            ];
            let layout = gpu.set_layout_of(&vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings))?;
            let kernel = super::super::binding::descriptors::kernel(gpu, &[layout], 0)?;
            let sizes = [(vk::DescriptorType::SAMPLED_IMAGE, 1), (vk::DescriptorType::SAMPLER, 1), (STORAGE, 1)];
            let set = gpu.empty_set(layout, &sizes, vk::DescriptorPoolCreateFlags::empty())?;
            let (view, to) = (grid(gpu)?.view(gpu)?, gpu.buffer(256)?);
            gpu.fill(set, 0, 0, vk::DescriptorType::SAMPLED_IMAGE, &[Slot::Image(view, vk::ImageLayout::GENERAL)]);
            gpu.fill(set, 2, 0, STORAGE, &[Slot::Buffer(to.handle)]);
            gpu.run(|commands| {
                gpu.bind(commands, &kernel, set);
                unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
            })?;
            expect(&to.values::<f32>(), &(0..64).map(|i| (i % 8) as f32 + 10.0 * (i / 8) as f32).collect::<Vec<_>>())
        })
        .glsl(SEPARATE),
        Case::new("images.descriptor.nonuniform_array", |gpu| {
            gpu.require(&["shaderSampledImageArrayNonUniformIndexing", "shaderSampledImageArrayDynamicIndexing"])?;
            let layout = gpu.set_layout(&[(COMBINED, 8), (STORAGE, 1)], vk::DescriptorSetLayoutCreateFlags::empty())?;
            let kernel = super::super::binding::descriptors::kernel(gpu, &[layout], 0)?;
            let set = gpu.empty_set(layout, &[(COMBINED, 8), (STORAGE, 1)], vk::DescriptorPoolCreateFlags::empty())?;
            let sampler = gpu.sampler(&nearest())?;
            for element in 0..8 {
                let texels = gpu.buffer_of(&[element as f32 * 2.0])?;
                let view = Picture::sampled(gpu, RED, 1, 1, &texels)?.view(gpu)?;
                gpu.fill(set, 0, element, COMBINED, &[Slot::Sampled(view, sampler)]);
            }
            let to = gpu.buffer(256)?;
            gpu.fill(set, 1, 0, STORAGE, &[Slot::Buffer(to.handle)]);
            gpu.run(|commands| {
                gpu.bind(commands, &kernel, set);
                unsafe { gpu.device.cmd_dispatch(commands, 1, 1, 1) };
            })?;
            expect(&to.values::<f32>(), &(0..64).map(|i| (i * 3 % 8) as f32 * 2.0).collect::<Vec<_>>())
        })
        .glsl(
            "#extension GL_EXT_nonuniform_qualifier : require
layout(local_size_x = 64) in;
layout(binding = 0) uniform sampler2D from[8];
layout(binding = 1) writeonly buffer To { float to[]; };
void main() { uint i = gl_GlobalInvocationID.x; to[i] = textureLod(from[nonuniformEXT(i * 3 % 8)], vec2(0.5), 0).x; }",
        ),
    ]
}
