//! The differences between a host's device and the one that a guest sees, as data: the tables that the executor works with, for `docs/features.md`.

use super::absent::{Absent, NOT_SHOWN, UNDECODABLE, WITHHELD};
use super::extensions::{EMULATED, passed};
use super::reshape::{self, RESHAPED, Reshaped};
use crate::driver::instance::API_VERSION;
use ash::vk;

/// All differences between a host's device and the one a guest sees. Nothing here depends on a host.
#[derive(Debug)]
pub struct Shaping {
    /// Highest API version a guest sees: major, minor, patch.
    pub api_version: (u32, u32, u32),
    /// Extensions that pass where the host has them.
    pub passed: Vec<&'static str>,
    /// Extensions that the worker emulates.
    pub emulated: Vec<&'static str>,
    /// Extensions that pass and that Mesa's driver shows to no application.
    pub not_shown: &'static [Absent],
    /// Extensions that could be decoded and are kept back.
    pub withheld: &'static [Absent],
    /// Extensions that cannot be decoded.
    pub undecodable: &'static [Absent],
    /// Features that are kept back, with the reason.
    pub features: Vec<(&'static str, &'static str)>,
    /// Properties and limits that differ.
    pub properties: &'static [Reshaped],
}

/// Returns the tables.
pub fn shaping() -> Shaping {
    let mut features: Vec<_> = Vec::new();
    for feature in reshape::WITHHELD.iter().copied().flatten().map(|f| (f.name, f.reason)) {
        if !features.contains(&feature) {
            features.push(feature);
        }
    }
    let version =
        [vk::api_version_major, vk::api_version_minor, vk::api_version_patch].map(|of| of(API_VERSION));
    Shaping {
        api_version: version.into(),
        passed: passed(),
        emulated: EMULATED.iter().map(|(name, _)| *name).collect(),
        not_shown: NOT_SHOWN,
        withheld: WITHHELD,
        undecodable: UNDECODABLE,
        features,
        properties: RESHAPED,
    }
}
