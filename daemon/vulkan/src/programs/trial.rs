//! Tries out, at start-up, what memory of a GPU can be made of: the device writes, and the probe reads the bytes through the file that a VMM would
//! map. No answer of a driver is believed without this trial; amdgpu's driver, for example, offers imports that fail for files.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::backing::anchors::{NoAnchors, anchors};
use crate::backing::capture::{map_of, watching};
use crate::backing::memory::GRAIN;
use crate::backing::pages::Pages;
use crate::driver::host_pointers::HostPointers;
use crate::driver::memory_fds::{DMA_BUF, MemoryFds, OPAQUE_FD};
use crate::driver::physical_device::host_memory;
use ash::vk;
use config::{DriverMapped, MemoryTrial};
use shm::{MapError, Mapping, device_node};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};

/// Bytes of each memory that is tried.
const BYTES: u64 = GRAIN;

/// The time that the device may take to fill this memory, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;

/// A device that can fill memory.
struct Bench<'i> {
    instance: &'i ash::Instance,
    handle: vk::PhysicalDevice,
    device: ash::Device,
    /// The handle type that the device's memory is imported from or exported as.
    kind: vk::ExternalMemoryHandleTypeFlags,
    family: u32,
    memory: vk::PhysicalDeviceMemoryProperties,
}

/// The handle type of memory that is made of pages.
const PAGES: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// The handle type of memory that is the driver's own.
const OWN: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::empty();

/// The outcomes for memory files and for dma-bufs: for each the trial's result, or the reason why it does not work.
pub(crate) type Outcome = (Result<MemoryTrial, Unusable>, Result<MemoryTrial, Unusable>);

/// The reason why guests cannot have memory that a GPU can use, after the GPU's name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    /// The driver is one of Vulkan 1.0.
    #[error("its driver offers Vulkan 1.0, 1.1 is needed")]
    Old,
    /// The driver does not tell its extensions.
    #[error("its driver lists no extensions: {0}")]
    Extensions(vk::Result),
    /// The driver lacks an extension.
    #[error("its driver lacks {0}")]
    Extension(String),
    /// The driver makes no device with the extensions.
    #[error("its driver makes no device: {0}")]
    Device(vk::Result),
    /// The system makes no memory file.
    #[error("no memory file: {0}")]
    MemoryFile(io::Error),
    /// The driver does not tell which memory types take a memory file.
    #[error("it imports no memory file: {0}")]
    Types(vk::Result),
    /// No memory type that guests can map takes a memory file.
    #[error("it imports memory files into no coherent memory type")]
    NoTypeForFiles,
    /// A memory file does not work.
    #[error("its import of a memory file fails: {0}")]
    Import(Failure),
    /// The driver says that it exports no memory of buffers.
    #[error("it exports no memory of buffers as dma-bufs")]
    NoExport,
    /// Guests could map no memory type.
    #[error("it has no coherent memory type")]
    NoType,
    /// A dma-buf does not work.
    #[error("its export of a dma-buf fails: {0}")]
    Export(Failure),
}

