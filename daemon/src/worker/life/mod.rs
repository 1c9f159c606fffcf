//! The life of a worker process: the messages to it, one after another, and its end; and the change of its context to another worker.
//!
//! When a context changes to another worker, its *successor*, that worker first builds the parts that it can build while the context goes on. Then
//! the old worker brings its rings to rest, waits until the GPU is done, writes everything down and rests. It stays unchanged until it is killed, and
//! goes on if it is told to. The successor reads the whole text before it makes anything. It has the contents of memory that only the driver uses
//! copied from worker to worker, and rests as well. It takes the text to be as hostile as the guest.

mod checkpoint;
mod contents;
mod hand_over;
pub(super) mod journal;
mod link;
mod prelude;
pub(super) mod run;
pub(super) mod snapshot;
mod store;
mod swapped_out;
mod take_over;
mod watchdog;

pub use run::run;
