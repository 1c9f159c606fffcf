//! `VkInstance` of the host, and the version that guests are shaped to.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use super::generated::InstanceTable;
use crate::context::cause::DriverError;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use std::ffi::c_void;

/// The API version that guests are shaped to: the version of the registry that the codec was generated from, or the host's if that is lower.
pub(crate) const API_VERSION: u32 = {
    let (major, minor, patch) = venus::REGISTRY_VERSION;
    vk::make_api_version(0, major, minor, patch)
};

/// The versions with which an instance is asked for next if the driver refuses a version newer than its own. Drivers of Vulkan 1.0 may refuse it,
/// and some newer ones do.
const OLDER_VERSIONS: [u32; 4] =
    [vk::API_VERSION_1_3, vk::API_VERSION_1_2, vk::API_VERSION_1_1, vk::API_VERSION_1_0];

/// The instance of a context, which has only one at a time: Mesa makes one context per instance.
pub struct Instance {
    /// Instance functions for our own calls.
    pub ash: ash::Instance,
    /// Instance functions for the guest's calls.
    pub(crate) table: InstanceTable,
    /// The ids that the physical devices are bound to, as far as they were enumerated.
    pub bound: Mutex<Vec<venus::PhysicalDevice>>,
    /// Keeps the loader's library mapped.
    entry: ash::Entry,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").finish_non_exhaustive()
    }
}

impl Instance {
    /// Makes an instance of the newest version that the drivers take, for the described program.
    pub fn new(entry: ash::Entry, program: vk::ApplicationInfo<'_>) -> Result<Self, vk::Result> {
        let newest = api_version(&entry);
        let older = OLDER_VERSIONS.into_iter().filter(|version| *version < newest);
        let create = |version| {
            let application = program.api_version(version);
            let info = vk::InstanceCreateInfo::default().application_info(&application);
            // SAFETY: `info` and what it points to live until the call returns.
            unsafe { entry.create_instance(&info, None) }
        };
        let refused =
            |made: &Result<_, vk::Result>| matches!(made, Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER));
        let first = create(newest);
        let made = if refused(&first) { older.map(create).find(|made| !refused(made)) } else { None };
        let ash = made.unwrap_or(first)?;
        let table = InstanceTable::load(|names| {
            names
                .iter()
                // SAFETY: the instance is live and the names are strings.
                .find_map(|name| unsafe { entry.get_instance_proc_addr(ash.handle(), name.as_ptr()) })
                .map_or(std::ptr::null(), |function| function as *const c_void)
        });
        Ok(Self { ash, table, bound: Mutex::default(), entry })
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
pub(crate) fn load_entry() -> Result<ash::Entry, DriverError> {
    // SAFETY: the loader is the system's own; loading it runs its constructors and nothing of the guest's.
    unsafe { ash::Entry::load() }.map_err(|error| DriverError::NoLoader(error.to_string()))
}

/// The version that guests are shaped to with this loader.
pub(crate) fn api_version(entry: &ash::Entry) -> u32 {
    loader_version(entry).min(API_VERSION)
}

fn loader_version(entry: &ash::Entry) -> u32 {
    // SAFETY: takes no argument of ours.
    unsafe { entry.try_enumerate_instance_version() }.ok().flatten().unwrap_or(vk::API_VERSION_1_0)
}
