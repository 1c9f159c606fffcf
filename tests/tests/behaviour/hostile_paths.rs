//! Tests in which a folder's owner replaces the files and sockets in it by other kinds of files: no process that serves VMs waits for these, and each
//! is refused with a remedy.

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use std::fs;
use tests::attacks::paths::{Full, ODD_FILES, pipe, remove};
use tests::broker::{Broker, refused, vhost_user_vulkan};
use tests::daemon::eventually;
use tests::guest::PATIENCE;
use tests::port::free_port;

#[test]
fn a_full_socket_in_place_of_the_brokers_holds_up_neither_vms_nor_the_end() -> Result<()> {
    let port = free_port()?;
    let mut broker = Broker::start(&format!("metrics = \"127.0.0.1:{port}\""), &[("a", "")])?;
    let control = broker.path("control");
    fs::remove_file(&control)?;
    let full = Full::at(&control)?;
    kill_process(broker.pid(), Signal::HUP)?;
    let told = || broker.log().contains("control: another process serves this socket; end that process");
    ensure!(eventually(PATIENCE, told), "{}", broker.log());
    broker.metrics(port)?;
    // An operator's command does not wait for ever either.
    let error = String::from_utf8(broker.operate(&["status"])?.stderr)?;
    ensure!(
        error.contains("control: no process accepts connections there; is vhost-user-vulkan running"),
        "{error}"
    );
    drop(full);
    // The broker serves when no process holds the socket: a process that another test is just starting may hold it for a moment.
    let serves = || kill_process(broker.pid(), Signal::HUP).is_ok() && broker.status().is_ok();
    ensure!(eventually(PATIENCE, serves), "{}", broker.log());
    fs::remove_file(&control)?;
    let _full = Full::at(&control)?;
    kill_process(broker.pid(), Signal::HUP)?;
    ensure!(broker.stop()?.success(), "{}", broker.log());
    ensure!(control.exists(), "the socket of another process was removed");
    Ok(())
}

#[test]
fn what_is_no_file_in_place_of_the_brokers_is_refused_and_the_next_reload_is_answered() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let device = broker.device("a")?;
    let (file, aside) = (broker.path("config"), broker.path("aside"));
    for (what, put) in ODD_FILES {
        fs::rename(&file, &aside)?;
        put(&file)?;
        let output = broker.operate(&["reload"]).context(what)?;
        let said = String::from_utf8(output.stderr)?;
        let expected = format!(
            "vhost-user-vulkan: {}: is no regular file; put a regular file there, or name another path; nothing has changed\n",
            file.display()
        );
        assert_eq!((output.status.code(), said), (Some(1), expected), "{what}");
        remove(&file)?;
        fs::rename(&aside, &file)?;
        broker.say(&["reload"]).context(what)?;
    }
    let long = fs::read_to_string(&file)? + &"# more\n".repeat(1 << 20);
    fs::write(&file, long)?;
    let said = String::from_utf8(broker.operate(&["reload"])?.stderr)?;
    ensure!(said.contains("has more than 4194304 bytes, which is the limit; "), "{said}");
    assert_eq!(broker.device("a")?, device);
    Ok(())
}

#[test]
fn no_program_waits_for_a_file_that_nobody_writes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("pipe");
    pipe(&path)?;
    for arguments in [&[][..], &["--check-config"]] {
        let said = refused(arguments, &path)?;
        ensure!(said.contains("pipe: is no regular file; "), "{said}");
    }
    let nowhere = folder.path().join("control");
    let mut recipe = vhost_user_vulkan()?;
    recipe
        .args(["recipe", "crosvm", "--vm", "a", "--config"])
        .arg(&path)
        .arg("--control-socket")
        .arg(nowhere);
    let said = String::from_utf8(recipe.output()?.stderr)?;
    ensure!(said.contains("pipe: is no regular file; "), "{said}");
    let broker = Broker::start("", &[("a", "")])?;
    let output =
        broker.operate(&["trace", "a", "--seconds", "1", "--output", &path.display().to_string()])?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(
        said.contains("pipe: No such device or address") && said.contains("--output names another file"),
        "{said}"
    );
    Ok(())
}
