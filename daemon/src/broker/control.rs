//! Requests and answers on the control socket: each is one JSON object on a line.

use super::reload::Reloaded;
use super::report::status::Status;
use super::settings::share::Change;
use serde::{Deserialize, Serialize};

/// A request of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The operator wants the status.
    Status,
    /// The operator wants to change the share of a VM.
    Set {
        /// The VM's name.
        vm: String,
        /// The changes to its share.
        change: Change,
    },
    /// The operator wants to end a context.
    Kill {
        /// The VM's name.
        vm: String,
        /// The number of the context, as [`Request::Status`] tells it.
        context: u32,
    },
    /// The operator wants a context to have another worker while its program runs: [`Answer::Restarting`], again and again, and then
    /// [`Answer::Restarted`].
    Restart {
        /// The VM's name.
        vm: String,
        /// The number of the context, as [`Request::Status`] tells it.
        context: u32,
    },
    /// The operator wants a context to hold nothing of the GPU and no driver until its program goes on. Answered as [`Request::Restart`].
    SwapOut {
        /// The VM's name.
        vm: String,
        /// The number of the context, as [`Request::Status`] tells it.
        context: u32,
    },
    /// The operator wants a context to go on on another GPU while its program runs. Answered as [`Request::Restart`].
    Move {
        /// The VM's name.
        vm: String,
        /// The number of the context, as [`Request::Status`] tells it.
        context: u32,
        /// The GPU, by its UUID, its PCI address or a part of its name that no other GPU of the VM has.
        gpu: String,
        /// The GPU that the context leaves, if it is on several.
        #[serde(default)]
        from: Option<String>,
    },
    /// The operator wants a GPU to be emptied: contexts begin on other GPUs from now on, and the contexts on this GPU are moved. [`Answer::Draining`]
    /// comes for each context, [`Answer::Restarting`] between them, and then [`Answer::Drained`].
    Drain {
        /// The GPU, by its UUID, its PCI address or a part of its name that no other GPU has.
        gpu: String,
        /// The operator wants to know which contexts would be moved, and the broker moves none: [`Answer::DrainPlan`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        dry_run: bool,
    },
    /// The operator lets contexts begin on a GPU that was drained.
    Undrain {
        /// The GPU, as in [`Request::Drain`].
        gpu: String,
    },
    /// The operator wants the configuration file to be read again, and its settings to take effect.
    Reload {
        /// The operator allows the file to take the GPUs of VMs in use away, and to name no VM at all. `remove` is an older name.
        #[serde(default, alias = "remove", skip_serializing_if = "std::ops::Not::not")]
        now: bool,
        /// The operator wants to know the changes, and the broker makes none.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        dry_run: bool,
    },
    /// The operator wants the newly installed program to go on in the broker's place: [`Answer::Upgrading`], again and again, and then
    /// [`Answer::Upgraded`].
    Upgrade,
    /// The operator wants a trace of a VM: [`Answer::Tracing`] and then a [`TraceEvent`](super::TraceEvent) on each line, until the last event. Any
    /// byte that the operator sends meanwhile ends the trace, and so does the end of the operator's side.
    Trace {
        /// The VM's name.
        vm: String,
        /// The seconds that the trace takes, from 1 to 300.
        seconds: u32,
        /// Other VMs on the GPU are to be named.
        #[serde(default)]
        names: bool,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// The answer to [`Request::Status`].
    Status(Status),
    /// The answer to [`Request::Reload`].
    Reloaded(Reloaded),
    /// The answer to [`Request::Trace`]: the trace begins.
    Tracing {
        /// The time, in nanoseconds of the monotonic clock. Events that follow have later times.
        begin: u64,
    },
    /// The context of [`Request::Restart`], [`Request::SwapOut`] or [`Request::Move`] is being handed over. More answers follow.
    Restarting {
        /// The stage, in words.
        stage: String,
    },
    /// The context of [`Request::Restart`] or [`Request::Move`] has another worker, or that of [`Request::SwapOut`] is swapped out.
    Restarted {
        /// The milliseconds for which its program was paused.
        pause_ms: u64,
        /// The milliseconds from request to answer.
        total_ms: u64,
    },
    /// The broker is being upgraded. More answers follow.
    Upgrading {
        /// The stage, in words.
        stage: String,
    },
    /// The program of [`Request::Upgrade`] serves from now on.
    Upgraded {
        /// The version of the program before.
        from: String,
        /// The version of this one.
        to: String,
        /// The milliseconds for which no broker decided about GPUs.
        pause_ms: u64,
        /// Contexts that were taken over.
        contexts: usize,
        /// VMs without a frontend, which get device processes of the new program.
        renewed: Vec<String>,
        /// VMs that go on with device processes of the old program until they are off.
        later: Vec<String>,
    },
    /// A context of the GPU of [`Request::Drain`] was moved, or was not. More answers follow.
    Draining {
        /// The context, as `VM/CONTEXT`.
        context: String,
        /// The reason why the context stays, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stays: Option<String>,
    },
    /// The contexts of the GPU of [`Request::Drain`] were moved, as far as they could be.
    Drained {
        /// The contexts that were moved.
        moved: u32,
        /// The contexts that are still on the GPU.
        left: u32,
    },
    /// The answer to a [`Request::Drain`] that moves nothing.
    DrainPlan {
        /// The contexts on the GPU, in the order in which they would be moved.
        contexts: Vec<PlannedMove>,
    },
    /// The request is carried out, or the broker has begun to carry it out.
    Done,
    /// The request cannot be carried out.
    Error {
        /// The reason, and the allowed values.
        error: String,
    },
}

