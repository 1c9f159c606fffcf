//! Formats with several planes (Vulkan, "Formats Requiring Sampler Y'CBCR Conversion").

use protocol::venus::generated as venus;

/// The layout of a format's planes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// Bytes of a component.
    pub component: u32,
    /// True if the second plane holds both colour differences.
    pub interleaved: bool,
    /// Texels of the image for one texel of the second and third plane, in each dimension.
    pub shared: [u32; 3],
}

impl Planes {
    /// Returns whether a texel of each plane is a byte.
    pub fn are_of_bytes(self) -> bool {
        self.component == 1 && !self.interleaved
    }

    /// Returns whether the format has two planes, not three.
    pub fn are_two(self) -> bool {
        self.interleaved
    }

    /// Returns the planes of a format, if it has some.
    pub fn of(format: venus::Format) -> Option<Self> {
        use venus::Format as F;
        // The registry numbers the five layouts of each width in a row; the sixth came later.
        let widths = [
            (F::G8_B8_R8_3PLANE_420_UNORM, F::G8_B8R8_2PLANE_444_UNORM, 1),
            (F::G10X6_B10X6_R10X6_3PLANE_420_UNORM_3PACK16, F::G10X6_B10X6R10X6_2PLANE_444_UNORM_3PACK16, 2),
            (F::G12X4_B12X4_R12X4_3PLANE_420_UNORM_3PACK16, F::G12X4_B12X4R12X4_2PLANE_444_UNORM_3PACK16, 2),
            (F::G16_B16_R16_3PLANE_420_UNORM, F::G16_B16R16_2PLANE_444_UNORM, 2),
        ];
        widths.into_iter().find_map(|(first, late, component)| {
            let (interleaved, shared) = match format.0.wrapping_sub(first.0) {
                _ if format == late => (true, [1, 1, 1]),
                at @ 0..=1 => (at == 1, [2, 2, 1]),
                at @ 2..=3 => (at == 3, [2, 1, 1]),
                4 => (false, [1, 1, 1]),
                _ => return None,
            };
            Some(Self { component, interleaved, shared })
        })
    }
}
