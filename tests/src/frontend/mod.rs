//! A vhost-user frontend: the work of a VMM and of the lowest layer of a guest, without a VM.
//!
//! Knows nothing of virtio-gpu commands; `guest` is built on it. It contains no `unsafe`: guest memory and the window are
//! mapped by `vm-memory`.

mod halt_poll;
pub mod ram;
pub mod ranges;
pub mod session;
pub mod virtqueue;
pub mod window;

pub use halt_poll::HaltPoll;
pub use session::{Closer, Options, Saved, Session, Vmm, load_only};
pub use virtqueue::Traffic;
