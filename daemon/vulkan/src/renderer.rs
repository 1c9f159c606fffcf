//! The Vulkan side of one context, shared by all its rings.

use super::commands::pipeline_cache::collect::new_data_of_all;
use super::context::allowance::{Allowance, MemoryFile};
use super::context::cancel::Cancel;
use super::context::error::{ContextLost, Fault};
use super::context::journal::{Journal, Journalled};
use super::context::resources::ResourceTable;
use super::context::watchdog_wake::WatchdogWake;
use super::dispatch::{execute, generated};
use super::driver::instance::load_entry;
use super::execution::context::{Context, Environment};
use super::gates::gate::Gate;
use super::logical::timeline::{Done, Look};
use super::memory::export::{self, Exported, NotExported};
use super::record::recorder;
use super::replay;
use super::snapshot::step::{CacheData, Step};
use super::snapshot::{self, Carry, Contents, NotMovable, Prelude, Saved, drain};
use super::submit::state_query::{self, StateQuery};
use config::{CacheKey, ContextLimits, GpuChoice, MemoryId};
use protocol::cursor::{Arena, Writer};
use protocol::venus::generated as venus;
use shm::ResultWords;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Executes commands for one context.
pub struct Renderer(Context);

impl Renderer {
    /// Loads the host's Vulkan loader. The driver starts when the guest makes an instance.
    ///
    /// # Errors
    ///
    /// There is no loader.
    pub fn new(
        gpus: Vec<GpuChoice>,
        limits: ContextLimits,
        cache_key: CacheKey,
        resources: Arc<dyn ResourceTable>,
        allowance: Arc<dyn Allowance>,
    ) -> Result<Self, ContextLost> {
        let entry = load_entry()?;
        Ok(Self::on(Environment::new(entry, gpus, limits, cache_key, resources, allowance)))
    }

    /// Creates the renderer of a context that runs on this environment.
    pub fn on(env: Environment) -> Self {
        Self(Context::new(env))
    }

    /// Returns memory for decoded commands: `own` bytes, and beyond these the bytes that all arenas share.
    pub fn arena(&self, own: usize) -> Arena {
        self.0.arena(own)
    }

    /// Tells the device process where the guest looks for the results of its fences.
    #[must_use]
    pub fn telling(mut self, results: Arc<ResultWords>) -> Self {
        self.0.env.results = Some(results);
        self
    }

    /// Reports to a journal the work that a successor could not repeat, and the pending submissions. To be called before any command is executed.
    #[must_use]
    pub fn journalled(mut self, journal: Arc<dyn Journal>) -> Self {
        self.0.journal = Arc::new(Journalled::by(journal));
        self
    }

    /// Lets submissions pass the gate of their GPU.
    #[must_use]
    pub fn gated(mut self, gates: Vec<Arc<Gate>>) -> Self {
        self.0.env.gates = gates;
        self
    }

    /// Returns whether the driver is starting, when it cannot be stopped.
    pub fn is_coming_up(&self) -> bool {
        self.0.coming_up.load(Ordering::Relaxed)
    }

