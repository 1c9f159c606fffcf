//! The scanouts: the device only notes which resources a driver shows on them.

use super::GuestError;
use protocol::ids::{ResourceId, ScanoutId};

/// The resource that each scanout shows.
#[derive(Debug)]
pub(crate) struct Scanouts {
    pub(super) shown: Vec<Option<ResourceId>>,
}

impl Scanouts {
    /// Makes `count` scanouts that show nothing.
    pub(crate) fn new(count: u32) -> Self {
        Self { shown: vec![None; count as usize] }
    }

    /// A resource is gone: no scanout shows it any more.
    pub(crate) fn forget(&mut self, resource_id: ResourceId) {
        for shown in &mut self.shown {
            shown.take_if(|shown| *shown == resource_id);
        }
    }

    pub(super) fn get(&mut self, scanout_id: ScanoutId) -> Result<&mut Option<ResourceId>, GuestError> {
        let index = usize::try_from(scanout_id.0).ok();
        index.and_then(|i| self.shown.get_mut(i)).ok_or(GuestError::UnknownScanout(scanout_id))
    }
}
