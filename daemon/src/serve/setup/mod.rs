//! The things that a device process finds and makes before it serves: its GPUs and what guests are offered of them, its socket, its key.

mod gpu;
mod list;
mod offer;
mod socket;
mod state;

pub use gpu::{Chosen, NoGpu, Selected, back_end, family, probe, select};
pub use list::List;
pub use offer::{Advice, WINDOW_MAX, decide_window, more_than_there_is, small_window};
pub use socket::{Listen, SocketError};
pub use state::cache_key;
