//! A guest's context as commands are executed for it: the environment that it runs on and may use, and the objects that it has made.

use super::failures::Failures;
use crate::context::allowance::Allowance;
use crate::context::budget::Budget;
use crate::context::cause::Limit;
use crate::context::compilations::Compilations;
use crate::context::error::ContextLost;
use crate::context::journal::Journalled;
use crate::context::resources::ResourceTable;
use crate::context::restored::Restored;
use crate::context::watchdog_wake::WatchdogWake;
use crate::disposal::freed::Freed;
use crate::disposal::given_up::GivenUp;
use crate::disposal::pool::Pool;
use crate::disposal::retired::Retired;
use crate::disposal::unfilled::Unfilled;
use crate::driver::instance::api_version;
use crate::gates::gate::Gate;
use crate::logical::device::Device;
use crate::logical::timeline::Timelines;
use crate::objects::table::Objects;
use config::{CacheKey, ContextLimits, GpuChoice, MemoryBackEnd};
use protocol::cursor::Arena;
use protocol::venus::generated as venus;
use shm::ResultWords;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The environment that a context runs on and may use, which it gets when it begins.
pub struct Environment {
    /// The host's Vulkan loader, which instances come from.
    pub entry: ash::Entry,
    /// Highest API version that a guest sees.
    pub api_version: u32,
    /// The GPUs, at least one.
    pub gpus: Vec<GpuChoice>,
    /// Bounds on the objects that the guest may make.
    pub limits: ContextLimits,
    /// The key that pipeline caches are authenticated with.
    pub cache_key: CacheKey,
    /// Grants the memory that the context may allocate.
    pub allowance: Arc<dyn Allowance>,
    /// The resources that the guest can import.
    pub resources: Arc<dyn ResourceTable>,
    /// The table in which the worker notes where the guest polls for the results of its fences.
    pub results: Option<Arc<ResultWords>>,
    /// The gates that submissions to each GPU pass, if they are scheduled.
    pub gates: Vec<Arc<Gate>>,
}

/// A context.
pub struct Context {
    /// Memory that a successor needed only to be built up. It is freed before its device is destroyed.
    pub given_up: GivenUp,
    /// Memory that is filled when the context is taken over. It is forgotten before its device is destroyed.
    pub unfilled: Unfilled,
    /// The count of the times that memory of the context was freed.
    pub freed: Freed,
    /// The environment that it runs on and may use.
    pub env: Environment,
    /// True while the driver starts, which may take as long as another context's kernel occupies the GPU.
    pub coming_up: AtomicBool,
    /// The failures that the guest has not heard of.
    pub failures: Failures,
    /// The objects that the guest created.
    pub objects: Arc<Objects>,
    /// The objects that the guest destroyed.
    pub retired: Retired,
    /// Memory that the guest may want again.
    pub pool: Arc<Pool>,
    /// The part that wakes the watchdog, the thread which watches submissions.
    pub watchdog_wake: WatchdogWake,
    /// Calls in which the driver compiles shaders.
    pub compilations: Compilations,
    /// Queues by `ring_idx`.
    pub timelines: Timelines,
    /// The journal, which is told which work a successor could not repeat.
    pub journal: Arc<Journalled>,
    /// Memory that a snapshot brings along.
    pub restored: Restored,
    /// Bytes of recorded commands that are kept.
    pub recorded: Budget,
    /// Bytes that decoded commands hold.
    decoded: Budget,
}

impl Environment {
    /// An environment without a scheduler, on the driver behind `entry`.
    pub fn new(
        entry: ash::Entry,
        gpus: Vec<GpuChoice>,
        limits: ContextLimits,
        cache_key: CacheKey,
        resources: Arc<dyn ResourceTable>,
        allowance: Arc<dyn Allowance>,
    ) -> Self {
        let (results, gates) = (None, Vec::new());
        let api_version = api_version(&entry);
        Self { entry, api_version, gpus, limits, cache_key, allowance, resources, results, gates }
    }

    /// The back end of memory that guests map, on all GPUs.
    pub fn memory(&self) -> MemoryBackEnd {
        self.gpus[0].memory
    }
}

impl Context {
    /// A context in which nothing was made yet.
    pub fn new(env: Environment) -> Self {
        let limits = &env.limits;
        let freed = Freed::default();
        let pool = Arc::new(Pool::new(limits, freed.clone()));
        Self {
            coming_up: AtomicBool::new(false),
            failures: Failures::default(),
            objects: Arc::new(Objects::new(limits)),
            retired: Retired::new(limits.retired, Arc::clone(&pool)),
            pool,
            given_up: GivenUp::new(freed.clone()),
            unfilled: Unfilled::default(),
            freed,
            watchdog_wake: WatchdogWake::default(),
            compilations: Compilations::new(limits.pipeline_time),
            restored: Restored::default(),
            timelines: Timelines::default(),
            journal: Arc::default(),
            recorded: Budget::new(Limit::RecordingBytes, limits.recording_bytes),
            decoded: Budget::new(Limit::ArenaBytes, limits.arena_bytes),
            env,
        }
    }

    /// Returns memory for decoded commands: `own` bytes, and beyond these the bytes that all arenas share.
    pub fn arena(&self, own: usize) -> Arena {
        Arena::within(own, self.decoded.count())
    }

    /// Destroys a device and everything it owns.
    ///
    /// # Errors
    ///
    /// A limit is reached.
    pub fn destroy_device(&self, device: &Arc<Device>) -> Result<(), ContextLost> {
        self.given_up.finish();
        self.unfilled.forget(device);
        let timelines = device.timelines();
        let mut objects = self.objects.drain_device(device);
        device.end();
        objects.sort_by_key(|object| destruction_rank(object.kind()));
        self.pool.close(device);
        for object in objects {
            object.close();
            self.retired.destroy(object)?;
        }
        // Not before: submissions on these queues are watched until they are over.
        timelines.into_iter().for_each(|ring_idx| self.timelines.unbind(ring_idx));
        Ok(())
    }

    /// Destroys everything that the guest made. This waits for the device, so the caller has to bound the time. No command may be in flight any
    /// more, and no memory lent.
    pub fn destroy_objects(&self) {
        for device in self.objects.drain::<venus::Device>() {
            // Only the limit can make this fail, and objects beyond the limit end with the process.
            let _ = self.destroy_device(&device);
        }
        self.retired.flush();
        self.objects.clear();
    }
}

/// The place of a kind of object in the order of destruction: objects come before those that they use.
fn destruction_rank(kind: venus::ObjectType) -> u8 {
    match kind {
        venus::ObjectType::COMMAND_POOL | venus::ObjectType::DESCRIPTOR_POOL => 0,
        venus::ObjectType::PIPELINE => 1,
        venus::ObjectType::FRAMEBUFFER => 3,
        venus::ObjectType::BUFFER_VIEW | venus::ObjectType::IMAGE_VIEW => 4,
        venus::ObjectType::SAMPLER => 5,
        venus::ObjectType::SAMPLER_YCBCR_CONVERSION => 6,
        venus::ObjectType::BUFFER | venus::ObjectType::IMAGE => 7,
        venus::ObjectType::DEVICE_MEMORY => 9,
        _ => 8,
    }
}