/// The reason why one piece of memory does not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The driver refuses a call.
    #[error(transparent)]
    Driver(#[from] vk::Result),
    /// The file cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The system refuses a file.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The memory would end with its process.
    #[error(transparent)]
    Anchors(#[from] NoAnchors),
    /// No buffer takes memory of this type.
    #[error("no buffer can be bound to it")]
    NoBuffer,
    /// The driver maps its memory in a way that was not seen.
    #[error("its driver maps memory in a way that cannot be traced to a device")]
    NotCaught,
    /// The driver maps its memory out of a file that is not a device.
    #[error("its mapping is of no device")]
    NoDevice,
    /// No memory type takes the memory.
    #[error("no type takes it")]
    NoType,
    /// The GPU's writes are not in the memory.
    #[error("the device's writes do not arrive")]
    NotWritten,
    /// The memory's contents are gone after it was handed over.
    #[error("its contents are lost after the hand-over")]
    Lost,
}

/// Tries both on one GPU with these extensions.
pub(crate) fn try_out(
    instance: &ash::Instance,
    handle: vk::PhysicalDevice,
    extensions: &BTreeMap<String, u32>,
) -> Outcome {
    let host = &[ash::ext::external_memory_host::NAME][..];
    let fds = &[ash::khr::external_memory_fd::NAME, ash::ext::external_memory_dma_buf::NAME][..];
    let bench = |names: &[&std::ffi::CStr], kind| {
        for name in names.iter().map(|name| name.to_string_lossy()) {
            if !extensions.contains_key(&*name) {
                return Err(Unusable::Extension(name.into_owned()));
            }
        }
        Bench::new(instance, handle, names, kind).map_err(Unusable::Device)
    };
    let both = &[ash::ext::external_memory_host::NAME, ash::khr::external_memory_fd::NAME][..];
    let memfd = bench(host, PAGES).and_then(|bench| bench.try_memfd());
    let memfd = memfd.map(|trial| match bench(both, OPAQUE_FD) {
        Ok(bench) => MemoryTrial { exportable_types: bench.exportable_types(!trial.mappable_types), ..trial },
        Err(_) => trial,
    });
    (memfd, bench(fds, DMA_BUF).and_then(|bench| bench.try_dma_buf()))
}

impl<'i> Bench<'i> {
    fn new(
        instance: &'i ash::Instance,
        handle: vk::PhysicalDevice,
        extensions: &[&std::ffi::CStr],
        kind: vk::ExternalMemoryHandleTypeFlags,
    ) -> Result<Self, vk::Result> {
        // SAFETY: the handle comes from this live instance, here and below.
        let families = unsafe { instance.get_physical_device_queue_family_properties(handle) };
        let able = |f: &vk::QueueFamilyProperties| {
            f.queue_flags.intersects(vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS)
        };
        let family = families.iter().position(able).ok_or(vk::Result::ERROR_INITIALIZATION_FAILED)? as u32;
        let priorities = [1.0];
        let queues =
            [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&priorities)];
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let info =
            vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        // SAFETY: as above; `info` and what it points to live until the call returns.
        let device = unsafe { instance.create_device(handle, &info, None) }?;
        let memory = host_memory(instance, handle);
        Ok(Self { instance, handle, device, kind, family, memory })
    }

    /// Returns the memory types that a guest could map, among these.
    fn candidates(&self, bits: u32) -> impl Iterator<Item = u32> {
        let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let unwanted = vk::MemoryPropertyFlags::PROTECTED;
        let types = self.memory.memory_types_as_slice().iter().enumerate();
        types
            .filter(move |(i, _)| bits & (1 << i) != 0)
            .filter(move |(_, ty)| ty.property_flags.contains(wanted))
            .filter(move |(_, ty)| !ty.property_flags.intersects(unwanted))
            .map(|(i, _)| i as u32)
    }

    fn try_memfd(&self) -> Result<MemoryTrial, Unusable> {
        let functions = HostPointers::new(self.instance, self.handle, &self.device);
        let alignment = functions.alignment();
        let pages = Pages::new(BYTES, alignment).map_err(Unusable::MemoryFile)?;
        let types = functions.types(&pages).map_err(Unusable::Types)?;
        let mut trial = MemoryTrial {
            mappable_types: 0,
            shareable: true,
            driver_mapped: DriverMapped::default(),
            exportable_types: 0,
        };
        let mut refusal = Unusable::NoTypeForFiles;
        for ty in self.candidates(types) {
            match self.import_pages(&pages, ty, ty + 1) {
                Ok(_imported) => {
                    // Another context would map the file anew.
                    let again = Pages::of_file(&pages.file(), BYTES, alignment).ok();
                    trial.shareable &= again.is_some_and(|pages| self.import_pages(&pages, ty, !ty).is_ok());
                    trial.mappable_types |= 1 << ty;
                }
                Err(failure) => refusal = Unusable::Import(failure),
            }
        }
        trial.driver_mapped = self.try_driver_mapped(!trial.mappable_types);
        if trial.mappable_types == 0 { Err(refusal) } else { Ok(trial) }
    }

    /// Tries the GPU's own memory, of the types with these bits, as the driver maps it. Types that do not work are left out.
    fn try_driver_mapped(&self, bits: u32) -> DriverMapped {
        let mut works = DriverMapped::default();
        let local = vk::MemoryPropertyFlags::DEVICE_LOCAL;
        let is_local = |ty: &u32| self.memory.memory_types[*ty as usize].property_flags.contains(local);
        let buffers = self.buffer_types().unwrap_or(0);
        for ty in self.candidates(bits).filter(is_local) {
            let tried = match buffers & 1 << ty {
                0 => Err(Failure::NoBuffer),
                _ => self.map_by_driver(ty, ty + 1),
            };
            match tried {
                Ok(device) if works.types == 0 || works.device == device => {
                    works = DriverMapped { types: works.types | 1 << ty, device };
                }
                Ok(_) => log::debug!("memory type {ty} is mapped out of another device"),
                Err(reason) => log::debug!("memory type {ty} cannot be mapped by guests: {reason}"),
            }
        }
        works
    }

    /// Allocates memory, maps it again out of the device that the driver maps it from, lets the GPU write `word`, and reads that. Returns
    /// the device.
    fn map_by_driver(&self, type_index: u32, word: u32) -> Result<u64, Failure> {
        let info = vk::MemoryAllocateInfo::default().allocation_size(BYTES).memory_type_index(type_index);
        let (memory, caught) = watching(BYTES, || self.allocate(&info));
        let memory = memory?;
        let raw = vk::Handle::as_raw(memory.raw);
        // SAFETY: just made, of a type that can be mapped, and not mapped by a call.
        let caught = caught.or_else(|| unsafe { map_of(&self.device, raw, BYTES) });
        let file = caught.ok_or(Failure::NotCaught)?;
        let device = device_node(&file).ok_or(Failure::NoDevice)?;
        anchors(&[device])?;
        // Unmapped before the memory is freed.
        let seen = Mapping::of_device(&file, BYTES)?;
        self.fill(&memory, OWN, word)?;
        holds(&seen, word).then_some(device).ok_or(Failure::NotWritten)
    }

    /// Imports pages and lets the device write `word` into them.
    fn import_pages(&self, pages: &Pages, type_index: u32, word: u32) -> Result<Allocation<'_>, Failure> {
        let mut import = pages.import();
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(pages.size())
            .memory_type_index(type_index)
            .push_next(&mut import);
        let memory = self.allocate(&info)?;
        let seen = Mapping::new(pages.file(), pages.size())?;
        self.fill(&memory, PAGES, word)?;
        holds(&seen, word).then_some(memory).ok_or(Failure::NotWritten)
    }

    fn try_dma_buf(&self) -> Result<MemoryTrial, Unusable> {
        let features = self.features();
        if !features.contains(vk::ExternalMemoryFeatureFlags::EXPORTABLE)
            || features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY)
        {
            return Err(Unusable::NoExport);
        }
        let functions = MemoryFds::new(self.instance, &self.device, self.kind);
        let mut trial = MemoryTrial {
            mappable_types: 0,
            shareable: true,
            driver_mapped: DriverMapped::default(),
            exportable_types: 0,
        };
        let mut refusal = Unusable::NoType;
        for ty in self.candidates(u32::MAX) {
            match self.export_memory(&functions, ty, ty + 1) {
                Ok((_exported, file, seen)) => {
                    trial.mappable_types |= 1 << ty;
                    trial.shareable &= features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE)
                        && self.import_dma_buf(&functions, &file, &seen, !ty).is_ok();
                }
                Err(failure) => refusal = Unusable::Export(failure),
            }
        }
        if trial.mappable_types == 0 { Err(refusal) } else { Ok(trial) }
    }

    /// Returns the memory types among these bits whose memory can be given to another process without a difference that guests would notice. Types
    /// that do not work are left out.
    fn exportable_types(&self, bits: u32) -> u32 {
        if !self.exports() {
            return 0;
        }
        let unwanted = vk::MemoryPropertyFlags::PROTECTED | vk::MemoryPropertyFlags::LAZILY_ALLOCATED;
        let (Ok(needs), Ok(of_pages)) = (self.needs(self.kind), self.needs(PAGES)) else { return 0 };
        // Guests are told of one kind of buffer only.
        let same = (needs.size, needs.alignment) == (of_pages.size, of_pages.alignment);
        let types = if same { bits & needs.memory_type_bits & of_pages.memory_type_bits } else { 0 };
        let all = self.memory.memory_types_as_slice().iter().enumerate();
        let fitting = all.filter(|(i, ty)| types & 1 << i != 0 && !ty.property_flags.intersects(unwanted));
        fitting.fold(0, |works, (ty, _)| match self.hand_over(ty as u32, ty as u32 + 1) {
            Ok(()) => works | 1 << ty,
            Err(reason) => {
                log::debug!("memory of type {ty} cannot be given to another process: {reason}");
                works
            }
        })
    }

    /// Returns the driver's answer on memory of buffers that other processes may have.
    fn features(&self) -> vk::ExternalMemoryFeatureFlags {
        let info = vk::PhysicalDeviceExternalBufferInfo::default().usage(USAGE).handle_type(self.kind);
        let mut answer = vk::ExternalBufferProperties::default();
        // SAFETY: the handle is live.
        unsafe {
            self.instance.get_physical_device_external_buffer_properties(self.handle, &info, &mut answer);
        }
        answer.external_memory_properties.external_memory_features
    }

    /// Returns whether the driver says that memory of buffers can be exported and imported, and need not be dedicated.
    fn exports(&self) -> bool {
        let features = self.features();
        let both = vk::ExternalMemoryFeatureFlags::EXPORTABLE | vk::ExternalMemoryFeatureFlags::IMPORTABLE;
        features.contains(both) && !features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY)
    }

    /// Lets the device write `word` into memory, exports and frees this memory, imports it again, and reads its contents.
    fn hand_over(&self, type_index: u32, word: u32) -> Result<(), Failure> {
        let info = vk::MemoryAllocateInfo::default().allocation_size(BYTES).memory_type_index(type_index);
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(self.kind);
        let memory = self.allocate(&info.push_next(&mut export))?;
        self.fill(&memory, self.kind, word)?;
        let functions = MemoryFds::new(self.instance, &self.device, self.kind);
        let file = functions.export(vk::Handle::as_raw(memory.raw))?;
        drop(memory);
        let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(self.kind).fd(file.as_raw_fd());
        let memory = self.allocate(&info.push_next(&mut import))?;
        // With success the descriptor is the driver's.
        let _ = file.into_raw_fd();
        let host = HostPointers::new(self.instance, self.handle, &self.device);
        let pages = Pages::new(BYTES, host.alignment())?;
        let to = self.candidates(host.types(&pages)?).next().ok_or(Failure::NoType)?;
        let into = self.import_pages(&pages, to, !word)?;
        self.copy(&memory, &into)?;
        let seen = Mapping::new(pages.file(), pages.size())?;
        holds(&seen, word).then_some(()).ok_or(Failure::Lost)
    }

    /// Exports memory, lets the device write `word` into it, and reads that back.
    fn export_memory(
        &self,
        functions: &MemoryFds,
        type_index: u32,
        word: u32,
    ) -> Result<(Allocation<'_>, OwnedFd, Mapping), Failure> {
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(self.kind);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(BYTES)
            .memory_type_index(type_index)
            .push_next(&mut export);
        let memory = self.allocate(&info)?;
        let file = functions.export(vk::Handle::as_raw(memory.raw))?;
        let seen = Mapping::new(&file, BYTES)?;
        self.fill(&memory, self.kind, word)?;
        if !holds(&seen, word) {
            return Err(Failure::NotWritten);
        }
        Ok((memory, file, seen))
    }

    /// Imports a dma-buf, lets the device write `word` into it, and reads the word through the exported memory.
    fn import_dma_buf(
        &self,
        functions: &MemoryFds,
        file: &OwnedFd,
        seen: &Mapping,
        word: u32,
    ) -> Result<(), Failure> {
        let types = functions.types(file)?;
        let file = file.try_clone()?;
        let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(self.kind).fd(file.as_raw_fd());
        let ty = self.candidates(types).next().ok_or(Failure::NoType)?;
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(BYTES)
            .memory_type_index(ty)
            .push_next(&mut import);
        let memory = self.allocate(&info)?;
        // With success the descriptor is the driver's.
        let _ = file.into_raw_fd();
        self.fill(&memory, self.kind, word)?;
        if holds(seen, word) { Ok(()) } else { Err(Failure::NotWritten) }
    }

    fn allocate(&self, info: &vk::MemoryAllocateInfo<'_>) -> Result<Allocation<'_>, vk::Result> {
        // SAFETY: the device is live; `info` and its chain live until the call returns, imported pages until the memory is freed.
        let raw = unsafe { self.device.allocate_memory(info, None) }?;
        Ok(Allocation { device: &self.device, raw })
    }

    /// Returns the types that buffers can be bound to, made as guests' are (see `vulkan::commands::buffer`).
    fn buffer_types(&self) -> Result<u32, vk::Result> {
        self.needs(OWN).map(|needs| needs.memory_type_bits)
    }

    /// Returns the memory requirements of a buffer that may be bound to such memory.
    fn needs(&self, kind: vk::ExternalMemoryHandleTypeFlags) -> Result<vk::MemoryRequirements, vk::Result> {
        let buffer = self.buffer(BYTES, kind)?;
        // SAFETY: device and buffer are live, here and below.
        let needs = unsafe { self.device.get_buffer_memory_requirements(buffer) };
        // SAFETY: in no use.
        unsafe { self.device.destroy_buffer(buffer, None) };
        Ok(needs)
    }

    fn buffer(&self, size: u64, kind: vk::ExternalMemoryHandleTypeFlags) -> Result<vk::Buffer, vk::Result> {
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(kind);
        let info = vk::BufferCreateInfo::default().size(size).usage(USAGE);
        let info = if kind.is_empty() { info } else { info.push_next(&mut external) };
        // SAFETY: the device is live; `info` lives until the call returns.
        unsafe { self.device.create_buffer(&info, None) }
    }

    /// Lets the device fill memory with a word.
    fn fill(
        &self,
        memory: &Allocation<'_>,
        kind: vk::ExternalMemoryHandleTypeFlags,
        word: u32,
    ) -> Result<(), vk::Result> {
        self.with_buffer(memory, kind, |buffer| {
            self.run(|commands| {
                // SAFETY: buffer and command buffer are live, and the latter is being recorded.
                unsafe { self.device.cmd_fill_buffer(commands, buffer, 0, vk::WHOLE_SIZE, word) };
            })
        })
    }

    /// Lets the device copy the driver's own memory into pages.
    fn copy(&self, from: &Allocation<'_>, to: &Allocation<'_>) -> Result<(), vk::Result> {
        self.with_buffer(from, self.kind, |from| {
            self.with_buffer(to, PAGES, |to| {
                self.run(|commands| {
                    let region = [vk::BufferCopy::default().size(BYTES)];
                    // SAFETY: both buffers are of so many bytes, and the command buffer is being recorded.
                    unsafe { self.device.cmd_copy_buffer(commands, from, to, &region) };
                })
            })
        })
    }

    /// Calls `does` with a buffer that is bound to memory; afterwards the device is idle.
    fn with_buffer(
        &self,
        memory: &Allocation<'_>,
        kind: vk::ExternalMemoryHandleTypeFlags,
        does: impl FnOnce(vk::Buffer) -> Result<(), vk::Result>,
    ) -> Result<(), vk::Result> {
        let device = &self.device;
        let buffer = self.buffer(BYTES, kind)?;
        // SAFETY: buffer and memory are new, and as large as said.
        let bound = unsafe { device.bind_buffer_memory(buffer, memory.raw, 0) };
        let done = bound.and_then(|()| does(buffer));
        // SAFETY: the device is idle, also after an error.
        unsafe { device.destroy_buffer(buffer, None) };
        done
    }

    /// Runs the commands that `record` records, and waits for their end.
    fn run(&self, record: impl FnOnce(vk::CommandBuffer)) -> Result<(), vk::Result> {
        let device = &self.device;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.family);
        // SAFETY: the device is live, here and below; each `info` lives until its call returns.
        let pool = unsafe { device.create_command_pool(&info, None) }?;
        let done = self.run_in(pool, record);
        // Before anything is destroyed the device must be done, also after an error.
        // SAFETY: as above.
        let idle = unsafe { device.device_wait_idle() };
        // SAFETY: in no use any more.
        unsafe { device.destroy_command_pool(pool, None) };
        done.and(idle)
    }

    fn run_in(
        &self,
        pool: vk::CommandPool,
        record: impl FnOnce(vk::CommandBuffer),
    ) -> Result<(), vk::Result> {
        let device = &self.device;
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: device, pool and buffer are live, here and below; each `info` lives until its call returns.
        let commands = unsafe { device.allocate_command_buffers(&info) }?;
        let once = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
        let info = vk::CommandBufferBeginInfo::default().flags(once);
        // SAFETY: as above.
        unsafe { device.begin_command_buffer(commands[0], &info) }?;
        record(commands[0]);
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        let (from, to) = (vk::PipelineStageFlags::TRANSFER, vk::PipelineStageFlags::HOST);
        // SAFETY: as above.
        unsafe {
            device.cmd_pipeline_barrier(
                commands[0],
                from,
                to,
                vk::DependencyFlags::empty(),
                &barrier,
                &[],
                &[],
            );
        }
        // SAFETY: as above.
        unsafe { device.end_command_buffer(commands[0]) }?;
        // SAFETY: as above.
        let fence = unsafe { device.create_fence(&vk::FenceCreateInfo::default(), None) }?;
        // SAFETY: the device was created with this queue.
        let queue = unsafe { device.get_device_queue(self.family, 0) };
        let submit = [vk::SubmitInfo::default().command_buffers(&commands)];
        // SAFETY: as above; no other code uses the queue.
        let done = unsafe { device.queue_submit(queue, &submit, fence) }
            // SAFETY: as above.
            .and_then(|()| unsafe { device.wait_for_fences(&[fence], true, PATIENCE_NS) });
        if done == Err(vk::Result::TIMEOUT) {
            // The parent, which waits for this process, ends it.
            return Err(vk::Result::TIMEOUT);
        }
        // SAFETY: the fence is in no use.
        unsafe { device.destroy_fence(fence, None) };
        done
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // SAFETY: allocations borrow the bench, so all are gone, and everything else was destroyed where it was made.
        unsafe { self.device.destroy_device(None) };
    }
}

/// Memory in no use.
struct Allocation<'b> {
    device: &'b ash::Device,
    raw: vk::DeviceMemory,
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing uses it: `fill` waits for the device.
        unsafe { self.device.free_memory(self.raw, None) };
    }
}

const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw() | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// Returns whether the first and the last word are `word`.
fn holds(memory: &Mapping, word: u32) -> bool {
    let mut bytes = [[0; 4]; 2];
    let read = memory.copy_out(0, &mut bytes[0]).and_then(|()| memory.copy_out(BYTES - 4, &mut bytes[1]));
    read.is_ok() && bytes == [word.to_ne_bytes(); 2]
}
