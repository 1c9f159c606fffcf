//! Bounds on the resources that a guest can make the daemon allocate, hold or wait for. A guest that exceeds one is told, and the log names the
//! field.

use protocol::spirv::Limits;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The bound on the share of one context in an amount that all contexts of a VM share: each may hold at most this many times the amount that it
/// leaves free. However many contexts take as much as they can, the next context still gets a part.
pub const SHARE: u64 = 7;

/// Returns the most of `total` that one context can hold while no other context holds any.
#[must_use]
pub const fn most(total: u64) -> u64 {
    // A total this small has no share to leave; see `device::quota`.
    let most = (total as u128 + 1) * SHARE as u128 / (SHARE as u128 + 1);
    if most < total as u128 { most as u64 } else { total }
}

/// The number of regions of guest memory up to which blobs are mapped, if the frontend announces each blob as a region. Other regions count too, such
/// as memory devices and mappings of other devices. QEMU aborts beyond 512; the rest is for devices plugged in meanwhile.
pub const MEMORY_REGIONS_MAX: usize = 500;

/// Advice to operators when a process of the daemon ends to which a VM is connected: QEMU reconnects only for a device that is plugged in
/// again.
pub const PLUG_AGAIN: &str = "the VM's GPU is dead until its device is plugged again, and a reset of the VM before that aborts QEMU: \
                              docs/operations.md has the commands";

/// Bounds on the device process, per VM. The device process answers a request that exceeds a bound with a virtio-gpu error, and logs the bound's name.
/// Bounds called *shared* leave each context its share ([`SHARE`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceLimits {
    /// Contexts alive at once; each costs a process. Shared, by the names of the guest's programs, which programs choose themselves. The share
    /// protects from mistakes, not from malice, because only the name tells programs of a guest apart. Default 256.
    pub contexts: usize,
    /// Resources alive at once. Shared. Default 65 536.
    pub resources: usize,
    /// Blobs mapped at once, if the frontend announces each as a region of guest memory; fewer if other regions leave less of [`MEMORY_REGIONS_MAX`].
    /// Shared. Default 400.
    pub live_maps: usize,
    /// Blobs mapped at once, if the frontend does not announce each as a region of guest memory. crosvm has a slot of KVM's for each, and KVM has
    /// 32 764 slots. Shared. Default 16 384.
    pub live_maps_unannounced: usize,
    /// Bytes of device memory that drivers allocate for guests. Shared. Default: no limit but the GPU's.
    pub device_memory: u64,
    /// Bytes of the host's memory that guests can map or that drivers allocate there; all of it may be pinned. Shared. Default: no
    /// limit; the command line's default is three quarters of the machine's memory.
    pub host_memory: u64,
    /// Rings of all contexts; each costs a thread of its worker. Shared. Default 2048.
    pub vm_rings: usize,
    /// Pieces in which [`Self::host_memory`] is handed out. Shared. Default 65 536.
    pub memory_pieces: usize,
    /// Descriptors that workers have deposited of memory that only drivers use. A context that needs more is lost if its worker dies. Shared.
    /// Default 16 384.
    pub deposits: usize,
    /// Entries of one scatter list (`nr_entries`). Default 16 384.
    pub backing_entries: u32,
    /// Bytes of one SUBMIT_3D payload. Default 16 MiB.
    pub submit_bytes: u32,
    /// Bytes of one shared-memory blob (`blob_id` 0). Default 1 GiB.
    pub shmem_blob_bytes: u64,
    /// Bytes of all shared-memory blobs of the VM: rings, streams, replies. Shared. Default 8 GiB.
    pub shmem_total_bytes: u64,
    /// Messages queued for workers that do not read; a worker that would have more is ended. Shared. Default 65 536.
    pub worker_backlog: usize,
    /// Bytes of the streams among these messages. Shared. Default 64 MiB.
    pub worker_backlog_bytes: usize,
    /// Descriptors among these messages. Shared. Default 4096.
    pub worker_backlog_files: usize,
    /// Lines a minute of the output of workers and drivers that go into the log; more are dropped. Shared. Default 600.
    pub log_lines: u32,
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self {
            contexts: 256,
            resources: 65_536,
            live_maps: 400,
            live_maps_unannounced: 16_384,
            device_memory: u64::MAX,
            host_memory: u64::MAX,
            vm_rings: 2048,
            memory_pieces: 65_536,
            deposits: 16_384,
            backing_entries: 16_384,
            submit_bytes: 16 << 20,
            shmem_blob_bytes: 1 << 30,
            shmem_total_bytes: 8 << 30,
            worker_backlog: 65_536,
            worker_backlog_bytes: 64 << 20,
            worker_backlog_files: 4096,
            log_lines: 600,
        }
    }
}

