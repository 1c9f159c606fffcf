//! This file writes a session down between two messages of its frontend, and builds it up in another process, which serves the frontend from then on.
//!
//! The frontend notices nothing: its connection is the same, and it is sent nothing. Descriptors are sent beside the text, in the order in which this
//! file takes them.

use super::QUEUES;
use super::error::SessionError;
use super::handler::Handler;
use super::memory::PassedRegion;
use super::passed_files::PassedFiles;
use super::pending::{PassedRequest, PendingResponse};
use super::requests::Requests;
use super::session::{Messages, Session};
use super::shared::{DeviceConfig, Shared, Tokens};
use super::stops::Stops;
use super::vring::PassedVring;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use vhost::vhost_user::VhostUserBackendReqHandlerMut;

/// A session, written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PassedSession {
    features: u64,
    protocol_features: u64,
    announces_maps: bool,
    /// If the frontend has sent a channel for requests: whether it acknowledges them.
    requests: Option<bool>,
    stops: Stops,
    regions: Vec<PassedRegion>,
    vrings: [(PassedVring, HasFiles); QUEUES],
}

/// The files that a queue has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct HasFiles {
    kick: bool,
    call: bool,
}

impl Session {
    /// Writes down a request that is not answered yet. Returns none if the request is void because its queue was reset.
    pub(crate) fn pass_on_request(&self, request: &PendingResponse) -> Option<PassedRequest> {
        request.pass_on(&self.shared().vrings)
    }

    /// Goes on with a request that another process has taken from one of the queues.
    pub(crate) fn resume_request(&self, passed: PassedRequest) -> PendingResponse {
        let vring = &self.shared().vrings[passed.queue.index()];
        PendingResponse::resume(vring, passed)
    }

    /// Writes the session down, with its descriptors. The message thread has to rest meanwhile. `open` is the number of unanswered requests of each
    /// queue that are passed on.
    ///
    /// # Errors
    ///
    /// The reason why that cannot be done now.
    pub(crate) fn pass_on(&self, open: [usize; QUEUES]) -> Result<(PassedSession, Vec<OwnedFd>), String> {
        let copied = |error: io::Error| format!("a descriptor cannot be copied: {error}");
        let handler = self.handler().ok_or("the frontend is gone")?;
        // A panic has ended the process already.
        let handler = handler.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files: Vec<OwnedFd> = vec![self.connection().try_clone().map_err(copied)?.into()];
        let requests = self.shared().requests.lock().clone();
        if let Some(requests) = &requests {
            files.push(requests.as_fd().try_clone_to_owned().map_err(copied)?);
        }
        let (regions, of_regions) = handler.table.pass_on().map_err(copied)?;
        files.extend(of_regions);
        let mut vrings = Vec::new();
        for ((vring, kick), open) in self.shared().vrings.iter().zip(&handler.kicks).zip(open) {
            let passed = vring.pass_on(open).map_err(copied)?;
            let (passed, call) = passed.ok_or("a request is being answered")?;
            let kick =
                kick.as_ref().map(|kick| kick.try_clone().map(OwnedFd::from)).transpose().map_err(copied)?;
            vrings.push((passed, HasFiles { kick: kick.is_some(), call: call.is_some() }));
            files.extend(kick.into_iter().chain(call));
        }
        let passed = PassedSession {
            features: handler.features,
            protocol_features: handler.protocol_features.bits(),
            announces_maps: self.announces_maps(),
            requests: requests.map(|requests| requests.acknowledges()),
            stops: handler.stops.clone(),
            regions,
            vrings: vrings.try_into().map_err(|_| "a queue is missing")?,
        };
        Ok((passed, files))
    }

    /// Builds up a session that another process has written down. It listens to its frontend once [`Self::go_on`] is called.
    ///
    /// # Errors
    ///
    /// The text describes no session, or the system refuses a resource.
    pub(crate) fn resume(
        passed: PassedSession,
        files: &mut PassedFiles,
        config: DeviceConfig,
        epoll: Arc<OwnedFd>,
        tokens: Tokens,
    ) -> Result<Self, SessionError> {
        let connection = UnixStream::from(files.take()?);
        let shared = Shared::new(config, epoll, tokens)?;
        let handler = Handler::new(Arc::clone(&shared));
        let features = (passed.features, passed.protocol_features);
        let messages = Messages::resume(connection.try_clone()?, handler, Arc::clone(&shared), features)?;
        messages.handler().resume(passed, files, &shared)?;
        shared.used.store(true, Ordering::Relaxed);
        Ok(Self::resting(shared, connection, messages)?)
    }
}

impl Handler {
    /// Goes on with the session of another process. The features were negotiated again already.
    fn resume(
        &mut self,
        passed: PassedSession,
        files: &mut PassedFiles,
        shared: &Shared,
    ) -> Result<(), SessionError> {
        shared.announces_maps.store(passed.announces_maps, Ordering::Relaxed);
        if let Some(acknowledges) = passed.requests {
            shared.acknowledges.store(acknowledges, Ordering::Relaxed);
            *shared.requests.lock() = Some(Arc::new(Requests::new(files.take()?, acknowledges)));
        }
        self.stops = passed.stops;
        for region in passed.regions {
            self.table.resume(region, files)??;
        }
        shared.set_regions(self.table.regions());
        for (index, (vring, has)) in passed.vrings.into_iter().enumerate() {
            let kick = if has.kick { Some(files.take()?.into()) } else { None };
            let call = if has.call { Some(files.take()?.into()) } else { None };
            if !shared.vrings[index].resume(&vring) {
                return Err(io::Error::from(io::ErrorKind::InvalidData).into());
            }
            let number = u8::try_from(index).unwrap_or(u8::MAX);
            self.set_vring_call(number, call)?;
            if let Some(kick) = kick {
                self.resume_kick(index, kick)?;
            }
        }
        Ok(())
    }
}
