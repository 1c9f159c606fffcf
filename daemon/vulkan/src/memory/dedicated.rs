//! Allocations that are dedicated to one buffer or image.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::logical::device::Device;
use ash::vk::{self, Handle as _};
use protocol::venus::generated::{self as venus, ChainStruct};

/// Returns whether memory that a guest wants to dedicate to a buffer or image has to be dedicated: the driver insists, or the memory need not be
/// cleared or copied. A buffer of ours can clear and copy only memory that is dedicated to nothing.
pub(crate) fn stays_dedicated(
    call: &Call<'_>,
    device: &Device,
    info: &venus::MemoryAllocateInfo<'_>,
) -> Result<bool, Fault> {
    let dedicated = info.p_next.iter().find_map(|next| match next {
        ChainStruct::MemoryDedicatedAllocateInfo(dedicated) => Some(*dedicated),
        _ => None,
    });
    let is_hint = device.cleaner.is_some() || device.physical.gpu.protection.movable;
    let Some(dedicated) = dedicated.filter(|_| is_hint) else { return Ok(dedicated.is_some()) };
    let (image, buffer) = {
        let l = call.lowering();
        (l.handle(dedicated.image)?, l.handle(dedicated.buffer)?)
    };
    let mut answer = vk::MemoryDedicatedRequirements::default();
    let mut needs = vk::MemoryRequirements2::default().push_next(&mut answer);
    if image != 0 {
        let info = vk::ImageMemoryRequirementsInfo2::default().image(vk::Image::from_raw(image));
        // SAFETY: device and image are live, the structs live until the call returns.
        unsafe { device.ash.get_image_memory_requirements2(&info, &mut needs) };
    } else if buffer != 0 {
        let info = vk::BufferMemoryRequirementsInfo2::default().buffer(vk::Buffer::from_raw(buffer));
        // SAFETY: as above.
        unsafe { device.ash.get_buffer_memory_requirements2(&info, &mut needs) };
    }
    Ok(answer.requires_dedicated_allocation != 0)
}
