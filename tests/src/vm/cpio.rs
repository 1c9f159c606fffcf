//! Writes archives in the "newc" format that the Linux kernel unpacks at boot (kernel:
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const FILE: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;

/// An archive being written. Folders are added as files need them; a path that was added before does not change.
pub(super) struct Archive<W> {
    out: W,
    written: usize,
    inode: u32,
    paths: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, written: 0, inode: 0, paths: BTreeSet::new() }
    }

    /// Adds a file at `path`, which is relative to the root folder.
    pub(super) fn file(&mut self, path: &str, content: &[u8], executable: bool) -> io::Result<()> {
        self.add(path, if executable { EXECUTABLE } else { FILE }, content)
    }

    /// Adds a symbolic link at `path`.
    pub(super) fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.add(path, SYMLINK, target.as_bytes())
    }

    /// Adds an empty folder.
    pub(super) fn folder(&mut self, path: &str) -> io::Result<()> {
        self.add(path, DIRECTORY, &[])
    }

    /// Writes the trailer. The length is then a multiple of four, so another archive may follow.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()
    }

    fn add(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        if !self.paths.insert(path.to_owned()) {
            return Ok(());
        }
        let parent = Path::new(path).parent().and_then(Path::to_str).unwrap_or_default();
        if !parent.is_empty() {
            self.folder(parent)?;
        }
        self.entry(path, mode, content)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let size = u32::try_from(content.len()).map_err(|_| io::Error::other("a file of 4 GiB or more"))?;
        let name_size = path.len() + 1;
        // Magic, then 13 numbers: inode, mode, owner, group, links, time, size, device and its kin, name size, checksum.
        let numbers =
            [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, u32::try_from(name_size).unwrap_or(u32::MAX), 0];
        let mut header = String::from("070701");
        for number in numbers {
            header.push_str(&format!("{number:08X}"));
        }
        self.write(header.as_bytes())?;
        self.write(path.as_bytes())?;
        self.write(&[0])?;
        self.pad()?;
        self.write(content)?;
        self.pad()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let padding = self.written.next_multiple_of(4) - self.written;
        self.write(&[0; 4][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_the_files_in_them() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.file("a/b/c", b"content", false).expect("a vector takes everything");
        archive.file("a/b/d", b"", false).expect("a vector takes everything");
        archive.finish().expect("a vector takes everything");
        let text = String::from_utf8_lossy(&bytes);
        let at = |name: &str| text.find(name).expect("the name is in the archive");
        assert!(at("a\0") < at("a/b\0"));
        assert!(at("a/b\0") < at("a/b/c\0"));
        assert_eq!(text.matches("a/b\0").count(), 1);
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn the_first_header_has_the_fields_the_kernel_reads() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.file("x", b"12345", true).expect("a vector takes everything");
        archive.finish().expect("a vector takes everything");
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[14..22], b"000081ED");
        assert_eq!(&bytes[54..62], b"00000005");
        assert_eq!(&bytes[94..102], b"00000002");
        assert_eq!(&bytes[110..112], b"x\0");
        assert_eq!(&bytes[112..117], b"12345");
    }
}
