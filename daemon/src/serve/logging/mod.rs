//! This module writes to the daemon's log: lines that workers print, and lines of a kind that are limited or would repeat an earlier one.

pub(super) mod aftermath;
pub(super) mod fault;
pub(super) mod limiter;
pub(super) mod output;
