//! The replay of a journal in another process: of the commands that were executed between a checkpoint and the death of the worker.

pub(crate) mod journal;
