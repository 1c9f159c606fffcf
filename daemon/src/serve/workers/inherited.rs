//! The workers that a device process of an earlier program has started, with their launchers: this process goes on with them until they end, or
//! their contexts have workers of this program.
//!
//! A worker notices no change: its channel, its page and its gate stay the same. A launcher that has no worker any more ends.

use super::crashes::Life;
use super::{CHANNEL_TOKEN, Gate, OUTPUT_TOKEN, Process, SwappedOut, Worker, Workers};
use crate::ipc::{Channel, Placement};
use crate::sandbox::{Ended, FromChildren, Launcher};
use crate::serve::logging::output::{Output, Printer};
use crate::transport::PassedFiles;
use config::{GpuChoice, Passage};
use protocol::ids::ContextId;
use readiness::Events;
use serde::{Deserialize, Serialize};
use shm::StatusPage;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// All workers, written down for another process. The channels of their launchers are the first of their descriptors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::serve) struct PassedWorkers {
    launchers: usize,
    next_serial: u32,
    /// The GPUs that the workers were told of, and how to use them.
    gpus: Vec<GpuChoice>,
    placement: Placement,
    workers: Vec<PassedWorker>,
}

impl PassedWorkers {
    /// Returns whether no worker is passed on.
    pub(in crate::serve) fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }
}

/// A worker, written down. Its descriptors are, in this order: its channel, its status page, the end at which its output is read, its pages of
/// grants, and its doorbell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PassedWorker {
    ctx_id: ContextId,
    /// The index of the worker's launcher.
    launcher: usize,
    serial: u32,
    number: u64,
    name: String,
    placement: Placement,
    has_output: bool,
    gate: Option<PassedGate>,
    swapped_out: Option<SwappedOut>,
    sent: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PassedGate {
    passage: Passage,
    /// The GPUs for which there are pages, in their order.
    gpus: Vec<u8>,
}

/// Workers of another process, prepared so that this process can go on with them.
#[derive(Debug)]
pub(in crate::serve) struct Inherited {
    launchers: Vec<Arc<Launcher>>,
    next_serial: u32,
    placement: Placement,
    workers: Vec<(ContextId, Worker, Option<Output>)>,
    /// The status page of each worker, with its context.
    pub(in crate::serve) pages: Vec<(ContextId, StatusPage)>,
}

