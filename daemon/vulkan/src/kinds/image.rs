//! Images: their extent, levels, layers and planes, and whether they have memory.

use super::bound::Bound;
use crate::context::error::{Fault, demand};
use crate::objects::object::{Kind, State};
use crate::shape::planes::Planes;
use parking_lot::Mutex;
use protocol::venus::generated::{self as venus, FormatBlock, ImageAspectFlags};
use std::sync::atomic::{AtomicBool, Ordering};

/// `VK_REMAINING_MIP_LEVELS` and `VK_REMAINING_ARRAY_LAYERS`.
pub(crate) const REMAINING: u32 = u32::MAX;

/// Planes of a format, at most.
pub(crate) const PLANES: usize = 3;

/// The facts about an image that the object table keeps.
#[derive(Debug)]
pub struct ImageFacts {
    /// Texels of the first level.
    pub extent: [u32; 3],
    /// Mip levels.
    pub levels: u32,
    /// Array layers.
    pub layers: u32,
    /// The way in which texels lie in memory.
    pub block: FormatBlock,
    /// The planes of the image, if it has some.
    pub planes: Option<Planes>,
    /// Aspects of the image that can be named.
    pub aspects: ImageAspectFlags,
    /// True for a 3D image.
    pub volume: bool,
    /// True if the image may be bound to memory that successors get, as was stated at its creation.
    pub survives: bool,
    /// True if the host may copy its texels.
    pub is_copied_by_the_host: bool,
    /// True for the whole, or for each plane, if its memory is bound or about to be bound.
    pub memory: [AtomicBool; PLANES],
    /// The memory that the whole, or each plane, is bound to.
    pub bound: Mutex<[Option<Bound>; PLANES]>,
}

impl ImageFacts {
    /// Returns whether the image has memory.
    pub fn has_memory(&self) -> bool {
        self.memory[0].load(Ordering::Acquire)
    }

    /// Marks the whole or a plane, which is about to be bound, as bound. Returns false if it was bound already.
    pub fn bind(&self, plane: usize) -> bool {
        !self.memory[plane].swap(true, Ordering::AcqRel)
    }

    /// Marks the whole or a plane as not bound, because the binding has failed.
    pub fn unbind(&self, plane: usize) {
        self.memory[plane].store(false, Ordering::Release);
    }

    /// The number of the image's layers that `layers` names.
    pub fn layers_of(&self, layers: &venus::ImageSubresourceLayers) -> u64 {
        layers.layer_count.min(self.layers.saturating_sub(layers.base_array_layer)).into()
    }

    /// Texels of a mip level.
    pub fn level_extent(&self, level: u32) -> [u32; 3] {
        self.extent.map(|texels| texels.checked_shr(level).unwrap_or_default().max(1))
    }

    /// Demands that the image has the levels of a range, and that its layers are among `layers`.
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
