//! The things that a device process finds and makes before it serves: its GPUs and what guests are offered of them, its socket, its key.

mod gpu;
mod list;
mod offer;
mod socket;
mod state;

pub use gpu::{Chosen, NoGpu, Selected, family, probe, select};
pub use list::List;
pub use offer::{WINDOW_MAX, decide_window};
pub use socket::{Listen, SocketError};
pub use state::cache_key;
