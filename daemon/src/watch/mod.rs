//! `status --watch` on a terminal: a view of a broker's VMs that renews itself, and in which an operator sorts, unfolds, and ends contexts.
//!
//! `draw` makes the screen, as a pure function of the broker's status (`moment`), the operator's choices (`view`), and the size of the terminal. Only
//! `terminal` uses the terminal, and only `run` asks the broker. Names come from guests and drivers: `screen` replaces the characters in them that
//! command a terminal.
//!
//! | module | is | may use |
//! | --- | --- | --- |
//! | `moment` | the broker's status, as rows | |
//! | `view` | the operator's choices, and the effects of keys | moment |
//! | `screen` | lines of styled text of an exact size | |
//! | `columns` | which columns have room, and their contents | moment, screen |
//! | `draw` | the picture | moment, view, screen, columns |
//! | `terminal` | the terminal, and how it is given back | screen |
//! | `run` | the loop | moment, view, columns, draw, terminal |

mod columns;
mod draw;
mod moment;
mod run;
mod screen;
mod terminal;
mod view;

pub use run::{WatchError, watch};
pub use terminal::is_interactive;
