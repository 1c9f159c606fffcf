//! `vhost-user-vulkan` as a library: the device process, the worker process, and what they share.
//!
//! Modules in reading order. An arrow in the layering table is the only way a module may use another; `tests/tests/layering.rs`
//! checks it.
//!
//! | module | is | may use |
//! | --- | --- | --- |
//! | `config` | options and limits | protocol |
//! | `transport` | vhost-user session, virtqueues, guest memory | protocol, config, shm, waiting, readiness |
//! | `device` | the virtio-gpu device as a state machine | protocol, config |
//! | `ipc` | messages between device process and worker | protocol, config, waiting |
//! | `shm` | memory shared with a guest | readiness |
//! | `sandbox` | starting and confining processes | ipc, readiness, config |
//! | `readiness` | which descriptors have events | |
//! | `waiting` | how long threads wait for what may happen soon, and how | protocol |
//! | `broker` | several VMs on one host, and their shares | protocol, config, ipc, sandbox, shm, readiness |
//! | `serve` | the device process | transport, device, ipc, sandbox, shm, waiting, config, protocol, readiness |
//! | `vulkan` | the host's Vulkan driver | protocol, shm, waiting, config |
//! | `worker` | the worker process | ipc, shm, waiting, vulkan, sandbox, config, protocol, readiness |

#![warn(unreachable_pub)]

pub mod broker;
#[cfg(not(feature = "fuzzing"))]
mod device;
#[cfg(feature = "fuzzing")]
pub mod device;
pub mod ipc;
pub mod sandbox;
pub mod serve;
#[cfg(not(feature = "fuzzing"))]
mod transport;
#[cfg(feature = "fuzzing")]
pub mod transport;
pub mod worker;
