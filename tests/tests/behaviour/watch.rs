//! `status --watch` on a terminal: the view that an operator sees of a real broker, the effect of keys, and that the terminal is restored in any
//! case.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tests::broker::Broker;
use tests::clients;
use tests::daemon::eventually;
use tests::daemon_process::daemon_executable;
use tests::frontend::{Options, Session};
use tests::guest::{Gpu, PATIENCE};
use tests::program::{Background, LIMIT};
use tests::terminal::Terminal;

const RIGHT: &str = "\u{1b}[C";
const LEFT: &str = "\u{1b}[D";
const DOWN: &str = "\u{1b}[B";
const END: &str = "\u{1b}[F";

/// The name of a guest's program that tries to command the operator's terminal: a title, a clear, another direction of text.
const HOSTILE: &str = "evil\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}\r\n";

fn command(broker: &Broker) -> Result<Command> {
    // The command needs no driver, whose libraries would be wrong for `setsid`.
    let mut command = Command::new(daemon_executable()?);
    command.args(["status", "--watch", "--control-socket"]).arg(broker.path("control"));
    Ok(command)
}

fn watch(broker: &Broker, width: u16, height: u16) -> Result<Terminal> {
    let mut terminal = Terminal::start(&command(broker)?, width, height)?;
    terminal.until("the view", |lines| lines.last().is_some_and(|line| line.starts_with("q quit")))?;
    Ok(terminal)
}

/// A broker of three VMs: `a` has a bound on its memory, `c` runs in the background.
fn broker() -> Result<Broker> {
    let a = "weight = 300\ndevice-memory = \"1GiB\"\nhost-memory = \"2GiB\"";
    Broker::start("", &[("a", a), ("b", ""), ("c", "class = \"background\"")])
}

fn guest(broker: &Broker, vm: &str) -> Result<Gpu> {
    Ok(Gpu::new(Session::connect(&broker.path(vm), Options::default())?))
}

fn computing(socket: &Path) -> Result<Background> {
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    Background::start(clients::computing(executable, socket, "100000000")?)
}

/// The words of the line that begins with this word.
fn line_of<'a>(lines: &'a [String], name: &str) -> Option<Vec<&'a str>> {
    lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|words| {
        words.first().is_some_and(|first| *first == name)
            || (words.len() > 1 && ["▸", "▾"].contains(&words[0]) && words[1] == name)
    })
}

/// The names of the VMs from above to below.
fn order(lines: &[String]) -> Vec<&str> {
    let names =
        lines.iter().filter_map(|line| line.split_whitespace().find(|word| !["▸", "▾"].contains(word)));
    names.filter(|name| ["a", "b", "c"].contains(name)).collect()
}

#[test]
fn an_operator_sees_what_vms_get_and_kills_a_program() -> Result<()> {
    let broker = broker()?;
    let (_first, a) = broker.bridge("a")?;
    let (_second, b) = broker.bridge("b")?;
    let mut victim = computing(&a)?;
    let mut neighbour = computing(&b)?;
    for vm in ["a", "b"] {
        let works = || broker.vm(vm).is_ok_and(|vm| vm["used"]["submissions"].as_u64() > Some(3));
        ensure!(eventually(PATIENCE, works), "{vm} does nothing");
    }
    let mut terminal = watch(&broker, 200, 24)?;
    let lines = terminal.until("shares", |lines| {
        line_of(lines, "a").is_some_and(|words| words.iter().any(|word| word.contains('━')))
            && lines[0].starts_with("3 VMs: 2 connected, 1 waiting")
    })?;
    ensure!(lines[0].contains("policy best-effort"), "{}", lines[0]);
    ensure!(lines[1].contains('%') && lines[1].contains('━'), "the GPU: {}", lines[1]);
    let of_a = line_of(&lines, "a").context("a line of a")?.join(" ");
    for word in ["▸", "connected", "normal", "300", "┃", "of 1.0GiB"] {
        ensure!(of_a.contains(word), "{word}: {of_a}");
    }
    let of_c = line_of(&lines, "c").context("a line of c")?.join(" ");
    ensure!(of_c.contains("waiting background") && !of_c.contains('┃'), "{of_c}");
    let coloured = |terminal: &mut Terminal| {
        let screen = terminal.look();
        let (height, width) = screen.size();
        let cells = (0..height.get()).flat_map(|y| (0..width.get()).map(move |x| (y, x)));
        cells
            .filter_map(|(y, x)| screen.cell(y, x))
            .filter(|cell| cell.fgcolor() != vt100::Color::Default)
            .count()
    };
    ensure!(coloured(&mut terminal) > 0, "there are no colours");
    // The view shows contexts on request, and kills only a context, and only after a yes.
    terminal.press("k")?;
    terminal.until("a VM is not killed", |lines| lines[23].starts_with("Space shows the contexts"))?;
    terminal.press(" ")?;
    terminal.until("the context", |lines| {
        line_of(lines, "1").is_some_and(|words| words[1].starts_with("many"))
    })?;
    terminal.press(DOWN)?;
    terminal.press("k")?;
    terminal.until("the question", |lines| {
        lines[23].starts_with("Kill a/1 many") && lines[23].contains("? y/n")
    })?;
    terminal.press("n")?;
    terminal.until("the keys again", |lines| lines[23].starts_with("q quit"))?;
    assert_eq!(broker.vm("a")?["kills"]["operator"], json!(0));
    ensure!(victim.is_running(), "it was ended by a no");
    terminal.press("ky")?;
    terminal.until("it is said", |lines| lines[23].contains("killed"))?;
    terminal.until("it is gone", |lines| {
        line_of(lines, "1").is_none() && line_of(lines, "a").is_some_and(|words| words.last() == Some(&"1"))
    })?;
    victim.wait(LIMIT)?;
    ensure!(neighbour.is_running(), "another was killed as well");
    terminal.press("q")?;
    ensure!(terminal.end()?.success());
    terminal.check_given_back()
}

