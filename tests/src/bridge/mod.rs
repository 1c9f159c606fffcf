//! The vtest bridge: unmodified Venus clients on this host, served by the real daemon over vhost-user.
//!
//! The bridge is a guest, and the processes that connect are its user space: each connection is a context of one virtio-gpu. The bridge knows nothing
//! of Venus commands, it only carries them. Each client has a thread; completions run on the session's thread.

pub mod client;
pub mod syncs;
pub mod wire;

use crate::guest::Gpu;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};
use std::collections::HashMap;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// A listening bridge. Dropping it closes every connection and removes the socket.
pub struct Bridge {
    shared: Arc<Shared>,
    path: PathBuf,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    gpu: Arc<Gpu>,
    listener: UnixListener,
    capset: Vec<u8>,
    stopping: AtomicBool,
    clients: Mutex<Clients>,
}

#[derive(Default)]
struct Clients {
    last: u64,
    live: HashMap<u64, (UnixStream, Option<JoinHandle<()>>)>,
}

impl Bridge {
    /// Listens on `path` (a stale socket there is replaced) for clients of the device.
    pub fn listen(path: &Path, gpu: Gpu) -> Result<Self> {
        Self::listen_as(path, gpu, |capset| capset)
    }

    /// Does the same, but shows clients the capability set that `changed` makes of the daemon's.
    pub fn listen_as(path: &Path, gpu: Gpu, changed: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<Self> {
        let capset = changed(gpu.capset().context("the daemon's capability set")?);
        if UnixStream::connect(path).is_err() {
            let _ = std::fs::remove_file(path);
        }
        let listener =
            UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
        let shared = Shared {
            gpu: Arc::new(gpu),
            listener,
            capset,
            stopping: AtomicBool::new(false),
            clients: Mutex::default(),
        };
        let shared = Arc::new(shared);
        let acceptor = Builder::new().name("accept".into()).spawn({
            let shared = Arc::clone(&shared);
            move || accept(&shared)
        })?;
        Ok(Self { shared, path: path.into(), acceptor: Some(acceptor) })
    }

    /// The device behind the bridge.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.shared.gpu
    }

    /// The path of the socket on which the bridge listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connections that are served now.
    pub fn live_clients(&self) -> usize {
        self.shared.clients.lock().live.len()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Wakes the acceptor.
        let _ = shutdown(&self.shared.listener, Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let threads: Vec<JoinHandle<()>> = {
            let mut clients = self.shared.clients.lock();
            clients
                .live
                .values_mut()
                .filter_map(|(stream, thread)| {
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                    thread.take()
                })
                .collect()
        };
        for thread in threads {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn accept(shared: &Arc<Shared>) {
    while !shared.stopping.load(Ordering::Acquire) {
        let accepted = shared.listener.accept().map_err(anyhow::Error::from);
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        if let Err(e) = accepted.and_then(|(stream, _)| admit(shared, stream)) {
            log::error!("a client could not be accepted: {e:#}");
            // Most likely this process has no free descriptor: the pause avoids a busy loop until there is one.
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

fn admit(shared: &Arc<Shared>, stream: UnixStream) -> Result<()> {
    let mut clients = shared.clients.lock();
    clients.last += 1;
    let number = clients.last;
    let handle = stream.try_clone()?;
    let owner = Arc::clone(shared);
    let thread = Builder::new().name(format!("client-{number}")).spawn(move || {
        if let Err(e) = client::serve(Arc::clone(&owner.gpu), &stream, &owner.capset)
            && !wire::is_hang_up(&e)
        {
            log::warn!(client = number; "connection closed: {e:#}");
        }
        owner.clients.lock().live.remove(&number);
    })?;
    clients.live.insert(number, (handle, Some(thread)));
    Ok(())
}
