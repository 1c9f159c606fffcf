//! Host image copies. `VK_EXT_host_image_copy` is not offered, so a guest that sends one is broken.

use super::call::Call;
use super::error::Fault;
use protocol::venus::generated as venus;

/// `vkCopyImageToMemoryMESA`.
pub fn copy_image_to_memory_mesa<'a>(
    _: &Call<'a>,
    _: &venus::CopyImageToMemoryMESA<'a>,
) -> Result<venus::CopyImageToMemoryMESAReply<'a>, Fault> {
    Err(Fault::missing("vkCopyImageToMemoryMESA"))
}

/// `vkCopyMemoryToImageMESA`.
pub fn copy_memory_to_image_mesa<'a>(
    _: &Call<'a>,
    _: &venus::CopyMemoryToImageMESA<'a>,
) -> Result<venus::CopyMemoryToImageMESAReply, Fault> {
    Err(Fault::missing("vkCopyMemoryToImageMESA"))
}
