//! Waiting: the decisions of threads that wait for events that may come soon. Each decides by the past and knows nothing of the events.
//!
//! | file | decides |
//! | --- | --- |
//! | `processors` | the number of processors, and whether they are few |
//! | `spin` | how a thread looks for an event without sleeping, and how many threads may |
//! | `look` | whether a thread looks before it sleeps, from the time that the last wait took |
//! | `pace` | how a ring's thread waits for its driver: spinning, dozing, idle |
//! | `hold` | how long an answer "not yet" is kept back from a guest that would only ask again |
//! | `attention` | whether the device thread looks, and when it asks the driver for kicks |
//! | `calls` | whether the driver is called at once or along with the next answer |
//! | `asks` | whether the end of a submission will be asked for next |
//! | `tunables` | the numbers of all heuristics, and how to turn one off |
//!
//! `docs/performance.md` has the measured gain of each heuristic on its own.

#![forbid(unsafe_code)]

pub mod asks;
pub mod attention;
pub mod calls;
pub mod hold;
pub mod look;
pub mod pace;
pub mod processors;
pub mod spin;
pub mod tunables;

use std::sync::OnceLock;
pub use tunables::{Heuristic, Tunables};

static TUNABLES: OnceLock<Tunables> = OnceLock::new();

/// Sets the numbers for this process, with some heuristics turned off. Call this before any code asks for them.
pub fn start(off: &[Heuristic]) {
    let tunables =
        off.iter().fold(Tunables::among(processors::processors()), |tunables, off| tunables.without(*off));
    if TUNABLES.set(tunables).is_err() && *self::tunables() != tunables {
        log::error!("the heuristics of waiting were used before the options had set them, which is a bug");
    }
}

/// Returns the numbers of this process: those that [`start`] has set, or else those for the processors that the process may use.
pub fn tunables() -> &'static Tunables {
    TUNABLES.get_or_init(|| Tunables::among(processors::processors()))
}
