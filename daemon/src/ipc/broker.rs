//! Messages between the broker, which serves several VMs, and the device process of one of them.

use super::launch::Replaced;
use clap::ValueEnum;
use config::{GpuChoice, Likeness};
use protocol::ids::ContextId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the messages between broker and device process. A broker of another program goes on with device processes that were started
/// before, so the version rises with each change of these messages that such processes do not understand.
pub const BROKER_MESSAGES: u32 = 2;

/// Broker to device process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromBroker {
    /// An operator wants this context ended.
    Kill {
        /// The context.
        ctx_id: ContextId,
    },
    /// A submission of this context runs for too long while others wait: the context is lost, and the VM gets a strike.
    Hung {
        /// The context.
        ctx_id: ContextId,
    },
    /// The broker wants a [`ToBroker::Memory`].
    Report,
    /// An operator wants this context to have another worker while its program runs. Answered by [`ToBroker::Restarted`], with
    /// [`ToBroker::Restarting`] ahead of it.
    Restart {
        /// The context.
        ctx_id: ContextId,
        /// The GPU that the other worker is to use instead of one of this worker's.
        change: Option<GpuChange>,
    },
    /// An operator wants this context swapped out, until its program goes on. Answered as [`Self::Restart`].
    SwapOut {
        /// The context.
        ctx_id: ContextId,
    },
    /// Contexts that begin from now on get this placement.
    Place {
        /// The GPUs of these contexts.
        placement: Placement,
    },
    /// A device process of another program is to serve the frontend from now on. Descriptor: a socket between the two ([`super::ToSuccessor`]). Both
    /// processes are told: the process that serves passes its state on, unless that is impossible now, and ends.
    HandOn,
    /// The VM's contexts may hold so much of its GPUs' memory. Answered by [`ToBroker::Room`], which is also sent at each change from then on.
    Room(RoomOrder),
}

/// The part of its GPUs' memory that a VM's contexts may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomOrder {
    /// The number of this order among those of the VM, from 1.
    pub number: u64,
    /// Bytes that the contexts may hold. If they hold more, contexts are swapped out.
    pub most: u64,
    /// Busy contexts are swapped out too; otherwise only idle ones are.
    pub forced: bool,
    /// Bytes that all VMs may hold together. A request of a context that wants more is refused at once.
    pub total: u64,
    /// Time for which a context waits for memory, in milliseconds.
    pub wait_ms: u64,
}

/// The GPUs of a context: for each that its guest sees, in the guest's order, an index among the GPUs of [`ToBroker::Ready`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement(pub Vec<u8>);

/// A GPU that replaces another in a [`Placement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuChange {
    /// The GPU that the context is on.
    pub from: u8,
    /// The GPU that is to replace it.
    pub to: u8,
}

impl Placement {
    /// Returns the placement on the GPUs that the VM's guest sees, in their order.
    #[must_use]
    pub fn own(gpus: usize) -> Self {
        Self((0..).take(gpus).collect())
    }

    /// Returns the placement with one GPU replaced; none if the placement does not have the old GPU, or has the new one already.
    #[must_use]
    pub fn changed(&self, GpuChange { from, to }: GpuChange) -> Option<Self> {
        let mut changed = self.clone();
        let place = changed.0.iter().position(|gpu| *gpu == from)?;
        changed.0[place] = to;
        (!self.0.contains(&to)).then_some(changed)
    }

    /// Returns the GPUs that are in this placement and not in `other`.
    pub fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u8> + 'a {
        self.0.iter().copied().filter(|gpu| !other.0.contains(gpu))
    }
}

