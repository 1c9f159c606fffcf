//! The worker process: executes the Venus streams of one guest context.
//!
//! A worker sees the shared memory attached to its context, its channel to the device process and the host's Vulkan driver; no
//! virtqueue, no guest RAM, no other context.
//!
//! | thread | does | lives |
//! | --- | --- | --- |
//! | main | executes the virtqueue's stream, and starts the driver first | as long as the process |
//! | `ring` | executes the stream of one ring | as long as the ring |
//! | `inbox` | reads the channel while the main thread waits for a ring | as long as the process |
//! | `monitor` | reports in the shared memory of each ring that the worker is alive | from the first ring on |
//! | `watchdog` | ends the process when a submission outlasts its limit | as long as the process |
//! | `end` | ends the process when its main thread cannot | from the order to end on |
//! | `gate` | asks the scheduler for the GPU, and submits held submissions | with a scheduler |
//! | `queue` | reports the ends of submissions to the device process, in order, for one queue | from the first such fence on |
//! | `watch` | waits for submissions of one queue for the scheduler's accounts | with a scheduler |
//! | `pool` | destroys memory that is kept for its next use and grows old | from the first such memory on |
//! | `free` | frees the memory that the context was filled from | for a moment behind a restart or a swap-in |
//! | `copy` | copies a part of the contents of a context that is swapped out | for a part of 16 MiB |
//! | `seccomp`, `seccomp log` | let system calls go on that are on no list, and log them | with `--seccomp=log` |
//!
//! The host's driver has threads of its own.
//!
//! Reading order: `life` (of the process, and the change to another), `stream` (one command), `transport` (the transport's own commands), `ring` (its
//! memory and loop), then modules that these use; `journal` has notes for a successor. For swapped-out contexts `life::swapped_out` replaces the driver.

mod allowance;
mod at_rest;
mod backend;
mod context;
mod fences;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod inbox;
mod journal;
mod life;
mod monitor;
mod patience;
mod reply;
mod resources;
mod ring;
mod ring_thread;
mod stream;
mod transport;
#[cfg(any(test, feature = "null-driver"))]
pub mod workload;

pub use life::run;