impl Workers {
    /// Returns whether another process can go on with the workers now.
    ///
    /// # Errors
    ///
    /// The reason why another process cannot take the workers over now.
    pub(in crate::serve) fn may_pass_on(&self) -> Result<(), &'static str> {
        if self.are_ending() {
            return Err("workers of programs that have ended are still there");
        }
        if !(self.successors.is_empty() && self.awaited.is_empty() && self.called_off.is_empty()) {
            return Err("a context is being restarted or swapped");
        }
        let rests = |worker: &Worker| {
            let has_read = worker.outbox.is_empty() && worker.held.is_empty();
            has_read && !worker.owes_answer && matches!(worker.life, Life::Runs)
        };
        match self.running.values().all(rests) {
            true => Ok(()),
            false => Err("a worker does not read, or is about to end"),
        }
    }

    /// Writes all workers down, as [`Self::may_pass_on`] allows, with their descriptors.
    pub(in crate::serve) fn pass_on(&self) -> (PassedWorkers, Vec<BorrowedFd<'_>>) {
        let mut launchers: Vec<&Arc<Launcher>> = Vec::new();
        let (mut workers, mut of_workers) = (Vec::new(), Vec::new());
        for (ctx_id, worker) in &self.running {
            let own = &worker.process.launcher;
            let launcher = launchers.iter().position(|known| Arc::ptr_eq(known, own)).unwrap_or_else(|| {
                launchers.push(own);
                launchers.len() - 1
            });
            let output = self.outputs.get(&worker.serial);
            of_workers.extend([worker.channel.as_fd(), worker.page.as_fd()]);
            of_workers.extend(output.map(AsFd::as_fd));
            if let Some(gate) = &worker.gate {
                of_workers.extend(gate.pages.values().map(AsFd::as_fd));
                of_workers.push(gate.doorbell.as_fd());
            }
            let passed_gate = |gate: &Gate| PassedGate {
                passage: gate.passage,
                gpus: gate.pages.keys().copied().collect(),
            };
            workers.push(PassedWorker {
                ctx_id: *ctx_id,
                launcher,
                serial: worker.serial,
                number: worker.number,
                name: worker.name.clone(),
                placement: worker.placement.clone(),
                has_output: output.is_some(),
                gate: worker.gate.as_ref().map(passed_gate),
                swapped_out: worker.swapped_out,
                sent: worker.sent,
            });
        }
        let (next_serial, gpus, placement) = (self.next_serial, self.gpus.clone(), self.placement.clone());
        let passed = PassedWorkers { launchers: launchers.len(), next_serial, gpus, placement, workers };
        let of_launchers = launchers.into_iter().map(|launcher| launcher.as_fd());
        (passed, of_launchers.chain(of_workers).collect())
    }

    /// Prepares to go on with workers of another process, and listens to them and to their launchers, to the latter under `launcher_token`. Sends
    /// nothing to either.
    ///
    /// # Errors
    ///
    /// A descriptor is missing, this process uses other GPUs or uses them otherwise, or the system refuses.
    pub(in crate::serve) fn inherit(
        &self,
        passed: PassedWorkers,
        files: &mut PassedFiles,
        launcher_token: u64,
    ) -> io::Result<Inherited> {
        let PassedWorkers { launchers, next_serial, gpus, placement, workers } = passed;
        if !workers.is_empty() && gpus != self.gpus {
            return Err(io::Error::other(
                "programs of the guest use other GPUs, or use them with other settings",
            ));
        }
        let launchers = (0..launchers).map(|_| {
            let launcher = Launcher::inherited(files.take()?);
            self.watch(launcher.as_fd(), launcher_token)?;
            Ok(Arc::new(launcher))
        });
        let launchers = launchers.collect::<io::Result<Vec<_>>>()?;
        self.admit(&placement).map_err(io::Error::other)?;
        let mut inherited =
            Inherited { launchers, next_serial, placement, workers: Vec::new(), pages: Vec::new() };
        for passed in workers {
            self.inherit_worker(passed, files, &mut inherited)?;
        }
        Ok(inherited)
    }

    fn inherit_worker(
        &self,
        passed: PassedWorker,
        files: &mut PassedFiles,
        inherited: &mut Inherited,
    ) -> io::Result<()> {
        let PassedWorker { ctx_id, launcher, serial, number, name, placement, .. } = passed;
        self.admit(&placement).map_err(io::Error::other)?;
        let launcher = inherited.launchers.get(launcher).ok_or(io::ErrorKind::InvalidData)?;
        let process = Process { launcher: Arc::clone(launcher), serial };
        let (channel, page) = (Channel::from_socket(files.take()?), files.take()?);
        self.watch(channel.as_fd(), CHANNEL_TOKEN | u64::from(serial))?;
        let output = match passed.has_output {
            true => Some(Output::of(Printer::Worker(ctx_id, name.clone()), files.take()?)),
            false => None,
        };
        output.iter().try_for_each(|output| self.watch(output.as_fd(), OUTPUT_TOKEN | u64::from(serial)))?;
        let gate = match passed.gate {
            None => None,
            Some(PassedGate { passage, gpus }) => {
                let pages = gpus.into_iter().map(|gpu| Ok((gpu, files.take()?)));
                let pages = pages.collect::<io::Result<BTreeMap<_, _>>>()?;
                Some(Gate { pages, doorbell: files.take()?, passage })
            }
        };
        inherited.pages.push((ctx_id, StatusPage::open(&page).map_err(io::Error::other)?));
        let mut worker = Worker::new(number, (channel, process), page, name, (placement, gate));
        (worker.swapped_out, worker.sent) = (passed.swapped_out, passed.sent);
        inherited.workers.push((ctx_id, worker, output));
        Ok(())
    }

    /// Goes on with workers of another process.
    pub(in crate::serve) fn adopt(&mut self, inherited: Inherited) {
        (self.next_serial, self.placement) = (inherited.next_serial, inherited.placement);
        self.inherited = inherited.launchers;
        for (ctx_id, worker, output) in inherited.workers {
            self.contexts.insert(worker.serial, ctx_id);
            self.outputs.extend(output.map(|output| (worker.serial, output)));
            self.running.insert(ctx_id, worker);
        }
    }

    /// Returns the next report of a launcher of another program about its workers, if there is one. If a launcher has ended, so have its workers.
    pub(super) fn heard_of_inherited(&mut self) -> Option<FromChildren> {
        let mut at = 0;
        while let Some(launcher) = self.inherited.get(at) {
            match launcher.heard() {
                Ok(Some(FromChildren::Ended(ended))) => return Some(FromChildren::Ended(ended)),
                // That launcher keeps nothing for this process: the process before told it to let go, of sets whose numbers mean other sets here.
                // The launcher of this process watches the same files.
                Ok(Some(FromChildren::Released(_) | FromChildren::Replaced(_))) => {}
                Ok(None) => at += 1,
                Err(error) => {
                    log::debug!(
                        "the launcher of an earlier device process cannot be heard any more: {error}"
                    );
                    self.lose_launcher(at);
                }
            }
        }
        self.orphans.pop().map(FromChildren::Ended)
    }

    fn lose_launcher(&mut self, at: usize) {
        let launcher = self.inherited.swap_remove(at);
        let _ = readiness::unwatch(&self.epoll, &*launcher);
        let alive = self.running.values().chain(self.successors.values().map(|successor| &successor.worker));
        let alive = alive.map(|worker| &worker.process);
        let all = alive.chain(self.ending.iter().map(|ending| &ending.process));
        let its_own = all.filter(|process| Arc::ptr_eq(&process.launcher, &launcher));
        let ended = its_own.map(|process| Ended {
            child: process.serial,
            status: Err("its launcher has ended".into()),
            out_of_memory: false,
        });
        self.orphans.extend(ended);
    }

    /// Lets go of the launchers of other programs that have no worker any more; these launchers then end.
    pub(super) fn retire_launchers(&mut self) {
        self.inherited.retain(|launcher| Arc::strong_count(launcher) > 1);
    }

    /// Returns how many workers of the VM are of other programs.
    #[cfg(test)]
    pub(in crate::serve) fn inherited(&self) -> usize {
        let is_own = |worker: &&Worker| Arc::ptr_eq(&worker.process.launcher, &self.launcher);
        self.running.values().filter(|worker| !is_own(worker)).count()
    }

    /// Another process has the workers: leaves them to it.
    pub(in crate::serve) fn leave(self) {
        if self.running.is_empty() {
            // The launcher has no workers, and ends with this process.
            self.end_all();
        }
    }

    /// Watches a descriptor, under this epoll value.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        readiness::watch(&self.epoll, fd, token, Events::EPOLLIN)
    }
}
