//! This module writes what reaches the daemon's log: lines that workers print, and lines of a kind that are limited.

pub(super) mod limiter;
pub(super) mod output;
