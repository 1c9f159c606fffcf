//! `VkInstance`, and which physical devices a guest sees: the one chosen at start-up.

use super::call::Call;
use super::error::{ContextLost, Fault};
use super::generated::InstanceTable;
use super::objects::{Handle, Object, State};
use super::physical_device::PhysicalDevice;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::ffi::c_void;
use std::sync::Arc;

/// The API version guests are shaped to, that of the registry the codec was generated from; a host below it lowers it.
pub const API_VERSION: u32 = {
    let (major, minor, patch) = venus::REGISTRY_VERSION;
    vk::make_api_version(0, major, minor, patch)
};

/// The instance of a context. One at a time: Mesa makes one context per instance.
pub struct Instance {
    /// Instance functions for our own calls.
    pub ash: ash::Instance,
    /// Instance functions for the guest's calls.
    pub table: InstanceTable,
    /// The id the physical device is bound to, 0 before it is enumerated.
    bound: Mutex<u64>,
    /// Keeps the loader's library mapped.
    entry: ash::Entry,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").finish_non_exhaustive()
    }
}

impl Instance {
    /// Makes an instance.
    pub fn new(entry: ash::Entry) -> Result<Self, Fault> {
        let application = vk::ApplicationInfo::default()
            .application_name(c"vhost-user-vulkan")
            .api_version(loader_version(&entry).min(API_VERSION));
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: `info` and what it points to live until the call returns.
        let ash = unsafe { entry.create_instance(&info, None) }?;
        let table = InstanceTable::load(|names| {
            names
                .iter()
                // SAFETY: the instance is live and the names are strings.
                .find_map(|name| unsafe { entry.get_instance_proc_addr(ash.handle(), name.as_ptr()) })
                .map_or(std::ptr::null(), |function| function as *const c_void)
        });
        Ok(Self { ash, table, bound: Mutex::new(0), entry })
    }

    /// The handle as a number.
    pub fn raw(&self) -> u64 {
        self.ash.handle().as_raw()
    }

    /// The version of the loader.
    pub fn loader_version(&self) -> u32 {
        loader_version(&self.entry)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: every child holds an `Arc` of this instance, so none is left.
        unsafe { self.ash.destroy_instance(None) }
    }
}

/// Loads the host's Vulkan loader.
pub fn load_entry() -> Result<ash::Entry, Fault> {
    // SAFETY: the loader is the system's own; loading it runs its constructors and nothing of the guest's.
    unsafe { ash::Entry::load() }.map_err(|e| Fault::lost(format!("cannot load the Vulkan loader: {e}")))
}

fn loader_version(entry: &ash::Entry) -> u32 {
    // SAFETY: takes no argument of ours.
    unsafe { entry.try_enumerate_instance_version() }.ok().flatten().unwrap_or(vk::API_VERSION_1_0)
}

/// `vkEnumerateInstanceVersion`.
pub fn enumerate_instance_version<'a>(
    call: &Call<'a>,
    _: &venus::EnumerateInstanceVersion<'a>,
) -> Result<venus::EnumerateInstanceVersionReply<'a>, Fault> {
    let version = call.renderer.api_version;
    Ok(venus::EnumerateInstanceVersionReply {
        result: venus::VkResult::SUCCESS,
        p_api_version: Some(call.arena.value(version)?),
    })
}

/// `vkEnumerateInstanceExtensionProperties`: none.
pub fn enumerate_instance_extension_properties<'a>(
    call: &Call<'a>,
    c: &venus::EnumerateInstanceExtensionProperties<'a>,
) -> Result<venus::EnumerateInstanceExtensionPropertiesReply<'a>, Fault> {
    Ok(venus::EnumerateInstanceExtensionPropertiesReply {
        result: venus::VkResult::SUCCESS,
        p_property_count: Some(call.arena.value(0)?),
        p_properties: c.p_properties.map(|_| &[][..]),
    })
}

/// `vkEnumerateInstanceLayerProperties`: none.
pub fn enumerate_instance_layer_properties<'a>(
    call: &Call<'a>,
    c: &venus::EnumerateInstanceLayerProperties<'a>,
) -> Result<venus::EnumerateInstanceLayerPropertiesReply<'a>, Fault> {
    Ok(venus::EnumerateInstanceLayerPropertiesReply {
        result: venus::VkResult::SUCCESS,
        p_property_count: Some(call.arena.value(0)?),
        p_properties: c.p_properties.map(|_| &[][..]),
    })
}

