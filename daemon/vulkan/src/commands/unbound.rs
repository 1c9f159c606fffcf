//! Objects of the host that are of no use: the command that should have filled them failed, and the guest does not know.
//!
//! Drivers take a buffer without memory for one with memory, and a set without descriptors for one with descriptors. So a command that names
//! such an object fails as if the object had not been created, and a command buffer that names it is spoilt; it can only be destroyed.

use crate::context::error::INVALID;
use crate::execution::call::Call;
use crate::objects::object::Handle;
use protocol::venus::generated as venus;

/// `vkBindBufferMemory` failed.
pub(crate) fn bind_buffer_memory(call: &Call<'_>, c: &venus::BindBufferMemory, result: i32) {
    fail(call, c.buffer, result);
}

/// `vkBindBufferMemory2` failed.
pub(crate) fn bind_buffer_memory2(call: &Call<'_>, c: &venus::BindBufferMemory2<'_>, result: i32) {
    c.p_bind_infos.unwrap_or(&[]).iter().for_each(|bind| fail(call, bind.buffer, result));
}

/// `vkBindImageMemory` failed.
pub(crate) fn bind_image_memory(call: &Call<'_>, c: &venus::BindImageMemory, result: i32) {
    fail(call, c.image, result);
}

/// `vkBindImageMemory2` failed.
pub(crate) fn bind_image_memory2(call: &Call<'_>, c: &venus::BindImageMemory2<'_>, result: i32) {
    c.p_bind_infos.unwrap_or(&[]).iter().for_each(|bind| fail(call, bind.image, result));
}

/// `vkUpdateDescriptorSets` failed: none of its sets is complete. The sets are freed with their pool, so they stay where they are.
pub(crate) fn update_descriptor_sets(call: &Call<'_>, c: &venus::UpdateDescriptorSets<'_>, result: i32) {
    let written = c.p_descriptor_writes.unwrap_or(&[]).iter().map(|write| write.dst_set);
    let copied = c.p_descriptor_copies.unwrap_or(&[]).iter().map(|copy| copy.dst_set);
    for set in written.chain(copied) {
        fail(call, set, result);
    }
}

/// Marks an object as failed, unless the command broke valid usage ([`INVALID`]) and so changed nothing.
fn fail<H: Handle>(call: &Call<'_>, id: H, result: i32) {
    if result != INVALID {
        call.context.objects.fail(id, result);
    }
}
