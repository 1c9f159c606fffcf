//! Filters of system calls, made from a policy's lists. A call that is on no list ends the process, or is named in the log.

use super::options::SeccompMode;
use super::policy::{Syscalls, When};
use super::sys;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use syscalls::Sysno;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Lays filters of the lists on the calling thread, and on all threads that it starts from now on. The thread must have given up the right to gain
/// privileges.
///
/// # Errors
///
/// A list names no known system call, or the system has no filters.
pub(super) fn confine(syscalls: &Syscalls, mode: SeccompMode) -> io::Result<()> {
    match mode {
        SeccompMode::Off => Ok(()),
        SeccompMode::Kill => {
            let programs = programs(syscalls, SeccompAction::KillProcess)?;
            programs.iter().rev().try_for_each(|program| install(program, false).map(|_| ()))
        }
        SeccompMode::Log => {
            let listener = Arc::new(OnceLock::new());
            name_calls(listener.clone())?;
            let mut programs = programs(syscalls, SeccompAction::Trace(NOTIFY))?;
            for program in &mut programs[..1] {
                // The library does not know this action, so the programs use a stand-in value that no other action uses.
                let ours = libc::SECCOMP_RET_TRACE | u32::from(NOTIFY as u16);
                program
                    .iter_mut()
                    .filter(|step| step.k == ours)
                    .for_each(|step| step.k = libc::SECCOMP_RET_USER_NOTIF);
            }
            let (main, others) = programs.split_first().ok_or(io::ErrorKind::InvalidInput)?;
            others.iter().try_for_each(|program| install(program, false).map(|_| ()))?;
            let _ = listener.set(install(main, true)?.ok_or(io::ErrorKind::Unsupported)?);
            Ok(())
        }
    }
}

/// Returns the names of all calls that can be made, sorted; conditional calls have a `*`.
pub fn names(syscalls: &Syscalls) -> Vec<String> {
    let conditional = syscalls.when.iter().map(|when| &when.call).collect::<BTreeSet<_>>();
    let free = syscalls.allow.iter().cloned();
    let known = |name: &String| number(name.trim_end_matches('*')).is_some();
    free.chain(conditional.into_iter().map(|name| format!("{name}*")))
        .filter(known)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// Stands for "ask the listener" until the program is finished.
const NOTIFY: u32 = 0x5b0c;

/// Returns one program that applies `otherwise` to calls on no list, and one for each error that some calls are answered with. Lay the last one on first,
/// because the first one forbids further filters. Of the verdicts of several filters the kernel takes the strictest.
fn programs(syscalls: &Syscalls, otherwise: SeccompAction) -> io::Result<Vec<BpfProgram>> {
    let mut known = Rules::new();
    for name in syscalls.allow.iter().chain(syscalls.refuse.values().flatten()) {
        // Not every architecture has every call; `every_name_is_a_system_call` finds mistakes.
        if let Some(number) = number(name) {
            known.insert(number, Vec::new());
        }
    }
    for when in &syscalls.when {
        if let Some(number) = number(&when.call) {
            let rules = rules(when)?;
            let present = known.entry(number).or_insert_with(|| rules.clone());
            // An empty list of rules means "always".
            if !present.is_empty() && *present != rules {
                present.extend(rules);
            }
        }
    }
    let mut programs = vec![compile(known, otherwise, SeccompAction::Allow)?];
    for (error, refused) in refusals(syscalls)? {
        let action = SeccompAction::Errno(error_number(&error)?);
        programs.push(compile(refused, SeccompAction::Allow, action)?);
    }
    Ok(programs)
}

/// Returns the calls that are answered with an error, some only with certain arguments.
fn refusals(syscalls: &Syscalls) -> io::Result<BTreeMap<String, Rules>> {
    let mut all = BTreeMap::<String, Rules>::new();
    for (error, names) in &syscalls.refuse {
        let refused = names.iter().filter_map(|name| Some((number(name)?, Vec::new())));
        all.entry(error.clone()).or_default().extend(refused);
    }
    for when in &syscalls.when {
        if let (Some(error), Some(number)) = (&when.error, number(&when.call)) {
            all.entry(error.clone()).or_default().entry(number).or_default().extend(rules(when)?);
        }
    }
    Ok(all)
}

fn compile(rules: Rules, otherwise: SeccompAction, matching: SeccompAction) -> io::Result<BpfProgram> {
    let architecture = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, otherwise, matching, architecture).map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}

fn rules(when: &When) -> io::Result<Vec<SeccompRule>> {
    let rule = |value: &u64| {
        let operator = match when.mask {
            u64::MAX => SeccompCmpOp::Eq,
            mask => SeccompCmpOp::MaskedEq(mask),
        };
        let condition = SeccompCondition::new(when.argument, SeccompCmpArgLen::Qword, operator, *value);
        SeccompRule::new(vec![condition.map_err(io::Error::other)?]).map_err(io::Error::other)
    };
    when.is.iter().map(rule).collect()
}

