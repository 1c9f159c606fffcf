//! Answers that wait until the worker of a context has started.
//!
//! Mesa maps the memory of its ring before it first waits for its worker. While it waits for the worker it aborts the program when the worker shows
//! no sign of life for 3.5 s, and on a busy host the start of a worker can take as long. For the answer to a mapping the guest's kernel waits
//! without a limit. So the device maps the memory at once, and answers when the worker has started.

use super::quota::Owner;
use protocol::virtio_gpu::Response;
use rustc_hash::FxHashMap;

/// The workers that start, each with the answers that wait for it.
#[derive(Debug)]
pub(super) struct Starts<T>(FxHashMap<Owner, Vec<(T, Response)>>);

impl<T> Default for Starts<T> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<T> Starts<T> {
    /// A worker starts.
    pub(super) fn begins(&mut self, owner: Owner) {
        self.0.insert(owner, Vec::new());
    }

    /// Returns whether a worker starts.
    pub(super) fn is_under_way(&self, owner: Owner) -> bool {
        self.0.contains_key(&owner)
    }

    /// Keeps an answer until a worker that starts has started.
    pub(super) fn keep(&mut self, owner: Owner, ticket: T, response: Response) {
        self.0.entry(owner).or_default().push((ticket, response));
    }

    /// Returns the workers that start.
    pub(super) fn all(&self) -> Vec<Owner> {
        self.0.keys().copied().collect()
    }

    /// Returns the number of answers that wait for a worker.
    pub(super) fn waiting(&self, owner: Owner) -> usize {
        self.0.get(&owner).map_or(0, Vec::len)
    }

    /// The worker has started, or will not: returns the answers that waited for it, in their order.
    pub(super) fn ends(&mut self, owner: Owner) -> Vec<(T, Response)> {
        self.0.remove(&owner).unwrap_or_default()
    }
}
