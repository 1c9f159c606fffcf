//! The parts of the system that other processes may change under this program: files and sockets at paths, text for a terminal, readers of
//! output, the host's memory. The owner of a folder may put any file at a path in it, at any moment; a reader may stop; any program may take memory.
//!
//! | module | is | may use |
//! | --- | --- | --- |
//! | `files` | files, read and made without a wait, and not read beyond a bound | |
//! | `sockets` | Unix sockets at paths: made, connected to, admitted to | |
//! | `groups` | groups of users, to whom sockets are given | `files` |
//! | `memory` | the memory of the host, and how much of it a program can take | |
//! | `text` | text as a terminal may get it | |
//! | `words` | values in words: text of another origin, times, sizes | |
//! | `output` | standard output and standard error, whose readers may be gone | |

#![forbid(unsafe_code)]

mod files;
mod groups;
mod memory;
mod output;
mod sockets;
mod text;
mod words;

pub use files::{Makes, NotRead, create, create_new, open, read, read_in};
pub use groups::{NoGroup, closed_folder, group};
pub use memory::HostMemory;
pub use output::{Reader, print, tell};
pub use sockets::{Access, NotBound, SocketFile, connect, listen};
pub use text::{json_for_terminal, lines_for_terminal, visible};
pub use words::{Bytes, Quoted, Span};
