//! Attacks of hostile guests, frontends and workers. Tests run each attack by itself and check its effect; `siege` runs all attacks at once.

pub mod descriptors;
pub mod endless;
pub mod frontends;
pub mod hoards;
pub mod paths;
pub mod requests;
pub mod streams;
