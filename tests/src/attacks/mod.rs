//! What hostile guests, frontends and workers do. Tests do each by itself and look at what follows; `siege` does all of it at once.

pub mod descriptors;
pub mod endless;
pub mod frontends;
pub mod hoards;
pub mod requests;
pub mod streams;
