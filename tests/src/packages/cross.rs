//! A compiler for the other architecture: Debian's rustc, since Debian has its standard library for each of its architectures.
//!
//! With rustup, `rustup target add` does the same; this works wherever Debian's archive can be reached.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{Apt, Archive};
use super::cache_dir;
use super::root::Suite;
use crate::program::executable;

/// The compiler's program below its root, and its libraries.
const PROGRAM: &str = "usr/bin/rustc";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A compiler that runs on amd64 and knows the standard libraries of amd64 and arm64: the path to give to cargo as `RUSTC`. Downloads
/// 140 MB if it is not in the cache.
///
/// # Errors
/// The packages cannot be had.
pub fn cross_compiler() -> Result<PathBuf> {
    let dir = cache_dir()?.join("suites").join("testing-cross");
    let compiler = dir.join("rustc");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let lock = File::create(dir.join("lock"))?;
    lock.lock().context("cannot lock the package cache")?;
    if compiler.exists() {
        return Ok(compiler);
    }
    let apt = Apt::for_architectures(dir.join("apt"), Suite::Testing, &["amd64", "arm64"])?;
    let archives = download(&apt).or_else(|_| {
        // The archive drops old versions.
        apt.update()?;
        download(&apt)
    })?;
    let root = dir.join("root");
    for archive in archives {
        let mut unpack = Command::new("dpkg-deb");
        let status = unpack.arg("-x").args([&archive.file, &root]).status().context("cannot run dpkg-deb")?;
        ensure!(status.success(), "{} could not be unpacked", archive.file.display());
    }
    // This file is written last, so that its presence proves that the rest is complete.
    let fresh = dir.join("rustc.part");
    executable::write(&fresh, wrapper(&root).as_bytes())?;
    fs::rename(&fresh, &compiler)?;
    Ok(compiler)
}

/// The compiler without the linkers that its package asks for, since those of this machine are used.
fn download(apt: &Apt) -> Result<Vec<Archive>> {
    let mut archives = apt.download_closure(&["libstd-rust-dev:amd64"])?;
    archives.extend(apt.download_only(&["rustc:amd64", "libstd-rust-dev:arm64"])?);
    Ok(archives)
}

/// Runs the compiler with the C library of its own suite.
fn wrapper(root: &Path) -> String {
    let root = root.display();
    format!(
        "#!/bin/sh\nexec '{root}/{LIBRARIES}/ld-linux-x86-64.so.2' --library-path '{root}/{LIBRARIES}' --argv0 rustc '{root}/{PROGRAM}' --sysroot '{root}/usr' \"$@\"\n"
    )
}
