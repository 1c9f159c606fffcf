//! What is known of an image.

use crate::vulkan::context::error::{Fault, demand};
use crate::vulkan::objects::object::{Kind, State};
use crate::vulkan::shape::planes::Planes;
use protocol::venus::generated::{self as venus, FormatBlock, ImageAspectFlags};
use std::sync::atomic::{AtomicBool, Ordering};

/// `VK_REMAINING_MIP_LEVELS` and `VK_REMAINING_ARRAY_LAYERS`.
pub const REMAINING: u32 = u32::MAX;

/// Planes of a format, at most.
pub const PLANES: usize = 3;

/// What is known of an image.
#[derive(Debug)]
pub struct ImageFacts {
    /// Texels of the first level.
    pub extent: [u32; 3],
    /// Mip levels.
    pub levels: u32,
    /// Array layers.
    pub layers: u32,
    /// How texels lie in memory.
    pub block: FormatBlock,
    /// Its planes, if it has some.
    pub planes: Option<Planes>,
    /// Aspects of it that can be named.
    pub aspects: ImageAspectFlags,
    /// It is a 3D image.
    pub volume: bool,
    /// The host may copy its texels.
    pub is_copied_by_the_host: bool,
    /// Memory of the whole, or of each plane, was bound.
    pub memory: [AtomicBool; PLANES],
}

impl ImageFacts {
    /// Whether it has memory.
    pub fn has_memory(&self) -> bool {
        self.memory[0].load(Ordering::Acquire)
    }

    /// How many of its layers these are.
    pub fn layers_of(&self, layers: &venus::ImageSubresourceLayers) -> u64 {
        layers.layer_count.min(self.layers.saturating_sub(layers.base_array_layer)).into()
    }

    /// Texels of a mip level.
    pub fn level_extent(&self, level: u32) -> [u32; 3] {
        self.extent.map(|texels| texels.checked_shr(level).unwrap_or_default().max(1))
    }

    /// Demands that levels and layers of a range are there.
    pub fn demand_range(&self, range: &venus::ImageSubresourceRange, layers: u32) -> Result<(), Fault> {
        let inside = |first: u32, count: u32, all: u32| {
            first < all
                && (count == REMAINING || count > 0 && u64::from(first) + u64::from(count) <= all.into())
        };
        let levels = inside(range.base_mip_level, range.level_count, self.levels);
        demand(
            levels && inside(range.base_array_layer, range.layer_count, layers),
            "a range outside of its image",
        )
    }
}

impl State for ImageFacts {}

impl Kind for venus::Image {
    type State = ImageFacts;
}
