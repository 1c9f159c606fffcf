//! The GPUs of a VM: the facts that the probe has found about each, and the use that its workers make of it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The kind of memory that guests map (`--memory`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum MemoryBackEnd {
    /// Memory files of the device process, imported by the driver through `VK_EXT_external_memory_host`.
    #[value(help = "Memory files, which the driver imports")]
    Memfd,
    /// The driver's own memory, exported by it through `VK_EXT_external_memory_dma_buf`.
    #[value(help = "Memory of the driver, which it exports")]
    DmaBuf,
}

/// The abilities of a driver with one [`MemoryBackEnd`], as the trial found them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryTrial {
    /// Memory types, a bit each, that guests can map; never 0.
    pub mappable_types: u32,
    /// Memory of one device can be imported into another.
    pub shareable: bool,
    /// The further memory types that guests can map, if they are offered.
    pub driver_mapped: DriverMapped,
    /// Memory types, a bit each, that guests cannot map, and whose memory one process of the driver can give to another as a descriptor that does not
    /// say what the memory is (`VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT`).
    pub exportable_types: u32,
}

/// Memory types that a driver exports to no other process, but maps for the processor out of a device node that others can map too. Such a mapping
/// keeps no memory alive: see `serve::lenders`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverMapped {
    /// The types, a bit each; none if 0.
    pub types: u32,
    /// The device node (`st_rdev`).
    pub device: u64,
}

/// A GPU of a VM and how to use it, as found at start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuChoice {
    /// `VkPhysicalDeviceIDProperties::deviceUUID`.
    pub uuid: [u8; 16],
    /// The back end of mappable memory.
    pub memory: MemoryBackEnd,
    /// The result of the trial of that back end.
    pub trial: MemoryTrial,
    /// The capabilities of its queues that guests are offered.
    pub queues: Queues,
    /// The protections of guests beyond what Vulkan promises.
    pub protection: Protection,
}

impl GpuChoice {
    /// Returns the memory types, a bit each, whose memory is made so that a context's next worker can have it. If the driver maps memory for guests,
    /// there are none: buffers cannot be for both.
    #[must_use]
    pub fn exported_types(&self) -> u32 {
        match (self.memory, self.trial.driver_mapped.types) {
            (MemoryBackEnd::Memfd, 0) => self.trial.exportable_types,
            _ => 0,
        }
    }

    /// Returns whether guests can map the GPU's own memory: the driver exports that memory, or maps it for guests.
    #[must_use]
    pub fn maps_device_memory(&self) -> bool {
        self.memory == MemoryBackEnd::DmaBuf || self.trial.driver_mapped.types != 0
    }
}

/// Protections that have a cost, which an operator chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// Device memory is zero when a guest gets it.
    pub zero_memory: bool,
    /// Workgroup memory is zero when a workgroup starts.
    pub zero_workgroup_memory: bool,
    /// Shaders access buffers inside their bindings only.
    pub robustness: Robustness,
    /// Programs are not bound to their worker: guests are offered only features that a successor can have the same (`--movable`). Off by default.
    pub movable: bool,
}

/// The party that decides whether shaders are kept inside their bound buffers (`--robustness`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Robustness {
    /// The daemon keeps shaders inside if they run among the worker's own memory, on a processor; the guest decides if a GPU gives each process an
    /// address space of its own, which contains only the context's memory.
    #[default]
    Auto,
    /// The daemon keeps shaders inside, whether the guest asks for this or not.
    On,
    /// The guest decides, as it does on the host.
    Guest,
}

impl Protection {
    /// Returns the options that weaken the defaults for a guest.
    #[must_use]
    pub fn weaker(&self) -> Vec<&'static str> {
        let options = [
            (self.zero_memory, "--zero-memory off"),
            (self.zero_workgroup_memory, "--zero-workgroup-memory off"),
            (self.robustness != Robustness::Guest, "--robustness guest"),
        ];
        options.into_iter().filter(|(protects, _)| !protects).map(|(_, option)| option).collect()
    }
}

impl Default for Protection {
    fn default() -> Self {
        Self { zero_memory: true, zero_workgroup_memory: true, robustness: Robustness::Auto, movable: false }
    }
}

/// The capabilities of the GPU's queues that guests are offered (`--queues`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Queues {
    /// Compute and copy. The worker executes no graphics command.
    Compute,
    /// Compute and copy. But queue families that draw on the host also say so, for programs that compute only on a family that draws. The answer to a
    /// program's questions before it draws is "no".
    #[default]
    Nominal,
    /// Graphics, too. This opens more of the driver to guests.
    All,
}

impl Queues {
    /// Returns whether the worker executes graphics commands.
    #[must_use]
    pub fn draw(self) -> bool {
        self == Self::All
    }

    /// Returns whether queue families say that they draw, but do not.
    #[must_use]
    pub fn only_say_that_they_draw(self) -> bool {
        self == Self::Nominal
    }

    /// Returns whether queue families say that they draw.
    #[must_use]
    pub fn say_that_they_draw(self) -> bool {
        self != Self::Compute
    }
}

/// The properties of a GPU on which programs rely: a number for each part, which differs if the part differs. A context moves only between GPUs that
/// are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Likeness {
    /// The numbers, of [`Self::PARTS`] in order.
    pub parts: [u64; 6],
}

