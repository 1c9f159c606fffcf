//! A backend that is still being made.
//!
//! A driver may take long to come up: NVIDIA's waits for the GPU while another context's kernel occupies it. The context serves its
//! rings meanwhile, so that the guest's driver sees that somebody is there; only who needs the backend waits for it.

use super::backend::Backend;
use crate::config::MemoryId;
use crate::vulkan::{Cancel, ContextLost, Exported, Gate, Look, Pulse, Question};
use protocol::cursor::{Arena, Writer};
use protocol::venus::generated::Command;
use std::sync::{Arc, OnceLock};

/// How a backend is made.
pub struct Making<B> {
    /// What it beats.
    pub pulse: Pulse,
    /// What its submissions to each GPU pass, if they are scheduled.
    pub gates: Vec<Arc<Gate>>,
    /// Makes it; may take as long as the driver likes.
    pub make: Box<dyn FnOnce() -> Result<B, ContextLost> + Send>,
}

/// The backend, once it is there.
#[derive(Debug)]
pub struct Awaited<B> {
    pulse: Pulse,
    made: OnceLock<Result<B, ContextLost>>,
}

impl<B> Awaited<B> {
    /// Nothing yet; the backend has to beat `pulse`.
    pub fn new(pulse: Pulse) -> Self {
        Self { pulse, made: OnceLock::new() }
    }

    /// Here it is, or why there will be none. To be called once.
    pub fn arrived(&self, made: Result<B, ContextLost>) {
        let first = self.made.set(made).is_ok();
        debug_assert!(first, "made twice");
    }

    /// It is there, or never will be.
    pub fn has_arrived(&self) -> bool {
        self.made.get().is_some()
    }

    fn wait(&self) -> Result<&B, ContextLost> {
        self.made.wait().as_ref().map_err(Clone::clone)
    }

    fn now(&self) -> Option<&B> {
        self.made.get()?.as_ref().ok()
    }
}

impl<B: Backend> Backend for Awaited<B> {
    fn execute<'a>(
        &self,
        command: &Command<'a>,
        bytes: &'a [u8],
        arena: &'a Arena,
        cancel: &Cancel,
        reply: Option<&mut Writer<'_>>,
    ) -> Result<(), ContextLost> {
        self.wait()?.execute(command, bytes, arena, cancel, reply)
    }

    fn question(&self, command: &Command<'_>) -> Option<Question<'_>> {
        self.now()?.question(command)
    }

    fn export(&self, memory: u64, size: u64, mappable: bool) -> Result<Exported, String> {
        self.wait().map_err(|lost| lost.reason)?.export(memory, size, mappable)
    }

    fn blob_gone(&self, memory: MemoryId) {
        if let Some(backend) = self.now() {
            backend.blob_gone(memory);
        }
    }

    fn is_lending(&self) -> bool {
        self.now().is_some_and(Backend::is_lending)
    }

    fn queue_fence(&self, ring_idx: u8, done: Box<dyn FnOnce() + Send>) {
        match self.wait() {
            Ok(backend) => backend.queue_fence(ring_idx, done),
            Err(_) => done(),
        }
    }

    fn look(&self, restart: bool) -> Look {
        self.now().map_or(Look::default(), |backend| backend.look(restart))
    }

    fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    fn destroy_objects(&self) {
        if let Some(backend) = self.now() {
            backend.destroy_objects();
        }
    }
}
