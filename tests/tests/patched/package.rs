//! The package with the patched driver in a Debian 13: it takes the stock driver's place when it is installed, through any change of the stock
//! driver, and gives the place back when it is removed.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::process::Command;
use tests::clients::Setup;
use tests::packages::{Installed, PATCHED_PACKAGE, patched_package};
use tests::program::{LIMIT, succeed};

/// Prints `--` and a name before each part. A guest has no driver but that which the linker's cache names first.
const SCRIPT: &str = r#"
used() {
    echo "-- $1"
    ldconfig -p | grep -m 1 libvulkan_virtio.so
    VN_DEBUG=vtest VTEST_SOCKET_NAME=/mnt/vtest.sock vulkaninfo --summary >/tmp/info 2>&1 || true
    grep -A 20 'Virtio-GPU Venus' /tmp/info | grep -m 1 driverInfo || { cat /tmp/info; exit 1; }
}
apt_get() { apt-get -qq -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 "$@" >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }; }
used before
apt_get install -y /mnt/patched.deb
used installed
apt_get install -y --reinstall /stock/*.deb
used 'after an upgrade of Mesa'
mkdir -p /tmp/newer/DEBIAN
printf 'Package: mesa-vulkan-drivers\nVersion: 25.1.0-1\nArchitecture: amd64\nMaintainer: nobody <nobody@localhost>\nDescription: a newer Mesa\n' >/tmp/newer/DEBIAN/control
dpkg-deb -b /tmp/newer /tmp/newer.deb >/dev/null
echo '-- what a newer Mesa removes'
apt-get -s -o APT::Sandbox::User=root install /tmp/newer.deb | grep '^Remv'
apt_get purge -y PACKAGE
used purged
find / -xdev -path /mnt -prune -o -path /proc -prune -o -name '*PACKAGE*' -print | grep -v /var/log >/tmp/left || true
echo '-- left'
cat /tmp/left
"#;

/// The lines below `-- {name}`.
fn part<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let lines = text.lines().skip_while(|line| *line != format!("-- {name}")).skip(1);
    lines.take_while(|line| !line.starts_with("-- ")).map(str::trim).collect()
}

#[test]
#[ignore = "installs a whole system: a guest's Debian 13"]
fn package_takes_the_stock_drivers_place_and_gives_it_back() -> Result<()> {
    if let Some(why) = Installed::obstacle() {
        println!("skipped: {why}");
        return Ok(());
    }
    let package = patched_package()?;
    let mut field = Command::new("dpkg-deb");
    field.arg("-f").args([package.as_os_str(), "Version".as_ref()]);
    let version = succeed(field, LIMIT)?;
    let ours = format!("Mesa {}", version.trim());
    let setup = Setup::start()?;
    let folder = setup.socket().parent().context("the socket lies in a folder")?;
    fs::copy(&package, folder.join("patched.deb"))?;
    let text = Installed::guest()?.run(&SCRIPT.replace("PACKAGE", PATCHED_PACKAGE), folder)?;
    for (name, is_ours) in
        [("before", false), ("installed", true), ("after an upgrade of Mesa", true), ("purged", false)]
    {
        let lines = part(&text, name);
        let [library, info] = lines[..] else { anyhow::bail!("{name}: {lines:?}\n{text}") };
        ensure!(library.contains(PATCHED_PACKAGE) == is_ours, "{name}: {library}\n{text}");
        ensure!(info.contains("Mesa 25.0.") && info.contains(&ours) == is_ours, "{name}: {info}\n{text}");
    }
    let removed = part(&text, "what a newer Mesa removes");
    ensure!(removed.len() == 1 && removed[0].contains(PATCHED_PACKAGE), "{text}");
    ensure!(part(&text, "left").is_empty(), "{text}");
    Ok(())
}
