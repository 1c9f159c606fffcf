//! The device, its queue and the objects that wait for it, as an application has them.

#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block, reason = "an application's calls into Vulkan")]

use anyhow::{Context, Result};
use ash::{khr, vk};
use std::time::Duration;

/// An instance with a device and a queue that computes; made and destroyed as a whole.
pub(crate) struct Gpu {
    pub device: ash::Device,
    pub memory: vk::PhysicalDeviceMemoryProperties,
    pub pool: vk::CommandPool,
    queue: vk::Queue,
    waiting: Waiting,
    /// Never used for a pipeline.
    cache: vk::PipelineCache,
    properties: vk::PhysicalDeviceProperties,
    timeline: Option<khr::timeline_semaphore::Device>,
    instance: ash::Instance,
    // Keeps the loader's library.
    _entry: ash::Entry,
}

/// The way in which fences are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// By the driver's own call.
    Asleep,
    /// By queries of the fence's status, as Mesa 26.1 does in a guest: some without a pause, then with sleeps between them that get longer.
    Looks,
}

/// The queries of Mesa that have no sleep before them.
const LOOKS_AT_ONCE: u32 = 15;
/// Mesa's first sleep. With twice as many queries, sleeps are twice as long.
const FIRST_SLEEP: Duration = Duration::from_micros(160);

impl Gpu {
    /// Opens the first device.
    pub(crate) fn open(waiting: Waiting) -> Result<Self> {
        let application =
            vk::ApplicationInfo::default().application_name(c"gauge").api_version(vk::API_VERSION_1_1);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the library is a Vulkan loader; `info` lives until the call returns.
        let (entry, instance) = unsafe {
            let entry = ash::Entry::load().context("there is no Vulkan loader (libvulkan.so.1)")?;
            let instance = entry.create_instance(&info, None).context("vkCreateInstance")?;
            (entry, instance)
        };
        // SAFETY: the instance is live, and the physical device belongs to it.
        let (physical, families, extensions) = unsafe {
            let physical = instance.enumerate_physical_devices()?;
            let physical = *physical.first().context("there is no Vulkan device")?;
            let families = instance.get_physical_device_queue_family_properties(physical);
            (physical, families, instance.enumerate_device_extension_properties(physical)?)
        };
        let computes =
            |family: &vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
        // Programs that only compute choose their queue like this.
        let plain = |family: &vk::QueueFamilyProperties| {
            computes(family) && !family.queue_flags.contains(vk::QueueFlags::GRAPHICS)
        };
        let family = families.iter().position(plain).or_else(|| families.iter().position(computes));
        let family = family.context("no queue that computes")? as u32;
        let queues =
            [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
        let has_timeline =
            extensions.iter().any(|has| has.extension_name_as_c_str() == Ok(khr::timeline_semaphore::NAME));
        let names = [khr::timeline_semaphore::NAME.as_ptr()];
        let mut feature =
            vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(has_timeline);
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        let info = match has_timeline {
            true => info.enabled_extension_names(&names).push_next(&mut feature),
            false => info,
        };
        let pool = vk::CommandPoolCreateInfo::default()
            .queue_family_index(family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the physical device is live and has this queue and these extensions; infos live until the calls return.
        unsafe {
            let device = instance.create_device(physical, &info, None).context("vkCreateDevice")?;
            Ok(Self {
                memory: instance.get_physical_device_memory_properties(physical),
                properties: instance.get_physical_device_properties(physical),
                pool: device.create_command_pool(&pool, None)?,
                queue: device.get_device_queue(family, 0),
                waiting,
                cache: device.create_pipeline_cache(&vk::PipelineCacheCreateInfo::default(), None)?,
                timeline: has_timeline.then(|| khr::timeline_semaphore::Device::new(&instance, &device)),
                device,
                instance,
                _entry: entry,
            })
        }
    }

    /// The name that the device gives itself.
    pub(crate) fn name(&self) -> String {
        self.properties.device_name_as_c_str().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns whether the driver is one in software.
    pub(crate) fn is_software(&self) -> bool {
        self.properties.device_type == vk::PhysicalDeviceType::CPU
            // The type that a guest's driver reports may differ; lavapipe has this name in a guest, too.
            || self.name().contains("llvmpipe")
    }

    /// A fence that is not signalled.
    pub(crate) fn fence(&self) -> Result<Fence<'_>> {
        // SAFETY: the device is live, as in all of this file.
        let handle = unsafe { self.device.create_fence(&vk::FenceCreateInfo::default(), None) }?;
        Ok(Fence { gpu: self, handle })
    }

    /// Submits, with a fence, if any, that is not signalled and that nothing pending signals.
    pub(crate) fn submit(&self, commands: &[vk::CommandBuffer], fence: Option<&Fence<'_>>) -> Result<()> {
        let info = [vk::SubmitInfo::default().command_buffers(commands)];
        let fence = fence.map_or(vk::Fence::null(), |fence| fence.handle);
        // SAFETY: queue and fence are used by this thread alone; the commands are recorded and not pending.
        unsafe { self.device.queue_submit(self.queue, &info, fence) }.context("submitting")
    }

    /// Submits, waits and resets.
    pub(crate) fn run(&self, commands: &[vk::CommandBuffer], fence: &Fence<'_>) -> Result<()> {
        self.submit(commands, Some(fence))?;
        fence.finish()
    }

    /// Makes a call that the driver has to answer itself: in a guest, all earlier commands are done when the answer comes. Natively the call costs
    /// next to nothing.
    pub(crate) fn round_trip(&self) -> Result<()> {
        let mut size = 0;
        let ask = self.device.fp_v1_0().get_pipeline_cache_data;
        // SAFETY: the cache is live; without room for data the call writes the size alone.
        let answer = unsafe { ask(self.device.handle(), self.cache, &mut size, std::ptr::null_mut()) };
        answer.result().context("vkGetPipelineCacheData")
    }

    /// A timeline semaphore at 0, if the device has such semaphores.
    pub(crate) fn timeline(&self) -> Result<Option<Timeline<'_>>> {
        let Some(calls) = &self.timeline else { return Ok(None) };
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the feature is enabled.
        let semaphore = unsafe { self.device.create_semaphore(&info, None) }?;
        Ok(Some(Timeline { gpu: self, calls, semaphore, value: 0 }))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the objects made of the device borrowed this value, and are gone.
        unsafe {
            let _ = self.device.device_wait_idle();
            self.device.destroy_pipeline_cache(self.cache, None);
            self.device.destroy_command_pool(self.pool, None);
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// A fence.
pub(crate) struct Fence<'g> {
    gpu: &'g Gpu,
    handle: vk::Fence,
}

impl Fence<'_> {
    /// Waits for the submission that signals the fence, and resets it.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.gpu.waiting == Waiting::Looks {
            self.look()?;
        }
        // SAFETY: the fence is live, and reset when nothing is pending that signals it.
        unsafe {
            self.gpu.device.wait_for_fences(&[self.handle], true, u64::MAX).context("waiting")?;
            self.gpu.device.reset_fences(&[self.handle]).context("resetting")
        }
    }

