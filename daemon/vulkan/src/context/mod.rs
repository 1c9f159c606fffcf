//! A guest's context as the rest of the renderer sees it: what ends it, what it may have, and what others share with it.

pub(crate) mod allowance;
pub(crate) mod budget;
pub(crate) mod cancel;
pub(crate) mod cause;
pub(crate) mod compilations;
pub(crate) mod error;
pub(crate) mod journal;
pub(crate) mod ranked;
pub(crate) mod resources;
pub(crate) mod restored;
pub(crate) mod watchdog_wake;
