//! The host's Vulkan driver, as a guest's command stream drives it. This module is the only user of ash.
//!
//! The module knows no sockets, no rings and no virtqueues. For each decoded command it looks up the ids, turns the values into C structs,
//! calls the driver, and returns the driver's results as the codec's values. Generated code does this for most commands
//! (`dispatch::generated`, on `lowering::generated`); `protocol/codegen/inputs/execution.toml` says how each command is executed.
//!
//! The folders, in reading order. Each knows only those folders above it that its row names.
//!
//! | folder | is | may use |
//! | --- | --- | --- |
//! | `context` | a context as the other folders see it: what ends it, what it may have, what others share with it | |
//! | `gates` | the gates at which submissions wait for the scheduler | context |
//! | `backing` | the backing of device memory: pages, files, memory that a driver maps | context |
//! | `driver` | the host's driver: functions, instance, GPUs, C layouts | context, backing |
//! | `shape` | the host's device as a guest sees it, and the reasons for the differences | context, driver |
//! | `programs` | four Vulkan programs of ours: clearing, time stamps, the notice of a lost device, the trial of memory | context, gates, backing, driver |
//! | `logical` | `VkDevice`, and its queues as others see them | context, gates, driver, shape, programs |
//! | `objects` | the object table, which knows no kind of object by name | context, logical |
//! | `kinds` | the state that the table keeps of each kind of object beside its handle | context, backing, driver, shape, programs, logical, objects |
//! | `disposal` | objects that are gone for the guest and not yet for the driver | context, backing, logical, objects |
//! | `lowering` | values of the protocol to C structs, and back | context, driver, logical, objects |
//! | `execution` | one command on its way, and the context that it is executed for | context, gates, driver, programs, logical, objects, disposal, lowering |
//! | `validity` | the rules of valid usage that a driver takes for granted on the processor | context, driver, shape, logical, objects, kinds, lowering |
//! | `memory` | device memory: allocated, shown to the guest as a blob, shared between contexts | context, backing, driver, shape, programs, logical, objects, lowering, execution |
//! | `record` | command pools and buffers, and commands on their way into a recording | context, programs, logical, objects, kinds, lowering, execution, validity |
//! | `submit` | queues: submissions, their ends, and waits for them | context, gates, driver, programs, logical, objects, kinds, disposal, lowering, execution, validity, record |
//! | `commands` | commands that are executed by hand and belong to no other folder | context, backing, driver, shape, programs, logical, objects, kinds, lowering, execution, validity, memory, submit |
//! | `dispatch` | the function that executes each command | context, kinds, lowering, execution, validity, memory, record, submit, commands |
//! | `snapshot` | a context at rest, written down and built up again | context, backing, driver, programs, logical, objects, kinds, lowering, execution, memory, record, submit, commands, dispatch |
//! | `replay` | a journal, done again in a context that was built up | context, logical, execution, record, submit, dispatch |
//! | `renderer` | a context as the worker drives it | context, gates, driver, logical, execution, memory, record, submit, dispatch, snapshot, replay |
//! | `probe` | the list of GPUs | context, driver, programs |
//!
//! # Safety
//!
//! The invariants behind every `unsafe` block of this module and of generated code:
//!
//! - A host handle comes from the object table of this context, where its kind was checked, and parents outlive children.
//! - A pointer given to the driver is null, or comes from the command's arena, or is borrowed from the command itself; all live
//!   until the call returns. Memory the driver writes is a fresh allocation of the right type and length.
//! - Of Vulkan's own valid usage, `validity` guarantees the values by which drivers index on the processor, the locks of pools and queues
//!   guarantee the synchronisation that drivers leave to their callers, and `objects::usage` and `disposal` guarantee that no object is destroyed
//!   in use. The rest is *not* guaranteed: a guest that breaks it breaks the driver, which shares this process with no other guest.

mod backing;
mod commands;
mod context;
mod dispatch;
mod disposal;
mod driver;
mod execution;
#[cfg(any(test, feature = "null-driver"))]
pub mod fuzzing;
mod gates;
mod kinds;
mod logical;
mod lowering;
mod memory;
#[cfg(any(test, feature = "null-driver"))]
pub mod null;
mod objects;
mod probe;
mod programs;
mod record;
mod renderer;
mod replay;
mod shape;
pub mod snapshot;
mod submit;
mod validity;

pub use backing::capture::map;
pub use context::allowance::{Allowance, Asked, Deposit, HeapBudget, Lease, MemoryFile, Piece};
pub use context::budget::{Budget, Counted};
pub use context::cancel::{Cancel, Interrupted, Stop};
pub use context::cause::{Cause, DriverError, HostError, InheritedError, Limit, StreamError};
pub use context::error::ContextLost;
pub use context::journal::Journal;
pub use context::resources::{ResourceMemory, ResourceTable};
pub use context::watchdog_wake::WatchdogWake;
pub use dispatch::replay::Replay;
pub use driver::time_slices::ioctl;
pub use gates::gate::Gate;
pub use logical::timeline::Look;
pub use memory::export::{Exported, NotExported};
pub use probe::probe;
pub use renderer::Renderer;
pub use shape::tables::{Shaping, shaping};
pub use submit::state_query::StateQuery;
