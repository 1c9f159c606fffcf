//! Images: their formats, copies, and the ways in which shaders use them.

pub(super) mod blits;
pub(super) mod copies;
pub(super) mod formats;
pub(super) mod sampled;
pub(super) mod storage;