impl Likeness {
    /// The parts, in words that follow "its".
    pub const PARTS: [&str; 6] =
        ["model", "limits", "features", "memory types", "queue families", "extensions"];

    /// Returns the first part that differs from that of `other`, in words.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let at = self.parts.iter().zip(other.parts).position(|(one, other)| *one != other)?;
        Some(Self::PARTS[at])
    }
}

/// The kind of a GPU (`VkPhysicalDeviceType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A part of a GPU, in a host that is a VM itself.
    Virtual,
    /// A driver such as lavapipe, which computes on processors.
    Software,
    /// A GPU whose kind the driver does not tell.
    Other,
}

impl GpuKind {
    /// Returns the name of the kind, in one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Software => "software",
            Self::Other => "other",
        }
    }
}

/// A GPU as the probe process found it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// `VkPhysicalDeviceProperties::deviceName`.
    pub name: String,
    /// `VkPhysicalDeviceIDProperties::deviceUUID`; zero if its driver is too old to tell.
    pub uuid: [u8; 16],
    /// PCI address as `0000:01:00.0`, if the driver reports it.
    pub pci_address: Option<String>,
    /// Driver name and version for people.
    pub driver: String,
    /// The host's `apiVersion`, in Vulkan's packing.
    pub api_version: u32,
    /// The kind of GPU.
    pub kind: GpuKind,
    /// Bytes of the largest heap of its own memory.
    pub device_memory: u64,
    /// The properties of the GPU on which programs rely.
    pub likeness: Likeness,
    /// The result of the trial of [`MemoryBackEnd::Memfd`] on this GPU, or the reason why that does not work.
    pub memfd: Result<MemoryTrial, String>,
    /// The result of the trial of [`MemoryBackEnd::DmaBuf`] on this GPU, or the reason why that does not work.
    pub dma_buf: Result<MemoryTrial, String>,
}

/// The names that people use for a GPU.
#[derive(Clone, Copy, Debug)]
pub struct GpuNames<'a> {
    /// `VkPhysicalDeviceIDProperties::deviceUUID`.
    pub uuid: &'a [u8; 16],
    /// PCI address as `0000:01:00.0`, if the driver reports it.
    pub pci_address: Option<&'a str>,
    /// `VkPhysicalDeviceProperties::deviceName`.
    pub name: &'a str,
}

impl GpuNames<'_> {
    /// Returns whether the GPU has this UUID or PCI address, given in lower case.
    fn are_exactly(&self, wanted: &str) -> bool {
        let pci = self.pci_address.map(str::to_lowercase);
        hexadecimal(self.uuid) == wanted.replace('-', "")
            || pci.is_some_and(|pci| pci == wanted || pci.strip_prefix("0000:") == Some(wanted))
    }
}

/// Returns the indices of the GPUs that a name means: the first GPU with this UUID or PCI address, or else all GPUs with this text in their names.
pub fn meant<'a>(gpus: impl Iterator<Item = GpuNames<'a>> + Clone, selection: &str) -> Vec<usize> {
    let wanted = selection.to_lowercase();
    if let Some(exact) = gpus.clone().position(|gpu| gpu.are_exactly(&wanted)) {
        return vec![exact];
    }
    let has_it = |gpu: &GpuNames<'_>| !wanted.is_empty() && gpu.name.to_lowercase().contains(&wanted);
    gpus.enumerate().filter(|(_, gpu)| has_it(gpu)).map(|(at, _)| at).collect()
}

/// Returns a UUID without dashes.
#[must_use]
pub fn hexadecimal(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl GpuInfo {
    /// Returns the names of the GPU.
    #[must_use]
    pub fn names(&self) -> GpuNames<'_> {
        GpuNames { uuid: &self.uuid, pci_address: self.pci_address.as_deref(), name: &self.name }
    }

    /// Returns whether this is a software driver such as lavapipe.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.kind == GpuKind::Software
    }

    /// Returns how to use the GPU for compute: with the wanted back end, or with the first back end that works. Memory files come first:
    /// they need no device node, and cost the driver no descriptor.
    ///
    /// # Errors
    ///
    /// The reason why guests cannot use the GPU.
    pub fn choice(&self, wanted: Option<MemoryBackEnd>) -> Result<GpuChoice, String> {
        let queues = Queues::Compute;
        let protection = Protection::default();
        let with =
            |memory, trial: MemoryTrial| GpuChoice { uuid: self.uuid, memory, trial, queues, protection };
        let memfd = self.memfd.as_ref().map(|trial| with(MemoryBackEnd::Memfd, *trial));
        let dma_buf = self.dma_buf.as_ref().map(|trial| with(MemoryBackEnd::DmaBuf, *trial));
        match (wanted, memfd, dma_buf) {
            (Some(MemoryBackEnd::Memfd), memfd, _) => memfd.map_err(String::clone),
            (Some(MemoryBackEnd::DmaBuf), _, dma_buf) => dma_buf.map_err(String::clone),
            (None, Ok(choice), _) | (None, Err(_), Ok(choice)) => Ok(choice),
            (None, Err(memfd), Err(dma_buf)) if memfd == dma_buf => Err(memfd.clone()),
            (None, Err(memfd), Err(dma_buf)) => Err(format!("{memfd}, and {dma_buf}")),
        }
    }
}
