//! The thread that looks how long submissions run and drivers compile, and how much memory is left, and ends this process at the limits.
//!
//! The thread reports to the device process in their shared page, and the device process watches the thread in turn. The driver cannot stop a
//! submission that has run too long, so the context ends with its process. The thread shares no lock with the execution of rings; its calls of the
//! driver do not wait, unless the driver hangs.

use crate::ipc::ToDevice;
use crate::sandbox::end_at_once;
use crate::worker::backend::Backend;
use crate::worker::context::Context;
use rustix::process::{Resource, getrlimit};
use shm::StatusPage;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vulkan::{Cause, ContextLost, Limit, WatchdogWake};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time without submissions after which this thread sleeps; the next submission has to wake it.
const IDLE: Duration = Duration::from_secs(1);

/// The limit that is reached, and its kind.
enum Reached {
    Submission(Duration),
    Compilation(Duration),
    Memory,
}

/// The running thread. It ends when this value is dropped.
pub(super) struct Watchdog {
    watchdog_wake: WatchdogWake,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to look at the submissions of `context`. `kill` ends the process.
    pub(super) fn start<B: Backend>(
        context: Arc<Context<B>>,
        page: StatusPage,
        kill: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let watchdog_wake = context.backend.watchdog_wake().clone();
        let watched = watchdog_wake.clone();
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(move || {
            match watch(&context.backend, &page, &watched) {
                Some(Reached::Submission(limit)) => {
                    context.answer(&ToDevice::Hung { limit }, None);
                    context.lose(&ContextLost::from(Cause::Ended));
                }
                Some(Reached::Compilation(limit)) => {
                    context.lose(&ContextLost::from(Limit::PipelineTime(limit)));
                }
                Some(Reached::Memory) => context.lose(&ContextLost::from(Limit::WorkerData)),
                None => return,
            }
            kill();
        })?;
        Ok(Self { watchdog_wake, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.watchdog_wake.end();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
    }
}

/// Ends this process at once, without the exit handlers of drivers.
pub(super) fn kill() {
    end_at_once(1)
}

/// Looks until a limit is reached; returns that limit, or nothing at the end.
fn watch(backend: &impl Backend, page: &StatusPage, watchdog_wake: &WatchdogWake) -> Option<Reached> {
    let (mut restarts, mut busy) = (page.restarts(), Instant::now());
    let reserve = reserve();
    while !watchdog_wake.has_ended() {
        let now = page.restarts();
        let look = backend.look(std::mem::replace(&mut restarts, now) != now);
        page.tell_usual(look.usual);
        page.tell_served(look.served.map(|at| at.elapsed()));
        page.report(look.running);
        let limit = page.limit();
        if look.running.is_some_and(|running| running >= limit) {
            return Some(Reached::Submission(limit));
        }
        if let Some(limit) = look.compiled {
            return Some(Reached::Compilation(limit));
        }
        if look.pending && !has_room(reserve) {
            return Some(Reached::Memory);
        }
        if look.pending {
            busy = Instant::now();
        }
        if busy.elapsed() < IDLE {
            watchdog_wake.pause(LOOK_EVERY);
        } else {
            watchdog_wake.sleep_unless(|| backend.look(false).pending);
            busy = Instant::now();
        }
    }
    None
}

/// The most memory that is kept free, in bytes: more than drivers take from one look to the next.
const RESERVE_MAX: u64 = 256 << 20;

/// Returns the bytes that have to stay free of the private memory that this process may have; 0 if that has no limit.
fn reserve() -> usize {
    let limit = getrlimit(Resource::Data).current;
    limit.map_or(0, |limit| (limit / 8).min(RESERVE_MAX) as usize)
}

/// Returns whether this process may have so many bytes more.
fn has_room(bytes: usize) -> bool {
    let mut free = Vec::<u8>::new();
    // No byte is written there. Without a look at the vector, the compiler would assume that it has the memory.
    free.try_reserve_exact(bytes).is_ok() && black_box(&free).capacity() >= bytes
}
