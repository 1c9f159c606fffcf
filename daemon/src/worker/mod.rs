//! The worker process: executes the Venus streams of one guest context.
//!
//! A worker sees the shared memory attached to its context, its channel to the device process and the host's Vulkan driver; no
//! virtqueue, no guest RAM, no other context. Its threads: the executor of the virtqueue's stream (main), one per ring, the
//! monitor, the inbox' helper, the one that brings the driver up, and the driver's.
//!
//! Reading order: `run` (life of the process), `stream` (one command), `transport` (commands of the transport itself), `ring`
//! (memory and loop of a ring), then what they use.

mod allowance;
mod backend;
mod context;
mod fences;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod inbox;
mod monitor;
mod reply;
mod resources;
mod ring;
mod run;
mod stream;
mod transport;
mod watchdog;
#[cfg(any(test, feature = "null-driver"))]
pub mod workload;

pub use run::run;
