//! Points an executable at another dynamic loader.
//!
//! The daemon starts its workers by executing `/proc/self/exe`. If a loader started the daemon as its argument, that path would be the loader, so a
//! daemon that shall run with a newer C library is instead copied with another program interpreter. Only the location of the interpreter's name
//! changes (System V ABI, "Program Header", `PT_INTERP`): the kernel reads the name from the file, so it is appended at the end.

use std::path::Path;

use anyhow::{Context, Result, ensure};

const PT_INTERP: u32 = 3;
/// Offsets in a 64-bit ELF header and in one program header.
const E_PHOFF: usize = 32;
const E_PHENTSIZE: usize = 54;
const E_PHNUM: usize = 56;
const P_OFFSET: usize = 8;
const P_FILESZ: usize = 32;

/// Changes the interpreter of the 64-bit little-endian ELF image `elf` to `loader`.
pub(super) fn set_interpreter(elf: &mut Vec<u8>, loader: &Path) -> Result<()> {
    ensure!(elf.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
    let header = interpreter_header(elf).context("the executable is not dynamically linked")?;
    let offset = elf.len() as u64;
    elf.extend_from_slice(loader.as_os_str().as_encoded_bytes());
    elf.push(0);
    let size = elf.len() as u64 - offset;
    elf[header + P_OFFSET..][..8].copy_from_slice(&offset.to_le_bytes());
    elf[header + P_FILESZ..][..8].copy_from_slice(&size.to_le_bytes());
    Ok(())
}

/// The file offset of the interpreter's program header.
fn interpreter_header(elf: &[u8]) -> Option<usize> {
    let table = usize::try_from(u64::from_le_bytes(*elf.get(E_PHOFF..)?.first_chunk()?)).ok()?;
    let entry = usize::from(u16::from_le_bytes(*elf.get(E_PHENTSIZE..)?.first_chunk()?));
    let count = usize::from(u16::from_le_bytes(*elf.get(E_PHNUM..)?.first_chunk()?));
    (0..count).map(|index| table + index * entry).find(|&at| {
        let kind = elf.get(at..at + entry.max(P_FILESZ + 8)).and_then(|header| header.first_chunk());
        kind.is_some_and(|kind| u32::from_le_bytes(*kind) == PT_INTERP)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relinked_copy_of_this_test_still_runs() {
        let own = std::env::current_exe().expect("a test is an executable");
        let mut elf = std::fs::read(own).expect("it can be read");
        set_interpreter(&mut elf, Path::new("/lib64/ld-linux-x86-64.so.2"))
            .expect("tests are dynamically linked");
        let dir = tempfile::tempdir().expect("temporary folder");
        let copy = dir.path().join("copy");
        crate::program::executable::write(&copy, &elf).expect("it can be written");
        let output = std::process::Command::new(&copy).arg("--list").output().expect("it can be executed");
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("a_relinked_copy_of_this_test_still_runs"));
    }

    #[test]
    fn what_is_not_elf_is_refused() {
        assert!(set_interpreter(&mut b"#!/bin/sh\n".to_vec(), Path::new("/ld")).is_err());
        assert!(set_interpreter(&mut b"\x7fELF\x02\x01".to_vec(), Path::new("/ld")).is_err());
    }
}
