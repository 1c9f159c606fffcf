//! The broker has another program follow it: it tries the program, waits for a moment of rest, and executes it.

use super::super::connections::Peer;
use super::super::control::{self, Answer};
use super::super::grant_log::GrantLog;
use super::super::run::{Broker, Upkeep};
use super::super::source::Source;
use super::super::upgrade::rehearsal::{Program, Rehearsal, Rehearsed, file_of};
use super::super::upgrade::{Stage, Upgrading};
use super::super::vm::Vm;
use crate::sandbox;
use sched::Nanos;
use shm::page_clock;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;

/// The option by which a program is told to follow the broker whose state is its standard input.
const TAKE_OVER: &str = "--take-over";
/// The further option for a rehearsal.
const CHECK: &str = "--check-config";
/// Time for a rehearsal, in nanoseconds. The rehearsal has a shorter limit of its own, which fails only if the file system or the system hangs.
const REHEARSAL_PATIENCE: Nanos = 30_000_000_000;
/// Time that the broker waits for a moment in which nothing of its own is under way, in nanoseconds.
const REST_PATIENCE: Nanos = 10_000_000_000;
/// Nanoseconds after which the operator gets another line, so that the connection is known to be alive.
const TELL: Nanos = 3_000_000_000;
/// The answer of a daemon that serves one VM.
const ONE_VM: &str = "a daemon of one VM goes on with the program that it was started with; to upgrade it, start it anew when the VM is off";

impl Broker {
    /// Begins the upgrade to the newly installed program, as an operator wants.
    pub(in crate::broker) fn begin_upgrade(&mut self, peer: Peer, now: Nanos) {
        let begun = self.admit_upgrade().and_then(|upkeep| {
            let arguments = [upkeep.file.arguments(), vec![CHECK.into(), TAKE_OVER.into()]].concat();
            let begin = || -> io::Result<Rehearsal> {
                let path = sandbox::program_path()?;
                let state = self.state(None, now, &mut |file| Ok(file.as_raw_fd()))?.to_text(Vec::new())?;
                let watch = (&self.epoll, Source::Rehearsed.token(0));
                Rehearsal::start(path, arguments, state, watch)
            };
            begin().map_err(|error| error.to_string())
        });
        match begun {
            Ok(rehearsal) => {
                log::info!(
                    "an operator upgrades the broker: trying whether the installed program can take over"
                );
                let stage = Stage::Rehearses(rehearsal, now.saturating_add(REHEARSAL_PATIENCE));
                self.requests.upgrading = Some(Upgrading { peer, stage, tell_at: now });
                self.tell_upgrade(now);
            }
            Err(error) => self.say(peer, &Answer::Error { error }, now),
        }
    }

    fn admit_upgrade(&self) -> Result<&Upkeep, String> {
        match &self.upkeep {
            None => Err(ONE_VM.into()),
            Some(_) if self.is_ending => Err("the broker ends".into()),
            Some(_) if self.requests.upgrading.is_some() => {
                Err("the broker is being upgraded already".into())
            }
            Some(_) if self.manager.is_there() && !self.manager.knows_ready() => {
                Err("the broker starts its VMs' device processes: try again in a minute".into())
            }
            Some(upkeep) => Ok(upkeep),
        }
    }

    /// Tells the operator that the upgrade goes on.
    fn tell_upgrade(&mut self, now: Nanos) {
        let Some(upgrading) = &mut self.requests.upgrading else { return };
        upgrading.tell_at = now.saturating_add(TELL);
        let stage = match upgrading.stage {
            Stage::Rehearses(..) => "trying whether the new program can take over",
            Stage::Rests(..) => "waiting for a moment in which the broker starts nothing",
        };
        let line = control::line(&Answer::Upgrading { stage: stage.to_owned() });
        self.connections.stream(upgrading.peer, &line, false, &self.epoll, now);
    }

    /// Takes in the result of the rehearsal: the new program has answered, or has failed.
    pub(in crate::broker) fn take_rehearsed(&mut self, now: Nanos) {
        let Some(Upgrading { stage, .. }) = &mut self.requests.upgrading else { return };
        let Stage::Rehearses(rehearsal, _) = &*stage else { return };
        match rehearsal.result() {
            None => {}
            Some(Err(reason)) => self.call_upgrade_off(&reason, now),
            Some(Ok((program, Rehearsed { takes_over }))) => {
                let version: String = takes_over.chars().map(outside::visible).take(64).collect();
                log::info!("{} (version {version}) can take over", program.path.display());
                *stage = Stage::Rests(program, now.saturating_add(REST_PATIENCE));
                // Successors that run this program would soon have to be replaced in turn. A successor that is already taking over finishes in time.
                for index in self.vms.indices() {
                    if self.vms[index].successor.as_ref().is_some_and(|successor| successor.offer.is_none()) {
                        self.end_successor(index, "the broker is being upgraded once more");
                    }
                }
            }
        }
    }

