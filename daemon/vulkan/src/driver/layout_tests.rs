//! A comparison of the generated C layouts with ash's, for structs that both know: a wrong member would move all members behind it.

use super::generated::sys::LAYOUTS;
use ash::vk;
use std::collections::BTreeMap;

/// Size and alignment by name, as ash has them.
macro_rules! ash_layouts {
    ($($name:ident $(<$lifetime:lifetime>)?),* $(,)?) => {
        [$((stringify!($name), size_of::<vk::$name $(<$lifetime>)?>(), align_of::<vk::$name $(<$lifetime>)?>())),*]
    };
}

#[test]
fn generated_layouts_are_those_of_ash() {
    let ours: BTreeMap<_, _> = LAYOUTS.iter().map(|(name, size, align)| (*name, (*size, *align))).collect();
    let theirs = ash_layouts![
        BufferCreateInfo<'static>,
        BufferCopy,
        BufferImageCopy,
        BufferMemoryBarrier2<'static>,
        ComputePipelineCreateInfo<'static>,
        CopyBufferInfo2<'static>,
        DependencyInfo<'static>,
        DescriptorBufferInfo,
        DescriptorImageInfo,
        DescriptorPoolCreateInfo<'static>,
        DescriptorSetLayoutBinding<'static>,
        DescriptorSetLayoutCreateInfo<'static>,
        DeviceCreateInfo<'static>,
        DeviceQueueCreateInfo<'static>,
        EventCreateInfo<'static>,
        ExtensionProperties,
        FenceCreateInfo<'static>,
        FormatProperties2<'static>,
        ImageBlit,
        ImageCreateInfo<'static>,
        ImageFormatProperties2<'static>,
        ImageMemoryBarrier<'static>,
        ImageMemoryBarrier2<'static>,
        ImageSubresourceRange,
        ImageViewCreateInfo<'static>,
        MemoryAllocateInfo<'static>,
        MemoryBarrier2<'static>,
        MemoryRequirements2<'static>,
        PhysicalDeviceDescriptorIndexingProperties<'static>,
        PhysicalDeviceFeatures,
        PhysicalDeviceFeatures2<'static>,
        PhysicalDeviceGroupProperties<'static>,
        PhysicalDeviceLimits,
        PhysicalDeviceMemoryProperties,
        PhysicalDeviceProperties,
        PhysicalDeviceProperties2<'static>,
        PhysicalDeviceVulkan11Features<'static>,
        PhysicalDeviceVulkan11Properties<'static>,
        PhysicalDeviceVulkan12Features<'static>,
        PhysicalDeviceVulkan12Properties<'static>,
        PhysicalDeviceVulkan13Features<'static>,
        PhysicalDeviceVulkan13Properties<'static>,
        PipelineCacheCreateInfo<'static>,
        PipelineLayoutCreateInfo<'static>,
        PipelineShaderStageCreateInfo<'static>,
        PushConstantRange,
        QueryPoolCreateInfo<'static>,
        QueueFamilyProperties2<'static>,
        SamplerCreateInfo<'static>,
        SamplerYcbcrConversionCreateInfo<'static>,
        SemaphoreTypeCreateInfo<'static>,
        SemaphoreWaitInfo<'static>,
        ShaderModuleCreateInfo<'static>,
        SpecializationInfo<'static>,
        SpecializationMapEntry,
        SubmitInfo<'static>,
        SubmitInfo2<'static>,
        TimelineSemaphoreSubmitInfo<'static>,
        WriteDescriptorSet<'static>,
    ];
    for (name, size, align) in theirs {
        assert_eq!(ours.get(name), Some(&(size, align)), "{name}");
    }
}
