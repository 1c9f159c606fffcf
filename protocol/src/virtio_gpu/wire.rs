//! The structures byte by byte, as in Linux' `virtio_gpu.h`. All are little endian and free of alignment.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! wire {
    ($($(#[$doc:meta])* struct $name:ident[$bytes:literal] { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

wire! {
    /// `virtio_gpu_ctrl_hdr`.
    struct CtrlHdr[24] { type_: U32, flags: U32, fence_id: U64, ctx_id: U32, ring_idx: u8, padding: [u8; 3], }
    /// `virtio_gpu_rect`.
    struct Rect[16] { x: U32, y: U32, width: U32, height: U32, }
    /// The body of every command that names only one resource.
    struct Resource[8] { resource_id: U32, padding: U32, }
    /// `virtio_gpu_resource_create_2d`.
    struct ResourceCreate2d[16] { resource_id: U32, format: U32, width: U32, height: U32, }
    /// `virtio_gpu_set_scanout`.
    struct SetScanout[24] { r: Rect, scanout_id: U32, resource_id: U32, }
    /// `virtio_gpu_resource_flush`.
    struct ResourceFlush[24] { r: Rect, resource_id: U32, padding: U32, }
    /// `virtio_gpu_transfer_to_host_2d`.
    struct TransferToHost2d[32] { r: Rect, offset: U64, resource_id: U32, padding: U32, }
    /// `virtio_gpu_resource_attach_backing`.
    struct ResourceAttachBacking[8] { resource_id: U32, nr_entries: U32, }
    /// `virtio_gpu_get_capset_info`.
    struct GetCapsetInfo[8] { capset_index: U32, padding: U32, }
    /// `virtio_gpu_get_capset`.
    struct GetCapset[8] { capset_id: U32, capset_version: U32, }
    /// `virtio_gpu_cmd_get_edid`.
    struct GetEdid[8] { scanout: U32, padding: U32, }
    /// `virtio_gpu_resource_create_blob`.
    struct ResourceCreateBlob[32] {
        resource_id: U32, blob_mem: U32, blob_flags: U32, nr_entries: U32, blob_id: U64, size: U64,
    }
    /// `virtio_gpu_set_scanout_blob`.
    struct SetScanoutBlob[72] {
        r: Rect, scanout_id: U32, resource_id: U32, width: U32, height: U32, format: U32, padding: U32,
        strides: [U32; 4], offsets: [U32; 4],
    }
    /// `virtio_gpu_ctx_create`.
    struct CtxCreate[72] { nlen: U32, context_init: U32, debug_name: [u8; 64], }
    /// `virtio_gpu_cmd_submit`.
    struct Submit3d[8] { size: U32, padding: U32, }
    /// `virtio_gpu_resource_map_blob`.
    struct ResourceMapBlob[16] { resource_id: U32, padding: U32, offset: U64, }
    /// `virtio_gpu_update_cursor`: position, image and hot spot.
    struct UpdateCursor[32] {
        scanout_id: U32, x: U32, y: U32, pos_padding: U32, resource_id: U32, hot_x: U32, hot_y: U32, padding: U32,
    }
    /// `virtio_gpu_display_one`.
    struct DisplayOne[24] { r: Rect, enabled: U32, flags: U32, }
    /// `virtio_gpu_resp_capset_info`.
    struct RespCapsetInfo[16] { capset_id: U32, capset_max_version: U32, capset_max_size: U32, padding: U32, }
    /// `virtio_gpu_resp_map_info`.
    struct RespMapInfo[8] { map_info: U32, padding: U32, }
}
