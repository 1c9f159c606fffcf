//! `cargo bench-gpu`: how fast a program is in a guest, in relation to the same program on the host.
//!
//! `measures` defines the measures, `goals` the least good results, `sides` are the host and the guests, `rounds` takes every measure on all sides by
//! turns, `taken` is the result of one side in one round, `figures` makes medians and ratios of these results, `table` and `plot` show them. `start`,
//! `cost`, `memory`, `llama` and `scale` are measures that need more than a question to the program `gauge`, which does all the others.

mod cost;
mod figures;
mod goals;
mod llama;
mod measures;
mod memory;
mod plot;
mod rounds;
mod scale;
mod sides;
mod start;
mod table;
mod taken;

pub use figures::{Column, Line, Quartiles, Reading};
pub use goals::{Goal, goal};
pub use llama::Llama;
pub use measures::{Ask, Pace, Probe, Row, Unit, plan};
pub use plot::plot;
pub use rounds::run;
pub use sides::{LOOK, LOOKING, Side, Sides};
pub use table::{to_json, to_table};
pub use taken::{Taken, Timing};
