//! The state that a broker passes on to the program that follows it: one piece of JSON, and the descriptors that belong to it.
//!
//! The two programs may be of different versions, so the text begins with its form, the version of the messages to device processes and that of the
//! pages of grants, which both stay those of the old program. A program that does not know one of the three reports this and takes nothing over. A
//! value that a known form lacks has its default, so that a form need not change for an additional value. The old program is trusted, its text is
//! not: it holds data of guests, so indices are checked before they are used, and each descriptor is taken once (`upgrade::passing`).

use super::super::backoff::Backoff;
use super::super::groups::Groups;
use super::super::ledger::Ledger;
use super::super::reload::plan::Pending;
use super::super::settings::share::ShareForm;
use super::super::settings::{Settings, VmSettings};
use super::super::upgrade::passing::{Inherited, PassedListener, PassedProcess, UsageForm};
use super::super::upgrade::rehearsal::Rehearsed;
use super::super::vm::Past;
use crate::ipc::{BROKER_MESSAGES, HeldMemory, Placement, SharedGpu};
use protocol::ids::ContextId;
use sched::{Nanos, Share, Standing, Usage};
use serde::{Deserialize, Serialize};
use shm::{GRANTS_LAYOUT, Reached};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::fd::RawFd;
use std::path::PathBuf;

/// The form of the text that this program writes and reads.
const FORM: u32 = 2;
/// Bytes of the text: some kilobytes for each of 256 VMs, and less for each of their contexts.
const STATE_BYTES: u64 = 64 << 20;

/// The part of the text that every form has.
#[derive(Debug, Deserialize)]
struct Head {
    form: u32,
    messages: u32,
    #[serde(default)]
    pages: u32,
}

/// The whole text.
#[derive(Debug, Serialize, Deserialize)]
struct Text<S> {
    form: u32,
    messages: u32,
    pages: u32,
    descriptors: Vec<RawFd>,
    state: S,
}

/// A broker, written down.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::broker) struct BrokerState {
    /// The version of the program that has written it.
    pub(in crate::broker) version: String,
    /// The time at which the old program has stopped.
    pub(in crate::broker) stopped: Nanos,
    pub(in crate::broker) settings: Settings,
    pub(in crate::broker) groups: Groups,
    pub(in crate::broker) listeners: Vec<PassedListener>,
    /// The connection of the operator who is to be told the result.
    pub(in crate::broker) asker: Option<RawFd>,
    /// The log of grants.
    pub(in crate::broker) log: Option<RawFd>,
    pub(in crate::broker) gpus: Vec<PassedGpu>,
    /// The number of VMs so far; every index is lower.
    pub(in crate::broker) added: u32,
    /// The number of the last context.
    pub(in crate::broker) last_key: u64,
    pub(in crate::broker) vms: Vec<PassedVm>,
    /// The memory of GPUs that VMs hold and wait for.
    #[serde(default)]
    pub(in crate::broker) ledger: Ledger,
}

/// A GPU.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::broker) struct PassedGpu {
    pub(in crate::broker) gpu: SharedGpu,
    pub(in crate::broker) is_drained: bool,
}

/// A VM.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::broker) struct PassedVm {
    pub(in crate::broker) index: usize,
    pub(in crate::broker) settings: VmSettings,
    #[serde(with = "ShareForm")]
    pub(in crate::broker) share: Share,
    pub(in crate::broker) gpus: Vec<PassedOnGpu>,
    pub(in crate::broker) placement: Placement,
    pub(in crate::broker) process: Option<PassedProcess>,
    pub(in crate::broker) contexts: Vec<PassedContext>,
    pub(in crate::broker) start_at: Option<Nanos>,
    pub(in crate::broker) was_started: bool,
    pub(in crate::broker) ending: Option<Nanos>,
    pub(in crate::broker) is_leaving: bool,
    pub(in crate::broker) pending: Option<Pending>,
    pub(in crate::broker) taken: Vec<PathBuf>,
    pub(in crate::broker) backoff: Backoff,
    pub(in crate::broker) limits: Option<HeldMemory>,
    pub(in crate::broker) past: Past,
}

/// A VM on a GPU.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::broker) struct PassedOnGpu {
    /// The GPU's index among all.
    pub(in crate::broker) gpu: usize,
    /// The usage of the VM's ended contexts on this GPU.
    #[serde(with = "UsageForm")]
    pub(in crate::broker) ended: Usage,
}

/// A context.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::broker) struct PassedContext {
    pub(in crate::broker) ctx_id: ContextId,
    pub(in crate::broker) name: String,
    pub(in crate::broker) doorbell: RawFd,
    pub(in crate::broker) killed: Option<Nanos>,
    pub(in crate::broker) places: Vec<PassedPlace>,
}

/// A context on a GPU.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::broker) struct PassedPlace {
    /// The GPU's index among those of the VM.
    pub(in crate::broker) place: u8,
    pub(in crate::broker) key: u64,
    pub(in crate::broker) page: RawFd,
    #[serde(with = "ReachedForm")]
    pub(in crate::broker) reached: Reached,
    #[serde(with = "StandingForm")]
    pub(in crate::broker) standing: Standing,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Reached")]