impl DeviceLimits {
    /// Returns these limits for a process that may have `files` descriptors open. Some are kept for purposes that no guest can do without; the others
    /// bound the descriptors that guests hold. Shares apply to them as to all amounts. If a broker takes part in each context (`has_broker`), a
    /// context needs more of them.
    #[must_use]
    pub fn within_files(self, files: u64, has_broker: bool) -> Self {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        // A channel, a status page, an output, two checkpoints and a journal for each context; for the broker a page and both ends of a doorbell.
        let workers = self.contexts.saturating_mul(if has_broker { 9 } else { 6 });
        let kept = FILES_KEPT + workers.min(files / 4);
        let free = files.saturating_sub(kept);
        let worker_backlog_files = self.worker_backlog_files.min(free / 8);
        // As many may be waiting to be closed.
        let deposits = self.deposits.min(free / 8);
        // A resource has a file, and a piece of memory has one too, although most pieces belong to a resource.
        let each = (free - worker_backlog_files - 2 * deposits) / 2;
        Self {
            resources: self.resources.min(each),
            memory_pieces: self.memory_pieces.min(each),
            deposits,
            worker_backlog_files,
            ..self
        }
    }
}

/// Descriptors that are kept for a session: regions of memory (509 of the frontend's, in the table and on their way to the table), kicks, calls,
/// channels, anchors; and for operators and collectors of metrics.
const FILES_KEPT: usize = 704;

/// Bounds on one context. An object beyond one of the first four is not made, which the guest learns from the next call that can tell; a context that
/// exceeds another bound ends. The log names each exceeded bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextLimits {
    /// Bytes of device memory, counted as for [`DeviceLimits::device_memory`]. Default: no limit of its own.
    pub device_memory: u64,
    /// Bytes of the host's memory, counted as for [`DeviceLimits::host_memory`]. Default: no limit of its own.
    pub host_memory: u64,
    /// Vulkan objects alive at once. Default 1 048 576.
    pub objects: usize,
    /// Bytes of shaders held, and of the other descriptions of live objects. Default 512 MiB.
    pub shader_bytes: u64,
    /// Destroyed objects that commands and submissions still use. Default 65 536.
    pub retired: usize,
    /// Rings alive at once; each costs a thread. Default 256.
    pub rings: usize,
    /// Bytes of one submission's commands, and of the streams that all rings together have copied for execution. Default 256 MiB.
    pub command_bytes: usize,
    /// Bytes that decoded commands of all rings take together while they are executed or wait for the scheduler, beyond 1 MiB for each ring
    /// and 4 KiB for each submission. Default 256 MiB.
    pub arena_bytes: usize,
    /// Bytes of the recordings of all command buffers that are kept so that the context can be moved, including spare room. Recordings beyond it are
    /// still made, but the context cannot be moved meanwhile. Default 256 MiB.
    pub recording_bytes: usize,
    /// Submissions of one queue that are not complete. Default 65 536.
    pub submissions: usize,
    /// The longest that a driver may take to create pipelines in one call; a call that takes longer costs the context. Default 5 min.
    pub pipeline_time: Duration,
    /// The bounds on the demands of one shader module on a driver.
    pub shaders: ShaderLimits,
}

/// Bounds on one shader module. The answer to a module that exceeds a bound is `VK_ERROR_INVALID_SHADER_NV`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShaderLimits {
    /// Bytes of code. Default 32 MiB.
    pub shader_bytes: usize,
    /// The bound of ids; drivers allocate about 100 bytes for each. Default 1 048 576.
    pub shader_ids: u32,
    /// Depth of nested structs and arrays. Default 512.
    pub shader_type_depth: u32,
    /// Blocks of one function; drivers recurse from one to the next. Default 16 384.
    pub shader_blocks: u32,
    /// Depth of nested selections and loops. Default 1024.
    pub shader_nesting: u32,
    /// Numbers that instructions produce when all calls are inlined, and the numbers of all constants. Default 262 144.
    pub shader_cost: u64,
    /// Bytes of all variables of functions, and of all private variables. Default 1 MiB.
    pub shader_variable_bytes: u64,
}

impl ShaderLimits {
    /// The defaults that the comments of the fields give.
    pub const DEFAULT: Self = Self {
        shader_bytes: Limits::DEFAULT.words * size_of::<u32>(),
        shader_ids: Limits::DEFAULT.ids,
        shader_type_depth: Limits::DEFAULT.type_depth,
        shader_blocks: Limits::DEFAULT.blocks,
        shader_nesting: Limits::DEFAULT.nesting,
        shader_cost: Limits::DEFAULT.cost,
        shader_variable_bytes: Limits::DEFAULT.variable_bytes,
    };
}

