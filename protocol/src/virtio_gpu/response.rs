//! Answers (VIRTIO 1.3, 5.7.6.7: every one starts with the request's header under another type).

use super::config::MAX_SCANOUTS;
use super::header::{Header, ResponseType};
use super::types::{MapCache, Rect};
use super::wire;
use crate::ids::CapsetId;
use zerocopy::IntoBytes;

/// Bytes of the longest answer a driver gets from this device, if its capability set fits too.
pub const RESPONSE_BYTES_MAX: usize = 408;

/// The mode of one scanout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisplayMode {
    /// Position and size.
    pub r: Rect,
    /// True if a display is connected.
    pub enabled: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are the specification's.
pub enum Response {
    OkNodata,
    /// At most [`MAX_SCANOUTS`] modes; all other scanouts are disabled.
    OkDisplayInfo(Vec<DisplayMode>),
    OkCapsetInfo {
        capset_id: CapsetId,
        capset_max_version: u32,
        capset_max_size: u32,
    },
    OkCapset(Vec<u8>),
    OkResourceUuid([u8; 16]),
    OkMapInfo(MapCache),
    /// One of `ResponseType::ERR_*`.
    Err(ResponseType),
}

impl Response {
    /// The type on the wire.
    pub fn response_type(&self) -> ResponseType {
        match self {
            Self::OkNodata => ResponseType::OK_NODATA,
            Self::OkDisplayInfo(_) => ResponseType::OK_DISPLAY_INFO,
            Self::OkCapsetInfo { .. } => ResponseType::OK_CAPSET_INFO,
            Self::OkCapset(_) => ResponseType::OK_CAPSET,
            Self::OkResourceUuid(_) => ResponseType::OK_RESOURCE_UUID,
            Self::OkMapInfo(_) => ResponseType::OK_MAP_INFO,
            Self::Err(error) => *error,
        }
    }

    /// Appends the answer to the request with this header.
    pub fn encode(&self, request: &Header, out: &mut Vec<u8>) {
        request.encode_as(self.response_type().0, out);
        match self {
            Self::OkNodata | Self::Err(_) => {}
            Self::OkDisplayInfo(modes) => encode_display_info(modes, out),
            Self::OkCapsetInfo { capset_id, capset_max_version, capset_max_size } => {
                let raw = wire::RespCapsetInfo {
                    capset_id: capset_id.0.into(),
                    capset_max_version: (*capset_max_version).into(),
                    capset_max_size: (*capset_max_size).into(),
                    padding: 0.into(),
                };
                out.extend_from_slice(raw.as_bytes());
            }
            Self::OkCapset(capset) => out.extend_from_slice(capset),
            Self::OkResourceUuid(uuid) => out.extend_from_slice(uuid),
            Self::OkMapInfo(cache) => {
                let raw = wire::RespMapInfo { map_info: (*cache as u32).into(), padding: 0.into() };
                out.extend_from_slice(raw.as_bytes());
            }
        }
    }
}

fn encode_display_info(modes: &[DisplayMode], out: &mut Vec<u8>) {
    let none = DisplayMode { r: Rect { x: 0, y: 0, width: 0, height: 0 }, enabled: false };
    let rest = std::iter::repeat(&none);
    for mode in modes.iter().chain(rest).take(MAX_SCANOUTS as usize) {
        let raw =
            wire::DisplayOne { r: mode.r.into(), enabled: u32::from(mode.enabled).into(), flags: 0.into() };
        out.extend_from_slice(raw.as_bytes());
    }
}
