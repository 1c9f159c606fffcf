//! The rings that drivers ask for, and their threads.
//!
//! What a driver asked for is kept as it was encoded: a process that takes the context over decodes it again.

use super::at_rest::{Begin, Rests, RingAtRest};
use super::backend::Backend;
use super::context::{Context, RingEntry};
use super::ring::Ring;
use super::stream::{Executor, Place};
use crate::ipc::ToDevice;
use protocol::cursor::{Arena, Reader};
use protocol::ids::ResourceId;
use protocol::venus::generated::{ChainStruct, Command, CreateRingMESA};
use protocol::venus::ring::RingLayout;
use protocol::venus::stream::Header;
use shm::Mapping;
use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use vulkan::{ContextLost, HostError, InheritedError, StreamError};

/// Bytes that are kept of the command that makes a ring: drivers need fewer than two hundred.
const CREATED_BY_MAX: usize = 4096;

/// A ring that a driver asks for, whose description was checked.
struct Plan {
    id: u64,
    resource: ResourceId,
    pages: Arc<Mapping>,
    layout: RingLayout,
    idle_timeout: Duration,
    priority: i32,
    /// The time within which the monitor has to report.
    period: Option<Duration>,
}

impl Plan {
    fn of<B: Backend>(context: &Context<B>, create: &CreateRingMESA<'_>) -> Result<Self, ContextLost> {
        let info = create.p_create_info.ok_or(StreamError::Without("a description"))?;
        let id = NonZeroU64::new(create.ring).ok_or(StreamError::Without("an id"))?.get();
        let pages = context.resources.shared_memory(info.resource_id)?;
        let layout = RingLayout::validate(info, pages.len() as usize)?;
        let (mut priority, mut period) = (0, None);
        for extension in info.p_next {
            match extension {
                ChainStruct::RingMonitorInfoMESA(monitor) => {
                    period = Some(Duration::from_micros(monitor.max_reporting_period_microseconds.into()));
                }
                ChainStruct::RingPriorityInfoMESA(wanted) => priority = wanted.priority,
                _ => return Err(ContextLost::rule("unknown extension of a ring")),
            }
        }
        let (resource, idle_timeout) =
            (ResourceId(info.resource_id), Duration::from_nanos(info.idle_timeout));
        Ok(Self { id, resource, pages, layout, idle_timeout, priority, period })
    }

    fn ring<B: Backend>(&self, context: &Context<B>) -> Result<Ring, ContextLost> {
        let ring = Ring::new(Arc::clone(&self.pages), self.layout.clone(), self.idle_timeout);
        let ring = ring.map_err(|_| StreamError::Outside("ring", "its resource"))?.named(self.id);
        Ok(match &context.activity {
            Some(activity) => ring.telling(activity),
            None => ring,
        })
    }

    /// Starts the thread of the ring, and adds the ring to the context.
    fn begin<B: Backend>(
        &self,
        context: &Arc<Context<B>>,
        ring: &Arc<Ring>,
        begin: Begin,
        created_by: &[u8],
    ) -> Result<(), ContextLost> {
        let rests = Rests::default();
        context.add_ring(self.id, || {
            let (of_thread, ring_of_thread) = (Arc::clone(&rests), Arc::clone(ring));
            let thread = start(Arc::clone(context), ring_of_thread, self.priority, begin, of_thread)?;
            // A ring with a longer command cannot be handed over.
            let created_by = Some(created_by).filter(|bytes| bytes.len() <= CREATED_BY_MAX);
            let (ring, resource) = (Arc::clone(ring), self.resource);
            Ok(RingEntry { ring, thread, resource, created_by: created_by.map(Into::into), rests })
        })
    }

    fn watch<B: Backend>(&self, context: &Context<B>, ring: Arc<Ring>) -> Result<(), ContextLost> {
        let Some(period) = self.period else { return Ok(()) };
        let watched = context.monitor.watch(ring, period);
        watched.map_err(|error| ContextLost::from(HostError::refused("no thread for the monitor", error)))
    }
}

/// `vkCreateRingMESA`, whose encoding is `bytes`.
pub(super) fn create_ring<B: Backend>(
    context: &Arc<Context<B>>,
    create: &CreateRingMESA<'_>,
    bytes: &[u8],
) -> Result<(), ContextLost> {
    let plan = Plan::of(context, create)?;
    let ring = Arc::new(plan.ring(context)?);
    if !ring.is_fresh() {
        return Err(ContextLost::rule("head or status of a new ring is not 0"));
    }
    plan.begin(context, &ring, Begin::default(), bytes)?;
    let status = plan.layout.status as u64;
    context.answer(&ToDevice::RingBegins { ring: plan.id, resource_id: plan.resource, status }, None);
    plan.watch(context, ring)
}

/// Makes a ring that another process has left at rest; it rests until [`Context::go_on`]. The device process knows the ring already.
///
/// # Errors
///
/// The ring cannot exist.
pub(super) fn take_ring_over<B: Backend>(
    context: &Arc<Context<B>>,
    at_rest: &RingAtRest,
) -> Result<(), ContextLost> {
    if at_rest.created_by.len() > CREATED_BY_MAX {
        return Err(InheritedError::Broken("a ring of an unusual kind").into());
    }
    let arena = Arena::new(1 << 16);
    let mut reader = Reader::new(&at_rest.created_by, &arena);
    let header = Header::decode(&mut reader)?;
    let Command::CreateRingMESA(create) = Command::decode(header.number, &mut reader)? else {
        return Err(InheritedError::Broken("a ring that another command has made").into());
    };
    let plan = Plan::of(context, &create)?;
    let ring = Arc::new(plan.ring(context)?.resting(at_rest.head, at_rest.virtqueue_seqno));
    let begin = at_rest.executor.begin(&context.resources)?;
    plan.begin(context, &ring, begin, &at_rest.created_by)?;
    plan.watch(context, ring)
}

/// Starts the thread of a ring. The thread ends with the ring; a command that it cannot execute ends the context.
fn start<B: Backend>(
    context: Arc<Context<B>>,
    ring: Arc<Ring>,
    priority: i32,
    begin: Begin,
    rests: Rests,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("ring".into()).stack_size(STACK).spawn(move || {
        prepare(priority);
        let mut executor = Executor::new(Arc::clone(&context), Place::Ring(Arc::clone(&ring)), begin);
        if let Err(lost) = serve(&ring, &mut executor, &rests)
            && !ring.cancel().is_cancelled()
        {
            context.lose(&lost);
        }
    })
}

/// Serves a ring until it ends, and rests when the ring is to rest.
fn serve<B: Backend>(ring: &Ring, executor: &mut Executor<B>, rests: &Rests) -> Result<(), ContextLost> {
    loop {
        let mut memory = executor.batches();
        ring.serve(&mut memory, |bytes| executor.run_some(bytes))?;
        drop(memory);
        *rests.lock() = executor.rest();
        if !ring.rest() {
            return Ok(());
        }
    }
}

/// Sets timer slack and priority. If the kernel refuses either, the ring still works.
fn prepare(priority: i32) {
    // Sleeps of some microseconds would otherwise take fifty more.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    // A guest may lower the priority of its ring, but not raise it.
    if priority > 0 {
        let _ = rustix::process::setpriority_process(None, priority.min(19));
    }
}

/// Stack of a ring's thread in bytes: compilers of host drivers run on it, and expect as much as a program's own threads have.
const STACK: usize = 8 << 20;
