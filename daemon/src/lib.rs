//! `vhost-user-vulkan` as a library: the device process, the worker process, and the code that they share.
//!
//! Modules in reading order. An arrow in the layering table is the only way a module may use another; `tests/tests/sources/layering.rs`
//! checks it.
//!
//! | module | is | may use |
//! | --- | --- | --- |
//! | `transport` | vhost-user session, virtqueues, guest memory | |
//! | `device` | the virtio-gpu device as a state machine | |
//! | `ipc` | messages between device process and worker | |
//! | `service` | the side that faces the service manager and the journal | |
//! | `sandbox` | starting and confining processes | ipc, service |
//! | `blame` | which of the contexts whose submissions do not end keeps others from the GPU | |
//! | `options` | the options of a VM, as a command line, a file and the broker give them | sandbox |
//! | `broker` | several VMs on one host, and their shares | ipc, sandbox, service, blame, options |
//! | `trace` | an operator's end of a trace of a VM's submissions, and its file | broker |
//! | `recipe` | the settings for VMMs, as text | |
//! | `watch` | the view of a broker in a terminal | broker |
//! | `serve` | the device process | transport, device, ipc, sandbox, service, blame, options |
//! | `worker` | the worker process | ipc, sandbox |
//!
//! Beside this crate, below `daemon/`, are crates that know nothing of it:
//!
//! | crate | is | uses |
//! | --- | --- | --- |
//! | `config` | options and limits | protocol |
//! | `doctor` | the checks of a host and of a VM, which the executable makes | outside |
//! | `outside` | files and sockets that other processes may replace, terminals, readers that may be gone | |
//! | `readiness` | which descriptors have events | |
//! | `waiting` | how long threads wait for events that may come soon, and how | protocol |
//! | `shm` | memory shared with a guest or with another process | readiness |
//! | `sched` | which context may use a GPU next, and for how much | |
//! | `vulkan` | the host's Vulkan driver | protocol, config, waiting, shm |

mod blame;
pub mod broker;
#[cfg(not(feature = "fuzzing"))]
mod device;
#[cfg(feature = "fuzzing")]
pub mod device;
pub mod ipc;
pub mod options;
pub mod recipe;
pub mod sandbox;
pub mod serve;
pub mod service;
pub mod trace;
#[cfg(not(feature = "fuzzing"))]
mod transport;
#[cfg(feature = "fuzzing")]
pub mod transport;
pub mod watch;
pub mod worker;
