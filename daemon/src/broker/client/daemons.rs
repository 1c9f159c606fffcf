//! The daemons of this host that an operator means without naming one: all daemons, or the daemon that has a VM.
//!
//! Each daemon is asked in turn, the broker first, and none keeps the operator waiting longer than [`LOOK`]. A guest may have taken over its daemon
//! of one VM, which may then answer anything. So the broker's answer counts for the broker's VMs. If two other daemons claim the same VM, the
//! operator has to name the daemon.

use super::super::report::status::Status;
use super::super::settings::places::{Ambiguous, LOOK, Places, operators_control_socket, places};
use super::stream::{status, status_within};
use super::{ClientError, as_json, refused, shown};
use serde::Serialize;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Most daemons that are asked.
const DAEMONS_MAX: usize = 256;

/// Returns the control socket of the daemon that has a VM. A daemon that is the only one is not asked: it can answer itself that it has no such VM.
///
/// # Errors
///
/// None of several daemons has the VM, or several have it, or too many daemons run.
pub fn daemon_of(vm: &str) -> Result<PathBuf, ClientError> {
    let places = few(places())?;
    match places.count() {
        0 | 1 => Ok(operators_control_socket()?),
        _ => found(vm, places, |socket| status_within(socket, LOOK)),
    }
}

/// The answers and errors to show if several daemons run.
#[derive(Debug)]
pub(super) struct All {
    /// The status of the daemons that answer.
    pub text: String,
    /// The reasons why daemons of one VM do not answer.
    pub silent: Vec<ClientError>,
    /// The reason why the broker does not answer.
    pub error: Option<ClientError>,
}

impl From<String> for All {
    fn from(text: String) -> Self {
        Self { text, silent: Vec::new(), error: None }
    }
}

/// Returns the status of all daemons.
///
/// # Errors
///
/// No daemon answers, or too many daemons run.
pub(super) fn all(json: bool) -> Result<All, ClientError> {
    let places = few(places())?;
    match places.count() {
        0 | 1 => Ok(shown(&status(&operators_control_socket()?)?, None, json)?.into()),
        _ => together(places, json, |socket| status_within(socket, LOOK)),
    }
}

fn few(places: Places) -> Result<Places, ClientError> {
    match places.count() > DAEMONS_MAX {
        true => Err(ClientError::TooMany(DAEMONS_MAX)),
        false => Ok(places),
    }
}

/// The answers of daemons, and the reasons why other places where a daemon should be give no answer.
#[derive(Debug, Default)]
struct Heard {
    answers: Vec<(PathBuf, Status)>,
    silent: Vec<ClientError>,
}

impl Heard {
    /// Asks a daemon and keeps its answer. A socket that no process serves any more is no daemon.
    fn ask(&mut self, socket: PathBuf, ask: &impl Fn(&Path) -> Result<Status, ClientError>) {
        match ask(&socket) {
            Ok(status) => self.answers.push((socket, status)),
            Err(error) if is(&error, &[ErrorKind::ConnectionRefused, ErrorKind::NotFound]) => {}
            Err(error) => self.silent.push(error),
        }
    }

    fn has(&self, vm: &str) -> Vec<PathBuf> {
        let having = self.answers.iter().filter(|(_, status)| status.vm(vm).is_ok());
        having.map(|(socket, _)| socket.clone()).collect()
    }

    /// Returns the error for an operator whose VM no daemon has.
    fn lacks(self, vm: &str) -> ClientError {
        let named = self.answers.iter().flat_map(|(_, status)| &status.vms).map(|vm| vm.name.as_str());
        let mut names: Vec<_> = named.collect();
        names.sort_unstable();
        names.dedup();
        let silent: String = self.silent.iter().map(|error| format!("; {error}")).collect();
        refused(&format!("{vm}: no such VM; there are {}{silent}", names.join(", ")))
    }
}

fn is(error: &ClientError, kinds: &[ErrorKind]) -> bool {
    matches!(error, ClientError::Socket(_, why) if kinds.contains(&why.kind()))
}