/// `vkCreateInstance`: the guest's layers, extensions and application do not matter to the host.
pub fn create_instance<'a>(
    call: &Call<'a>,
    c: &venus::CreateInstance<'a>,
) -> Result<venus::CreateInstanceReply<'a>, Fault> {
    let Some(id) = c.p_instance else { return Err(Fault::lost("vkCreateInstance without an id")) };
    let instance = Arc::new(Instance::new(call.renderer.entry.clone())?);
    let object = Object {
        kind: venus::Instance::KIND,
        raw: instance.raw(),
        device: None,
        state: State::Instance(instance),
        usage: Arc::default(),
        created_by: call.bytes.into(),
    };
    call.renderer.objects.insert(id.id(), object).map_err(ContextLost::from)?;
    Ok(venus::CreateInstanceReply { result: venus::VkResult::SUCCESS, p_instance: c.p_instance })
}

/// `vkDestroyInstance`: everything else of the context goes first.
pub fn destroy_instance<'a>(
    call: &Call<'a>,
    c: &venus::DestroyInstance,
) -> Result<venus::DestroyInstanceReply, Fault> {
    let instance = call.renderer.objects.remove(c.instance)?;
    call.renderer.destroy_objects();
    drop(instance);
    Ok(venus::DestroyInstanceReply {})
}

/// `vkEnumeratePhysicalDevices`: one.
pub fn enumerate_physical_devices<'a>(
    call: &Call<'a>,
    c: &venus::EnumeratePhysicalDevices<'a>,
) -> Result<venus::EnumeratePhysicalDevicesReply<'a>, Fault> {
    let instance = call.instance(c.instance)?;
    let ids = c.p_physical_devices.map(|ids| &ids[..ids.len().min(1)]);
    if let Some([id]) = ids {
        bind_physical_device(call, &instance, *id)?;
    }
    let too_small = c.p_physical_devices.is_some_and(<[_]>::is_empty);
    let (result, count) =
        if too_small { (venus::VkResult::INCOMPLETE, 0) } else { (venus::VkResult::SUCCESS, 1) };
    Ok(venus::EnumeratePhysicalDevicesReply {
        result,
        p_physical_device_count: Some(call.arena.value(count)?),
        p_physical_devices: ids,
    })
}

fn bind_physical_device(
    call: &Call<'_>,
    instance: &Arc<Instance>,
    id: venus::PhysicalDevice,
) -> Result<(), Fault> {
    let mut bound = instance.bound.lock();
    if *bound == id.id() && id.id() != 0 {
        return Ok(());
    }
    let physical = PhysicalDevice::find(instance, &call.renderer.gpu, &call.renderer.limits)?;
    let object = Object {
        kind: venus::PhysicalDevice::KIND,
        raw: physical.raw(),
        device: None,
        state: State::PhysicalDevice(Arc::new(physical)),
        usage: Arc::default(),
        created_by: call.bytes.into(),
    };
    call.renderer.objects.insert(id.id(), object).map_err(ContextLost::from)?;
    *bound = id.id();
    Ok(())
}

/// `vkEnumeratePhysicalDeviceGroups`: one group with the one device.
pub fn enumerate_physical_device_groups<'a>(
    call: &Call<'a>,
    c: &venus::EnumeratePhysicalDeviceGroups<'a>,
) -> Result<venus::EnumeratePhysicalDeviceGroupsReply<'a>, Fault> {
    let instance = call.instance(c.instance)?;
    let groups = match c.p_physical_device_group_properties {
        None | Some([]) => None,
        Some([first, ..]) => {
            let mut group = *first;
            group.physical_device_count = 1;
            group.physical_devices = [venus::PhysicalDevice(0); 32];
            group.physical_devices[0] = venus::PhysicalDevice(*instance.bound.lock());
            group.subset_allocation = 0;
            Some(&call.arena.slice_copy(&[group])?[..])
        }
    };
    Ok(venus::EnumeratePhysicalDeviceGroupsReply {
        result: venus::VkResult::SUCCESS,
        p_physical_device_group_count: Some(call.arena.value(1)?),
        p_physical_device_group_properties: groups,
    })
}
