//! The side of this process that faces the service manager: systemd, or another that speaks its protocols.
//!
//! | file | is | follows |
//! | --- | --- | --- |
//! | `manager` | the messages to the manager: readiness, status, that the loop turns | sd_notify(3), sd_watchdog_enabled(3) |
//! | `activation` | the socket that the manager listens at for this process | sd_listen_fds(3) |
//! | `folders` | the folders that the manager has made for this process | systemd.exec(5), `RuntimeDirectory=` |
//! | `journal` | the log, as lines or as records with fields | systemd.exec(5), `$JOURNAL_STREAM` |
//! | `form` | the form of a line, and of a record's text | RFC 3339, for times |
//! | `records` | a record with its fields | systemd's "Native Journal Protocol" |
//! | `lines` | standard error, for which no process waits | |
//!
//! All but `form` and `lines` look at variables of the environment, and do nothing without them. The variables are meant for the process that the manager has
//! started: its children are started without [`VARIABLES`]. This module knows no VM, no GPU and no guest; `docs/systemd.md` is the page for operators.

#![forbid(unsafe_code)]

mod activation;
mod folders;
mod form;
mod journal;
mod lines;
mod manager;
mod records;

pub use activation::{Activation, activation};
pub use folders::{runtime_folder, state_folder};
pub use journal::{Reader, start_logging};
pub use lines::print_error;
pub use manager::Manager;
pub use records::JOURNAL_STREAM;

/// The variables by which a service manager speaks to one process. The children of this process must not take them for theirs.
pub const VARIABLES: &[&str] = &[
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];
