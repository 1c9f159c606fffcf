//! The driver with the patches of `guest-driver-patches`, with the daemon.

mod driver;
mod features;
mod package;
mod validation;