#[test]
fn keys_sort_and_the_terminal_may_change_its_size() -> Result<()> {
    let broker = broker()?;
    let mut terminal = watch(&broker, 80, 24)?;
    let lines = terminal.until("sorted by name", |lines| lines.iter().any(|line| line.starts_with("VM▲")))?;
    assert_eq!(order(&lines), ["a", "b", "c"]);
    terminal.press("r")?;
    let lines =
        terminal.until("the other way round", |lines| lines.iter().any(|line| line.starts_with("VM▼")))?;
    assert_eq!(order(&lines), ["c", "b", "a"]);
    terminal.resize(200, 30)?;
    let lines = terminal.until("all columns", |lines| lines.iter().any(|line| line.ends_with("KILLS")))?;
    ensure!(lines.len() == 30 && lines[29].starts_with("q quit"), "{lines:?}");
    // Each of the eleven columns in turn has the arrow; then the first column has it again.
    for heading in ["STATE▲", "CLASS▲", "WEIGHT▼"] {
        terminal.press(RIGHT)?;
        terminal.until(heading, |lines| lines.iter().any(|line| line.contains(heading)))?;
    }
    let lines = terminal.until("by weight", |lines| lines.iter().any(|line| line.contains("WEIGHT▼")))?;
    assert_eq!(order(&lines), ["a", "b", "c"], "300, 100, 100");
    for heading in
        ["SHARE OF GPU▼", "DEVICE MEM▼", "HOST MEM▼", "WAITING▼", "QUEUE▼", "CONTEXTS▼", "KILLS▼", "VM▲"]
    {
        terminal.press(RIGHT)?;
        terminal.until(heading, |lines| lines.iter().any(|line| line.contains(heading)))?;
    }
    terminal.press(LEFT)?;
    terminal.until("the last column", |lines| lines.iter().any(|line| line.contains("KILLS▼")))?;
    terminal.resize(40, 12)?;
    let lines = terminal.until("forty columns", |lines| {
        lines.len() == 12
            && lines[11].starts_with("q quit")
            && lines.iter().any(|line| line.starts_with("VM "))
    })?;
    let heading = lines.iter().find(|line| line.starts_with("VM")).context("headings")?;
    ensure!(heading.contains("SHARE") && !heading.contains("KILLS"), "{heading}");
    assert_eq!(order(&lines).len(), 3);
    terminal.resize(3, 2)?;
    terminal.press("q")?;
    ensure!(terminal.end()?.success());
    terminal.check_given_back()
}

#[test]
fn without_colours_there_are_none() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let mut command = command(&broker)?;
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(&command, 120, 20)?;
    terminal.until("the view", |lines| lines[19].starts_with("q quit"))?;
    let screen = terminal.look();
    for (y, x) in (0..20).flat_map(|y| (0..120).map(move |x| (y, x))) {
        let cell = screen.cell(y, x).context("a cell")?;
        let colours = (cell.fgcolor(), cell.bgcolor());
        assert_eq!(colours, (vt100::Color::Default, vt100::Color::Default), "{y}, {x}: {}", cell.contents());
    }
    // The choice is still visible.
    ensure!((0..20).any(|y| screen.cell(y, 0).is_some_and(vt100::Cell::inverse)), "nothing is chosen");
    terminal.press("q")?;
    ensure!(terminal.end()?.success());
    Ok(())
}

