//! The steps by which a process confines itself before it reads a hostile byte: it gives up the right to gain privileges, to be traced, to reach
//! files and sockets beyond its view (Landlock), and to make system calls beyond its list.

use super::options::{Options, SandboxMode, SeccompMode};
use super::policy::{Policy, Use, View};
use super::seccomp;
use crate::ipc::DriverFamily;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io;

/// Confines a worker or a probe, which still has only one thread, for a driver of this family. The descriptors that it starts with, such as its channel,
/// are open.
///
/// # Errors
///
/// The system refuses a protection that it offers.
pub fn seal_child(options: &Options, family: DriverFamily) -> io::Result<()> {
    if options.sandbox == SandboxMode::None {
        return Ok(());
    }
    let policy = Policy::of(family).map_err(io::Error::other)?;
    rustix::thread::set_no_new_privs(true)?;
    // No process of the same user may trace it or open its memory. Programs that are executed begin without this protection.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    restrict(&policy.view())?;
    lay_filter(policy, options)
}

/// Confines the device process, which still has only one thread, has opened its sockets, and has its launcher.
///
/// # Errors
///
/// The system refuses a protection that it offers.
pub fn seal_device_process(options: &Options) -> io::Result<()> {
    if options.sandbox == SandboxMode::None {
        return Ok(());
    }
    let policy = Policy::of_device_process().map_err(io::Error::other)?;
    drop_capabilities()?;
    rustix::thread::set_no_new_privs(true)?;
    restrict(&View::default())?;
    lay_filter(policy, options)
}

/// Gives up every capability for good, even for programs that it executes.
///
/// # Errors
///
/// The system refuses.
pub(super) fn drop_capabilities() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, CapabilitySets};
    for capability in CapabilitySet::all().iter() {
        // A process that may not change the bounding set could gain nothing from it.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let none = CapabilitySet::empty();
    let _ = rustix::thread::clear_ambient_capability_set();
    Ok(rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )?)
}

fn lay_filter(Policy { mut syscalls, .. }: Policy, options: &Options) -> io::Result<()> {
    // abort() signals its own thread; that call may signal no other process.
    let own = u64::from(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs());
    syscalls.when.push(super::policy::When {
        call: "tgkill".into(),
        argument: 0,
        mask: u64::MAX,
        is: vec![own],
        error: None,
    });
    match seccomp::confine(&syscalls, options.seccomp) {
        Err(error) if options.sandbox == SandboxMode::Degraded && options.seccomp == SeccompMode::Kill => {
            log::warn!("DEGRADED SANDBOX: system calls are not filtered: {error}");
            Ok(())
        }
        result => result,
    }
}

/// The version of Landlock up to which a process is restricted.
const LANDLOCK: ABI = ABI::V6;

/// Returns the version of Landlock that this kernel has, up to the one that is used here; 0 if it has none.
#[must_use]
pub fn landlock_version() -> u32 {
    let has = |abi: ABI| {
        let ruleset = landlock::Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let ruleset = ruleset.handle_access(AccessFs::from_all(abi)).and_then(|ruleset| match abi {
            ABI::V1 | ABI::V2 | ABI::V3 => Ok(ruleset),
            _ => ruleset.handle_access(AccessNet::from_all(abi)),
        });
        let ruleset = ruleset.and_then(|ruleset| match abi {
            LANDLOCK => ruleset.scope(Scope::from_all(abi)),
            _ => Ok(ruleset),
        });
        ruleset.and_then(|ruleset| ruleset.create()).is_ok()
    };
    let versions = [ABI::V1, ABI::V2, ABI::V3, ABI::V4, ABI::V5, LANDLOCK];
    versions.into_iter().filter(|abi| has(*abi)).max().map_or(0, |abi| abi as u32)
}

/// Restricts the process with Landlock, as far as the kernel supports it. The process can open only the view, wherever its root is, and can write or
/// execute no file there. It can signal no other process, and has no connection to or from a network or another process's abstract socket.
fn restrict(view: &View) -> io::Result<()> {
    let abi = LANDLOCK;
    let best = CompatLevel::BestEffort;
    let read = AccessFs::from_read(abi) & !AccessFs::Execute;
    let talk = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let mut ruleset = landlock::Ruleset::default()
        .set_compatibility(best)
        .handle_access(AccessFs::from_all(abi))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(abi)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(abi)))
        .and_then(|ruleset| ruleset.create())
        .map_err(io::Error::other)?;
    if view.procfs
        && let Ok(path) = PathFd::new("/.process")
    {
        ruleset = ruleset.add_rule(PathBeneath::new(path, read)).map_err(io::Error::other)?;
    }
    for part in &view.shown {
        let Ok(path) = PathFd::new(&part.path) else { continue };
        let allowed = match part.used {
            Use::Device => talk,
            _ if part.path.is_dir() => read,
            _ => AccessFs::ReadFile.into(),
        };
        ruleset = ruleset.add_rule(PathBeneath::new(path, allowed)).map_err(io::Error::other)?;
    }
    let restricted = ruleset.restrict_self().map_err(io::Error::other)?;
    if restricted.ruleset == RulesetStatus::NotEnforced {
        log::debug!("the kernel has no Landlock");
    }
    Ok(())
}