fn install(program: &BpfProgram, listen: bool) -> io::Result<Option<OwnedFd>> {
    let step = |step: &seccompiler::sock_filter| libc::sock_filter {
        code: step.code,
        jt: step.jt,
        jf: step.jf,
        k: step.k,
    };
    sys::set_filter(&program.iter().map(step).collect::<Vec<_>>(), listen)
}

fn number(name: &str) -> Option<i64> {
    name.parse::<Sysno>().ok().map(|call| i64::from(call.id()))
}

fn error_number(name: &str) -> io::Result<u32> {
    match name {
        "ENOSYS" => Ok(libc::ENOSYS as u32),
        "EPERM" => Ok(libc::EPERM as u32),
        "EACCES" => Ok(libc::EACCES as u32),
        "ENOTTY" => Ok(libc::ENOTTY as u32),
        _ => Err(io::Error::other(format!("{name} is not an error that calls are answered with"))),
    }
}

/// Starts the threads that name the calls which `listener` will receive. They start before a filter is laid, so no filter applies to them.
///
/// A thread that makes a call may hold any lock of the C library's; the dynamic linker's is held while a driver is loaded. The thread that lets calls
/// go on must not need one: it neither logs nor is still starting by then, since both register destructors of thread-local values.
fn name_calls(listener: Arc<OnceLock<OwnedFd>>) -> io::Result<()> {
    let (named, lines) = mpsc::channel::<String>();
    let log = std::thread::Builder::new().name("seccomp log".into());
    log.spawn(move || lines.iter().for_each(|line| log::warn!("{line}")))?;
    let started = Arc::new(Barrier::new(2));
    let start = started.clone();
    std::thread::Builder::new().name("seccomp".into()).spawn(move || {
        start.wait();
        let_calls_go_on(listener.wait(), &named);
    })?;
    started.wait();
    Ok(())
}

/// Names each call once, with its first three arguments, which show its kind.
fn let_calls_go_on(listener: &OwnedFd, named: &mpsc::Sender<String>) {
    let mut seen = BTreeSet::new();
    loop {
        let notified = match sys::next_notified(listener) {
            Ok(notified) => notified,
            // The calling thread has ended meanwhile.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => continue,
            Err(_) => return,
        };
        let name =
            usize::try_from(notified.number).ok().and_then(Sysno::new).map_or("unknown", |call| call.name());
        let kind = if matches!(name, "ioctl" | "prctl" | "fcntl") {
            notified.arguments[..2].to_vec()
        } else {
            Vec::new()
        };
        if seen.len() < NAMED_MAX && seen.insert((notified.number, kind.get(1).copied())) {
            let arguments: Vec<String> =
                notified.arguments[..3].iter().map(|value| format!("{value:#x}")).collect();
            let (number, arguments) = (notified.number, arguments.join(", "));
            let _ =
                named.send(format!("not on the list of system calls: {name} ({number}), with {arguments}"));
        }
        let _ = sys::let_continue(listener, &notified);
    }
}

/// Bounds the lines of one process.
const NAMED_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::super::policy::Policy;
    use super::*;
    use crate::ipc::DriverFamily;

    /// Calls that only some architectures have.
    const OLD: &[&str] = &[
        "open",
        "stat",
        "lstat",
        "access",
        "readlink",
        "dup2",
        "poll",
        "select",
        "epoll_wait",
        "time",
        "mkdir",
        "unlink",
        "rename",
        "chmod",
        "getpgrp",
        "arch_prctl",
    ];

    #[test]
    fn every_name_is_a_system_call() {
        let families = [DriverFamily::Software, DriverFamily::Mesa, DriverFamily::Nvidia];
        let policies = families.map(|family| Policy::of(family).unwrap());
        for Policy { syscalls, .. } in policies.iter().chain([&Policy::of_device_process().unwrap()]) {
            let conditional = syscalls.when.iter().map(|when| &when.call);
            for name in syscalls.allow.iter().chain(syscalls.refuse.values().flatten()).chain(conditional) {
                assert!(number(name).is_some() || OLD.contains(&name.as_str()), "{name}");
            }
            programs(syscalls, SeccompAction::KillProcess).unwrap();
        }
    }

    #[test]
    fn no_call_is_both_free_and_under_a_condition() {
        let Policy { syscalls, .. } = Policy::of(DriverFamily::Any).unwrap();
        for when in &syscalls.when {
            assert!(!syscalls.allow.contains(&when.call), "{}", when.call);
        }
        for name in syscalls.refuse.values().flatten() {
            assert!(!syscalls.allow.contains(name), "{name}");
        }
    }
}
