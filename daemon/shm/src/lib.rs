//! Memory shared with a guest or with another process.
//!
//! Another process may change all of this memory at any moment. So no reference to such bytes ever leaves this module: single words are accessed
//! atomically ([`Word`]), ranges are copied out into private memory or in from it ([`Mapping`]), and every offset is checked. Only a worker's
//! [`journal`] is different, because no other process writes to it. This crate knows no rings, resources or Venus.

#![expect(unsafe_code, reason = "mapping files and touching memory that other processes write")]

mod checkpoint;
mod copy;
mod doorbell;
mod fixed;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod grants;
mod guard;
pub mod journal;
mod mapping;
mod memfd;
mod placed;
mod replace;
mod results;
mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trace_note;

pub use checkpoint::CheckpointMark;
pub use doorbell::{Doorbell, Listener};
pub use fixed::{FixedFile, MapError, device_node, inspect, is_anchor, may_be_memory};
pub use grants::{Counters, GRANTS_LAYOUT, GateSide, Reached, SchedulerSide, Work, grant_page, page_clock};
pub use guard::{Guard, guard_mappings, memory_was_lost};
pub use mapping::{Mapping, OutOfBounds, Word};
pub use memfd::create;
pub use replace::put_in_place_of;
pub use results::{ResultWord, ResultWords, Told};
pub use status::{Activity, Progress, StatusPage};
pub use trace_note::{Stages, SubmissionId, TakenNotes, TraceNote};
