//! A journal done again in another process: what was executed between a checkpoint and the death of its worker.

pub(crate) mod journal;