impl Default for ContextLimits {
    fn default() -> Self {
        Self {
            device_memory: u64::MAX,
            host_memory: u64::MAX,
            objects: 1 << 20,
            shader_bytes: 512 << 20,
            retired: 1 << 16,
            rings: 256,
            command_bytes: 256 << 20,
            arena_bytes: 256 << 20,
            recording_bytes: 256 << 20,
            pipeline_time: Duration::from_secs(300),
            shaders: ShaderLimits::DEFAULT,
            submissions: 65_536,
        }
    }
}

impl ContextLimits {
    /// Returns these limits, bounded by the part of the VM's limits that one context may take.
    #[must_use]
    pub fn within(self, vm: &DeviceLimits) -> Self {
        Self {
            device_memory: self.device_memory.min(most(vm.device_memory)),
            host_memory: self.host_memory.min(most(vm.host_memory)),
            ..self
        }
    }
}

/// The times for which submissions of a VM may run, and the consequences if they run longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangLimits {
    /// A submission that runs longer costs its context. Default 30 s; 30 min with software drivers.
    pub max_submit_time: Duration,
    /// A submission that runs longer while another context of the VM waits for the GPU costs its context. Default 10 s; the same as
    /// [`Self::max_submit_time`] with software drivers.
    pub max_submit_time_contended: Duration,
    /// Contexts that a program of the VM loses to hung submissions before it may create no more for a while; without a number, no program is ever
    /// barred. Default 3; none with software drivers.
    pub strikes: Option<u32>,
    /// Time for which the program is barred, the first time; it doubles with each further lost context. Default 10 s.
    pub strike_hold: Duration,
    /// The longest time for which a program is barred. Default 10 min.
    pub strike_hold_max: Duration,
    /// Time after which a lost context is forgotten. Default 5 min.
    pub strike_forgiven: Duration,
}

impl Default for HangLimits {
    fn default() -> Self {
        Self {
            max_submit_time: Duration::from_secs(30),
            max_submit_time_contended: Duration::from_secs(10),
            strikes: Some(3),
            strike_hold: Duration::from_secs(10),
            strike_hold_max: Duration::from_secs(600),
            strike_forgiven: Duration::from_secs(300),
        }
    }
}

impl HangLimits {
    /// Returns the defaults for VMs whose GPUs are processors of the host (`VK_PHYSICAL_DEVICE_TYPE_CPU`): honest submissions take minutes there. No
    /// submission keeps other VMs from the processors, because the host's kernel shares these out.
    #[must_use]
    pub fn software() -> Self {
        let max_submit_time = Duration::from_secs(30 * 60);
        Self { max_submit_time, max_submit_time_contended: max_submit_time, strikes: None, ..Self::default() }
    }

    /// Returns the defaults for VMs with software drivers, or with real GPUs.
    #[must_use]
    pub fn of(software: bool) -> Self {
        if software { Self::software() } else { Self::default() }
    }
}

/// Time within which a frontend has to answer a request, and for which its descriptor may hold up the device process.
pub const FRONTEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of the largest window: guests place the window as a PCI BAR, and firmware places no larger one.
pub const WINDOW_MAX: u64 = 256 << 30;

/// Time between two looks at a worker, unless a test sets another. The device process asks for a checkpoint when two looks in a row find no executed
/// command: after one to two of these times.
pub const CHECKPOINT_AFTER: Duration = Duration::from_secs(1);

/// GPUs that one VM may have. Each costs every context of the VM a page and a thread.
pub const GPUS_MAX: usize = 8;

/// Messages of the broker that may wait for one device process; a process with more unread messages is ended. The name of the limit, and the limit.
pub const BROKER_BACKLOG: (&str, usize) = ("broker_backlog", 256);

/// Messages of the launcher that may wait for its device process, which is trusted and reads them. With more messages the launcher ends, and the
/// device process with it. There is one message for each ended child and each released set of descriptors. The name of the limit, and the limit.
pub const LAUNCHER_BACKLOG: (&str, usize) = ("launcher_backlog", 65_536);

/// Descriptors of one worker that keep the memory of its driver alive, at most. NVIDIA's driver has three for an instance with a device.
pub const ANCHORS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_bound_what_guests_hold_and_leave_a_session_its_own() {
        let wanted = DeviceLimits::default();
        assert_eq!(wanted.within_files(1 << 20, true), wanted);
        assert_eq!(wanted.within_files(u64::MAX, true), wanted);
        for files in [1024, 4096, 20_000, 65_536] {
            let DeviceLimits { resources, memory_pieces, deposits, worker_backlog_files, .. } =
                wanted.within_files(files, true);
            let all = resources + memory_pieces + 2 * deposits + worker_backlog_files + FILES_KEPT;
            assert!(resources > 0 && deposits > 0 && all <= files as usize);
        }
        assert_eq!(wanted.within_files(0, true).resources, 0);
        let resources = |has_broker| wanted.within_files(8192, has_broker).resources;
        assert!(resources(false) > resources(true), "a context needs less without a broker");
    }
}
