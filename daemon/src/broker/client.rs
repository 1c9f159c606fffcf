//! The operator's end of the control socket: the work of the subcommands. `stream` is the connection, `daemons` finds the daemons of this host.

mod daemons;
mod stream;

use super::control::{Answer, PlannedMove, Request};
use super::report::status::Status;
use super::report::{details, table};
use super::settings::places::Ambiguous;
use super::settings::share::Change;
use daemons::All;
pub use daemons::daemon_of;
use outside::Reader;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;
use stream::ANSWER_BYTES;
pub use stream::{Stream, ask, status};

/// The reason why an operator gets no answer, or not the wanted one.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens there or answers, or it does not let this user in.
    #[error("{}: {}; {}", .0.display(), .1, remedy(.1))]
    Socket(PathBuf, io::Error),
    /// The peer sent bytes that are no answer of a broker, or no answer to this request.
    #[error("{0}: not the answer of a broker: {1}")]
    Protocol(PathBuf, String),
    /// The broker refuses.
    #[error("{0}")]
    Refused(String),
    /// The answer cannot be shown.
    #[error("cannot write: {0}")]
    Output(io::Error),
    /// Several daemons may be meant.
    #[error(transparent)]
    Several(#[from] Ambiguous),
    /// More daemons run than one command asks.
    #[error("more than {0} daemons run here: name one with --control-socket")]
    TooMany(usize),
}

/// Returns advice for an operator who gets no answer for this reason.
fn remedy(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::PermissionDenied => {
            "this user may not use that daemon's control socket: run it with sudo, or become a member of the group of operators (control-socket-group in the broker's file, --control-socket-group of a daemon of one VM)"
        }
        _ => {
            "is vhost-user-vulkan running, and is this its control-socket? Name another with --control-socket. The log of a daemon of one VM tells if it has none. If the file was removed, SIGHUP has the broker of several VMs make it again"
        }
    }
}

/// The choice of showing the status once or again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Once.
    Once,
    /// Every second, until the program is ended.
    EverySecond,
}

/// Moves a terminal's cursor to the top and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// Shows the state of the daemon that listens at `socket`, as a table or as JSON. If `vm` is given, shows this VM alone, in full.
///
/// # Errors
///
/// As [`ask`], or there is no such VM, or the answer cannot be written.
pub fn show_status(socket: &Path, vm: Option<&str>, json: bool, watch: Watch) -> Result<(), ClientError> {
    show(json, watch, || Ok(shown(&status(socket)?, vm, json)?.into()))
}

/// Shows the state of each daemon that lets this user in, one table after the other. The JSON is the status of the first daemon, which is the broker
/// if one answers, with the statuses of the other daemons in `others`.
///
/// # Errors
///
/// No daemon answers. Or the broker does not answer, which is reported after the other daemons are shown. A daemon of one VM that does not answer is
/// no error, but is named on standard error.
pub fn show_all(json: bool, watch: Watch) -> Result<(), ClientError> {
    show(json, watch, || daemons::all(json))
}