    /// Goes on with an upgrade if it is time. Does not return if the new program begins.
    pub(in crate::broker) fn upgrade_due(&mut self, now: Nanos) {
        let Some(Upgrading { stage, tell_at, .. }) = &self.requests.upgrading else { return };
        match stage {
            Stage::Rests(..) if self.is_ending => self.call_upgrade_off("the broker ends", now),
            Stage::Rests(program, _) if self.is_at_rest() => {
                let program = program.clone();
                let why = self.hand_on(&program, now).unwrap_or_else(|error| error).to_string();
                self.call_upgrade_off(&why, now);
            }
            Stage::Rests(_, until) if *until <= now => {
                self.call_upgrade_off("a device process does not start in time: try again", now);
            }
            Stage::Rehearses(_, until) if *until <= now => {
                self.call_upgrade_off("the new program cannot be started in time: try again", now);
            }
            Stage::Rests(..) | Stage::Rehearses(..) if *tell_at <= now => self.tell_upgrade(now),
            Stage::Rests(..) | Stage::Rehearses(..) => {}
        }
    }

    /// Returns when [`Self::upgrade_due`] is to be called even if no event comes.
    pub(in crate::broker) fn next_upgrade(&self) -> Option<Nanos> {
        self.requests.upgrading.as_ref().map(|upgrading| upgrading.tell_at)
    }

    /// Returns whether the broker's threads have no work under way, and no peer waits for an answer that comes in a moment.
    fn is_at_rest(&self) -> bool {
        let reads = self.upkeep.as_ref().is_some_and(|upkeep| upkeep.reader.is_reading());
        let starts = |vm: &Vm| vm.is_starting || vm.awaits_successor || vm.successor.is_some();
        self.requests.waiting.is_empty() && !reads && !self.vms.iter().any(starts)
    }

    /// Returns whether an upgrade waits for a moment of rest: then the broker begins no work that would delay the upgrade.
    pub(in crate::broker) fn comes_to_rest(&self) -> bool {
        self.requests.upgrading.as_ref().is_some_and(|upgrading| matches!(upgrading.stage, Stage::Rests(..)))
    }

    fn call_upgrade_off(&mut self, why: &str, now: Nanos) {
        let Some(Upgrading { peer, .. }) = self.requests.upgrading.take() else { return };
        let error = format!("not upgraded, and the broker goes on as before: {why}");
        log::error!("{error}");
        let line = control::line(&Answer::Error { error });
        self.connections.stream(peer, &line, true, &self.epoll, now);
    }

    /// Executes the new program. Returns the reason if that failed; the broker then goes on as before.
    fn hand_on(&mut self, program: &Program, now: Nanos) -> Result<io::Error, io::Error> {
        let arguments = self.upkeep.as_ref().map(|upkeep| upkeep.file.arguments()).unwrap_or_default();
        self.gpus.iter_mut().for_each(|gpu| gpu.look_at_every(now, self.log.as_mut()));
        self.log.iter_mut().for_each(GrantLog::flush);
        // The copies outlive this program, and the originals do not. If this program goes on, the copies are closed.
        let mut copies: Vec<OwnedFd> = Vec::new();
        let mut pass = |file: BorrowedFd<'_>| -> io::Result<RawFd> {
            let copy = rustix::io::dup(file)?;
            let number = copy.as_raw_fd();
            copies.push(copy);
            Ok(number)
        };
        let asker = self.requests.upgrading.as_ref().map(|upgrading| upgrading.peer);
        let state = self.state(asker, page_clock(), &mut pass)?;
        let text = state.to_text(copies.iter().map(AsRawFd::as_raw_fd).collect())?;
        let mut command = program.command();
        command.args(arguments).arg(TAKE_OVER).stdin(file_of(&text)?);
        if self.upkeep.as_ref().is_some_and(Upkeep::hears_end) {
            return Err(io::Error::other("the broker ends"));
        }
        let failed = sandbox::without_hangups(|| command.exec());
        sandbox::ignore_broken_pipes();
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(failed)
    }
}
