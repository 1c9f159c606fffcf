//! The regions of guest memory: one can be added or removed without touching the others.
//!
//! A frontend announces each mapping of the window as a region, so there can be ten thousand regions. Each change makes a new table, as threads
//! may still use the old one. The table is cut into pieces; a change copies one piece, and shares the others. This file knows no vhost-user.

use shm::Guard;
use std::sync::Arc;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap};

/// A region. Its file may shrink.
#[derive(Debug)]
pub(crate) struct Region {
    _guard: Guard,
    mapped: GuestRegionMmap,
}

impl Region {
    /// Makes a region of this mapping, with a guard; none if there are too many guards.
    pub(crate) fn new(mapped: GuestRegionMmap) -> Option<Self> {
        Some(Self { _guard: Guard::over(mapped.as_ptr(), mapped.size())?, mapped })
    }
}

/// The regions by address; none overlaps another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regions {
    /// The pieces, of which none is empty.
    pieces: Vec<Arc<Piece>>,
}

type Piece = Vec<Arc<Region>>;

/// The reason why a table cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrongRegion {
    /// A part of the new region belongs to another region already.
    Overlaps,
    /// There is no region of this address and size.
    Unknown,
}

impl WrongRegion {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Overlaps => "memory regions overlap",
            Self::Unknown => "there is no such memory region",
        }
    }
}

impl Regions {
    /// Returns the table with one region more.
    pub(crate) fn with(&self, region: Arc<Region>) -> Result<Self, WrongRegion> {
        let (start, last) = (region.mapped.start_addr(), region.mapped.last_addr());
        // Of the regions that begin before the end of the new one, the last has to end before the new one begins.
        if self.begins_last(last).is_some_and(|(_, _, other)| other.last_addr() >= start) {
            return Err(WrongRegion::Overlaps);
        }
        let mut pieces = self.pieces.clone();
        match self.begins_last(start) {
            Some((at, index, _)) => replace(&mut pieces, at, |piece| piece.insert(index + 1, region)),
            None if pieces.is_empty() => pieces.push(Arc::new(vec![region])),
            None => replace(&mut pieces, 0, |piece| piece.insert(0, region)),
        }
        Ok(Self { pieces })
    }

    /// Returns the table without the region of this start and size.
    pub(crate) fn without(&self, start: GuestAddress, size: u64) -> Result<Self, WrongRegion> {
        let found = self.begins_last(start);
        let found = found.filter(|(_, _, region)| region.start_addr() == start && region.len() == size);
        let (at, index, _) = found.ok_or(WrongRegion::Unknown)?;
        let mut pieces = self.pieces.clone();
        replace(&mut pieces, at, |piece| _ = piece.remove(index));
        Ok(Self { pieces })
    }

    /// Returns the region with the highest start address up to `addr`: its piece, its place there, and the region itself.
    fn begins_last(&self, addr: GuestAddress) -> Option<(usize, usize, &GuestRegionMmap)> {
        let begins = |region: &Arc<Region>| region.mapped.start_addr() <= addr;
        let at = self.pieces.partition_point(|piece| piece.first().is_some_and(begins)).checked_sub(1)?;
        let piece = self.pieces.get(at)?;
        let index = piece.partition_point(begins).checked_sub(1)?;
        Some((at, index, &piece.get(index)?.mapped))
    }
}

/// Changes a copy of one piece. The copy is cut in two if it became too long, and left out if it became empty.
fn replace(pieces: &mut Vec<Arc<Piece>>, at: usize, change: impl FnOnce(&mut Piece)) {
    let mut piece = Piece::clone(&pieces[at]);
    change(&mut piece);
    let second = piece.split_off(if piece.len() > PIECE_MAX { piece.len() / 2 } else { piece.len() });
    let made = [piece, second].into_iter().filter(|piece| !piece.is_empty()).map(Arc::new);
    pieces.splice(at..=at, made);
}

/// Regions of a piece, at most: a table of ten thousand regions then has about as many pieces as a piece has regions.
const PIECE_MAX: usize = 128;

impl GuestMemoryBackend for Regions {
    type R = GuestRegionMmap;

    fn num_regions(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    fn find_region(&self, addr: GuestAddress) -> Option<&GuestRegionMmap> {
        let (_, _, region) = self.begins_last(addr)?;
        (addr <= region.last_addr()).then_some(region)
    }

    fn iter(&self) -> impl Iterator<Item = &GuestRegionMmap> {
        self.pieces.iter().flat_map(|piece| piece.iter().map(|region| &region.mapped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::MmapRegion;

    const PAGE: u64 = 0x1000;

    fn region(start: u64, pages: u64) -> Arc<Region> {
        let pages = MmapRegion::new((pages * PAGE) as usize).unwrap();
        let mapped = GuestRegionMmap::new(pages, GuestAddress(start * PAGE)).unwrap();
        Arc::new(Region::new(mapped).unwrap())
    }

    fn starts(regions: &Regions) -> Vec<u64> {
        regions.iter().map(|region| region.start_addr().0 / PAGE).collect()
    }

    #[test]
    fn regions_are_found_whatever_the_order_in_which_they_come_and_go() {
        // 7 and 1000 have no common divisor, so every other page comes once.
        let order: Vec<u64> = (0..1000).map(|i| i * 7 % 1000 * 2).collect();
        let mut regions = Regions::default();
        for &start in &order {
            regions = regions.with(region(start, 1)).unwrap();
        }
        assert_eq!(starts(&regions), (0..1000).map(|i| i * 2).collect::<Vec<_>>());
        assert_eq!(regions.num_regions(), 1000);
        assert!(regions.pieces.iter().all(|piece| piece.len() <= PIECE_MAX));
        for &start in &order {
            let at = |page: u64, byte| regions.find_region(GuestAddress(page * PAGE + byte));
            assert_eq!(at(start, PAGE - 1).unwrap().start_addr().0, start * PAGE);
            assert!(at(start + 1, 0).is_none(), "between two regions");
            assert_eq!(regions.with(region(start, 1)).unwrap_err(), WrongRegion::Overlaps);
            let wrong = regions.without(GuestAddress(start * PAGE), 2 * PAGE);
            assert_eq!(wrong.unwrap_err(), WrongRegion::Unknown);
            regions = regions.without(GuestAddress(start * PAGE), PAGE).unwrap();
            assert!(regions.find_region(GuestAddress(start * PAGE)).is_none());
        }
        assert!(regions.pieces.is_empty());
    }

    #[test]
    fn what_overlaps_by_a_byte_is_refused() {
        let regions = Regions::default().with(region(10, 10)).unwrap();
        for (start, pages) in [(19, 1), (5, 6), (12, 2), (5, 30), (10, 10)] {
            assert_eq!(regions.with(region(start, pages)).unwrap_err(), WrongRegion::Overlaps);
        }
        assert_eq!(starts(&regions.with(region(20, 1)).unwrap().with(region(5, 5)).unwrap()), [5, 10, 20]);
    }

    #[test]
    fn a_change_leaves_what_others_use_and_copies_one_piece() {
        let before =
            (0..2000).try_fold(Regions::default(), |regions, i| regions.with(region(2 * i, 1))).unwrap();
        let after = before.with(region(2001, 1)).unwrap();
        assert_eq!((before.num_regions(), after.num_regions()), (2000, 2001));
        let same =
            after.pieces.iter().filter(|piece| before.pieces.iter().any(|other| Arc::ptr_eq(piece, other)));
        assert!(same.count() >= before.pieces.len() - 1);
    }
}