/// Shows the status once or again and again, until there is an error.
fn show(
    json: bool,
    watch: Watch,
    mut look: impl FnMut() -> Result<All, ClientError>,
) -> Result<(), ClientError> {
    loop {
        let All { text, silent, error } = look()?;
        let clear = watch == Watch::EverySecond && !json && io::stdout().is_terminal();
        let reader = outside::print(&if clear { format!("{CLEAR}{text}") } else { text });
        let reader = reader.map_err(ClientError::Output)?;
        let told: String = silent.iter().map(|error| format!("vhost-user-vulkan: {error}\n")).collect();
        outside::tell(&outside::lines_for_terminal(&told));
        if let Some(error) = error {
            return Err(error);
        }
        if watch == Watch::Once || reader == Reader::Gone {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Returns the status, as the table that [`show_status`] shows.
///
/// # Errors
///
/// As [`ask`].
pub fn status_table(socket: &Path) -> Result<String, ClientError> {
    Ok(table::table(&status(socket)?))
}

fn shown(status: &Status, vm: Option<&str>, json: bool) -> Result<String, ClientError> {
    let found = vm.map(|name| status.vm(name).map_err(|error| refused(&error))).transpose()?;
    Ok(match (found, json) {
        (None, false) => table::table(status),
        (Some(vm), false) => details::details(status, vm),
        (None, true) => as_json(status),
        (Some(vm), true) => as_json(&status.only(vm)),
    })
}

fn as_json(what: &impl serde::Serialize) -> String {
    outside::json_for_terminal(&serde_json::to_string(what).unwrap_or_default()) + "\n"
}

/// Changes the share of a VM by words such as `weight=200`.
///
/// # Errors
///
/// As [`ask`], or a word is wrong.
pub fn set(socket: &Path, vm: &str, words: &[String]) -> Result<(), ClientError> {
    let change = Change::of_words(words).map_err(ClientError::Refused)?;
    ask(socket, &Request::Set { vm: vm.to_owned(), change }).map(|_| ())
}

/// Ends a context, named as `VM/CONTEXT`.
///
/// # Errors
///
/// As [`ask`], or the name has another form.
pub fn kill(socket: &Path, context: &str) -> Result<(), ClientError> {
    let (vm, context) = place(context)?;
    ask(socket, &Request::Kill { vm: vm.to_owned(), context }).map(|_| ())
}

/// Has a context, named as `VM/CONTEXT`, get another worker while its program runs, and shows the progress.
///
/// # Errors
///
/// As [`ask`], or the name has another form, or the context stays with its worker.
pub fn restart(socket: &Path, context: &str) -> Result<(), ClientError> {
    let (vm, context) = place(context)?;
    show_restart(socket, &Request::Restart { vm: vm.to_owned(), context }, "restarted")
}

/// Has a context, named as `VM/CONTEXT`, swapped out until its program goes on, and shows the progress.
///
/// # Errors
///
/// As [`ask`], or the name has another form, or the context stays with its worker.
pub fn swap_out(socket: &Path, context: &str) -> Result<(), ClientError> {
    let (vm, context) = place(context)?;
    show_restart(socket, &Request::SwapOut { vm: vm.to_owned(), context }, "swapped out")
}

/// Has a context, named as `VM/CONTEXT`, go on on another GPU while its program runs, and shows the progress. `from` is the GPU that it leaves, if it
/// is on several.
///
/// # Errors
///
/// As [`ask`], or the name has another form, or the context stays where it is.
pub fn move_to(socket: &Path, context: &str, gpu: String, from: Option<String>) -> Result<(), ClientError> {
    let (vm, context) = place(context)?;
    show_restart(socket, &Request::Move { vm: vm.to_owned(), context, gpu, from }, "moved")
}

/// Has the newly installed program go on in the broker's place, and shows the fate of its VMs.
///
/// # Errors
///
/// As [`ask`], or the new program cannot take over, and the broker goes on as before.
pub fn upgrade(socket: &Path) -> Result<(), ClientError> {
    let mut shown = String::new();
    follow(socket, &Request::Upgrade, "no result of an upgrade", |answer| match answer {
        Answer::Upgrading { stage } => {
            if stage != shown {
                say(&format!("{stage} …\n"))?;
                shown = stage;
            }
            Ok(Followed::Further)
        }
        Answer::Upgraded { from, to, pause_ms, contexts, renewed, later } => {
            say(&format!(
                "upgraded from {from} to {to}: {contexts} contexts were taken over, in {pause_ms} ms\n"
            ))?;
            for vm in renewed {
                say(&format!("{vm}: gets a device process of the new program\n"))?;
            }
            for vm in later {
                say(&format!(
                    "{vm}: gets a device process of the new program in a moment, and keeps its programs\n"
                ))?;
            }
            Ok(Followed::ToTheEnd)
        }
        _ => Ok(Followed::Astray),
    })
}

/// Shows the progress of a restart, and at its end the text `done`.
fn show_restart(socket: &Path, request: &Request, done: &str) -> Result<(), ClientError> {
    let mut shown = String::new();
    follow(socket, request, "no result of a restart", |answer| match answer {
        Answer::Restarting { stage } => {
            if stage != shown {
                say(&format!("{stage} …\n"))?;
                shown = stage;
            }
            Ok(Followed::Further)
        }
        Answer::Restarted { pause_ms, total_ms } => {
            say(&format!("{done}: its program was paused for {pause_ms} ms, of {total_ms} ms in all\n"))?;
            Ok(Followed::ToTheEnd)
        }
        _ => Ok(Followed::Astray),
    })
}

/// Has all contexts on a GPU moved to other GPUs, and shows the fate of each.
///
/// # Errors
///
/// As [`ask`], or some contexts stay.
pub fn drain(socket: &Path, gpu: &str) -> Result<(), ClientError> {
    let request = Request::Drain { gpu: gpu.to_owned(), dry_run: false };
    follow(socket, &request, "no result of draining", |answer| match answer {
        // Shown so that the operator knows the connection to be alive.
        Answer::Restarting { .. } => Ok(Followed::Further),
        Answer::Draining { context, stays } => {
            let outcome = stays.map_or_else(|| "moved".to_owned(), |why| format!("stays: {why}"));
            say(&format!("{context}: {outcome}\n"))?;
            Ok(Followed::Further)
        }
        Answer::Drained { moved, left: 0 } => {
            say(&format!("drained: {moved} moved, nothing is on it any more\n"))?;
            Ok(Followed::ToTheEnd)
        }
        Answer::Drained { moved, left } => Err(ClientError::Refused(format!(
            "{moved} programs moved, {left} still on the GPU: end these, or drain it again when they can be moved"
        ))),
        _ => Ok(Followed::Astray),
    })
}

/// Shows what a drain of a GPU would do now, and has nothing moved.
///
/// # Errors
///
/// As [`ask`], or some contexts would stay.
pub fn plan_drain(socket: &Path, gpu: &str) -> Result<(), ClientError> {
    let request = Request::Drain { gpu: gpu.to_owned(), dry_run: true };
    let Answer::DrainPlan { contexts } = ask(socket, &request)? else {
        return Err(ClientError::Protocol(socket.to_owned(), "no plan of draining".into()));
    };
    let (mut moves, mut stay) = (0, 0);
    for PlannedMove { context, gpu, stays } in contexts {
        let outcome = match (gpu, stays) {
            (Some(gpu), None) => {
                moves += 1;
                format!("would be moved to {gpu}")
            }
            (_, why) => {
                stay += 1;
                format!("would stay: {}", why.unwrap_or_default())
            }
        };
        say(&format!("{context}: {outcome}\n"))?;
    }
    match stay {
        0 => say(&format!("{moves} would be moved, and nothing would be left on the GPU\n")),
        _ => Err(ClientError::Refused(format!("{moves} would be moved, {stay} would stay on the GPU"))),
    }
}

/// The meaning of one answer among several to a request.
enum Followed {
    /// More answers come.
    Further,
    /// This was the last answer.
    ToTheEnd,
    /// This answer belongs to another request.
    Astray,
}

/// Passes each answer to a request to `look`, up to the last. `missing` is the text of the error if an answer belongs to another request.
fn follow(
    socket: &Path,
    request: &Request,
    missing: &str,
    mut look: impl FnMut(Answer) -> Result<Followed, ClientError>,
) -> Result<(), ClientError> {
    let (mut answer, mut stream) = Stream::open(socket, request)?;
    loop {
        if let Answer::Error { error } = &answer {
            return Err(refused(error));
        }
        match look(answer)? {
            Followed::Further => {}
            Followed::ToTheEnd => return Ok(()),
            Followed::Astray => return Err(ClientError::Protocol(socket.to_owned(), missing.to_owned())),
        }
        let gone = || ClientError::Socket(socket.to_owned(), io::ErrorKind::UnexpectedEof.into());
        answer = stream.next_line(ANSWER_BYTES)?.ok_or_else(gone)?;
    }
}

/// Has contexts begin again on a GPU that was drained.
///
/// # Errors
///
/// As [`ask`].
pub fn undrain(socket: &Path, gpu: &str) -> Result<(), ClientError> {
    ask(socket, &Request::Undrain { gpu: gpu.to_owned() }).map(|_| ())
}

fn say(text: &str) -> Result<(), ClientError> {
    outside::print(&outside::lines_for_terminal(text)).map(|_| ()).map_err(ClientError::Output)
}

/// Returns the VM of a context, which is named as `VM/CONTEXT`.
///
/// # Errors
///
/// The name has another form.
pub fn vm_of(context: &str) -> Result<&str, ClientError> {
    place(context).map(|(vm, _)| vm)
}

/// The VM and the number of a context.
fn place(context: &str) -> Result<(&str, u32), ClientError> {
    let named = context.rsplit_once('/').and_then(|(vm, number)| Some((vm, number.parse().ok()?)));
    named.ok_or_else(|| ClientError::Refused(format!("{context}: not VM/CONTEXT, as status shows it")))
}

/// The error of a broker, made safe for a terminal.
fn refused(error: &str) -> ClientError {
    ClientError::Refused(outside::lines_for_terminal(error))
}

/// Has the broker read its file again, and shows the result: the counts on a line, and a line for each change that has to wait. With `now`, no change
/// waits for VMs in use: their GPUs end. With `dry_run` the broker changes nothing, and the changes are only shown.
///
/// # Errors
///
/// As [`ask`], or the file is wrong or names no VM any more, in which case nothing has changed, or the result cannot be written.
pub fn reload(socket: &Path, now: bool, dry_run: bool) -> Result<(), ClientError> {
    let Answer::Reloaded(reloaded) = ask(socket, &Request::Reload { now, dry_run })? else {
        return Err(ClientError::Protocol(socket.to_owned(), "no result of reading the file again".into()));
    };
    let lines: String = reloaded.notes.iter().map(|note| format!("{note}\n")).collect();
    say(&format!("{reloaded}\n{lines}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_has_a_vm_and_a_number() {
        for wrong in ["web", "web/", "web/x", "3", "web/-1"] {
            for command in [kill, restart] {
                let error = command(Path::new("/nowhere"), wrong).unwrap_err().to_string();
                assert_eq!(error, format!("{wrong}: not VM/CONTEXT, as status shows it"));
            }
        }
    }

    #[test]
    fn where_nobody_listens_is_said_what_to_look_for() {
        let error = kill(Path::new("/nowhere/control"), "web/3").unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/control: No such file"), "{error}");
        assert!(error.contains("is this its control-socket?"), "{error}");
    }

    #[test]
    fn who_is_not_let_in_hears_of_permissions() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = ClientError::Socket("/run/control".into(), denied).to_string();
        assert!(error.starts_with("/run/control: permission denied; "), "{error}");
        assert!(error.contains("run it with sudo") && error.contains("control-socket-group"), "{error}");
        assert!(!error.contains("is vhost-user-vulkan running"), "{error}");
    }
}
