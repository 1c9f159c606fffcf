//! The log of the events of a VM: a few lines per kind and minute, whatever guests, frontends and workers do.

use super::aftermath::Aftermath;
use super::event::{ContextEvent, DeviceEvent, Of};
use super::limiter::{LogLimiter, Subject};
use crate::device::GuestError;
use log::Level;
use protocol::ids::ContextId;
use protocol::virtio_gpu::Header;
use std::time::Instant;

/// The log of one VM's events.
#[derive(Debug, Default)]
pub(in crate::serve) struct EventLog {
    limiter: LogLimiter,
    pub aftermath: Aftermath,
    pub advised: Advised,
}

/// The advice that was logged already: each kind is logged once for each VM.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::serve) struct Advised {
    /// The frontend's memory regions have run out.
    pub on_maps: bool,
    /// A program of the VM asks for queues that `--queues` denies.
    pub on_queues: bool,
}

impl EventLog {
    /// Logs an event of the device.
    pub(in crate::serve) fn of_device(&mut self, event: DeviceEvent<'_>) {
        let (level, kind) = event.kind();
        self.limiter.log(level, kind, Subject::Vm, format_args!("{event}"));
    }

    /// Logs an event of a context, with the name of its program if that is known.
    pub(in crate::serve) fn of_context(
        &mut self,
        ctx_id: ContextId,
        program: Option<&str>,
        event: ContextEvent<'_>,
    ) {
        let (level, kind) = event.kind();
        let subject = Subject::Context(ctx_id, program);
        self.limiter.log(level, kind, subject, format_args!("{}", Of(ctx_id, event)));
    }

    /// Logs that a request is answered with an error. Returns whether the line has news: the log does not already explain the error.
    pub(in crate::serve) fn refused(
        &mut self,
        header: &Header,
        error: &GuestError,
        program: Option<&str>,
    ) -> bool {
        let (ctx_id, command) = (ContextId(header.ctx_id), header.command);
        let event = ContextEvent::RequestRefused { command, error };
        let is_explained = self.aftermath.explains(header, error, Instant::now());
        if is_explained {
            let line = format_args!("{}", Of(ctx_id, event));
            self.limiter.log(Level::Debug, "explained", Subject::Vm, line);
        } else {
            self.of_context(ctx_id, program, event);
        }
        !is_explained
    }
}
