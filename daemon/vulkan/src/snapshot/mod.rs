//! Snapshots: a context at rest is written down so that another process can build it up again (*rebuilding*).
//!
//! A snapshot is a list of steps and a list of memory files. Most steps are commands as the guest encoded them, or commands like them. A successor
//! executes these commands as it executes the guest's, with the same checks. While a snapshot is made, the context executes and submits nothing.
//!
//! | module | is |
//! | --- | --- |
//! | `step` | the steps of which a snapshot consists |
//! | `saved` | a snapshot, or why there is none |
//! | `drain` | the wait until nothing that was submitted is pending |
//! | `synthesis` | commands that no guest sent, and the objects that commands of guests have made |
//! | `prelude` | objects that a successor makes before its predecessor rests |
//! | `objects` | objects, those alive and those that others were made of, in the order of their creation |
//! | `likeness` | the look of GPUs for programs |
//! | `memory` | memory files, memory that a driver gives away, and the memory that buffers and images are bound to |
//! | `contents` | contents of memory that only the driver uses and that the successor does not take over |
//! | `addresses` | addresses of buffers that the guest knows |
//! | `state` | states that fences, semaphores and events have reached since their creation; and failures |
//! | `descriptors` | the contents of descriptor sets |
//! | `queries` | results of queries that are available |
//! | `recordings` | the recordings of command buffers |
//! | `rebuild` | the steps, done one after the other |

mod addresses;
#[cfg(test)]
mod addresses_tests;
#[cfg(test)]
mod cache_data_tests;
mod contents;
mod descriptors;
pub(crate) mod drain;
#[cfg(test)]
mod exports_tests;
pub(crate) mod likeness;
mod memory;
#[cfg(test)]
mod movable_tests;
mod objects;
pub(crate) mod prelude;
#[cfg(test)]
mod prelude_tests;
mod queries;
mod rebuild;
mod recordings;
mod saved;
mod state;
pub mod step;
mod synthesis;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world_for_tests;

use crate::execution::context::Context;

pub use contents::Contents;
pub(crate) use memory::deposit_all;
pub use prelude::Prelude;
pub(crate) use rebuild::{rebuild, rebuild_ahead};
pub use saved::{Carry, NotMovable, Saved, SavedFile};

/// Writes a context down for a successor that has made the objects in the `prelude`. Meanwhile the context executes nothing, and no submission of it
/// is pending.
///
/// # Errors
///
/// A successor cannot make a part of the context again.
pub(crate) fn save(context: &Context, prelude: &Prelude, carry: Carry) -> Result<Saved, NotMovable> {
    if !context.retired.flush_idle() {
        return Err(NotMovable::for_now("objects that the program has destroyed are in use"));
    }
    if context.retired.is_lending() {
        return Err(NotMovable::ever("the guest sees memory of the driver's own"));
    }
    context.pool.flush();
    if carry != Carry::Deposited {
        // Otherwise the next successor would need a third copy. A checkpoint starts no successor, and the program waits for it.
        context.given_up.finish();
    }
    context.timelines.all().iter().for_each(|queue| queue.refresh());
    if context.journal.has_failed() {
        return Err(NotMovable::ever("the driver has lost a device of the context"));
    }
    let mut saved = Saved { carry, ..Saved::default() };
    objects::save(context, prelude, &mut saved)?;
    state::save_before(context, &mut saved.steps)?;
    descriptors::save(context, &mut saved.steps)?;
    // Before recordings: a recording that resets queries then knows of their results.
    let available = queries::save(context, &mut saved.steps)?;
    recordings::save(context, &available, &mut saved.steps)?;
    state::save_after(context, &mut saved.steps);
    addresses::save(context, &mut saved.steps);
    contents::save(context, |object| prelude.has_contents(object), &mut saved)?;
    Ok(saved)
}
