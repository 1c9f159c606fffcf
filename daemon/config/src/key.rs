//! The key of pipeline caches, which the device process gives to each worker.

use serde::{Deserialize, Serialize};

/// The secret that authenticates pipeline caches which come back through a guest's files. It is never printed.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheKey(pub [u8; 32]);

impl std::fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CacheKey(..)")
    }
}
