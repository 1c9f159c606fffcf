//! A Vulkan driver that does nothing, but checks handles: it knows every handle that it gave out, and panics on any other.
//!
//! Calls that need no answer go to one function, whatever their parameters are: C's calling conventions let a function ignore what it
//! is passed. Creations fail now and then, as the seed says. The calls that the daemon makes for itself (queues, fences, memory) are answered
//! properly. This driver replaces only the host's driver, so that lowering, the object table and raising run at full speed.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::state::{self, Kind};
use super::{addresses, caches, external, queue};
#[cfg(test)]
use super::{exports, memory};
use crate::backing::capture::map;
use ash::vk;
use parking_lot::Mutex;
use protocol::venus::generated::EXTENSIONS;
use rustc_hash::FxHashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

type Function = unsafe extern "system" fn();

/// The entry of this driver.
pub(super) fn entry() -> ash::Entry {
    let functions = ash::StaticFn { get_instance_proc_addr };
    // SAFETY: the function answers as vkGetInstanceProcAddr does, with functions that fit their names.
    unsafe { ash::Entry::from_static_fn(functions) }
}

/// `VkPhysicalDeviceIDProperties::deviceUUID` of its GPUs, in the order in which it lists them.
pub(super) const UUIDS: [[u8; 16]; 2] = [[8; 16], [7; 16]];

unsafe extern "system" fn get_instance_proc_addr(_: vk::Instance, name: *const c_char) -> Option<Function> {
    // SAFETY: callers pass a string.
    resolve(unsafe { CStr::from_ptr(name) }.to_str().ok()?)
}

unsafe extern "system" fn get_device_proc_addr(_: vk::Device, name: *const c_char) -> Option<Function> {
    // SAFETY: callers pass a string.
    resolve(unsafe { CStr::from_ptr(name) }.to_str().ok()?)
}

/// A function without its type.
macro_rules! untyped {
    ($function:expr, $($parameter:ty),*) => {{
        let function: unsafe extern "system" fn($($parameter),*) -> _ = $function;
        // SAFETY: only the type is forgotten; callers know the one that belongs to the name.
        Some(unsafe { std::mem::transmute::<unsafe extern "system" fn($($parameter),*) -> _, Function>(function) })
    }};
}

macro_rules! kinds {
    ($name:expr, $($suffix:literal => $kind:ident),* $(,)?) => {
        match $name {
            $(concat!("vkCreate", $suffix) => return untyped!(create::<{ Kind::$kind as u8 }>, u64, usize, usize, *mut u64),
            concat!("vkDestroy", $suffix) => return untyped!(destroy::<{ Kind::$kind as u8 }>, u64, u64, usize),)*
            _ => {}
        }
    };
}

/// Returns the function of a name, and remembers it, as each instance and device looks names up again.
fn resolve(name: &str) -> Option<Function> {
    static KNOWN: LazyLock<Mutex<FxHashMap<String, Option<Function>>>> = LazyLock::new(Mutex::default);
    if let Some(known) = KNOWN.lock().get(name) {
        return *known;
    }
    let found = find(name);
    KNOWN.lock().insert(name.to_owned(), found);
    found
}

