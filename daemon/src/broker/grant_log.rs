//! The grant log, for checking charges against counts: a line for each look at a context that found completed submissions, and for each charge that
//! was corrected since. It is off unless an operator wants it (`log-grants`).

use outside::Makes;
use protocol::ids::ContextId;
use rustc_hash::FxHashMap;
use sched::{ContextKey, Nanos, TenantId, Usage};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// The file, and the charges that it has. If a charge is corrected later, the context gets a line with the difference, which may be negative.
#[derive(Debug)]
pub(super) struct GrantLog {
    file: BufWriter<File>,
    told: FxHashMap<ContextKey, Usage>,
    names: FxHashMap<TenantId, String>,
    failed: bool,
}

impl GrantLog {
    /// Begins a file. A file that another process truncates, to rotate it, goes on at its new end.
    ///
    /// # Errors
    ///
    /// The system refuses, or the path is no regular file: if it were a pipe, all VMs would wait until a process reads it.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Self::begin(outside::create(path, Makes::Regular)?)
    }

    fn begin(file: File) -> io::Result<Self> {
        let mut file = BufWriter::new(file);
        writeln!(file, "# time_ns vm context submissions compute_ns copy_ns")?;
        Ok(Self { file, told: FxHashMap::default(), names: FxHashMap::default(), failed: false })
    }

    /// Goes on with a file that an earlier program has begun.
    pub(super) fn resume(file: File) -> Self {
        Self {
            file: BufWriter::new(file),
            told: FxHashMap::default(),
            names: FxHashMap::default(),
            failed: false,
        }
    }

    /// Notes that the log has the charges of a context up to this usage.
    pub(super) fn knows(&mut self, key: ContextKey, told: Usage) {
        self.told.insert(key, told);
    }

    /// Notes the name of a VM, or that the VM is gone.
    pub(super) fn name(&mut self, tenant: TenantId, name: Option<&str>) {
        match name {
            Some(name) => _ = self.names.insert(tenant, name.to_owned()),
            None => _ = self.names.remove(&tenant),
        }
    }

    /// Writes the charge of a context since its last line.
    pub(super) fn note(
        &mut self,
        now: Nanos,
        (tenant, ctx_id): (TenantId, ContextId),
        key: ContextKey,
        usage: &Usage,
    ) {
        let told = self.told.entry(key).or_default();
        let submissions = usage.submissions.saturating_sub(told.submissions);
        let since = |counter: Nanos, before: Nanos| i128::from(counter) - i128::from(before);
        let (compute, copy) = (since(usage.gpu, told.gpu), since(usage.copy, told.copy));
        *told = *usage;
        if (submissions, compute, copy) == (0, 0, 0) || self.failed {
            return;
        }
        let vm = self.names.get(&tenant).map_or("?", String::as_str);
        let line = writeln!(self.file, "{now} {vm} {} {submissions} {compute} {copy}", ctx_id.0);
        self.check(line);
    }

    /// Forgets a context that has ended.
    pub(super) fn forget(&mut self, key: ContextKey) {
        self.told.remove(&key);
    }

    /// Passes the written lines to the system.
    pub(super) fn flush(&mut self) {
        let flushed = self.file.flush();
        self.check(flushed);
    }

    fn check(&mut self, result: io::Result<()>) {
        if let Err(error) = result
            && !self.failed
        {
            self.failed = true;
            log::error!(
                "cannot write the log of grants: {error}; grants are not logged until the broker is started again"
            );
        }
    }
}

impl AsFd for GrantLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, Mode};

    #[test]
    fn lines_add_up_to_what_was_charged() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut log = GrantLog::create(file.path()).unwrap();
        log.name(TenantId(0), Some("a"));
        let id = (TenantId(0), ContextId(3));
        for (submissions, gpu) in [(1, 500), (1, 500), (3, 900), (3, 850)] {
            log.note(7, id, ContextKey(1), &Usage { submissions, gpu, ..Usage::default() });
        }
        log.flush();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines, ["7 a 3 1 500 0", "7 a 3 2 400 0", "7 a 3 0 -50 0"]);
        // As logrotate does with `copytruncate`.
        file.as_file().set_len(0).unwrap();
        log.note(8, id, ContextKey(1), &Usage { submissions: 4, gpu: 900, ..Usage::default() });
        log.flush();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"8 a 3 1 50 0\n");
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(GrantLog::create(&path).is_err(), "no process reads it");
        let _reader = File::options().read(true).write(true).open(&path).unwrap();
        let error = GrantLog::create(&path).unwrap_err().to_string();
        assert!(error.starts_with("is no regular file; "), "{error}");
    }

    #[test]
    fn a_full_disk_ends_the_file_and_nothing_else() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut log = GrantLog::begin(full).unwrap();
        let id = (TenantId(0), ContextId(3));
        for submissions in 1..1_000 {
            log.note(7, id, ContextKey(1), &Usage { submissions, ..Usage::default() });
            log.flush();
        }
        assert!(log.failed && log.file.buffer().len() < 200, "lines that cannot be written are kept");
    }
}
