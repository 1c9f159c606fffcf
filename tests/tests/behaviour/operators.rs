//! An operator need not name a control socket: each command finds its daemon among those that run.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tests::broker::vhost_user_vulkan;
use tests::daemon_process::prepared;
use tests::program::{LIMIT, Program};

/// An ordinary user of a container, which has an empty `/run` and only its own sockets.
const CONTAINER: &str = r#"exec unshare --user --map-user=1000 --map-group=1000 --keep-caps --mount --net sh -c '
    mount -t tmpfs none /run && exec setpriv --ambient-caps=-all --inh-caps=-all "$@"' sh sh script env "$@""#;

/// A user with a daemon, then with two, then with one again, because the other is killed. The second finds a socket without a server.
const DAEMONS: &str = r#"set -eu
    unset XDG_RUNTIME_DIR
    "$@" --socket-path a.sock 2>a.log & a=$!
    until "$@" status --json >only 2>>unheard; do kill -0 $a; sleep 0.05; done
    cp -a a.sock.control b.sock.control
    "$@" --socket-path b.sock 2>b.log & b=$!
    until "$@" status --control-socket b.sock.control >>unheard 2>&1; do kill -0 $b; sleep 0.05; done
    stat -c %a b.sock.control >mode
    ! "$@" drain GPU 2>several
    kill -KILL $a
    wait $a || "$@" status --json >left
    kill $b
    wait $b
"#;

/// A user with a broker and two daemons of one VM; one of these is stopped in the end. A daemon that gets no processor time is asked again.
const BESIDE_A_BROKER: &str = r#"set -eu
    export XDG_RUNTIME_DIR="$PWD"
    printf '[vm.c]\nsocket-path = "%s/c.sock"\n' "$PWD" >vms.toml
    "$@" --config vms.toml 2>c.log & c=$!
    "$@" --socket-path a.sock 2>a.log & a=$!
    "$@" --socket-path b.sock --vm-name web 2>b.log & b=$!
    again() { for process in $a $b $c; do kill -0 $process; done; sleep 0.05; }
    until "$@" status a --json >a.json 2>>unheard; do again; done
    until "$@" status web --json >web.json 2>>unheard; do again; done
    until "$@" status c --json >c.json 2>>unheard; do again; done
    until "$@" status --json >all.json 2>>unheard; do again; done
    until "$@" status >tables 2>>unheard; do again; done
    until "$@" set c weight=7 2>>unheard; do again; done
    until ! "$@" set web weight=7 2>set && grep -q 'shares no GPU out' set; do again; done
    for command in kill restart swap-out "move --gpu GPU"; do
        until ! "$@" $command web/7 2>"$command" && grep -q 'web/7: no such context' "$command"; do again; done
    done
    until "$@" trace web --seconds 1 --output trace.json 2>>unheard; do again; done
    until ! "$@" kill d/1 2>unknown && grep -qx 'vhost-user-vulkan: d: no such VM; there are a, c, web' unknown; do again; done
    kill -STOP $a
    until "$@" status web --json >web.json 2>>unheard; do again; done
    until "$@" status >some 2>hung && grep -q '/b.sock.control:' some && grep -q 'a.sock.control: it has not' hung; do again; done
    kill -CONT $a
    for process in $a $b $c; do kill $process; wait $process; done
"#;

/// Runs a script in a container and returns the folder with the files that the script wrote.
fn run(script: &str) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("script"), script)?;
    let mut command = prepared(CONTAINER, &vhost_user_vulkan()?);
    command.current_dir(folder.path());
    let output = Program::start(command)?.wait(LIMIT)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let told = ["a.log", "b.log", "c.log", "unheard"].map(|name| text(folder.path(), name));
    ensure!(output.status.success(), "{said}\n{}", told.join("\n"));
    Ok(folder)
}

/// Returns the text that a script wrote into a file.
fn text(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_default()
}

/// The only VM's name in a status.
fn name(folder: &Path, status: &str) -> Result<Value> {
    let status: Value = serde_json::from_str(&text(folder, status)).with_context(|| status.to_owned())?;
    ensure!(status["vms"].as_array().map(Vec::len) == Some(1), "{status}");
    Ok(status["vms"][0]["name"].clone())
}

#[test]
fn operators_find_the_only_daemon_of_their_user_and_hear_of_several() -> Result<()> {
    let folder = run(DAEMONS)?;
    let folder = folder.path();
    assert_eq!((name(folder, "only")?, name(folder, "left")?), (json!("a"), json!("b")));
    let several = text(folder, "several");
    ensure!(["/a.sock.control", "/b.sock.control"].iter().all(|path| several.contains(path)), "{several}");
    assert_eq!(text(folder, "mode"), "600\n");
    ensure!(!folder.join("b.sock.control").exists(), "the control socket is left");
    Ok(())
}

#[test]
fn each_command_finds_the_daemon_of_its_vm_beside_a_broker_and_one_that_is_stopped() -> Result<()> {
    let folder = run(BESIDE_A_BROKER)?;
    let folder = folder.path();
    for vm in ["a", "c", "web"] {
        assert_eq!(name(folder, &format!("{vm}.json"))?, vm);
    }
    // Programs that know of no other daemons read the broker's status in its usual place.
    assert_eq!(name(folder, "all.json")?, "c");
    let all: Value = serde_json::from_str(&text(folder, "all.json"))?;
    let others = all["others"].as_array().context("no others")?;
    let others: Vec<_> = others.iter().map(|daemon| &daemon["vms"][0]["name"]).collect();
    assert_eq!(others, [&json!("a"), &json!("web")]);
    let tables = text(folder, "tables");
    let headings: Vec<_> =
        tables.lines().filter_map(|line| line.strip_suffix(':')?.rsplit('/').next()).collect();
    assert_eq!(headings, ["vhost-user-vulkan.sock", "a.sock.control", "b.sock.control"], "{tables}");
    let trace: Value = serde_json::from_str(&text(folder, "trace.json"))?;
    ensure!(trace["traceEvents"].is_array(), "{trace}");
    Ok(())
}