/// Device process to broker. A guest that took over a device process can send any message: it speaks for its own VM only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToBroker {
    /// The device process waits for a frontend from now on.
    Ready {
        /// The GPUs of the device process: those that guests see, in their order, and then spare ones.
        gpus: Vec<SharedGpu>,
        /// The most memory that the VM may hold; `u64::MAX` for an unbounded amount.
        limits: HeldMemory,
        /// The settings to which the options and the GPUs have led.
        in_force: InForce,
    },
    /// A frontend has come or gone.
    Frontend {
        /// The frontend has come, and not gone.
        connected: bool,
    },
    /// A context begins. Descriptor: the doorbell that the context's worker rings.
    ContextBegins {
        /// The context.
        ctx_id: ContextId,
        /// The context's `debug_name`, printable.
        debug_name: String,
    },
    /// A context begins to use a GPU, at its start or later. Descriptor: the page of grants that its worker has too.
    ContextComes {
        /// The context.
        ctx_id: ContextId,
        /// The index of the GPU among those of [`Self::Ready`].
        gpu: u8,
    },
    /// A context does not use a GPU any more.
    ContextLeaves {
        /// The context.
        ctx_id: ContextId,
        /// The index of the GPU among those of [`Self::Ready`].
        gpu: u8,
    },
    /// A context has ended, and its worker with it or soon.
    ContextEnds {
        /// The context.
        ctx_id: ContextId,
        /// The reason why the context was lost, if it was.
        lost: Option<String>,
        /// The context was killed for a submission that ran too long.
        hung: bool,
    },
    /// Memory that the VM holds; answer to [`FromBroker::Report`].
    Memory {
        /// The memory that each context of the VM holds, with the guest's id of the context.
        contexts: Vec<(ContextId, HeldMemory)>,
        /// The memory that the VM holds, contexts that have ended included.
        vm: HeldMemory,
        /// The contexts among them that cannot be restarted now.
        unmovable: Vec<(ContextId, Unmovable)>,
        /// The contexts among them that would survive the death of their workers now.
        recoverable: Vec<ContextId>,
    },
    /// A restart has come to this stage.
    Restarting {
        /// The context, as in [`FromBroker::Restart`].
        ctx_id: ContextId,
        /// The stage.
        stage: RestartStage,
    },
    /// Answer to [`FromBroker::Restart`].
    Restarted {
        /// The context.
        ctx_id: ContextId,
        /// The time that it took, or the reason why the context stays with its worker.
        outcome: Result<RestartTook, String>,
    },
    /// A file that the device process depends on was replaced.
    Replaced {
        /// The file.
        what: Replaced,
    },
    /// The worker of a context has died by itself, and the context has another.
    Recovered {
        /// The context.
        ctx_id: ContextId,
    },
    /// The memory of its GPUs that the VM has and wants; answer to [`FromBroker::Room`].
    Room(RoomState),
}

/// The memory of its GPUs that a VM has and wants, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomState {
    /// The number of the last order that the VM's device process has got, and keeps to.
    pub order: u64,
    /// Bytes that the VM's contexts hold, except for contexts that are swapped out.
    pub held: u64,
    /// Bytes that the context which has waited for longest lacks; 0 if none waits.
    pub lacks: u64,
    /// Bytes of `held` that this context holds.
    pub holds: u64,
    /// Bytes of `held` that belong to contexts which have done nothing for a second, and could be swapped out.
    pub idle: u64,
    /// The time that the context which came back last took, in milliseconds: the start of its worker, and copying. 0 if none has come back.
    pub back_ms: u64,
}

/// The stage of a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartStage {
    /// The successor starts.
    Starts,
    /// The successor builds the parts that it can while the context goes on.
    Prepares,
    /// The worker comes to rest.
    Rests,
    /// The context is written down and built up.
    Moves,
}

impl fmt::Display for RestartStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starts => "starting a new worker",
            Self::Prepares => "creating devices and pipelines in the new worker",
            Self::Rests => "waiting for submissions of the context to complete",
            Self::Moves => "handing the context over to the new worker",
        })
    }
}

/// The time that a restart took, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartTook {
    /// The time for which the guest's program was paused.
    pub pause_ms: u64,
    /// The time from request to end.
    pub total_ms: u64,
}

/// The reason why a context cannot be restarted, as far as its device process knows without asking the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unmovable {
    /// The context has no worker any more.
    Lost,
    /// The context's memory is not made of memory files.
    BackEnd,
    /// The worker lends memory to the guest.
    Lends,
    /// The worker is exporting memory, which is over soon. Only device processes of older programs send this.
    Exports,
    /// The context is swapped out, and gets a worker when its program goes on.
    SwappedOut,
    /// The context is swapped out, and its program waits for memory of the GPU.
    Waits,
}

impl fmt::Display for Unmovable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "it is lost: its program has to be started anew",
            Self::BackEnd => {
                "its memory belongs to the GPU's driver (dma-bufs); only memory files can be handed over, as software drivers have \
                 and --memory=memfd asks for"
            }
            Self::SwappedOut => "it is swapped out, and gets another worker when its program goes on",
            Self::Waits => "it is swapped out, and gets another worker when there is memory of the GPU for it",
            Self::Lends => {
                "the guest has mapped the GPU's own memory, which would be gone with the worker (--map-device-memory=never keeps \
                 programs from that)"
            }
            Self::Exports => "its worker is exporting memory: try again in a moment",
        })
    }
}

/// A GPU that VMs may share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedGpu {
    /// `VkPhysicalDeviceIDProperties::deviceUUID`.
    pub uuid: [u8; 16],
    /// The GPU's name.
    pub name: String,
    /// A software device such as lavapipe.
    pub software: bool,
    /// Bytes of its own memory.
    pub memory: u64,
    /// PCI address as `0000:01:00.0`, if the driver reports it.
    pub pci_address: Option<String>,
    /// The look of the GPU, for programs.
    pub likeness: Likeness,
    /// The VM's guest does not see this GPU, but contexts can be moved to it.
    pub spare: bool,
    /// Driver name and version for people.
    pub driver: String,
}