/// Finds the daemon that has a VM. If no other daemon has the VM, a broker that does not answer is taken: the request itself waits longer for the
/// broker's answer.
fn found(
    vm: &str,
    places: Places,
    ask: impl Fn(&Path) -> Result<Status, ClientError>,
) -> Result<PathBuf, ClientError> {
    let mut heard = Heard::default();
    let mut silent_broker = None;
    if let Some(broker) = places.broker {
        heard.ask(broker.clone(), &ask);
        if !heard.has(vm).is_empty() {
            return Ok(broker);
        }
        silent_broker = (!heard.silent.is_empty()).then_some(broker);
    }
    places.of_one_vm.into_iter().for_each(|socket| heard.ask(socket, &ask));
    let mut having = heard.has(vm);
    match (having.len(), silent_broker) {
        (0, Some(broker)) => Ok(broker),
        (0, None) => Err(heard.lacks(vm)),
        (1, _) => Ok(having.remove(0)),
        _ => Err(Ambiguous(having).into()),
    }
}

/// Puts the answers of daemons together. A daemon that does not let this user in is left out, unless no daemon answers.
fn together(
    places: Places,
    json: bool,
    ask: impl Fn(&Path) -> Result<Status, ClientError>,
) -> Result<All, ClientError> {
    let mut heard = Heard::default();
    places.broker.into_iter().for_each(|socket| heard.ask(socket, &ask));
    let mut error = heard.silent.pop();
    places.of_one_vm.into_iter().for_each(|socket| heard.ask(socket, &ask));
    let Heard { answers, mut silent } = heard;
    if answers.is_empty() {
        let none = || refused("no daemon runs here: start one, or name its socket with --control-socket");
        return Err(error.into_iter().chain(silent).next().unwrap_or_else(none));
    }
    let lets_in = |error: &ClientError| !is(error, &[ErrorKind::PermissionDenied]);
    silent.retain(lets_in);
    error = error.filter(lets_in);
    let text = match (answers.as_slice(), json) {
        ([(_, status)], _) => shown(status, None, json)?,
        (_, false) => tables(&answers)?,
        (_, true) => document(answers),
    };
    Ok(All { text, silent, error })
}

/// The tables one after the other, each below the socket of its daemon.
fn tables(answers: &[(PathBuf, Status)]) -> Result<String, ClientError> {
    let table = |(socket, status): &(PathBuf, Status)| {
        let heading = outside::lines_for_terminal(&format!("{}:\n", socket.display()));
        shown(status, None, false).map(|table| heading + &table)
    };
    let tables: Result<Vec<_>, _> = answers.iter().map(table).collect();
    tables.map(|tables| tables.join("\n"))
}

/// The status of a daemon, and the control socket of this daemon.
#[derive(Serialize)]
struct Of {
    control_socket: PathBuf,
    #[serde(flatten)]
    status: Status,
}

/// The status of the first daemon with those of the others: readers that know of one daemon find its status in the usual place.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    first: Option<Of>,
    others: Vec<Of>,
}

fn document(answers: Vec<(PathBuf, Status)>) -> String {
    let mut all = answers.into_iter().map(|(control_socket, status)| Of { control_socket, status });
    as_json(&Document { first: all.next(), others: all.collect() })
}

#[cfg(test)]
mod tests {
    use super::super::super::report::status::VmStatus;
    use super::*;
    use serde_json::Value;
    use std::io;

    fn places(broker: Option<&str>, others: &[&str]) -> Places {
        Places { broker: broker.map(Into::into), of_one_vm: others.iter().map(Into::into).collect() }
    }

    /// Answers for a played daemon by the name of its socket: with the names of its VMs, or the reason why it says nothing.
    fn said(socket: &Path) -> Result<Status, ClientError> {
        let failed = |kind: ErrorKind| Err(ClientError::Socket(socket.to_owned(), io::Error::from(kind)));
        match socket.to_str().unwrap() {
            "/hung" => failed(ErrorKind::TimedOut),
            "/closed" => failed(ErrorKind::PermissionDenied),
            "/gone" => failed(ErrorKind::ConnectionRefused),
            names => {
                let names = names.trim_start_matches('/').split('+');
                let vms = names.map(|name| VmStatus { name: name.into(), ..VmStatus::default() });
                Ok(Status { form: 1, vms: vms.collect(), ..Status::default() })
            }
        }
    }

