//! A flag that ends waits: set when a ring is destroyed or the context goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag, which the one who waits and the one who ends the wait share.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends every wait that looks at this flag, for good.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether waits must end.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
