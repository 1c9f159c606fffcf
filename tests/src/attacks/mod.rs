//! Attacks of hostile guests, frontends and workers. Tests run each by itself and look at its effect; `siege` runs all of them at once.

pub mod descriptors;
pub mod endless;
pub mod frontends;
pub mod hoards;
pub mod paths;
pub mod requests;
pub mod streams;
