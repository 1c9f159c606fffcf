//! Commands whose execution is written by hand: one row each, with the module of `daemon::vulkan` and the reason.

/// Command, module, reason.
const BY_HAND: &[(&str, &str, &str)] = &[
    ("vkCreateInstance", "instance", "one per context, with our own application and extensions"),
    ("vkDestroyInstance", "instance", "destroys what is left of the context first"),
    ("vkEnumerateInstanceVersion", "instance", "answered with the version we shape devices to"),
    ("vkEnumerateInstanceExtensionProperties", "instance", "a guest gets no instance extension of the host"),
    ("vkEnumerateInstanceLayerProperties", "instance", "a guest gets no layers of the host"),
    ("vkEnumeratePhysicalDevices", "instance", "binds ids, shows the chosen GPU only"),
    ("vkEnumeratePhysicalDeviceGroups", "instance", "groups of one, with bound ids"),
    ("vkEnumerateDeviceExtensionProperties", "physical_device", "filtered by the table of extensions"),
    ("vkGetPhysicalDeviceProperties", "physical_device", "shaped"),
    ("vkGetPhysicalDeviceProperties2", "physical_device", "shaped"),
    ("vkGetPhysicalDeviceFeatures", "physical_device", "shaped"),
    ("vkGetPhysicalDeviceFeatures2", "physical_device", "shaped"),
    ("vkGetPhysicalDeviceQueueFamilyProperties", "physical_device", "shaped"),
    ("vkGetPhysicalDeviceQueueFamilyProperties2", "physical_device", "shaped"),
    ("vkGetPhysicalDeviceMemoryProperties", "physical_device", "shaped"),
    ("vkGetPhysicalDeviceMemoryProperties2", "physical_device", "shaped"),
    ("vkGetPhysicalDeviceExternalSemaphoreProperties", "physical_device", "SYNC_FD is emulated"),
    ("vkGetPhysicalDeviceExternalFenceProperties", "physical_device", "no host fence handle reaches a guest"),
    ("vkGetPhysicalDeviceExternalBufferProperties", "memory", "a guest's dma-bufs are the back end's memory"),
    ("vkGetPhysicalDeviceImageFormatProperties2", "memory", "not every back end shares images"),
    ("vkGetPhysicalDeviceSparseImageFormatProperties", "physical_device", "sparse is not offered"),
    ("vkGetPhysicalDeviceSparseImageFormatProperties2", "physical_device", "sparse is not offered"),
    ("vkCreateDevice", "device", "extensions and features are checked, queues are made"),
    ("vkDestroyDevice", "device", "destroys its children first"),
    ("vkGetDeviceQueue2", "device", "binds the queue to its ring_idx"),
    ("vkDeviceWaitIdle", "device", "waits in slices, to be cancellable"),
    ("vkQueueSubmit", "queue", "counts submissions, keeps spoilt command buffers away from the driver"),
    ("vkQueueSubmit2", "queue", "counts submissions, keeps spoilt command buffers away from the driver"),
    ("vkQueueWaitIdle", "queue", "waits in slices, to be cancellable"),
    ("vkWaitForFences", "sync", "waits in slices, to be cancellable"),
    ("vkWaitSemaphores", "sync", "waits in slices, to be cancellable"),
    ("vkCreateSemaphore", "sync", "the SYNC_FD export request is ours, not the host's"),
    ("vkCreateFence", "sync", "the SYNC_FD export request is ours, not the host's"),
    ("vkResetFenceResourceMESA", "sync", "emulates an export"),
    ("vkWaitSemaphoreResourceMESA", "sync", "emulates an export"),
    ("vkImportSemaphoreResourceMESA", "sync", "emulates an import"),
    ("vkAllocateMemory", "memory", "memory that guests map is made for it"),
    ("vkFreeMemory", "memory", "pages outlive the memory while a blob shows them"),
    ("vkGetMemoryResourcePropertiesMESA", "memory", "answers for a resource instead of a descriptor"),
    ("vkCreateBuffer", "buffer", "says what memory the buffer may be bound to"),
    ("vkGetDeviceBufferMemoryRequirements", "buffer", "asks for the buffer that is made of the description"),
    ("vkCmdFillBuffer", "command_pool", "may be how a guest hears of a fence"),
    ("vkCreateCommandPool", "command_pool", "owns its command buffers"),
    ("vkDestroyCommandPool", "command_pool", "frees the ids of its command buffers"),
    ("vkResetCommandPool", "command_pool", "heals its spoilt command buffers"),
    ("vkAllocateCommandBuffers", "command_pool", "binds many ids"),
    ("vkFreeCommandBuffers", "command_pool", "frees many ids, zeros allowed"),
    ("vkBeginCommandBuffer", "command_pool", "heals a spoilt command buffer"),
    ("vkResetCommandBuffer", "command_pool", "heals a spoilt command buffer"),
    ("vkCreateDescriptorPool", "descriptor_pool", "owns its descriptor sets"),
    ("vkDestroyDescriptorPool", "descriptor_pool", "frees the ids of its descriptor sets"),
    ("vkResetDescriptorPool", "descriptor_pool", "frees the ids of its descriptor sets"),
    ("vkAllocateDescriptorSets", "descriptor_pool", "binds many ids"),
    ("vkFreeDescriptorSets", "descriptor_pool", "frees many ids, zeros allowed"),
    ("vkCreateShaderModule", "shader", "the code is checked, and its workgroup memory initialised"),
    ("vkCreateComputePipelines", "pipeline", "binds many ids, some may stay empty"),
    ("vkCreateGraphicsPipelines", "pipeline", "binds many ids, some may stay empty"),
    ("vkCreatePipelineCache", "pipeline_cache", "only data that left here reaches the host's cache parser"),
    ("vkGetPipelineCacheData", "pipeline_cache", "data leaves with a tag"),
    ("vkGetQueryPoolResults", "query", "stride and size are checked before the driver writes"),
    ("vkCopyImageToMemoryMESA", "host_copy", "the data travels in the reply"),
    ("vkCopyMemoryToImageMESA", "host_copy", "the data travels in the command"),
];

/// The module that executes `command`, if it is not generated.
pub fn module(command: &str) -> Option<&'static str> {
    BY_HAND.iter().find(|(name, ..)| *name == command).map(|(_, module, _)| *module)
}

/// Rows that name no selected command: left over after an edit of the allow-list.
pub fn stale(selected: impl Fn(&str) -> bool) -> Vec<&'static str> {
    BY_HAND.iter().map(|(name, ..)| *name).filter(|name| !selected(name)).collect()
}
