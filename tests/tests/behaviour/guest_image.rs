//! Tests of `guest-image` with programs of the tests' own in place of mmdebstrap and of the programs that it runs: the commands that result from its
//! arguments, and the files that it writes.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;
use tests::program::executable;
use tests::sources::repository;

/// Runs each hook as mmdebstrap does, with the folder of a guest that has a kernel.
const MMDEBSTRAP: &str = r#"
guest=$FOLDER/guest; mkdir -p "$guest/boot" "$guest/etc/modules-load.d" "$guest/etc/initramfs-tools/conf.d" "$guest/etc/network/interfaces.d"
echo kernel >"$guest/boot/vmlinuz-7"; echo initrd >"$guest/boot/initrd.img-7"
for word; do
    case $word in --customize-hook=*) sh -e -c "${word#--customize-hook=}" sh "$guest" || exit ;; esac
done"#;
/// Makes the disk, which is its seventh argument.
const MKE2FS: &str = r#"for word; do case $word in *.img) echo disk >"$word" ;; esac; done"#;

/// A folder with the replaced programs, and with other files that a test puts there.
struct Stage(TempDir);

impl Stage {
    fn new() -> Result<Self> {
        let stage = Self(tempfile::tempdir()?);
        fs::create_dir(stage.path("bin"))?;
        let nothing = ["apt-config", "apt-get", "chroot", "mount", "umount"].map(|name| (name, "exit 0"));
        for (name, text) in [("mmdebstrap", MMDEBSTRAP), ("mke2fs", MKE2FS)].into_iter().chain(nothing) {
            let path = stage.path("bin").join(name);
            executable::write(&path, format!("#!/bin/sh\n{text}\n").as_bytes())?;
        }
        Ok(stage)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command
            .arg(repository().join("daemon/packaging/guest-image"))
            .args(["--mirror", "http://nowhere/debian"]);
        command.env("PATH", format!("{}:{path}", self.text("bin"))).env("FOLDER", self.0.path());
        command.args(arguments).current_dir(self.0.path()).output().context("cannot run sh")
    }

    /// Runs `guest-image`, and returns the message with which it refuses.
    fn refused(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        ensure!(!output.status.success(), "{arguments:?} are taken");
        Ok(String::from_utf8(output.stderr)?)
    }
}

#[test]
fn no_argument_becomes_a_command() -> Result<()> {
    let stage = Stage::new()?;
    let command = "; touch done; echo ";
    for name in
        [format!("it's{command}'.deb"), format!("$(touch done){command}`touch done`.deb"), "-v.deb".into()]
    {
        fs::write(stage.path(&name), "the driver's package")?;
        let output = stage.run(&["--driver", &name, "out"])?;
        ensure!(output.status.success(), "{name}: {output:?}");
        ensure!(
            fs::read_dir(stage.path("out"))?.count() == 4,
            "{name}: the folder has another number of files"
        );
    }
    for size in ["8G; touch done", "$(touch done)", "", "G", "8X", "-8G", "8G\ntouch done"] {
        let said = stage.refused(&["--size", size, "out"])?;
        ensure!(said.contains(" is no size: write a number"), "{said}");
    }
    let done = |folder: &str| stage.path(folder).join("done").exists();
    ensure!(!done("") && !done("out") && !done("guest"), "a command was executed");
    for folder in ["out here", "out,readonly=on", "out'", "out*"] {
        let said = stage.refused(&[folder])?;
        ensure!(said.contains("name a folder without spaces, commas, quotes and wildcards"), "{said}");
    }
    Ok(())
}

#[test]
fn links_in_the_folder_are_replaced_and_not_written_through() -> Result<()> {
    let stage = Stage::new()?;
    fs::create_dir(stage.path("out"))?;
    let names = ["root.img", "vmlinuz", "initrd.img", "qemu.args"];
    fs::create_dir(stage.path("elsewhere"))?;
    for name in names {
        fs::write(stage.path(&format!("precious-{name}")), "precious")?;
        symlink(stage.path(&format!("precious-{name}")), stage.path("out").join(name))?;
    }
    fs::remove_file(stage.path("out/vmlinuz"))?;
    symlink(stage.path("elsewhere"), stage.path("out/vmlinuz"))?;
    let output = stage.run(&["out"])?;
    ensure!(output.status.success(), "{output:?}");
    for name in names {
        assert_eq!(fs::read_to_string(stage.path(&format!("precious-{name}")))?, "precious");
        let made = stage.path("out").join(name);
        ensure!(made.symlink_metadata()?.is_file(), "{name} is a link");
    }
    ensure!(fs::read_dir(stage.path("elsewhere"))?.next().is_none());
    let texts =
        ["root.img", "vmlinuz", "initrd.img"].map(|name| fs::read_to_string(stage.path("out").join(name)));
    assert_eq!(texts.into_iter().collect::<Result<Vec<_>, _>>()?, ["disk\n", "kernel\n", "initrd\n"]);
    let arguments = fs::read_to_string(stage.path("out/qemu.args"))?;
    ensure!(
        arguments
            .contains(&format!("file={}/root.img,format=raw", stage.path("out").canonicalize()?.display()))
    );
    Ok(())
}