#[test]
fn signals_end_it_as_they_end_any_program_and_the_terminal_is_given_back() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut terminal = watch(&broker, 80, 24)?;
        terminal.signal(signal)?;
        let status = terminal.end()?;
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status}");
        terminal.check_given_back().with_context(|| format!("{signal:?}"))?;
    }
    // Ctrl-C is a key while the view is shown.
    let mut terminal = watch(&broker, 80, 24)?;
    terminal.press("\u{3}")?;
    assert_eq!(terminal.end()?.signal(), Some(Signal::INT.as_raw()));
    terminal.check_given_back()
}

#[test]
fn a_broker_that_ends_is_said_on_the_terminal_as_it_was() -> Result<()> {
    let mut broker = Broker::start("", &[("a", "")])?;
    let mut terminal = watch(&broker, 120, 24)?;
    broker.stop()?;
    let status = terminal.end()?;
    assert_eq!(status.code(), Some(1));
    terminal.check_given_back()?;
    let lines = terminal.lines().join(" ");
    ensure!(
        lines.contains("vhost-user-vulkan: the broker has ended or does not answer any more: "),
        "{lines}"
    );
    ensure!(!lines.contains("q quit"), "the view is left: {lines}");
    // A command that finds no broker takes over no terminal.
    let mut terminal = Terminal::start(&command(&broker)?, 120, 24)?;
    assert_eq!(terminal.end()?.code(), Some(1));
    ensure!(!terminal.written().contains(&0x1b), "the terminal was taken over");
    // Lines are broken where the terminal ends.
    ensure!(terminal.lines().concat().replace(' ', "").contains("isthisitscontrol-socket?"));
    Ok(())
}

#[test]
fn what_guests_name_commands_no_terminal() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let guest = guest(&broker, "a")?;
    let _context = guest.create_context(HOSTILE).map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let is_there = || broker.vm("a").is_ok_and(|vm| vm["contexts"] != json!([]));
    ensure!(eventually(PATIENCE, is_there), "no context");
    for text in [broker.say(&["status"])?, broker.say(&["status", "--json"])?] {
        ensure!(text.contains("evil"), "{text}");
        let wrong = text.chars().filter(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}').count();
        assert_eq!(wrong, 0, "{text:?}");
    }
    let mut terminal = watch(&broker, 160, 24)?;
    terminal.press("a")?;
    terminal.until("the context", |lines| lines.iter().any(|line| line.starts_with("  1 evil")))?;
    terminal.press(END)?;
    terminal.press("k")?;
    terminal
        .until("the question", |lines| lines[23].starts_with("Kill a/1 ") && lines[23].contains("evil"))?;
    let written = String::from_utf8_lossy(terminal.written()).into_owned();
    for wrong in ["\u{1b}]0", "\u{1b}[2J", "\u{9b}", "\u{7}", "\u{202e}"] {
        ensure!(!written.contains(wrong), "{wrong:?} got through");
    }
    terminal.press("n")?;
    terminal.press("q")?;
    ensure!(terminal.end()?.success());
    Ok(())
}

#[test]
fn a_pipe_gets_lines_and_json_gets_json_also_on_a_terminal() -> Result<()> {
    let broker = Broker::start("", &[("a", "")])?;
    let mut head = Command::new("head");
    head.args(["-n", "5"]).stdout(Stdio::piped());
    let mut child = command(&broker)?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = head.stdin(child.stdout.take().context("a pipe")?).output()?;
    // The command would keep the pipe open.
    drop(head);
    let text = String::from_utf8(output.stdout)?;
    assert_eq!(
        text.lines().filter(|line| line.starts_with("VM ")).count(),
        2,
        "again after a second: {text}"
    );
    ensure!(!text.contains('\u{1b}'), "{text:?}");
    let ended = eventually(PATIENCE, || child.try_wait().is_ok_and(|status| status.is_some()));
    if !ended {
        child.kill()?;
    }
    ensure!(ended, "it goes on without a reader");
    let mut json = command(&broker)?;
    json.arg("--json");
    let mut terminal = Terminal::start(&json, 4000, 10)?;
    terminal.until("two lines", |lines| lines.iter().filter(|line| line.starts_with('{')).count() >= 2)?;
    ensure!(!terminal.written().contains(&0x1b), "JSON with commands for a terminal");
    terminal.press("\u{3}")?;
    assert_eq!(terminal.end()?.signal(), Some(Signal::INT.as_raw()));
    Ok(())
}
