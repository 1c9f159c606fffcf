//! The device process: one virtual machine's virtio-gpu device, and the workers behind it.
//!
//! This module wires the session, the device and the workers: it takes requests, performs the device's effects and supervises the workers.
//! Everything runs on one thread around one epoll instance, the *device thread*, which never waits for a worker. The process loads no GPU
//! driver and must not end while a guest uses it. The other threads do nothing but wait:
//!
//! | thread | waits for |
//! | --- | --- |
//! | `frontend` | the frontend's messages, which it hands to the device thread |
//! | `signals` | signals that end the process |
//! | `progress` | the device thread, and ends the process if that thread stands still at a descriptor of the frontend |
//! | `closer` | the kernel, while it closes files that take long |
//! | `checkpoint` | a successor that reads a checkpoint, one thread for each |
//! | `state` | the frontend and workers, while the device's state is saved or loaded |
//! | `blocks` | parts of that state, which these threads compress or decompress |

mod blobs;
mod broker;
mod checkpoints;
mod device_state;
mod effects;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handover;
mod hangs;
mod logging;
mod manager;
mod mapping;
mod outdated;
mod passing_on;
mod patience;
mod recoveries;
#[cfg(test)]
mod recoveries_tests;
mod restarts;
#[cfg(test)]
mod restarts_tests;
#[cfg(test)]
mod room_tests;
mod run;
mod setup;
mod succession;
#[cfg(test)]
mod succession_tests;
mod swaps;
#[cfg(test)]
mod swaps_tests;
mod transfers;
mod wait;
mod window;
mod workers;

pub use broker::Broker;
pub use outdated::End;
pub use run::{Options, serve};
pub use setup::{
    Advice, Chosen, Late, List, Listen, NoGpu, Selected, SocketError, back_end, cache_key, decide_window,
    family, more_than_there_is, probe, select, small_window, take_signals,
};
