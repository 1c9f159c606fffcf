//! The pieces of the state that a broker passes on to the program that follows it (`vms::state`): the form of a socket, a device process or an
//! account. Descriptors are inherited and found by their numbers. This module knows no VMs.

use crate::ipc::{FromBroker, InForce, Replaced};
use crate::sandbox;
use sched::{Nanos, Usage};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

/// Passes a descriptor on, and returns the number by which the next program finds it.
pub(in crate::broker) type Pass<'a> = dyn FnMut(BorrowedFd<'_>) -> io::Result<RawFd> + 'a;

/// A socket that is listened at.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::broker) struct PassedListener {
    pub(in crate::broker) is_metrics: bool,
    pub(in crate::broker) socket: RawFd,
    /// The socket's file, if it has one.
    pub(in crate::broker) file: Option<PassedFile>,
}

/// The file of a socket: its path and identity, and the users that it is for.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::broker) struct PassedFile {
    pub(in crate::broker) path: PathBuf,
    pub(in crate::broker) identity: (u64, u64),
    pub(in crate::broker) mode: u32,
    pub(in crate::broker) group: Option<u32>,
}

/// A device process. It stays a child, because the next program runs in the same process as this one.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::broker) struct PassedProcess {
    pub(in crate::broker) pid: i32,
    pub(in crate::broker) pidfd: RawFd,
    pub(in crate::broker) channel: RawFd,
    /// Messages for which there was no room in the channel yet.
    pub(in crate::broker) waiting: Vec<FromBroker>,
    pub(in crate::broker) age: Duration,
    pub(in crate::broker) dying: bool,
    pub(in crate::broker) ready: bool,
    pub(in crate::broker) connected: bool,
    pub(in crate::broker) in_force: Option<InForce>,
    pub(in crate::broker) replaced: Vec<Replaced>,
}

/// The form in which an account is written down.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Usage", default = "Usage::default")]
pub(in crate::broker) struct UsageForm {
    gpu: Nanos,
    copy: Nanos,
    submissions: u64,
    strays: u64,
    waiting: Nanos,
    #[serde(skip)]
    in_driver: u32,
    #[serde(skip)]
    ready: u32,
    #[serde(skip)]
    running_since: Option<Nanos>,
    #[serde(skip)]
    leased: bool,
}

/// Descriptors that this program was started with, by their numbers.
#[derive(Debug, Default)]
pub(in crate::broker) struct Inherited(BTreeMap<RawFd, OwnedFd>);

impl Inherited {
    /// Takes over all these descriptors. The caller calls this before this process opens others.
    ///
    /// # Errors
    ///
    /// A descriptor is missing.
    pub(in crate::broker) fn all(numbers: Vec<RawFd>) -> io::Result<Self> {
        let numbers: BTreeSet<RawFd> = numbers.into_iter().collect();
        let taken = numbers.into_iter().map(|number| Ok((number, sandbox::inherited(number)?)));
        taken.collect::<io::Result<_>>().map(Self)
    }

    /// The descriptors that a test or a fuzz target has made, by the numbers in a text.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::broker) fn played(descriptors: BTreeMap<RawFd, OwnedFd>) -> Self {
        Self(descriptors)
    }

    /// Takes a descriptor out.
    ///
    /// # Errors
    ///
    /// The descriptor was not inherited, or was taken out before.
    pub(in crate::broker) fn take(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        self.0
            .remove(&number)
            .ok_or_else(|| io::Error::other(format!("descriptor {number} was not passed on")))
    }
}