/// The move of a context that a drain would make now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    /// The context, as `VM/CONTEXT`.
    pub context: String,
    /// The GPU to which the context would be moved: its name and UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The reason why the context would stay, if it would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stays: Option<String>,
}

/// Bytes of a request.
pub(super) const REQUEST_BYTES: usize = 4096;

/// The request on a line.
///
/// # Errors
///
/// The reason why the line is not a request.
pub(super) fn read(line: &[u8]) -> Result<Request, String> {
    serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))
}

/// An answer on a line.
pub(super) fn line(answer: &Answer) -> Vec<u8> {
    let encoded = serde_json::to_vec(answer);
    let mut line =
        encoded.unwrap_or_else(|_| br#"{"answer":"error","error":"no answer can be written"}"#.to_vec());
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_documented() {
        assert_eq!(read(br#"{"request":"status"}"#), Ok(Request::Status));
        let change = Change { weight: Some(7), ceiling: Some("25%".into()), ..Change::default() };
        let set = Request::Set { vm: "web".into(), change };
        assert_eq!(read(br#"{"request":"set","vm":"web","change":{"weight":7,"ceiling":"25%"}}"#), Ok(set));
        let kill = Request::Kill { vm: "web".into(), context: 3 };
        assert_eq!(read(br#"{"request":"kill","vm":"web","context":3}"#), Ok(kill));
        let restart = Request::Restart { vm: "web".into(), context: 3 };
        assert_eq!(read(br#"{"request":"restart","vm":"web","context":3}"#), Ok(restart));
        let moved = |from| Request::Move { vm: "web".into(), context: 3, gpu: "1:00.0".into(), from };
        let text = br#"{"request":"move","vm":"web","context":3,"gpu":"1:00.0"}"#;
        assert_eq!(read(text), Ok(moved(None)));
        let text = br#"{"request":"move","vm":"web","context":3,"gpu":"1:00.0","from":"H100"}"#;
        assert_eq!(read(text), Ok(moved(Some("H100".into()))));
        let drain = |dry_run| Request::Drain { gpu: "ab".into(), dry_run };
        assert_eq!(read(br#"{"request":"drain","gpu":"ab"}"#), Ok(drain(false)));
        assert_eq!(read(br#"{"request":"drain","gpu":"ab","dry_run":true}"#), Ok(drain(true)));
        assert_eq!(read(br#"{"request":"undrain","gpu":"ab"}"#), Ok(Request::Undrain { gpu: "ab".into() }));
        assert_eq!(read(br#"{"request":"upgrade"}"#), Ok(Request::Upgrade));
        let reload = |now, dry_run| Request::Reload { now, dry_run };
        assert_eq!(read(br#"{"request":"reload"}"#), Ok(reload(false, false)));
        assert_eq!(read(br#"{"request":"reload","now":true}"#), Ok(reload(true, false)));
        assert_eq!(read(br#"{"request":"reload","remove":true}"#), Ok(reload(true, false)), "its older name");
        assert_eq!(read(br#"{"request":"reload","dry_run":true}"#), Ok(reload(false, true)));
        let plain = serde_json::to_string(&reload(false, false)).unwrap();
        assert_eq!(plain, r#"{"request":"reload"}"#, "an older broker understands it");
        let trace = Request::Trace { vm: "web".into(), seconds: 10, names: false };
        assert_eq!(read(br#"{"request":"trace","vm":"web","seconds":10}"#), Ok(trace));
    }

    #[test]
    fn what_is_no_request_is_refused_with_a_reason() {
        for wrong in [
            "",
            "status",
            r#"{"request":"reboot"}"#,
            r#"{"request":"set","vm":"web"}"#,
            r#"{"request":"set","vm":"web","change":{"colour":7}}"#,
            r#"{"request":"kill","vm":"web","context":-1}"#,
            r#"{"request":"reload","soon":true}"#,
        ] {
            let error = read(wrong.as_bytes()).unwrap_err();
            assert!(error.starts_with("not a request: "), "{error}");
        }
    }

    #[test]
    fn answers_come_back_as_they_were() {
        let mut status = Status::default();
        status.vms.push(super::super::report::status::VmStatus { name: "web".into(), ..Default::default() });
        let reloaded = Reloaded { added: vec!["web".into()], ..Reloaded::default() };
        for answer in [
            Answer::Status(status),
            Answer::Reloaded(reloaded),
            Answer::Done,
            Answer::Tracing { begin: u64::MAX },
            Answer::Restarting { stage: "waiting".into() },
            Answer::Restarted { pause_ms: 7, total_ms: u64::MAX },
            Answer::Upgrading { stage: "trying".into() },
            Answer::Upgraded {
                from: "1".into(),
                to: "2".into(),
                pause_ms: 7,
                contexts: 3,
                renewed: vec!["ci".into()],
                later: vec!["web".into()],
            },
            Answer::Draining { context: "web/3".into(), stays: None },
            Answer::Draining { context: "web/3".into(), stays: Some("it may not".into()) },
            Answer::Drained { moved: 7, left: 0 },
            Answer::DrainPlan {
                contexts: vec![
                    PlannedMove { context: "web/3".into(), gpu: Some("H200".into()), stays: None },
                    PlannedMove { context: "web/4".into(), gpu: None, stays: Some("it may not".into()) },
                ],
            },
            Answer::Error { error: "no\nthing".into() },
        ] {
            let line = line(&answer);
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(serde_json::from_slice::<Answer>(&line).unwrap(), answer);
        }
    }
}
