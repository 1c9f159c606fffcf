//! The rules that a command must keep before it goes to the host's driver: those of valid usage whose violation can corrupt this process, on the side
//! of the processor. Drivers use values of commands as indices without a check.
//!
//! `protocol/codegen/inputs/execution.toml` says which command is checked where; commands executed by hand check themselves. A check reads the facts
//! about its objects that the check of their creation has left in the table of objects. A program survives here each error that it survives natively:
//! a command that breaks a rule is left out, or answered with `VK_ERROR_VALIDATION_FAILED`.
//!
//! Errors that only the GPU can trip over are not checked; the driver confines them there.

pub(crate) mod binding;
pub(crate) mod buffers;
pub(crate) mod images;
pub(crate) mod layouts;
pub(crate) mod pipelines;
pub(crate) mod query;
pub(crate) mod region;
pub(crate) mod semaphores;
pub(crate) mod writes;