/// The settings that a device process derived at its start from its options and its GPUs, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Bytes of the guest's window.
    pub window_size: u64,
    /// The kind of memory that guests map, as the option `--memory` names it.
    pub memory: String,
    /// Guests can map the GPU's own memory.
    pub maps_device_memory: bool,
    /// The capabilities of queues, as the option `--queues` names them.
    pub queues: String,
}

impl InForce {
    /// Returns the settings for these GPUs of a VM, with a window of so many bytes.
    #[must_use]
    pub fn new(gpus: &[GpuChoice], window_size: u64) -> Self {
        let first = gpus.first();
        Self {
            window_size,
            memory: first.map(|gpu| named(&gpu.memory)).unwrap_or_default(),
            maps_device_memory: gpus.iter().any(GpuChoice::maps_device_memory),
            queues: first.map(|gpu| named(&gpu.queues)).unwrap_or_default(),
        }
    }
}

/// The name of a choice on the command line.
fn named(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Memory by where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMemory {
    /// Bytes of the GPU's memory.
    pub device: u64,
    /// Bytes of the host's memory, all of it pinned while a GPU can reach it.
    pub host: u64,
}

#[cfg(test)]
mod tests {
    use super::super::form_tests::{form, variants};
    use super::*;

    /// The context of the samples.
    const CONTEXT: ContextId = ContextId(300);

    /// A device process and a broker of another program understand each other as long as this test passes.
    #[test]
    fn messages_that_change_have_another_version() {
        let change = Some(GpuChange { from: 1, to: 2 });
        let to_device = [
            FromBroker::Kill { ctx_id: CONTEXT },
            FromBroker::Hung { ctx_id: CONTEXT },
            FromBroker::Report,
            FromBroker::Restart { ctx_id: CONTEXT, change },
            FromBroker::SwapOut { ctx_id: CONTEXT },
            FromBroker::Place { placement: Placement(vec![0, 1]) },
            FromBroker::HandOn,
            FromBroker::Room(RoomOrder { number: 5, most: 300, forced: true, total: 2, wait_ms: 3 }),
        ];
        assert_eq!((variants::<FromBroker>(), variants::<ToBroker>()), (8, 12));
        assert_eq!(
            (BROKER_MESSAGES, form(&to_device).as_str()),
            (2, "00ac02 01ac02 02 03ac02010102 04ac02 05020001 06 0705ac02010203")
        );
        let gpu = SharedGpu {
            uuid: [1; 16],
            name: "n".into(),
            software: true,
            memory: 300,
            pci_address: Some("c".into()),
            likeness: Likeness { parts: [2; 6] },
            spare: true,
            driver: "d".into(),
        };
        let in_force =
            InForce { window_size: 3, memory: "m".into(), maps_device_memory: true, queues: "q".into() };
        let held = HeldMemory { device: 1, host: 2 };
        let took = RestartTook { pause_ms: 5, total_ms: 6 };
        let to_broker = [
            ToBroker::Ready { gpus: vec![gpu], limits: held, in_force },
            ToBroker::Frontend { connected: true },
            ToBroker::ContextBegins { ctx_id: CONTEXT, debug_name: "p".into() },
            ToBroker::ContextComes { ctx_id: CONTEXT, gpu: 7 },
            ToBroker::ContextLeaves { ctx_id: CONTEXT, gpu: 7 },
            ToBroker::ContextEnds { ctx_id: CONTEXT, lost: Some("x".into()), hung: true },
            ToBroker::Memory {
                contexts: vec![(CONTEXT, held)],
                vm: held,
                unmovable: vec![(CONTEXT, Unmovable::SwappedOut)],
                recoverable: vec![CONTEXT],
            },
            ToBroker::Restarting { ctx_id: CONTEXT, stage: RestartStage::Moves },
            ToBroker::Restarted { ctx_id: CONTEXT, outcome: Ok(took) },
            ToBroker::Replaced { what: Replaced::Program("/p".into()) },
            ToBroker::Recovered { ctx_id: CONTEXT },
            ToBroker::Room(RoomState { order: 300, held: 1, lacks: 2, holds: 4, idle: 3, back_ms: 5 }),
        ];
        let ready = "000101010101010101010101010101010101016e01ac02010163020202020202010164010203016d010171";
        let others = "0101 02ac020170 03ac0207 04ac0207 05ac0201017801 0601ac020102010201ac020401ac02 07ac0203 \
                      08ac02000506 0902022f70 0aac02 0bac020102040305";
        assert_eq!((BROKER_MESSAGES, form(&to_broker)), (2, format!("{ready} {others}")));
    }
}
