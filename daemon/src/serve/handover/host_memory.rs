//! The memory of the host, which is to hold what contexts that are swapped out had in that of GPUs.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of the host's memory that are left to everything else when a context is swapped out.
const LEFT_FREE: u64 = 256 << 20;
/// Bytes of the kernel's account that are read: the lines that are looked for are the first.
const READ: usize = 512;

/// The kernel's account of the host's memory, if this process can see it.
#[derive(Debug, Default)]
pub struct HostMemory(Option<File>);

impl HostMemory {
    /// Opens the account. A process that will be confined has to do so before.
    pub fn open() -> Self {
        Self(File::open("/proc/meminfo").ok())
    }

    /// Returns the bytes of all memory; none if that is not known.
    pub fn total(&self) -> Option<u64> {
        self.bytes("MemTotal:")
    }

    /// Returns whether so many bytes of the GPU's memory can be moved into the host's, behind others that are on their way. There may be less room
    /// a moment later, as any program can take it.
    ///
    /// # Errors
    ///
    /// The host has too little, and the kernel would kill programs; says so, with the remedy.
    pub(in crate::serve) fn admit(&self, bytes: u64, others: u64) -> Result<(), String> {
        let available = self.bytes("MemAvailable:").unwrap_or(u64::MAX).saturating_sub(others);
        if bytes == 0 || bytes.saturating_add(LEFT_FREE) <= available {
            return Ok(());
        }
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        Err(format!(
            "its {:.1}GiB of the GPU's memory do not fit in the host's, of which {:.1}GiB are available: let VMs have less device-memory, or stop \
             other programs of the host",
            gib(bytes),
            gib(available)
        ))
    }

    fn bytes(&self, name: &str) -> Option<u64> {
        let mut text = [0; READ];
        let length = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..length]).ok()?;
        let kib =
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_suffix("kB")?.trim().parse().ok());
        kib.map(|kib: u64| kib.saturating_mul(1024))
    }

    /// An account that says this.
    #[cfg(test)]
    pub(in crate::serve) fn that_says(text: &str) -> Self {
        use std::io::Write as _;
        let mut file = File::from(shm::create("meminfo", 4096).expect("a memory file"));
        file.write_all(text.as_bytes()).expect("it has room");
        Self(Some(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_have_to_fit_beside_everything_else() {
        let memory = HostMemory::that_says(
            "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:    1048576 kB\n",
        );
        assert_eq!(memory.total(), Some(16 << 30));
        assert_eq!(memory.admit((1 << 30) - LEFT_FREE, 0), Ok(()));
        let refused = memory.admit((1 << 30) - LEFT_FREE + 1, 0).unwrap_err();
        assert!(
            refused.starts_with("its 0.8GiB of the GPU's memory do not fit in the host's, of which 1.0GiB"),
            "{refused}"
        );
        assert!(memory.admit(1 << 20, 1 << 30).is_err(), "others are on their way");
        assert!(memory.admit(u64::MAX, 0).is_err());
        assert_eq!(HostMemory::that_says("MemAvailable: 0 kB\n").admit(0, 0), Ok(()), "nothing is moved");
    }

    #[test]
    fn an_account_that_cannot_be_read_refuses_nothing() {
        assert_eq!(HostMemory::default().admit(1 << 60, 0), Ok(()));
        assert_eq!(HostMemory::that_says("MemAvailable: much\n").admit(1 << 60, 0), Ok(()));
        assert!(HostMemory::open().total() > Some(1 << 20));
    }
}
