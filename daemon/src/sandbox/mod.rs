//! Starting child processes that hold nothing but the descriptors that they are given, and confining processes.
//!
//! Reading order: `launch` (the device process's side), `launcher` (the process that starts children), `child` (one start), `isolation` and `root`
//! (namespaces, the view of a child), `seal` (the rights that a process gives up itself), `seccomp`, `keeper` (descriptors that outlive the device
//! process), `watch` (files that must stay the same), `cgroup` (limits on the workers of a VM); `policy` with its data files says which files and
//! calls are allowed. `this_program` starts the other processes of this program, the device processes of several VMs among them. Knows nothing of
//! contexts.

mod cgroup;
mod child;
mod isolation;
mod keeper;
mod launch;
mod launcher;
mod limits;
mod options;
mod policy;
mod root;
mod seal;
mod seccomp;
mod sys;
mod this_program;
mod watch;

pub use cgroup::{CgroupMode, DEVICE as DEVICE_GROUP, Delegated, GroupLimits, enter_vm, set_weight};
pub use child::Program;
pub use launch::{Ended, FromChildren, Launcher};
pub use launcher::run as run_launcher;
pub use options::{Options, SandboxMode, SeccompMode};
pub use policy::Policy;
pub use seal::{landlock_version, seal_child, seal_device_process};
pub use seccomp::names as system_calls;
pub use sys::{
    end_at_once, ignore_broken_pipes, inherited, only_standard_input, peer_process, without_hangups,
};
pub use this_program::{START_AGAIN, program_path, start_device_process};
