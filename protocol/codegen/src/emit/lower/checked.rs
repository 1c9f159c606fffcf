//! Commands that are checked before they are lowered: one row each, with the module of `daemon::vulkan::validity` and what the driver
//! would believe otherwise. The check of a creation returns what later checks have to know.

/// Command, module, what is checked.
const CHECKED: &[(&str, &str, &str)] = &[
    ("vkCreateImageView", "images", "the range lies in the image"),
    ("vkCreateBufferView", "buffers", "the range lies in the buffer"),
    ("vkBindBufferMemory", "buffers", "the buffer lies in the memory, and is bound once"),
    ("vkBindBufferMemory2", "buffers", "the buffer lies in the memory, and is bound once"),
    ("vkBindImageMemory", "images", "the image lies in the memory, and is bound once"),
    ("vkBindImageMemory2", "images", "the image lies in the memory, and is bound once"),
    ("vkGetBufferDeviceAddress", "buffers", "the buffer has memory"),
    ("vkCmdUpdateBuffer", "buffers", "the range lies in the buffer, and is short"),
    ("vkCmdCopyBuffer", "buffers", "regions lie in both buffers"),
    ("vkCmdCopyBuffer2", "buffers", "regions lie in both buffers"),
    ("vkCmdCopyImage", "region", "regions lie in both images"),
    ("vkCmdCopyImage2", "region", "regions lie in both images"),
    ("vkCopyImageToImage", "region", "regions lie in both images"),
    ("vkCmdBlitImage", "region", "regions lie in both images"),
    ("vkCmdBlitImage2", "region", "regions lie in both images"),
    ("vkCmdResolveImage", "region", "regions lie in both images"),
    ("vkCmdResolveImage2", "region", "regions lie in both images"),
    ("vkCmdCopyBufferToImage", "region", "regions lie in buffer and image"),
    ("vkCmdCopyBufferToImage2", "region", "regions lie in buffer and image"),
    ("vkCmdCopyImageToBuffer", "region", "regions lie in buffer and image"),
    ("vkCmdCopyImageToBuffer2", "region", "regions lie in buffer and image"),
    ("vkCmdClearColorImage", "images", "ranges lie in the image"),
    ("vkCmdClearDepthStencilImage", "images", "ranges lie in the image"),
    ("vkCmdBindPipeline", "binding", "the pipeline is of this kind"),
    ("vkCmdBindDescriptorSets", "binding", "sets fit the layout, and so do dynamic offsets"),
    ("vkCmdBindDescriptorSets2", "binding", "sets fit the layout, and so do dynamic offsets"),
    ("vkCmdPushDescriptorSet", "binding", "writes lie in the layout"),
    ("vkCmdPushDescriptorSet2", "binding", "writes lie in the layout"),
    ("vkCmdPushConstants", "binding", "the range lies in what devices have"),
    ("vkCmdPushConstants2", "binding", "the range lies in what devices have"),
    ("vkCmdDispatch", "binding", "a pipeline is bound, counts are what devices take"),
    ("vkCmdDispatchBase", "binding", "a pipeline is bound, counts are what devices take"),
    ("vkCmdDispatchIndirect", "binding", "a pipeline is bound, the counts lie in the buffer"),
    ("vkCreateQueryPool", "query", "the number of queries"),
    ("vkResetQueryPool", "query", "queries are in the pool"),
    ("vkCmdResetQueryPool", "query", "queries are in the pool"),
    ("vkCmdBeginQuery", "query", "the query is in the pool, and of this kind"),
    ("vkCmdEndQuery", "query", "the query was begun"),
    ("vkCmdBeginQueryIndexedEXT", "query", "the query is in the pool, and of this kind"),
    ("vkCmdEndQueryIndexedEXT", "query", "the query was begun"),
    ("vkCmdWriteTimestamp", "query", "the query is in the pool, and of this kind"),
    ("vkCmdWriteTimestamp2", "query", "the query is in the pool, and of this kind"),
    ("vkCmdCopyQueryPoolResults", "query", "queries are in the pool, results in the buffer"),
    ("vkGetSemaphoreCounterValue", "semaphores", "it is a timeline"),
    ("vkSignalSemaphore", "semaphores", "it is a timeline"),
    ("vkMergePipelineCaches", "pipelines", "it is not merged into itself"),
];

/// The module that checks `command`, if it is checked.
pub fn module(command: &str) -> Option<&'static str> {
    CHECKED.iter().find(|(name, ..)| *name == command).map(|(_, module, _)| *module)
}

/// Rows that name no selected command: left over after an edit of the allow-list.
pub fn stale(selected: impl Fn(&str) -> bool) -> Vec<&'static str> {
    CHECKED.iter().map(|(name, ..)| *name).filter(|name| !selected(name)).collect()
}
