//! This module writes what reaches the daemon's log: lines that workers print, and lines of a kind that are limited or
//! that would say again what was said.

pub(super) mod aftermath;
pub(super) mod limiter;
pub(super) mod output;
