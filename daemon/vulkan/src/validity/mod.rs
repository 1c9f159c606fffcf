//! The rules that a command must keep to before the host's driver hears of it: those of valid usage whose violation can corrupt this
//! process, on the side of the processor. Drivers index by them without looking.
//!
//! `protocol/codegen/inputs/execution.toml` says which command is checked where; commands executed by hand check themselves. A check looks
//! at what its objects were created with, which the check of the creation has left in the table of objects. What a program survives
//! natively it survives here: a command that breaks a rule is left out, or answered with `VK_ERROR_VALIDATION_FAILED`.
//!
//! What only the GPU can trip over is not looked at; it is confined there by the driver.

pub(crate) mod binding;
pub(crate) mod buffers;
pub(crate) mod images;
pub(crate) mod layouts;
pub(crate) mod pipelines;
pub(crate) mod query;
pub(crate) mod region;
pub(crate) mod semaphores;
pub(crate) mod writes;
