//! `restart VM/CONTEXT` gives a program another worker while it runs, and refuses with a reason what it cannot.

use anyhow::{Result, ensure};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use tests::broker::Broker;

/// The error of a command that fails.
fn refusal(broker: &Broker, arguments: &[&str]) -> Result<String> {
    let output = broker.operate(arguments)?;
    ensure!(output.status.code() == Some(1), "{arguments:?}: {}", output.status);
    ensure!(output.stdout.is_empty(), "{arguments:?} says {:?}", String::from_utf8_lossy(&output.stdout));
    Ok(String::from_utf8(output.stderr)?)
}

#[test]
fn what_is_not_there_is_not_restarted() -> Result<()> {
    let broker = Broker::start("", &[("a", ""), ("b", "")])?;
    for (context, why) in [
        ("c/1", "c: no such VM; there are a, b"),
        ("a/1", "a/1: no such context; a has []"),
        ("a", "a: not VM/CONTEXT, as status shows it"),
        ("a/x", "a/x: not VM/CONTEXT, as status shows it"),
    ] {
        let error = refusal(&broker, &["restart", context])?;
        ensure!(error.contains(why), "{context}: {error}");
    }
    let vm = broker.vm("a")?;
    let none = json!({ "done": 0, "failed": 0, "last_pause_seconds": null });
    ensure!(vm["context_restarts"] == none, "what was never asked for is not counted: {vm}");
    Ok(())
}

#[test]
fn a_request_that_is_refused_leaves_its_connection_for_the_next() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let mut stream = UnixStream::connect(broker.path("control"))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    for request in [r#"{"request":"restart","vm":"a","context":7}"#, r#"{"request":"restart","vm":"a"}"#] {
        writeln!(stream, "{request}")?;
        let answer = lines.next().transpose()?.unwrap_or_default();
        ensure!(answer.starts_with(r#"{"answer":"error","#), "{request}: {answer}");
    }
    Ok(())
}
