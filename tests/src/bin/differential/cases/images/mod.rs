//! Images: their formats, copies, and the ways in which shaders use them.

pub mod copies;
pub mod formats;
pub mod sampled;
pub mod storage;
