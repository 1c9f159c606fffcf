//! The driver with the patches of `guest-driver-patches`, before the daemon.

mod driver;
mod features;
mod package;
mod validation;
