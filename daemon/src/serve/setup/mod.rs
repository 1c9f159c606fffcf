//! This module prepares what a device process needs before it serves: its GPUs and their offer to guests, its socket, its
//! key, and the signals that end it.

mod end_request;
mod gpu;
mod list;
mod offer;
mod socket;
mod state;

pub(super) use end_request::EndRequest;
pub use end_request::take_signals;
pub use gpu::{Chosen, Late, NoGpu, Selected, back_end, family, probe, select};
pub use list::List;
pub use offer::{Advice, decide_window, more_than_there_is, small_window};
pub use socket::{Listen, SocketError};
pub use state::cache_key;
