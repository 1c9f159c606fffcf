//! A guest's context as the rest of the renderer sees it: what ends it, what it may have, and what others share with it.

pub mod allowance;
pub mod budget;
pub mod cancel;
pub mod error;
pub mod resources;
pub mod watchdog_wake;
