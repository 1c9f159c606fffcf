//! The steps of a start that several kinds of process share: logging, the limit of open files, and the check of the system's sandbox.

use anyhow::{Context, bail};
use daemon::sandbox::{self, SandboxMode, SeccompMode};

/// The target of the program's own log messages: the names of its modules begin like the name of a silenced library.
pub(crate) const LOG: &str = "daemon";

/// Returns whether the log has begun and takes errors: it adds time and VM to them.
pub(crate) fn is_logging() -> bool {
    log::log_enabled!(target: LOG, log::Level::Error)
}

/// Warns of the protections that this system lacks, or refuses to start without them.
pub(crate) fn admit(options: &sandbox::Options, lacks: &[String]) -> anyhow::Result<()> {
    let lacking = lacks.join(", ");
    match options.sandbox {
        SandboxMode::Strict if !lacks.is_empty() => {
            bail!(
                "this system does not offer the whole sandbox: no {lacking}; --sandbox=degraded does without"
            )
        }
        SandboxMode::Degraded if !lacks.is_empty() => {
            log::warn!(target: LOG, "DEGRADED SANDBOX: these parts, which would hold a worker that a guest has taken over, are missing: {lacking}");
        }
        SandboxMode::None => {
            log::warn!(target: LOG, "NO SANDBOX: a guest that takes over a worker has all rights of this daemon's user");
        }
        SandboxMode::Strict | SandboxMode::Degraded => {}
    }
    if options.sandbox != SandboxMode::None && options.seccomp != SeccompMode::Kill {
        log::warn!(target: LOG, "NO FILTER: system calls are not refused (--seccomp)");
    }
    Ok(())
}

/// Raises the limit of open files: every blob takes one or two descriptors, and the usual limit is 1024. Returns the new limit.
pub(crate) fn raise_descriptor_limit() -> anyhow::Result<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of open files")?;
    Ok(limit.current.unwrap_or(u64::MAX))
}
