//! This file handles the frontend's messages (vhost-user specification, "Front-end message types").
//!
//! It runs on the message thread. No message in use announces a reset: [`super::stops`] tells a reset from a pause.

use super::device_state::{Direction, Transfer};
use super::memory::MemoryTable;
use super::requests::Requests;
use super::shared::Shared;
use super::stops::{Frontend, Stops, Verdict};
use super::vring::Vring;
use super::{CONTROLQ, QUEUES};
use protocol::virtio_gpu::{Features, HOST_VISIBLE_SHMID};
use readiness::{self, Events};
use rustix::fs::{FileType, fstat};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Slots of the memory table: the same number as the kernel's vhost offers.
const MEMORY_SLOTS_MAX: u64 = 509;

/// State of the message thread.
pub(super) struct Handler {
    shared: Arc<Shared>,
    pub(super) table: MemoryTable,
    pub(super) kicks: [Option<File>; QUEUES],
    pub(super) features: u64,
    pub(super) protocol_features: VhostUserProtocolFeatures,
    pub(super) stops: Stops,
}

impl Handler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            table: MemoryTable::new(shared.memory.clone(), shared.config.lent_devices.clone()),
            shared,
            kicks: [const { None }; QUEUES],
            features: 0,
            protocol_features: VhostUserProtocolFeatures::empty(),
            stops: Stops::default(),
        }
    }

    fn vring(&self, index: u32) -> Result<(usize, &Arc<Vring>)> {
        let index = index as usize;
        self.shared.vrings.get(index).map(|vring| (index, vring)).ok_or(Error::InvalidParam)
    }

    /// Takes over the kick of a queue, whether the queue is started or not.
    pub(super) fn resume_kick(&mut self, index: usize, kick: File) -> Result<()> {
        self.set_kick(index, Some(event(kick)?))
    }

    fn set_kick(&mut self, index: usize, kick: Option<File>) -> Result<()> {
        if let Some(old) = self.kicks[index].take() {
            // The frontend holds the same eventfd: closing this copy would not unregister it.
            let _ = readiness::unwatch(&self.shared.epoll, &old);
        }
        if let Some(kick) = kick {
            // Edge-triggered: every kick is an event, and the counter never has to be read.
            let (token, events) = (self.shared.tokens.kick, Events::EPOLLIN | Events::EPOLLET);
            readiness::watch(&self.shared.epoll, &kick, token, events).map_err(Error::ReqHandlerError)?;
            self.kicks[index] = Some(kick);
        }
        Ok(())
    }

    /// Returns the facts by which a stop is judged.
    fn frontend(&self) -> Frontend {
        let announces = self.shared.announces_maps.load(Ordering::Relaxed);
        Frontend { features: self.features, maps: announces.then(|| self.table.len()) }
    }

    /// Changes the memory table. A frontend that changes the table while the queue runs announces its mappings there.
    fn change_table(&mut self, change: impl FnOnce(&mut MemoryTable) -> Result<()>) -> Result<()> {
        let changed = change(&mut self.table);
        self.shared.set_regions(self.table.regions());
        if self.shared.vrings[CONTROLQ].is_started() {
            self.shared.announces_maps.store(true, Ordering::Relaxed);
            // The device thread is to look at the number of regions in the table.
            self.shared.ring_doorbell();
        }
        changed
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        for index in 0..QUEUES {
            let _ = self.set_kick(index, None);
        }
    }
}