struct ReachedForm {
    granted: u32,
    read: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Standing")]
struct StandingForm {
    granted: u32,
    completed: u32,
    leased: bool,
    #[serde(with = "UsageForm")]
    used: Usage,
}

/// The reason why a text is not taken over.
#[derive(Debug, thiserror::Error)]
pub(in crate::broker) enum Unfit {
    /// The text is written in a form that this program does not know.
    #[error("the state has the form {0}, and this program knows {known}", known = FORM)]
    Form(u32),
    /// The running device processes use another version of messages than this program.
    #[error(
        "device processes that run have messages of version {0}, and this program has those of {own}: start the broker anew when the VMs are off",
        own = BROKER_MESSAGES
    )]
    Messages(u32),
    /// The running workers have pages of grants that this program does not understand.
    #[error(
        "workers that run have pages of grants of layout {0}, and this program has those of {own}: start the broker anew when the VMs are off",
        own = GRANTS_LAYOUT
    )]
    Pages(u32),
    /// The text is no state.
    #[error("not the state of a broker: {0}")]
    Malformed(String),
}

impl BrokerState {
    /// Writes the state as text, for a program that finds these descriptors.
    ///
    /// # Errors
    ///
    /// A path in the state is not valid text.
    pub(in crate::broker) fn to_text(&self, descriptors: Vec<RawFd>) -> io::Result<Vec<u8>> {
        let (form, messages, pages) = (FORM, BROKER_MESSAGES, GRANTS_LAYOUT);
        let text = Text { form, messages, pages, descriptors, state: self };
        serde_json::to_vec(&text).map_err(io::Error::other)
    }

    /// Reads the state, and the numbers of the descriptors that belong to it.
    ///
    /// # Errors
    ///
    /// The text is not for this program.
    pub(in crate::broker) fn of_text(text: &[u8]) -> Result<(Self, Vec<RawFd>), Unfit> {
        let malformed = |error: serde_json::Error| Unfit::Malformed(error.to_string());
        let head: Head = serde_json::from_slice(text).map_err(malformed)?;
        if head.form != FORM {
            return Err(Unfit::Form(head.form));
        }
        if head.messages != BROKER_MESSAGES {
            return Err(Unfit::Messages(head.messages));
        }
        if head.pages != GRANTS_LAYOUT {
            return Err(Unfit::Pages(head.pages));
        }
        let text: Text<Self> = serde_json::from_slice(text).map_err(malformed)?;
        text.state.check().map_err(|what| Unfit::Malformed(what.to_owned()))?;
        Ok((text.state, text.descriptors))
    }

    /// Checks that the parts of the state agree with each other.
    fn check(&self) -> Result<(), &'static str> {
        let (mut indices, mut keys, mut names) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for vm in &self.vms {
            let is_known = usize::try_from(self.added).is_ok_and(|added| vm.index < added);
            if !is_known || !indices.insert(vm.index) || !names.insert(&vm.settings.name) {
                return Err("a VM is there twice, or was never added");
            }
            if vm.gpus.len() > config::GPUS_MAX || vm.gpus.iter().any(|on| on.gpu >= self.gpus.len()) {
                return Err("a VM is on a GPU that is not there");
            }
            if vm.contexts.iter().map(|context| context.ctx_id).collect::<BTreeSet<_>>().len()
                != vm.contexts.len()
            {
                return Err("a context is there twice");
            }
            for place in vm.contexts.iter().flat_map(|context| &context.places) {
                if usize::from(place.place) >= vm.gpus.len() {
                    return Err("a context is on a GPU that its VM does not have");
                }
                if place.key > self.last_key || !keys.insert(place.key) {
                    return Err("two contexts have the same number");
                }
            }
        }
        Ok(())
    }
}

/// The state of a broker that this program is to follow.
#[derive(Debug)]
pub struct Passed {
    pub(in crate::broker) state: BrokerState,
    descriptors: Vec<RawFd>,
}

impl Passed {
    /// Reads the state from standard input.
    ///
    /// # Errors
    ///
    /// The state cannot be read, or is not for this program.
    pub fn read() -> io::Result<Self> {
        let (state, descriptors) = BrokerState::of_text(&read_standard_input()?).map_err(io::Error::other)?;
        Ok(Self { state, descriptors })
    }

    /// Returns the answer to a rehearsal.
    #[must_use]
    pub fn rehearsed(&self) -> String {
        let answer = Rehearsed { takes_over: env!("CARGO_PKG_VERSION").to_owned() };
        serde_json::to_string(&answer).unwrap_or_default() + "\n"
    }

    /// Takes over the descriptors of the state. The caller calls this before this process opens others.
    ///
    /// # Errors
    ///
    /// A descriptor is missing.
    pub fn inherit(self) -> io::Result<Predecessor> {
        Ok(Predecessor { state: self.state, inherited: Inherited::all(self.descriptors)? })
    }
}

/// A broker that this program follows, with its descriptors.
#[derive(Debug)]
pub struct Predecessor {
    pub(in crate::broker) state: BrokerState,
    pub(in crate::broker) inherited: Inherited,
}

/// Reads the text that the old program has given this one as its standard input, which is empty from then on.
///
/// # Errors
///
/// The system refuses, or the text is too long.
fn read_standard_input() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    io::stdin().take(STATE_BYTES + 1).read_to_end(&mut text)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    if text.len() as u64 > STATE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}