    /// Returns when the fence is seen to be signalled.
    fn look(&self) -> Result<()> {
        let mut looks = 0_u32;
        // SAFETY: the fence is live.
        while !unsafe { self.gpu.device.get_fence_status(self.handle) }.context("looking")? {
            looks += 1;
            match (looks / (LOOKS_AT_ONCE + 1)).checked_ilog2() {
                Some(doublings) => std::thread::sleep(FIRST_SLEEP * (1 << doublings)),
                None => std::thread::yield_now(),
            }
        }
        Ok(())
    }
}

impl Drop for Fence<'_> {
    fn drop(&mut self) {
        // SAFETY: the submission that signals the fence was waited for, or waits for the end of the process.
        unsafe { self.gpu.device.destroy_fence(self.handle, None) };
    }
}

/// A timeline semaphore.
pub(crate) struct Timeline<'g> {
    gpu: &'g Gpu,
    calls: &'g khr::timeline_semaphore::Device,
    semaphore: vk::Semaphore,
    value: u64,
}

impl Timeline<'_> {
    /// Submits, and waits until the semaphore has the next value.
    pub(crate) fn run(&mut self, commands: &[vk::CommandBuffer]) -> Result<()> {
        self.value += 1;
        self.submit(commands)?;
        self.wait(self.value)
    }

    fn submit(&self, commands: &[vk::CommandBuffer]) -> Result<()> {
        let (semaphores, values) = ([self.semaphore], [self.value]);
        let mut points = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default().command_buffers(commands).signal_semaphores(&semaphores);
        let info = [info.push_next(&mut points)];
        // SAFETY: the queue is used by this thread alone; infos live until the call returns.
        unsafe { self.gpu.device.queue_submit(self.gpu.queue, &info, vk::Fence::null()) }
            .context("submitting")
    }

    /// Waits until the semaphore has this value.
    pub(crate) fn wait(&self, value: u64) -> Result<()> {
        let (semaphores, values) = ([self.semaphore], [value]);
        let wait = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is live, and infos live until the call returns.
        unsafe { self.calls.wait_semaphores(&wait, u64::MAX) }.context("waiting")
    }

    /// Gives the semaphore this value, which is higher than its own and than those that pending submissions signal.
    pub(crate) fn signal(&self, value: u64) -> Result<()> {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.semaphore).value(value);
        // SAFETY: the semaphore is live, and the info lives until the call returns.
        unsafe { self.calls.signal_semaphore(&info) }.context("signalling")
    }
}

impl Drop for Timeline<'_> {
    fn drop(&mut self) {
        // SAFETY: the submission that signals the semaphore was waited for.
        unsafe { self.gpu.device.destroy_semaphore(self.semaphore, None) };
    }
}
