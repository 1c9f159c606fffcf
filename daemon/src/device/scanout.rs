//! Scanouts: none is ever connected, so what a driver shows on them is only noted (VIRTIO 1.3, 5.7.6.8).

use super::{Device, GuestError};
use protocol::ids::{ResourceId, ScanoutId};
use protocol::virtio_gpu::{DisplayMode, Rect, Response};

/// What each scanout shows.
#[derive(Debug)]
pub(super) struct Scanouts {
    shown: Vec<Option<ResourceId>>,
}

impl Scanouts {
    /// `count` scanouts that show nothing.
    pub(super) fn new(count: u32) -> Self {
        Self { shown: vec![None; count as usize] }
    }

    /// A resource is gone: no scanout shows it any more.
    pub(super) fn forget(&mut self, resource_id: ResourceId) {
        for shown in &mut self.shown {
            shown.take_if(|shown| *shown == resource_id);
        }
    }

    fn get(&mut self, scanout_id: ScanoutId) -> Result<&mut Option<ResourceId>, GuestError> {
        let index = usize::try_from(scanout_id.0).ok();
        index.and_then(|i| self.shown.get_mut(i)).ok_or(GuestError::UnknownScanout(scanout_id))
    }
}

impl<T> Device<T> {
    pub(super) fn get_display_info(&self) -> Response {
        let off = DisplayMode { r: Rect { x: 0, y: 0, width: 0, height: 0 }, enabled: false };
        Response::OkDisplayInfo(vec![off; self.scanouts.shown.len()])
    }

    pub(super) fn set_scanout(
        &mut self,
        scanout_id: ScanoutId,
        resource_id: Option<ResourceId>,
    ) -> Result<Response, GuestError> {
        let scanout = self.scanouts.get(scanout_id)?;
        if let Some(resource_id) = resource_id
            && !self.resources.contains_key(&resource_id)
        {
            return Err(GuestError::UnknownResource(resource_id));
        }
        *scanout = resource_id;
        Ok(Response::OkNodata)
    }

    pub(super) fn move_cursor(&mut self, scanout_id: ScanoutId) -> Result<Response, GuestError> {
        self.scanouts.get(scanout_id)?;
        Ok(Response::OkNodata)
    }
}
