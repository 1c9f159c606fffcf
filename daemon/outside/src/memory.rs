//! The memory of the host, as the kernel accounts for it. Any program may take some of it at any moment.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of the account that are read. The lines that this file looks for are among the first.
const READ: usize = 1024;
/// Bytes of the host's memory that are left to other programs.
const LEFT_FREE: u64 = 256 << 20;

/// The kernel's account of the host's memory, if this process can see it.
#[derive(Debug, Default)]
pub struct HostMemory(Option<File>);

impl HostMemory {
    /// Opens the account. A process that will be confined has to open it before, unless it may read `/proc/meminfo`.
    #[must_use]
    pub fn open() -> Self {
        Self(File::open("/proc/meminfo").ok())
    }

    /// Returns an account in this file, in the format of `/proc/meminfo`.
    #[must_use]
    pub fn in_file(account: File) -> Self {
        Self(Some(account))
    }

    /// Returns the bytes of all memory, or nothing if this process cannot see the account.
    #[must_use]
    pub fn total(&self) -> Option<u64> {
        Account::read(self.0.as_ref()?)?.bytes("MemTotal:")
    }

    /// Returns the bytes that a program can still take: the available memory less 256 MiB, which are left to other programs, and the free swap space.
    /// Returns none if this process cannot see the account.
    #[must_use]
    pub fn room(&self) -> Option<u64> {
        let account = Account::read(self.0.as_ref()?)?;
        let swap = account.bytes("SwapFree:").unwrap_or(0);
        Some(account.bytes("MemAvailable:")?.saturating_sub(LEFT_FREE).saturating_add(swap))
    }
}

/// The beginning of the account at the time of a read.
struct Account {
    text: [u8; READ],
    length: usize,
}

impl Account {
    fn read(file: &File) -> Option<Self> {
        let mut text = [0; READ];
        let length = file.read_at(&mut text, 0).ok()?;
        Some(Self { text, length })
    }

    fn bytes(&self, name: &str) -> Option<u64> {
        let text = std::str::from_utf8(&self.text[..self.length]).ok()?;
        let mut lines = text.lines();
        let kib: u64 =
            lines.find_map(|line| line.strip_prefix(name)?.strip_suffix("kB")?.trim().parse().ok())?;
        Some(kib.saturating_mul(1024))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn memory(account: &str) -> HostMemory {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(account.as_bytes()).unwrap();
        HostMemory::in_file(file)
    }

    #[test]
    fn there_is_room_in_memory_and_in_swap_space_beside_what_is_left_free() {
        let account = "MemTotal:  16777216 kB\nMemFree:   1 kB\nMemAvailable:   1048576 kB\n";
        assert_eq!(memory(account).total(), Some(16 << 30));
        assert_eq!(memory(account).room(), Some((1 << 30) - LEFT_FREE));
        let with_swap = format!("{account}SwapTotal: 8 kB\nSwapFree:  4 kB\n");
        assert_eq!(memory(&with_swap).room(), Some((1 << 30) + 4096 - LEFT_FREE));
        assert_eq!(memory("MemAvailable: 1 kB\n").room(), Some(0));
    }

    #[test]
    fn an_account_that_cannot_be_read_says_nothing() {
        let none = HostMemory::default();
        assert_eq!((none.total(), none.room()), (None, None));
        assert_eq!(memory("MemAvailable: much\n").room(), None);
    }

    #[test]
    fn the_kernels_account_has_what_is_looked_for_within_what_is_read() {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        assert!(text.find("SwapFree:").is_none_or(|at| at + 64 < READ), "{text}");
        let memory = HostMemory::open();
        assert!(memory.total() > Some(1 << 20) && memory.room().is_some(), "{text}");
    }
}
