//! This module makes what operators and monitoring are told: the state of all VMs as data, as a table, and as metrics.

pub(super) mod metrics;
pub(super) mod status;
pub(super) mod table;
