//! Checks of a host. `facts` looks at the system once, with `programs` for VMMs and `sockets` for listening sockets; `given` holds the facts that the
//! daemon's own parts have found out; `checks` judges.

mod checks;
mod facts;
mod given;
mod programs;
mod sockets;
#[cfg(test)]
mod tests;

pub use checks::check;
pub use facts::{AccessControl, Facts, Groups, Nvidia, Question};
pub use given::{Configuration, Descriptors, Given, Gpu, Sandbox, Small, Vm, Window};
pub use programs::{Crosvm, Qemu};
pub use sockets::{Folder, SocketFile};
