//! The options that bound the memory and objects that a guest may take.

use crate::sandbox::GroupLimits;
use config::time;
use config::{Amount, ContextLimits, DeviceLimits, ShaderLimits, size};
use outside::HostMemory;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The quotas of a VM, which bound the memory and objects that its guest may take. Each program of the guest gets at most seven eighths, so that
/// another finds something left.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::Args)]
#[command(next_help_heading = "Quotas")]
pub struct Quotas {
    /// GPU memory of the VM, with KiB, MiB or GiB, or as 50% of the GPU's
    ///
    /// Each program of the guest sees a GPU with seven eighths of this memory. A percentage is of the largest heap of the GPU's own, added up over several GPUs [default: all of the GPU's]
    #[arg(long, value_name = "SIZE|%", value_parser = str::parse::<Amount>)]
    pub device_memory: Option<Amount>,
    /// GPU memory of one context, that is, one guest program, as for --device-memory
    ///
    /// [default: no limit beyond the VM's]
    #[arg(long, value_name = "SIZE|%", value_parser = str::parse::<Amount>)]
    pub context_device_memory: Option<Amount>,
    /// Host memory that the VM's programs share with the GPU
    ///
    /// [default: three quarters of the machine's, but at most seven eighths of --worker-memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub host_memory: Option<u64>,
    /// Host memory that one context shares with the GPU [default: no limit beyond the VM's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub context_host_memory: Option<u64>,
    /// Host memory for the VM's command rings and replies [default: 8GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub ring_memory: Option<u64>,
    /// Host memory for the shaders of one context [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub shader_memory: Option<u64>,
    /// Cost of one shader for the driver's compiler
    ///
    /// Instructions with all calls inlined, and numbers in constants [default: 262144]
    #[arg(long, value_name = "COUNT")]
    pub max_shader_cost: Option<u64>,
    /// Longest time that the driver may take to create pipelines, with ms, s or min
    ///
    /// After that the context is killed [default: 5min]
    #[arg(long, help_heading = "Time limits", value_name = "TIME", value_parser = time)]
    pub max_pipeline_time: Option<Duration>,
    /// Number of contexts of the VM, each of which is a process [default: 256]
    #[arg(long, value_name = "COUNT")]
    pub max_contexts: Option<usize>,
    /// Number of command rings of one context, each of which is a thread [default: 256]
    #[arg(long, value_name = "COUNT")]
    pub max_rings: Option<usize>,
    /// Number of command rings of the VM [default: 2048]
    #[arg(long, value_name = "COUNT")]
    pub max_vm_rings: Option<usize>,
    /// Number of Vulkan objects of one context [default: 1048576]
    #[arg(long, value_name = "COUNT")]
    pub max_objects: Option<usize>,
    /// Number of virtio-gpu resources of the VM, such as shared buffers [default: 65536]
    #[arg(long, value_name = "COUNT")]
    pub max_resources: Option<usize>,
    /// Memory of all worker processes of the VM, including memory shared with the GPU
    ///
    /// The limit needs a control group (--cgroup) [default: seven eighths of the machine's, but at most the VM's part of MemoryMax=]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub worker_memory: Option<u64>,
    /// Memory of its own that one worker process may have
    ///
    /// This memory is shared with neither guest nor GPU, and most of it is the driver's. The limit needs no control group [default: --host-memory and 2GiB; no limit where a control group limits the workers]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_worker_data: Option<u64>,
    /// Number of the VM's worker processes and their threads
    ///
    /// The limit needs a control group (--cgroup) [default: 16384, but at most the VM's part of TasksMax=]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tasks: Option<u32>,
    /// Number of mappings in the guest's window; QEMU supports about 500
    ///
    /// [default: 400, or 16384 with frontends like crosvm, which do not announce mappings as guest memory]
    #[arg(long, value_name = "COUNT")]
    pub max_maps: Option<usize>,
    /// Number of lines that workers and their drivers may add to the log per minute [default: 600]
    #[arg(long, value_name = "COUNT")]
    pub max_log_lines: Option<u32>,
}

impl Quotas {
    /// Returns the limits of the VM and of each context, without those on memory of GPUs, which are not known yet.
    #[must_use]
    pub fn limits(&self) -> (DeviceLimits, ContextLimits) {
        let (vm, context) = (DeviceLimits::default(), ContextLimits::default());
        let device = DeviceLimits {
            contexts: self.max_contexts.unwrap_or(vm.contexts),
            resources: self.max_resources.unwrap_or(vm.resources),
            live_maps: self.max_maps.unwrap_or(vm.live_maps),
            live_maps_unannounced: self.max_maps.unwrap_or(vm.live_maps_unannounced),
            vm_rings: self.max_vm_rings.unwrap_or(vm.vm_rings),
            log_lines: self.max_log_lines.unwrap_or(vm.log_lines),
            host_memory: self.host_memory.unwrap_or_else(three_quarters_of_memory),
            shmem_total_bytes: self.ring_memory.unwrap_or(vm.shmem_total_bytes),
            ..vm
        };
        let context = ContextLimits {
            host_memory: self.context_host_memory.unwrap_or(context.host_memory),
            objects: self.max_objects.unwrap_or(context.objects),
            shader_bytes: self.shader_memory.unwrap_or(context.shader_bytes),
            rings: self.max_rings.unwrap_or(context.rings),
            pipeline_time: self.max_pipeline_time.unwrap_or(context.pipeline_time),
            shaders: ShaderLimits {
                shader_cost: self.max_shader_cost.unwrap_or(context.shaders.shader_cost),
                ..context.shaders
            },
            ..context
        };
        (device, context)
    }

    /// Bounds the memory of GPUs that have `all` bytes together. Returns the bytes of this memory that the VM may have, if they are bounded.
    pub fn bound_device_memory(
        &self,
        all: u64,
        vm: &mut DeviceLimits,
        context: &mut ContextLimits,
    ) -> Option<u64> {
        let of_all = |amount: Option<Amount>| amount.map(|amount| amount.of(all));
        let (of_vm, of_context) = (of_all(self.device_memory), of_all(self.context_device_memory));
        vm.device_memory = of_vm.unwrap_or(vm.device_memory);
        context.device_memory = of_context.unwrap_or(context.device_memory);
        of_vm
    }

    /// Returns the bytes of private memory that one worker may have, if they are bounded. With `is_grouped`, a control group limits the VM's workers.
    /// `host_memory` is the host memory that the VM's programs may have.
    #[must_use]
    pub fn worker_data(&self, is_grouped: bool, host_memory: u64) -> Option<u64> {
        let usual = (!is_grouped).then(|| host_memory.saturating_add(DRIVERS_OWN));
        self.max_worker_data.or(usual)
    }

    /// Returns the limits on the workers' control group.
    #[must_use]
    pub fn group_limits(&self) -> GroupLimits {
        GroupLimits { memory: self.worker_memory, tasks: self.max_tasks.map(u64::from) }
    }
}

/// The least private memory that a driver needs in a worker, in bytes. Most of it is for thread stacks and a compiler.
const DRIVERS_OWN: u64 = 2 << 30;

fn three_quarters_of_memory() -> u64 {
    HostMemory::open().total().map_or(u64::MAX, |total| total / 4 * 3)
}