    /// Executes one command that is not a transport command. `bytes` is its encoding, `reply` the place for its reply, if the
    /// guest wants one; `cancel` ends its waits.
    ///
    /// # Errors
    ///
    /// The stream is wrong or the device is lost; the context is over.
    pub fn execute<'a>(
        &'a self,
        command: &venus::Command<'a>,
        bytes: &'a [u8],
        arena: &'a Arena,
        cancel: &'a Cancel,
        reply: Option<&mut Writer<'_>>,
    ) -> Result<(), ContextLost> {
        execute::execute(&self.0, command, bytes, arena, cancel, reply)
    }

    /// Executes the commands that a stream begins with, if they are recorded into one command buffer and want no reply, at most some
    /// dozens at once. Returns the number of their bytes, or 0 if the first command has to be executed by itself.
    ///
    /// # Errors
    ///
    /// The stream is wrong; the context is over.
    pub fn record(&self, bytes: &[u8], arena: &mut Arena, cancel: &Cancel) -> Result<usize, ContextLost> {
        recorder::record_run(&self.0, bytes, arena, cancel, generated::record)
    }

    /// The state query that a command makes, if its answer may change without the guest's doing.
    pub fn state_query(&self, command: &venus::Command<'_>) -> Option<StateQuery<'_>> {
        state_query::state_query(&self.0, command)
    }

    /// The memory of a memory object, for a blob of `size` bytes.
    ///
    /// # Errors
    ///
    /// There is no such memory object, or its memory cannot be shown.
    pub fn export(&self, memory: u64, size: u64, mappable: bool) -> Result<Exported, NotExported> {
        let context = &self.0;
        context.journal.breaks("memory is shown to its program");
        if let Some(result) = context.failures.take() {
            return Err(NotExported::Unheard(result));
        }
        // Locked until the driver has answered: another ring may be about to free the memory.
        let objects = context.objects.read();
        let none = NotExported::NoMemory(memory);
        let object = objects.get(venus::DeviceMemory(memory)).map_err(|fault| match fault {
            Fault::Failed(result) => NotExported::Failed(result),
            Fault::Lost(_) => none,
        })?;
        let (Some(memory), Some(device)) = (object.get::<venus::DeviceMemory>(), &object.device) else {
            return Err(none);
        };
        let exported = export::export(memory, device, object.raw, size, mappable)?;
        match (&exported.lent, memory.lent()) {
            (Some(_), Some(memory)) => context.retired.lend(memory),
            _ if exported.file.is_some() => context.pool.show(memory),
            _ => {}
        }
        Ok(exported)
    }

    /// Notes that a blob is gone: either of lent memory ([`Exported::lent`]), which no process has mapped any more, or of other memory, which no
    /// other process holds.
    pub fn blob_gone(&self, memory: MemoryId) {
        self.0.journal.breaks("memory is not shown to its program any more");
        if !self.0.pool.blob_gone(memory) {
            self.0.retired.give_back(memory);
        }
    }

    /// Returns whether other processes may have memory mapped that belongs to another allocation once the driver frees it.
    pub fn is_lending(&self) -> bool {
        self.0.retired.is_lending()
    }

    /// The command that created an object, as the guest encoded it: a snapshot rebuilds the object from this command.
    pub fn created_by(&self, id: u64) -> Option<Box<[u8]>> {
        self.0.objects.created_by(id)
    }

    /// Calls `done` when the queue bound to `ring_idx` has completed all submissions so far; at once if no queue is bound.
    pub fn queue_fence(&self, ring_idx: u8, done: Done) {
        match self.0.timelines.get(ring_idx) {
            Some(queue) => queue.fence(done),
            None => {
                log::debug!(ring_idx; "fence on a timeline without a queue, answered at once");
                done();
            }
        }
    }

    /// Lets one thread sleep while there is nothing for [`Self::look`] to find.
    pub fn watchdog_wake(&self) -> &WatchdogWake {
        &self.0.watchdog_wake
    }

    /// Finds the complete submissions, so that the [journal](Self::journalled) learns of them. The first look marks the end of submissions without a
    /// marker, and a later look sees this end.
    pub fn collect(&self) {
        let (queues, now) = (self.0.timelines.all(), Instant::now());
        queues.iter().for_each(|queue| queue.refresh());
        queues.iter().for_each(|queue| _ = queue.look(now, false));
    }

    /// Checks how long submissions run on all queues. Time counts in small steps, so this is to be called often while submissions are pending;
    /// with `restart`, the run times count from 0 again.
    pub fn look(&self, restart: bool) -> Look {
        let (queues, gates) = (self.0.timelines.all(), &self.0.env.gates);
        let now = Instant::now();
        queues.iter().for_each(|queue| queue.refresh());
        if let Some(gate) = gates.first() {
            gate.tell_processor_time();
        }
        let looks: Vec<_> = queues.iter().map(|queue| queue.look(now, restart)).collect();
        for gate in gates {
            let own = queues.iter().zip(&looks).filter(|(queue, _)| queue.passes_through(gate));
            gate.tell_running(own.filter_map(|(_, look)| look.running).max());
        }
        let (pending, compiled) = self.0.compilations.look(now);
        let compilations = Look { pending, compiled, ..Look::default() };
        looks.into_iter().fold(compilations, Look::and)
    }

    /// Destroys everything that the guest made. This waits for the device, so the caller has to bound the time. No command may be in flight
    /// any more, and no memory lent.
    pub fn destroy_objects(&self) {
        self.0.destroy_objects();
    }

    /// Waits until everything that was submitted has completed, for no longer than `patience`. No command is in flight.
    ///
    /// # Errors
    ///
    /// A submission has not completed, or cannot, because it waits for a semaphore that is not signalled yet.
    pub fn drain(&self, patience: Duration) -> Result<(), NotMovable> {
        drain::drain(&self.0, patience)
    }

    /// Writes down the objects that a successor can make before this context rests, for [`Self::rebuild`] in another process that has already
    /// made `so_far`, and returns all that it will then have made. That includes memory if `memory` says how it gets there. Commands may be in flight.
    ///
    /// # Errors
    ///
    /// The successor can make nothing more ahead: it has to make everything else later.
    pub fn save_prelude(
        &self,
        so_far: &Prelude,
        memory: Option<Carry>,
    ) -> Result<(Saved, Prelude), NotMovable> {
        snapshot::prelude::save(&self.0, so_far, memory)
    }

    /// Deposits the memory that [`Self::save`] with [`Carry::Deposited`] would have to deposit. Commands may be in flight.
    pub fn deposit_all(&self) {
        snapshot::deposit_all(&self.0);
    }

    /// Returns the data of pipeline caches, if there is more than at the last call; a successor takes it, as [`Step::CacheData`], ahead
    /// of all other steps. Commands may be in flight.
    pub fn save_cache_data(&self) -> Option<Vec<CacheData>> {
        new_data_of_all(&self.0)
    }

    /// Writes the context down, for [`Self::rebuild`] in a process that has built up the `prelude`. No command is in flight, and
    /// [`Self::drain`] has succeeded.
    ///
    /// # Errors
    ///
    /// A successor cannot rebuild a part of the context.
    pub fn save(&self, prelude: &Prelude, carry: Carry) -> Result<Saved, NotMovable> {
        snapshot::save(&self.0, prelude, carry)
    }

    /// Builds up the context that [`Self::save`] has written down, in a context that has made nothing yet but the prelude.
    ///
    /// # Errors
    ///
    /// A step makes no sense. The context is over.
    pub fn rebuild(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost> {
        snapshot::rebuild(&self.0, steps, files)
    }

    /// Builds up the objects that [`Self::save_prelude`] has written down of a context that goes on.
    ///
    /// # Errors
    ///
    /// A step makes no sense. The context is over.
    pub fn rebuild_ahead(&self, steps: &[Step], files: &[Arc<MemoryFile>]) -> Result<(), ContextLost> {
        snapshot::rebuild_ahead(&self.0, steps, files)
    }

    /// Repeats the commands that a predecessor has executed since the checkpoint that was [rebuilt](Self::rebuild): each entry has whole commands,
    /// and the entries are in the order of their execution. All submissions of the predecessor had completed.
    ///
    /// # Errors
    ///
    /// The bytes are no commands, or commands that [break](crate::Replay::Breaks) a journal; or a command fails that did not fail before. The context
    /// is over.
    pub fn replay(&self, entries: &[&[u8]]) -> Result<(), ContextLost> {
        replay::journal::replay(&self.0, entries)
    }

    /// Returns whether this process can have the driver's memory of the process whose context was rebuilt: whether both have the same GPUs and
    /// drivers.
    pub fn is_at_home(&self) -> bool {
        self.0.restored.is_at_home()
    }

    /// The contents of memory that only the driver uses, as a snapshot with these steps has them: of the context that was saved, or that was
    /// rebuilt. None if the snapshot has no contents.
    ///
    /// # Errors
    ///
    /// The steps are of another context.
    pub fn contents(&self, steps: &[Step]) -> Result<Option<Contents>, ContextLost> {
        Contents::of(&self.0, steps)
    }

    /// The context, for tests.
    #[cfg(any(test, feature = "null-driver"))]
    pub(super) fn context(&self) -> &Context {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_the_device_need_no_graphics_queue() {
        let device = venus::Device(1);
        let question =
            venus::GetRenderingAreaGranularity { device, p_rendering_area_info: None, p_granularity: None };
        assert!(!generated::is_graphics(&venus::Command::GetRenderingAreaGranularity(question)));
        let made = venus::DestroyRenderPass { device, render_pass: venus::RenderPass(0) };
        assert!(generated::is_graphics(&venus::Command::DestroyRenderPass(made)));
    }
}
