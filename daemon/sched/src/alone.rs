//! The context that alone has work, if one does.

use super::tenant::Context;
use super::{ContextKey, Nanos};
use rustc_hash::FxHashMap;

/// The last context that alone had work, and since when.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// `None` if several contexts have work.
    pub(super) key: Option<ContextKey>,
    pub(super) since: Nanos,
}

impl Alone {
    /// Notes that a context has got work, or has no more work.
    pub(super) fn changed(&mut self, contexts: &FxHashMap<ContextKey, Context>, now: Nanos) {
        let mut active = contexts.iter().filter(|(_, context)| context.active).map(|(key, _)| *key);
        match (active.next(), active.next()) {
            (None, _) => {}
            (Some(key), None) if self.key == Some(key) => {}
            (Some(key), None) => (self.key, self.since) = (Some(key), now),
            (Some(_), Some(_)) => self.key = None,
        }
    }
}