impl VhostUserBackendReqHandlerMut for Handler {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        for index in 0..QUEUES {
            self.set_kick(index, None)?;
            self.shared.vrings[index].abandon();
        }
        self.stops.forget();
        self.shared.ring_doorbell();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        let gpu =
            Features::VIRGL | Features::RESOURCE_UUID | Features::RESOURCE_BLOB | Features::CONTEXT_INIT;
        Ok(gpu.bits()
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | 1 << VIRTIO_F_VERSION_1
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_features()? != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = features;
        let protocol_features = features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0;
        for vring in &self.shared.vrings {
            vring.set_event_idx(features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0);
            vring.set_indirect(features & (1 << VIRTIO_RING_F_INDIRECT_DESC) != 0);
            if !protocol_features {
                vring.set_enabled(true);
            }
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        self.change_table(|table| table.set(regions, files))?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let (_, vring) = self.vring(index)?;
        if !vring.set_size(num) {
            // The reason for the end of a session is logged elsewhere, within limits.
            return Err(Error::InvalidOperation("a queue size other than a power of two up to 32768"));
        }
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let (_, vring) = self.vring(index)?;
        let [descriptor, available, used] =
            [descriptor, available, used].map(|addr| self.table.translate(addr));
        if !vring.set_addresses(descriptor?, available?, used?) {
            return Err(Error::InvalidParam);
        }
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let frontend = self.frontend();
        let (index, _) = self.vring(index)?;
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        let verdict = self.stops.judge(index, base, frontend);
        self.shared.vrings[index].set_base(base, verdict == Verdict::Reset);
        if index == CONTROLQ && verdict == Verdict::Pause {
            log::debug!(base; "the frontend goes on after a pause");
        }
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (at, vring) = self.vring(index)?;
        let base = vring.stop();
        self.stops.stopped(at, base, self.frontend());
        self.set_kick(at, None)?;
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        let kick = kick.map(event).transpose()?;
        let (index, _) = self.vring(u32::from(index))?;
        self.set_kick(index, kick)?;
        self.shared.vrings[index].start();
        self.shared.ring_doorbell();
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        self.vring(u32::from(index))?.1.set_call(call.map(event).transpose()?);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _err: Option<File>) -> Result<()> {
        self.vring(u32::from(index)).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_SEND_FD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::DEVICE_STATE
            | VhostUserProtocolFeatures::SHMEM)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.protocol_features = VhostUserProtocolFeatures::from_bits_truncate(features);
        let announces = self.protocol_features.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS);
        self.shared.announces_maps.store(announces, Ordering::Relaxed);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(QUEUES as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.1.set_enabled(enable);
        self.shared.ring_doorbell();
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        self.stops.config_read();
        let (offset, size) = (offset as usize, size as usize);
        let bytes = offset.checked_add(size).and_then(|end| self.shared.config.space.get(offset..end));
        bytes.map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // Only `events_clear` can be written, and this device never has an event.
        Ok(())
    }

    fn set_backend_req_fd(&mut self, _backend: Backend) {
        let acknowledges = self.protocol_features.contains(VhostUserProtocolFeatures::REPLY_ACK);
        self.shared.acknowledges.store(acknowledges, Ordering::Relaxed);
        let arrived = self.shared.arriving.lock().take();
        let maps = self.protocol_features.contains(VhostUserProtocolFeatures::SHMEM);
        let requests = arrived.filter(|_| maps).map(|socket| Arc::new(Requests::new(socket, acknowledges)));
        *self.shared.requests.lock() = requests;
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation(
            "no display protocol: this is a front end for displays (vhost-user-gpu-pci), use the generic vhost-user device",
        ))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no shared objects"))
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("no in-flight tracking"))
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("no in-flight tracking"))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MEMORY_SLOTS_MAX)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.change_table(|table| table.add(region, file))?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.change_table(|table| table.remove(region))
    }

    fn set_device_state_fd(
        &mut self,
        direction: VhostTransferStateDirection,
        VhostTransferStatePhase::STOPPED: VhostTransferStatePhase,
        file: File,
    ) -> Result<Option<File>> {
        let direction = match direction {
            VhostTransferStateDirection::SAVE => Direction::Save,
            VhostTransferStateDirection::LOAD => Direction::Load,
        };
        if self.shared.vrings.iter().any(|vring| vring.is_started()) {
            log::error!("the frontend wants the device's state to be saved or loaded while queues run");
            return Err(Error::InvalidOperation("a transfer of state while queues run"));
        }
        if !self.shared.transfers.wants(Transfer { direction, file }) {
            return Err(Error::InvalidOperation("a second transfer of state at a time"));
        }
        self.shared.ring_doorbell();
        Ok(None)
    }

    fn check_device_state(&mut self) -> Result<()> {
        match self.shared.transfers.outcome() {
            true => Ok(()),
            false => Err(Error::InvalidOperation("the transfer of state has failed")),
        }
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        let mut sizes = [0; 2];
        sizes[usize::from(HOST_VISIBLE_SHMID)] = self.shared.config.window_size;
        Ok(VhostUserShMemConfig::new(1, &sizes))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("no migration"))
    }
}

/// Accepts a descriptor only if it is for events. Other files could do anything when they are polled or written to; the kernel's own kinds, which
/// have no file type, do not. The flags do not say for good whether the descriptor blocks, as the frontend can change them.
fn event(file: File) -> Result<File> {
    let stat = fstat(&file).map_err(|error| Error::ReqHandlerError(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Unknown {
        return Ok(file);
    }
    log::error!("the frontend sends a file that is no eventfd where it has to send one");
    Err(Error::InvalidParam)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn an_eventfd_is_an_event_and_what_could_be_anything_is_none() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        assert!(event(eventfd.into()).is_ok());
        let (pipe, other_end) = rustix::pipe::pipe().unwrap();
        let (socket, _) = UnixStream::pair().unwrap();
        let null = File::options().write(true).open("/dev/null").unwrap();
        let files =
            [pipe, other_end, OwnedFd::from(socket), null.into(), tempfile::tempfile().unwrap().into()];
        for file in files {
            assert!(event(file.into()).is_err());
        }
    }
}
