//! `vhost-user-vulkan doctor`: finds the reason why a host or a VM does not work, and a remedy.
//!
//! Each check is a function of facts, which one look at the system gathers, so a test can judge any system. The daemon hands in the facts that only
//! its own parts know: the features that its sandbox lacks, and the answer of its probe about GPUs. Beside the library is the program for VMs.
//!
//! | module | is | may use |
//! | --- | --- | --- |
//! | `report` | verdicts, and how they are printed | |
//! | `system` | files below a root folder, users, the environment | |
//! | `commands` | programs of the system, run to read their output | system |
//! | `control_groups` | the group of a process, and the mount that shows it | |
//! | `elf` | the needs of a library, according to its file | |
//! | `libraries` | shared libraries as the dynamic loader finds them | system, elf |
//! | `needs` | the libraries that a driver lacks | system, elf, libraries |
//! | `debian` | the packages that have libraries | |
//! | `manifests` | Vulkan drivers as Khronos' loader finds them | system, libraries, needs |
//! | `loader` | the finding if Khronos' loader is missing | report, libraries |
//! | `expected` | checks of findings, in tests only | report |
//! | `host` | checks of a host | report, system, commands, control_groups, libraries, needs, debian, loader, manifests, expected |
//! | `guest` | checks of a VM | report, system, libraries, needs, debian, loader, manifests, expected |
//! | `bug_report` | the contents of a bug report, without the parts that identify the machine's owner | report, system, commands, manifests |

pub mod bug_report;
mod commands;
pub mod control_groups;
mod debian;
mod elf;
#[cfg(test)]
mod expected;
pub mod guest;
pub mod host;
pub mod libraries;
mod loader;
pub mod manifests;
pub mod needs;
pub mod report;
pub mod system;