fn find(name: &str) -> Option<Function> {
    let plain = name.trim_end_matches("KHR").trim_end_matches("EXT");
    kinds! { plain,
        "BufferView" => BufferView, "CommandPool" => CommandPool, "DescriptorPool" => DescriptorPool,
        "DescriptorSetLayout" => DescriptorSetLayout, "DescriptorUpdateTemplate" => DescriptorUpdateTemplate,
        "Event" => Event, "Fence" => Fence, "Framebuffer" => Framebuffer, "Image" => Image, "ImageView" => ImageView,
        "PipelineLayout" => PipelineLayout, "PrivateDataSlot" => PrivateDataSlot,
        "QueryPool" => QueryPool, "RenderPass" => RenderPass, "Sampler" => Sampler,
        "SamplerYcbcrConversion" => SamplerYcbcrConversion, "ShaderModule" => ShaderModule,
    }
    match plain {
        "vkGetInstanceProcAddr" => untyped!(get_instance_proc_addr, vk::Instance, *const c_char),
        "vkGetDeviceProcAddr" => untyped!(get_device_proc_addr, vk::Device, *const c_char),
        "vkCreateInstance" => {
            untyped!(create_instance, *const vk::InstanceCreateInfo<'static>, usize, *mut u64)
        }
        "vkDestroyInstance" => untyped!(destroy_instance, u64, usize),
        "vkCreateRenderPass2" => untyped!(create::<{ Kind::RenderPass as u8 }>, u64, usize, usize, *mut u64),
        "vkFreeMemory" => untyped!(free_memory, u64, u64, usize),
        "vkDestroyPipeline" => untyped!(destroy::<{ Kind::Pipeline as u8 }>, u64, u64, usize),
        "vkCreateComputePipelines" | "vkCreateGraphicsPipelines" => {
            untyped!(create_pipelines, u64, u64, u32, usize, usize, *mut u64)
        }
        "vkAllocateCommandBuffers" => {
            untyped!(allocate_command_buffers, u64, *const vk::CommandBufferAllocateInfo<'static>, *mut u64)
        }
        "vkAllocateDescriptorSets" => {
            untyped!(allocate_descriptor_sets, u64, *const vk::DescriptorSetAllocateInfo<'static>, *mut u64)
        }
        "vkFreeCommandBuffers" | "vkFreeDescriptorSets" => untyped!(free, u64, u64, u32, *const u64),
        "vkResetDescriptorPool" => untyped!(reset_descriptor_pool, u64, u64),
        "vkEnumerateInstanceVersion" => untyped!(enumerate_instance_version, *mut u32),
        "vkEnumeratePhysicalDevices" => untyped!(enumerate_physical_devices, u64, *mut u32, *mut u64),
        "vkEnumerateDeviceExtensionProperties" => {
            untyped!(extensions, u64, usize, *mut u32, *mut vk::ExtensionProperties)
        }
        "vkGetPhysicalDeviceProperties" => untyped!(properties, u64, *mut vk::PhysicalDeviceProperties),
        "vkGetPhysicalDeviceProperties2" => {
            untyped!(properties2, u64, *mut vk::PhysicalDeviceProperties2<'static>)
        }
        "vkGetPhysicalDeviceQueueFamilyProperties" => {
            untyped!(queue_families, u64, *mut u32, *mut vk::QueueFamilyProperties)
        }
        "vkGetPhysicalDeviceMemoryProperties" => {
            untyped!(memory, u64, *mut vk::PhysicalDeviceMemoryProperties)
        }
        "vkGetPhysicalDeviceImageFormatProperties" => untyped!(
            image_format,
            u64,
            vk::Format,
            vk::ImageType,
            vk::ImageTiling,
            vk::ImageUsageFlags,
            vk::ImageCreateFlags,
            *mut vk::ImageFormatProperties
        ),
        "vkGetDeviceQueue" => untyped!(get_device_queue, u64, u32, u32, *mut u64),
        "vkGetDeviceQueue2" => untyped!(get_device_queue2, u64, usize, *mut u64),
        "vkGetQueryPoolResults" => untyped!(query_results, u64, u64, u32, u32, usize, *mut u8, u64, u32),
        "vkGetBufferMemoryRequirements" | "vkGetImageMemoryRequirements" => {
            untyped!(memory_requirements, u64, u64, *mut vk::MemoryRequirements)
        }
        "vkCreatePipelineCache" => {
            untyped!(caches::create, u64, *const vk::PipelineCacheCreateInfo<'static>, usize, *mut u64)
        }
        "vkDestroyPipelineCache" => {
            untyped!(destroy::<{ Kind::PipelineCache as u8 }>, u64, u64, usize)
        }
        "vkGetPipelineCacheData" => untyped!(caches::data, u64, u64, *mut usize, *mut u8),
        "vkMergePipelineCaches" => untyped!(caches::merge, u64, u64, u32, *const u64),
        "vkMapMemory" | "vkMapMemory2" => untyped!(refuse_to_map, u64),
        "vkGetFenceStatus" => untyped!(fence_status, u64, u64),
        "vkWaitForFences" => untyped!(wait_for_fences, u64, u32, *const u64, u32, u64),
        "vkResetFences" => untyped!(reset_fences, u64, u32, *const u64),
        "vkQueueSubmit" => untyped!(queue::submit, u64, u32, *const vk::SubmitInfo<'static>, u64),
        "vkQueueSubmit2" => untyped!(queue::submit2, u64, u32, *const vk::SubmitInfo2<'static>, u64),
        "vkUpdateDescriptorSets" => untyped!(
            update_descriptor_sets,
            u64,
            u32,
            *const vk::WriteDescriptorSet<'static>,
            u32,
            *const vk::CopyDescriptorSet<'static>
        ),
        "vkCmdBindPipeline" => untyped!(bind_pipeline, u64, i32, u64),
        "vkCmdBindDescriptorSets" => untyped!(bind_descriptor_sets, u64, i32, u64, u32, u32, *const u64),
        "vkCmdPipelineBarrier" => untyped!(pipeline_barrier, u64, u32),
        #[cfg(test)]
        "vkCmdCopyQueryPoolResults" => untyped!(copy_results, u64, u64, u32, u32, u64, u64, u64, u32),
        #[cfg(test)]
        "vkBindBufferMemory" => untyped!(memory::bind, u64, u64, u64, u64),
        #[cfg(test)]
        "vkCmdFillBuffer" => untyped!(memory::fill, u64, u64, u64, u64, u32),
        #[cfg(test)]
        "vkCmdCopyBuffer" => untyped!(memory::copy, u64, u64, u64, u32, *const vk::BufferCopy),
        #[cfg(test)]
        "vkCmdUpdateBuffer" => untyped!(update_buffer, u64, u64, u64, u64, *const u8),
        _ => find_addresses(plain).or_else(|| find_external(plain)).or_else(|| find_waiting(plain)),
    }
}

/// Returns the function of a name that has to do with external memory.
fn find_external(plain: &str) -> Option<Function> {
    match plain {
        "vkGetPhysicalDeviceExternalBufferProperties" => {
            untyped!(
                external::external_buffer,
                u64,
                *const vk::PhysicalDeviceExternalBufferInfo<'static>,
                *mut vk::ExternalBufferProperties<'static>
            )
        }
        "vkGetMemoryHostPointerProperties" => {
            untyped!(
                external::host_pointer,
                u64,
                u32,
                usize,
                *mut vk::MemoryHostPointerPropertiesEXT<'static>
            )
        }
        #[cfg(test)]
        "vkGetPhysicalDeviceMemoryProperties2" => {
            untyped!(exports::memory2, u64, *mut vk::PhysicalDeviceMemoryProperties2<'static>)
        }
        #[cfg(test)]
        "vkGetMemoryFd" => {
            untyped!(exports::get_memory_fd, u64, *const vk::MemoryGetFdInfoKHR<'static>, *mut i32)
        }
        _ => None,
    }
}

/// Returns the function of a name that has to do with device addresses.
fn find_addresses(plain: &str) -> Option<Function> {
    match plain {
        "vkCreateDevice" => {
            untyped!(create_device, u64, *const vk::DeviceCreateInfo<'static>, usize, *mut u64)
        }
        "vkDestroyDevice" => untyped!(destroy::<{ Kind::Device as u8 }>, u64, u64, usize),
        "vkCreateBuffer" => {
            untyped!(create_buffer, u64, *const vk::BufferCreateInfo<'static>, usize, *mut u64)
        }
        "vkDestroyBuffer" => untyped!(destroy::<{ Kind::Buffer as u8 }>, u64, u64, usize),
        "vkAllocateMemory" => {
            untyped!(allocate_memory, u64, *const vk::MemoryAllocateInfo<'static>, usize, *mut u64)
        }
        "vkGetPhysicalDeviceFeatures2" => {
            untyped!(addresses::features2, u64, *mut vk::PhysicalDeviceFeatures2<'static>)
        }
        "vkGetBufferDeviceAddress" | "vkGetBufferOpaqueCaptureAddress" => {
            untyped!(addresses::buffer_address, u64, *const vk::BufferDeviceAddressInfo<'static>)
        }
        "vkGetDeviceBufferMemoryRequirements" => {
            untyped!(addresses::buffer_requirements, u64, *const vk::DeviceBufferMemoryRequirements<'static>)
        }
        "vkGetDeviceMemoryOpaqueCaptureAddress" => {
            untyped!(addresses::memory_address, u64, *const vk::DeviceMemoryOpaqueCaptureAddressInfo<'static>)
        }
        _ => None,
    }
}

/// Returns the function of a name that has to do with semaphores or events, or that is unknown.
fn find_waiting(plain: &str) -> Option<Function> {
    match plain {
        "vkCreateSemaphore" => {
            untyped!(create_semaphore, u64, *const vk::SemaphoreCreateInfo<'static>, usize, *mut u64)
        }
        "vkDestroySemaphore" => untyped!(destroy::<{ Kind::Semaphore as u8 }>, u64, u64, usize),
        "vkGetSemaphoreCounterValue" => untyped!(counter, u64, u64, *mut u64),
        "vkSignalSemaphore" => {
            untyped!(signal_semaphore, u64, *const vk::SemaphoreSignalInfo<'static>)
        }
        "vkGetEventStatus" => untyped!(event_status, u64, u64),
        "vkSetEvent" => untyped!(set_event::<true>, u64, u64),
        "vkResetEvent" => untyped!(set_event::<false>, u64, u64),
        _ => untyped!(anything, u64),
    }
}

/// The function for all other names: the first parameter is a dispatchable handle. This function returns 0, which suits a `VkResult`, a number or
/// `void`.
unsafe extern "system" fn anything(dispatchable: u64) -> u64 {
    state::assert_live(dispatchable, None);
    0
}

unsafe extern "system" fn pipeline_barrier(command_buffer: u64, source: u32) {
    state::assert_live(command_buffer, Some(Kind::CommandBuffer as u8));
    state::barrier(source);
}

#[cfg(test)]
unsafe extern "system" fn copy_results(
    command_buffer: u64,
    pool: u64,
    first: u32,
    count: u32,
    buffer: u64,
    offset: u64,
    _: u64,
    _: u32,
) {
    state::assert_of(command_buffer, pool, Kind::QueryPool);
    state::assert_of(command_buffer, buffer, Kind::Buffer);
    state::RESULTS.lock().push((offset, Err((first, count))));
}

#[cfg(test)]
unsafe extern "system" fn update_buffer(
    command_buffer: u64,
    buffer: u64,
    offset: u64,
    size: u64,
    data: *const u8,
) {
    state::assert_of(command_buffer, buffer, Kind::Buffer);
    // SAFETY: callers pass `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data, size as usize) };
    state::RESULTS.lock().push((offset, Ok(bytes.to_vec())));
}

unsafe extern "system" fn create<const KIND: u8>(parent: u64, _: usize, _: usize, out: *mut u64) -> i32 {
    state::assert_live(parent, None);
    if let Some(failure) = state::failure() {
        return failure;
    }
    // SAFETY: callers of every creation pass a place for the handle.
    unsafe { *out = state::add(KIND, parent) };
    0
}

unsafe extern "system" fn destroy<const KIND: u8>(first: u64, second: u64, _: usize) {
    // Devices are destroyed without a parent.
    if KIND == Kind::Device as u8 {
        state::remove_parent(first, KIND);
    } else {
        state::assert_live(first, Some(Kind::Device as u8));
        match KIND {
            _ if second == 0 => {}
            kind if kind == Kind::CommandPool as u8 || kind == Kind::DescriptorPool as u8 => {
                state::remove_children(second);
                state::remove(second, KIND, first);
            }
            _ => state::remove(second, KIND, first),
        }
    }
}

unsafe extern "system" fn create_device(
    gpu: u64,
    info: *const vk::DeviceCreateInfo<'static>,
    allocator: usize,
    out: *mut u64,
) -> i32 {
    // SAFETY: the parameters of every creation.
    let result = unsafe { create::<{ Kind::Device as u8 }>(gpu, 0, allocator, out) };
    if result == 0 && !state::is_trusting() {
        // SAFETY: callers pass a description, and with success there is a handle.
        unsafe { addresses::device_made(*out, &*info) };
    }
    result
}

unsafe extern "system" fn create_buffer(
    device: u64,
    info: *const vk::BufferCreateInfo<'static>,
    allocator: usize,
    out: *mut u64,
) -> i32 {
    let address = match state::is_trusting() {
        true => Ok(0),
        // SAFETY: callers pass a description.
        false => unsafe { addresses::of_buffer(device, &*info) },
    };
    let address = match address {
        Ok(address) => address,
        Err(refused) => return refused,
    };
    // SAFETY: the parameters of every creation.
    let result = unsafe { create::<{ Kind::Buffer as u8 }>(device, 0, allocator, out) };
    if result == 0 {
        // SAFETY: with success there is a handle.
        state::set_address(unsafe { *out }, address);
        #[cfg(test)]
        // SAFETY: as above, and callers pass a description.
        unsafe {
            exports::buffer_made(*out, &*info);
        }
    }
    result
}

/// `vkAllocateMemory`. For memory of the last type the driver opens `/dev/zero`, maps the memory out of it and closes it again.
unsafe extern "system" fn allocate_memory(
    device: u64,
    info: *const vk::MemoryAllocateInfo<'static>,
    allocator: usize,
    out: *mut u64,
) -> i32 {
    #[cfg(test)]
    if !exports::finds_memory() {
        return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY.as_raw();
    }
    // SAFETY: callers pass a description.
    let info = unsafe { &*info };
    let address = match state::is_trusting() {
        true => Ok(0),
        // SAFETY: as above.
        false => unsafe { addresses::of_memory(device, info) },
    };
    let address = match address {
        Ok(address) => address,
        Err(refused) => return refused,
    };
    // SAFETY: the parameters of every creation.
    let result = unsafe { create::<{ Kind::Memory as u8 }>(device, 0, allocator, out) };
    if result == 0 {
        // SAFETY: with success there is a handle.
        state::set_address(unsafe { *out }, address);
    }
    if result == 0 && info.memory_type_index == 2 {
        // SAFETY: with success there is a handle.
        map_zeros(unsafe { *out }, info.allocation_size as usize);
    }
    #[cfg(test)]
    if result == 0 {
        // SAFETY: as above.
        memory::allocated(unsafe { *out }, info);
        // SAFETY: as above.
        exports::allocated(unsafe { *out }, info);
    }
    result
}

fn map_zeros(handle: u64, len: usize) {
    let zero = std::fs::File::options().read(true).write(true).open("/dev/zero").expect("there is one");
    let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let at = unsafe { map(std::ptr::null_mut(), len, both, flags, zero.as_raw_fd(), 0) };
    if at != libc::MAP_FAILED {
        MAPPED.lock().insert(handle, (at as usize, len));
    }
}

/// The mappings of memory, by handle: address and bytes.
static MAPPED: LazyLock<Mutex<FxHashMap<u64, (usize, usize)>>> = LazyLock::new(Mutex::default);

unsafe extern "system" fn free_memory(device: u64, memory: u64, allocator: usize) {
    #[cfg(test)]
    {
        memory::freed(memory);
        exports::freed(memory);
    }
    if let Some((at, len)) = MAPPED.lock().remove(&memory) {
        // SAFETY: mapped when it was allocated, and nothing refers to it.
        unsafe { libc::munmap(at as *mut c_void, len) };
    }
    // SAFETY: the parameters of every destruction.
    unsafe { destroy::<{ Kind::Memory as u8 }>(device, memory, allocator) };
}

unsafe extern "system" fn create_instance(
    info: *const vk::InstanceCreateInfo<'static>,
    _: usize,
    out: *mut u64,
) -> i32 {
    // SAFETY: callers pass a place for the handle, an application, and names that are strings.
    let (application, engine) = unsafe {
        let application = &*(*info).p_application_info;
        if application.api_version > state::NEWEST_INSTANCE.load(Ordering::Relaxed) {
            return vk::Result::ERROR_INCOMPATIBLE_DRIVER.as_raw();
        }
        *out = state::add(Kind::Instance as u8, 0);
        (application.application_name_as_c_str(), application.engine_name_as_c_str())
    };
    let mut programs = PROGRAMS.lock();
    *programs = (programs.0 + 1, [application, engine].map(|name| name.map(CStr::to_owned)));
    0
}

/// The number of instances that were made, and the names that the last one's program gave: its own and its engine's.
pub(super) static PROGRAMS: Mutex<(usize, [Option<CString>; 2])> = Mutex::new((0, [None, None]));

unsafe extern "system" fn destroy_instance(instance: u64, _: usize) {
    state::remove_parent(instance, Kind::Instance as u8);
}

/// Creates pipelines, of which some may fail: their handles are null then.
unsafe extern "system" fn create_pipelines(
    device: u64,
    cache: u64,
    count: u32,
    _: usize,
    _: usize,
    out: *mut u64,
) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    caches::uses(device, cache);
    let mut result = 0;
    for at in 0..count as usize {
        let failure = state::failure();
        result = failure.unwrap_or(result);
        let handle = failure.map_or_else(|| state::add(Kind::Pipeline as u8, device), |_| 0);
        // SAFETY: callers pass `count` places.
        unsafe { *out.add(at) = handle };
    }
    result
}

/// Fills `count` places with children of a pool, or none of them.
///
/// # Safety
///
/// `out` has room for `count` handles.
unsafe fn allocate(kind: Kind, pool: u64, count: u32, out: *mut u64) -> i32 {
    if let Some(failure) = state::failure() {
        return failure;
    }
    for at in 0..count as usize {
        // SAFETY: the caller's promise.
        unsafe { *out.add(at) = state::add(kind as u8, pool) };
    }
    0
}

unsafe extern "system" fn allocate_command_buffers(
    device: u64,
    info: *const vk::CommandBufferAllocateInfo<'static>,
    out: *mut u64,
) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    // SAFETY: callers pass a description.
    let info = unsafe { *info };
    let pool = vk::Handle::as_raw(info.command_pool);
    state::assert_of(device, pool, Kind::CommandPool);
    // SAFETY: callers pass as many places as the description says.
    unsafe { allocate(Kind::CommandBuffer, pool, info.command_buffer_count, out) }
}

unsafe extern "system" fn allocate_descriptor_sets(
    device: u64,
    info: *const vk::DescriptorSetAllocateInfo<'static>,
    out: *mut u64,
) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    // SAFETY: callers pass a description.
    let info = unsafe { *info };
    let pool = vk::Handle::as_raw(info.descriptor_pool);
    state::assert_of(device, pool, Kind::DescriptorPool);
    // SAFETY: callers pass as many layouts, or none, and places as the description says.
    unsafe {
        if !info.p_set_layouts.is_null() {
            assert_all_of(
                device,
                info.p_set_layouts.cast(),
                info.descriptor_set_count,
                Kind::DescriptorSetLayout,
            );
        }
        allocate(Kind::DescriptorSet, pool, info.descriptor_set_count, out)
    }
}

unsafe extern "system" fn free(device: u64, pool: u64, count: u32, children: *const u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    state::assert_live(pool, None);
    for at in 0..count as usize {
        // SAFETY: callers pass `count` handles.
        let child = unsafe { *children.add(at) };
        state::remove_child(child);
    }
    0
}

unsafe extern "system" fn reset_descriptor_pool(device: u64, pool: u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    state::assert_of(device, pool, Kind::DescriptorPool);
    state::remove_children(pool);
    0
}

/// Checks `count` handles of one kind.
///
/// # Safety
///
/// `handles` points to `count` handles.
unsafe fn assert_all_of(other: u64, handles: *const u64, count: u32, kind: Kind) {
    for at in 0..count as usize {
        // SAFETY: the caller's promise.
        state::assert_of(other, unsafe { *handles.add(at) }, kind);
    }
}

unsafe extern "system" fn fence_status(device: u64, fence: u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    state::assert_of(device, fence, Kind::Fence);
    match state::is_signalled(fence) {
        _ if state::has_lost_devices() => vk::Result::ERROR_DEVICE_LOST.as_raw(),
        true => 0,
        false => vk::Result::NOT_READY.as_raw(),
    }
}

unsafe extern "system" fn event_status(device: u64, event: u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    state::assert_of(device, event, Kind::Event);
    let status = if state::is_signalled(event) { vk::Result::EVENT_SET } else { vk::Result::EVENT_RESET };
    status.as_raw()
}

unsafe extern "system" fn set_event<const SET: bool>(device: u64, event: u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    state::assert_of(device, event, Kind::Event);
    state::set_signalled(event, SET);
    0
}

unsafe extern "system" fn create_semaphore(
    device: u64,
    info: *const vk::SemaphoreCreateInfo<'static>,
    allocator: usize,
    out: *mut u64,
) -> i32 {
    // SAFETY: the parameters of every creation.
    let result = unsafe { create::<{ Kind::Semaphore as u8 }>(device, 0, allocator, out) };
    // SAFETY: callers pass a description.
    let mut next = unsafe { (*info).p_next };
    while result == 0 && !next.is_null() {
        // SAFETY: a chain is made of structs that begin with their type and the next one.
        let base = unsafe { next.cast::<vk::BaseInStructure<'static>>().read() };
        if base.s_type == vk::StructureType::SEMAPHORE_TYPE_CREATE_INFO {
            // SAFETY: the type says what it is, and with success there is a handle.
            unsafe {
                let info = next.cast::<vk::SemaphoreTypeCreateInfo<'static>>().read();
                state::set_counter(*out, info.initial_value);
            }
        }
        next = base.p_next.cast();
    }
    result
}

unsafe extern "system" fn counter(device: u64, semaphore: u64, out: *mut u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    state::assert_of(device, semaphore, Kind::Semaphore);
    // SAFETY: callers pass a place for the value.
    unsafe { *out = state::counter(semaphore) };
    0
}

unsafe extern "system" fn signal_semaphore(
    device: u64,
    info: *const vk::SemaphoreSignalInfo<'static>,
) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    // SAFETY: callers pass a description.
    let info = unsafe { &*info };
    let semaphore = vk::Handle::as_raw(info.semaphore);
    state::assert_of(device, semaphore, Kind::Semaphore);
    state::set_counter(semaphore, info.value.max(state::counter(semaphore)));
    0
}

/// `vkWaitForFences`: all submissions are complete, or none is for as long as a caller waits.
unsafe extern "system" fn wait_for_fences(device: u64, _: u32, _: *const u64, _: u32, _: u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    if state::is_stalled() { vk::Result::TIMEOUT.as_raw() } else { 0 }
}

unsafe extern "system" fn reset_fences(device: u64, count: u32, fences: *const u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    for at in 0..count as usize {
        // SAFETY: callers pass `count` fences.
        let fence = unsafe { *fences.add(at) };
        state::assert_of(device, fence, Kind::Fence);
        state::set_signalled(fence, false);
    }
    0
}

unsafe extern "system" fn update_descriptor_sets(
    device: u64,
    write_count: u32,
    writes: *const vk::WriteDescriptorSet<'static>,
    copy_count: u32,
    copies: *const vk::CopyDescriptorSet<'static>,
) {
    state::assert_live(device, Some(Kind::Device as u8));
    for at in 0..write_count as usize {
        // SAFETY: callers pass `write_count` writes.
        let write = unsafe { *writes.add(at) };
        state::assert_of(device, vk::Handle::as_raw(write.dst_set), Kind::DescriptorSet);
        let is_buffer = matches!(
            write.descriptor_type,
            vk::DescriptorType::UNIFORM_BUFFER | vk::DescriptorType::STORAGE_BUFFER
        );
        for at in 0..if is_buffer { write.descriptor_count as usize } else { 0 } {
            // SAFETY: for descriptors of this type as many buffers are there.
            let buffer = unsafe { *write.p_buffer_info.add(at) }.buffer;
            if vk::Handle::as_raw(buffer) != 0 {
                state::assert_of(device, vk::Handle::as_raw(buffer), Kind::Buffer);
            }
        }
    }
    for at in 0..copy_count as usize {
        // SAFETY: callers pass `copy_count` copies.
        let copy = unsafe { *copies.add(at) };
        state::assert_of(device, vk::Handle::as_raw(copy.src_set), Kind::DescriptorSet);
        state::assert_of(device, vk::Handle::as_raw(copy.dst_set), Kind::DescriptorSet);
    }
}

unsafe extern "system" fn bind_pipeline(command_buffer: u64, _: i32, pipeline: u64) {
    state::assert_live(command_buffer, Some(Kind::CommandBuffer as u8));
    if pipeline != 0 {
        state::assert_of(command_buffer, pipeline, Kind::Pipeline);
    }
}

unsafe extern "system" fn bind_descriptor_sets(
    command_buffer: u64,
    _: i32,
    layout: u64,
    _: u32,
    count: u32,
    sets: *const u64,
) {
    state::assert_live(command_buffer, Some(Kind::CommandBuffer as u8));
    if layout != 0 {
        state::assert_of(command_buffer, layout, Kind::PipelineLayout);
    }
    for at in 0..count as usize {
        // SAFETY: callers pass `count` sets.
        let set = unsafe { *sets.add(at) };
        if set != 0 {
            state::assert_of(command_buffer, set, Kind::DescriptorSet);
        }
    }
}

unsafe extern "system" fn enumerate_instance_version(out: *mut u32) -> i32 {
    // SAFETY: callers pass a place for the version.
    unsafe { *out = vk::make_api_version(0, 1, 4, 0) };
    0
}

/// Writes as many values as there is room for, as every enumeration does.
///
/// # Safety
///
/// `out` is null or has room for `count` values.
unsafe fn enumerate<T: Copy>(all: &[T], count: *mut u32, out: *mut T) -> i32 {
    if out.is_null() {
        // SAFETY: callers pass a count.
        unsafe { *count = all.len() as u32 };
        return 0;
    }
    // SAFETY: as above.
    let filled = all.len().min(unsafe { *count } as usize);
    for (at, value) in all[..filled].iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { out.add(at).write(*value) };
    }
    // SAFETY: as above.
    unsafe { *count = filled as u32 };
    if filled < all.len() { vk::Result::INCOMPLETE.as_raw() } else { 0 }
}

unsafe extern "system" fn enumerate_physical_devices(instance: u64, count: *mut u32, out: *mut u64) -> i32 {
    state::assert_live(instance, Some(Kind::Instance as u8));
    let devices = [0, 1].map(|index| state::child(instance, Kind::PhysicalDevice as u8, index));
    // SAFETY: the parameters of every enumeration.
    unsafe { enumerate(&devices, count, out) }
}

unsafe extern "system" fn extensions(
    physical: u64,
    _: usize,
    count: *mut u32,
    out: *mut vk::ExtensionProperties,
) -> i32 {
    state::assert_live(physical, Some(Kind::PhysicalDevice as u8));
    let needed = ash::ext::external_memory_host::NAME.to_str().unwrap_or_default();
    let names = EXTENSIONS.iter().map(|(_, name, version)| (*name, *version)).chain([(needed, 1)]);
    let all: Vec<_> = names
        .map(|(name, spec_version)| {
            let mut extension = vk::ExtensionProperties { spec_version, ..Default::default() };
            for (place, byte) in extension.extension_name.iter_mut().zip(name.bytes()) {
                *place = byte as c_char;
            }
            extension
        })
        .collect();
    // SAFETY: the parameters of every enumeration.
    unsafe { enumerate(&all, count, out) }
}

unsafe extern "system" fn properties(physical: u64, out: *mut vk::PhysicalDeviceProperties) {
    state::assert_live(physical, Some(Kind::PhysicalDevice as u8));
    let api_version = vk::make_api_version(0, 1, 4, 0);
    let limits = vk::PhysicalDeviceLimits {
        max_bound_descriptor_sets: 32,
        max_push_constants_size: 256,
        max_compute_work_group_count: [65535; 3],
        max_compute_work_group_size: [64; 3],
        max_compute_work_group_invocations: 64,
        timestamp_period: 1.0,
        ..Default::default()
    };
    // SAFETY: callers pass a place for them.
    unsafe { out.write(vk::PhysicalDeviceProperties { api_version, limits, ..Default::default() }) };
}

unsafe extern "system" fn properties2(physical: u64, out: *mut vk::PhysicalDeviceProperties2<'static>) {
    // SAFETY: callers pass a struct.
    let mut next = unsafe {
        properties(physical, &raw mut (*out).properties);
        (*out).p_next
    };
    let uuid = UUIDS[state::index(physical) as usize];
    while !next.is_null() {
        // SAFETY: a chain is made of structs that begin with their type and the next one.
        let base = unsafe { next.cast::<vk::BaseOutStructure<'static>>().read() };
        match base.s_type {
            vk::StructureType::PHYSICAL_DEVICE_ID_PROPERTIES => {
                // SAFETY: the type says what it is.
                unsafe { (*next.cast::<vk::PhysicalDeviceIDProperties<'static>>()).device_uuid = uuid };
            }
            vk::StructureType::PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT => {
                let host = next.cast::<vk::PhysicalDeviceExternalMemoryHostPropertiesEXT<'static>>();
                // SAFETY: the type says what it is.
                unsafe { (*host).min_imported_host_pointer_alignment = 4096 };
            }
            _ => {}
        }
        next = base.p_next.cast::<c_void>();
    }
}

/// Gives the same size limits for images of every kind.
unsafe extern "system" fn image_format(
    physical: u64,
    _: vk::Format,
    _: vk::ImageType,
    _: vk::ImageTiling,
    _: vk::ImageUsageFlags,
    _: vk::ImageCreateFlags,
    out: *mut vk::ImageFormatProperties,
) -> i32 {
    state::assert_live(physical, Some(Kind::PhysicalDevice as u8));
    let properties = vk::ImageFormatProperties {
        max_extent: vk::Extent3D { width: 256, height: 256, depth: 256 },
        max_mip_levels: 9,
        max_array_layers: 16,
        sample_counts: vk::SampleCountFlags::TYPE_1,
        max_resource_size: 1 << 30,
    };
    // SAFETY: callers pass a place for them.
    unsafe { out.write(properties) };
    0
}

unsafe extern "system" fn queue_families(
    physical: u64,
    count: *mut u32,
    out: *mut vk::QueueFamilyProperties,
) {
    state::assert_live(physical, Some(Kind::PhysicalDevice as u8));
    let family = vk::QueueFamilyProperties {
        queue_flags: vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER | vk::QueueFlags::GRAPHICS,
        queue_count: 4,
        timestamp_valid_bits: 64,
        ..Default::default()
    };
    let copies =
        vk::QueueFamilyProperties { queue_flags: vk::QueueFlags::TRANSFER, queue_count: 1, ..family };
    // SAFETY: the parameters of every enumeration.
    unsafe { enumerate(&[family, copies], count, out) };
}

unsafe extern "system" fn memory(physical: u64, out: *mut vk::PhysicalDeviceMemoryProperties) {
    state::assert_live(physical, Some(Kind::PhysicalDevice as u8));
    let mut memory = vk::PhysicalDeviceMemoryProperties {
        memory_type_count: 3,
        memory_heap_count: 1,
        ..Default::default()
    };
    memory.memory_types[0].property_flags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    memory.memory_types[1].property_flags =
        vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
    memory.memory_types[2].property_flags =
        memory.memory_types[0].property_flags | memory.memory_types[1].property_flags;
    memory.memory_heaps[0].size = 1 << 30;
    // SAFETY: callers pass a place for them.
    unsafe { out.write(memory) };
}

unsafe extern "system" fn get_device_queue(device: u64, family: u32, index: u32, out: *mut u64) {
    state::assert_live(device, Some(Kind::Device as u8));
    // SAFETY: callers pass a place for the handle.
    unsafe { *out = state::child(device, Kind::Queue as u8, u64::from(family) << 32 | u64::from(index)) };
}

unsafe extern "system" fn get_device_queue2(device: u64, _: usize, out: *mut u64) {
    // SAFETY: callers pass a place for the handle.
    unsafe { get_device_queue(device, 0, 0, out) };
}

unsafe extern "system" fn memory_requirements(device: u64, object: u64, out: *mut vk::MemoryRequirements) {
    state::assert_live(device, Some(Kind::Device as u8));
    state::assert_live(object, None);
    // SAFETY: callers pass a place for them.
    unsafe { out.write(vk::MemoryRequirements { size: 4096, alignment: 16, memory_type_bits: 3 }) };
}

/// Writes eight bytes for each query, at its place, as a driver would.
#[allow(clippy::too_many_arguments, reason = "the parameters of the function")]
unsafe extern "system" fn query_results(
    device: u64,
    pool: u64,
    first: u32,
    count: u32,
    size: usize,
    out: *mut u8,
    stride: u64,
    flags: u32,
) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    state::assert_of(device, pool, Kind::QueryPool);
    if flags & vk::QueryResultFlags::WITH_AVAILABILITY.as_raw() != 0 {
        // SAFETY: the caller's promise.
        return unsafe { results_and_availability(first, count, size, out, stride, flags) };
    }
    for query in 0..u64::from(count.min(1024)) {
        let at = (query * stride) as usize;
        assert!(at <= size, "query {query} at {at} of {size} bytes");
        // SAFETY: callers leave room for the largest result behind every start.
        unsafe { out.add(at).cast::<u64>().write_unaligned(query) };
    }
    0
}

/// Writes results of one word, a thousand more than the query's number, and whether they are available, as [`state::AVAILABLE`] says.
#[inline(never)]
unsafe fn results_and_availability(
    first: u32,
    count: u32,
    size: usize,
    out: *mut u8,
    stride: u64,
    flags: u32,
) -> i32 {
    let wide = flags & vk::QueryResultFlags::TYPE_64.as_raw() != 0;
    let available = state::AVAILABLE.load(std::sync::atomic::Ordering::Relaxed);
    for query in 0..u64::from(count.min(1024)) {
        let (at, number) = ((query * stride) as usize, u64::from(first) + query);
        assert!(at <= size, "query {query} at {at} of {size} bytes");
        let is_available = number < u64::from(available);
        let result = [if is_available { 1000 + number } else { 0 }, u64::from(is_available)];
        // SAFETY: callers leave room for the largest result behind every start.
        unsafe {
            match wide {
                true => out.add(at).cast::<[u64; 2]>().write_unaligned(result),
                false => out.add(at).cast::<[u32; 2]>().write_unaligned(result.map(|word| word as u32)),
            }
        }
    }
    let all = u64::from(first) + u64::from(count) <= u64::from(available);
    if all { 0 } else { vk::Result::NOT_READY.as_raw() }
}

unsafe extern "system" fn refuse_to_map(device: u64) -> i32 {
    state::assert_live(device, Some(Kind::Device as u8));
    vk::Result::ERROR_MEMORY_MAP_FAILED.as_raw()
}
