//! The host-visible region, and which of its ranges are mapped.

use super::GuestError;
use protocol::ids::ResourceId;
use std::collections::BTreeMap;

/// The mapped ranges, which are disjoint, page-aligned and inside the region.
#[derive(Debug)]
pub(super) struct Window {
    size: u64,
    /// By offset: bytes and resource.
    ranges: BTreeMap<u64, (u64, ResourceId)>,
}

impl Window {
    /// Makes an empty region of `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        Self { size, ranges: BTreeMap::new() }
    }

    /// Checks that a blob of `size` bytes may be mapped at `offset`.
    pub(super) fn check(&self, offset: u64, size: u64) -> Result<(), GuestError> {
        if !offset.is_multiple_of(4096) {
            return Err(GuestError::Invalid("alignment of a mapping"));
        }
        let end = offset.checked_add(size).filter(|&end| end <= self.size);
        let end = end.ok_or(GuestError::Invalid("range of a mapping"))?;
        let before = self.ranges.range(..end).next_back();
        if before.is_some_and(|(&start, &(size, _))| start + size > offset) {
            return Err(GuestError::Invalid("overlap of mappings"));
        }
        Ok(())
    }

    /// Notes a range that [`Self::check`] allowed.
    pub(super) fn insert(&mut self, offset: u64, size: u64, resource_id: ResourceId) {
        self.ranges.insert(offset, (size, resource_id));
    }

    /// Forgets a range.
    pub(super) fn remove(&mut self, offset: u64) {
        self.ranges.remove(&offset);
    }

    /// Returns the ranges as offset, bytes and resource.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64, ResourceId)> {
        self.ranges.iter().map(|(offset, (size, resource_id))| (*offset, *size, *resource_id))
    }

    /// Forgets all ranges and returns them as offset, bytes and resource.
    pub(super) fn take_all(&mut self) -> Vec<(u64, u64, ResourceId)> {
        let ranges = std::mem::take(&mut self.ranges);
        ranges.into_iter().map(|(offset, (size, resource_id))| (offset, size, resource_id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_aligned_free_ranges_inside_the_region_are_allowed() {
        let mut window = Window::new(0x10000);
        window.insert(0x2000, 0x2000, ResourceId(1));
        let check = |offset, size| window.check(offset, size);
        assert_eq!(check(0, 0x2000), Ok(()));
        assert_eq!(check(0x4000, 0xc000), Ok(()));
        assert_eq!(check(0x4001, 0x1000), Err(GuestError::Invalid("alignment of a mapping")));
        assert_eq!(check(0x4000, 0xd000), Err(GuestError::Invalid("range of a mapping")));
        assert_eq!(check(u64::MAX - 0xfff, 0x1000), Err(GuestError::Invalid("range of a mapping")));
        for (offset, size) in [(0, 0x3000), (0x1000, 0x4000), (0x3000, 0x1000), (0x2000, 0x2000)] {
            assert_eq!(check(offset, size), Err(GuestError::Invalid("overlap of mappings")));
        }
    }
}