    fn finds(vm: &str, places: Places) -> Result<String, String> {
        let found = found(vm, places, said);
        found.map(|path| path.display().to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_daemon_that_has_a_vm_is_found_and_the_brokers_vms_are_the_brokers() {
        let all = || places(Some("/a+b"), &["/a", "/gone", "/hung", "/web", "/x"]);
        assert_eq!(finds("a", all()).as_deref(), Ok("/a+b"), "a daemon of one VM claims a VM of the broker");
        assert_eq!(finds("web", all()).as_deref(), Ok("/web"));
        let error = finds("c", all()).unwrap_err();
        assert!(error.starts_with("c: no such VM; there are a, b, web, x; /hung: timed out; "), "{error}");
        let error = finds("c", places(None, &["/web", "/closed"])).unwrap_err();
        assert!(
            error.contains("there are web; /closed: permission denied; ") && error.contains("sudo"),
            "{error}"
        );
        let error = finds("web", places(None, &["/web", "/x+web"])).unwrap_err();
        assert!(error.ends_with("--control-socket /web, --control-socket /x+web"), "{error}");
    }

    #[test]
    fn a_broker_that_says_nothing_gets_the_request_if_no_other_daemon_has_the_vm() {
        for silent in ["/hung", "/closed"] {
            assert_eq!(finds("c", places(Some(silent), &["/web"])).as_deref(), Ok(silent));
            assert_eq!(finds("web", places(Some(silent), &["/web"])).as_deref(), Ok("/web"));
        }
        assert!(finds("c", places(Some("/gone"), &["/web"])).is_err());
    }

    #[test]
    fn the_status_of_several_daemons_has_a_heading_for_each_and_one_document() {
        let all = together(places(Some("/a+b"), &["/closed", "/web"]), false, said).unwrap();
        let headings: Vec<_> = all.text.lines().filter(|line| line.starts_with('/')).collect();
        assert!(headings == ["/a+b:", "/web:"] && all.silent.is_empty(), "{all:?}");
        let all = together(places(Some("/a+b"), &["/hung", "/web"]), true, said).unwrap();
        assert!(all.silent[0].to_string().starts_with("/hung: timed out") && all.error.is_none());
        let document: Value = serde_json::from_str(&all.text).unwrap();
        assert_eq!((&document["form"], &document["vms"][1]["name"]), (&1.into(), &"b".into()));
        let others = document["others"].as_array().unwrap();
        assert_eq!((others.len(), &others[0]["control_socket"]), (1, &"/web".into()));
        assert_eq!(others[0]["vms"][0]["name"], "web");
        assert_eq!(all.text.lines().count(), 1);
    }

    #[test]
    fn a_broker_that_says_nothing_is_an_error_behind_the_others() {
        let all = together(places(Some("/hung"), &["/a", "/web"]), false, said).unwrap();
        assert!(all.text.starts_with("/a:") && all.silent.is_empty(), "{all:?}");
        assert!(all.error.unwrap().to_string().starts_with("/hung: timed out"));
        assert!(together(places(Some("/closed"), &["/a"]), false, said).unwrap().error.is_none());
    }

    #[test]
    fn one_daemon_that_answers_is_shown_as_if_it_were_named() {
        let all = together(places(Some("/gone"), &["/closed", "/web"]), true, said).unwrap();
        let document: Value = serde_json::from_str(&all.text).unwrap();
        assert!(document.get("others").is_none() && all.silent.is_empty() && all.error.is_none());
        let error = together(places(None, &["/closed", "/gone"]), false, said).unwrap_err().to_string();
        assert!(error.starts_with("/closed: permission denied"), "{error}");
    }

    #[test]
    fn more_daemons_than_are_asked_are_refused_with_the_remedy() {
        let many: Vec<_> = (0..=DAEMONS_MAX).map(|number| format!("/{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(few(places(None, &many[1..])).is_ok());
        let error = few(places(None, &many)).unwrap_err().to_string();
        assert_eq!(error, "more than 256 daemons run here: name one with --control-socket");
    }
}
