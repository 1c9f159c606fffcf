//! The Venus capset (id 4): 168 bytes that tell the guest's driver which messages this codec decodes.
//!
//! The extension mask comes from the table that is generated together with the decoder, so a set bit means decodable. It limits the messages that the
//! driver encodes, not the features that applications see.
//!
//! The 160 bytes that upstream's drivers know are followed by 8 bytes for the drivers of `guest-driver-patches`: they announce features that
//! upstream's protocol does not have. A driver asks for as many bytes as it knows, and reads zeros if a host sends fewer, so every driver works with
//! every host.

use super::generated::{EXTENSIONS, REGISTRY_VERSION};
use crate::cursor::Writer;

/// Size of the capset in bytes.
pub const SIZE: usize = 168;

/// The number in front of the private features: "VUV1", so that a driver never takes another host's bytes for private features.
pub const PRIVATE_MAGIC: u32 = u32::from_le_bytes(*b"VUV1");

/// Bit 0 of the private features: `VK_NV_cooperative_matrix2`, whose command has the private number of `commands.toml`.
pub const PRIVATE_COOPERATIVE_MATRIX2: u32 = 1;

/// Bit 1 of the private features: the figures of `VK_EXT_memory_budget` are those of the context.
pub const PRIVATE_MEMORY_BUDGET: u32 = 2;

/// Extensions that upstream's protocol does not have. The mask does not name them: an upstream driver that comes to know one of them may
/// have other numbers for its commands.
const PRIVATE: &[&str] = &["VK_NV_cooperative_matrix2"];

/// The wire format every Venus driver since Mesa 25.0 uses.
pub const WIRE_FORMAT_VERSION: u32 = 1;

/// The capset's variable part. All other fields have one right value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capset {
    /// Vulkan version of the registry the decoder was made from, packed as Vulkan does; it caps the version the guest sees.
    pub vk_xml_version: u32,
    /// Version of the Venus protocol: 2 for ring priorities, 3 for host image copies and Vulkan 1.4.
    pub venus_protocol_spec_version: u32,
}

impl Default for Capset {
    /// Everything the codec can do.
    fn default() -> Self {
        let (major, minor, patch) = REGISTRY_VERSION;
        Self { vk_xml_version: api_version(major, minor, patch), venus_protocol_spec_version: 3 }
    }
}

impl Capset {
    /// The bytes to send.
    pub fn to_bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let mut writer = Writer::window(&mut bytes);
        writer.u32(WIRE_FORMAT_VERSION);
        writer.u32(self.vk_xml_version);
        writer.u32(1); // vk_ext_command_serialization_spec_version
        writer.u32(self.venus_protocol_spec_version);
        writer.u32(1); // supports_blob_id_0
        extension_mask().into_iter().for_each(|word| writer.u32(word));
        writer.u32(1); // allow_vk_wait_syncs
        writer.u32(1); // supports_multiple_timelines
        writer.u32(0); // use_guest_vram
        writer.u32(PRIVATE_MAGIC);
        writer.u32(PRIVATE_COOPERATIVE_MATRIX2 | PRIVATE_MEMORY_BUDGET);
        bytes
    }
}

/// `VK_MAKE_API_VERSION` with variant 0.
pub const fn api_version(major: u32, minor: u32, patch: u32) -> u32 {
    (major << 22) | (minor << 12) | patch
}

/// `vk_extension_mask1`: bit 0 says that the mask is meaningful, bit N stands for the extension with registry number N.
pub fn extension_mask() -> [u32; 32] {
    let mut mask = [0; 32];
    let public = EXTENSIONS.iter().filter(|(_, name, _)| !PRIVATE.contains(name));
    for number in public.map(|(number, ..)| *number).chain([0]) {
        if let Some(word) = mask.get_mut(number as usize / 32) {
            *word |= 1 << (number % 32);
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    }

    #[test]
    fn fields_lie_where_the_driver_looks() {
        let capset = Capset { vk_xml_version: api_version(1, 3, 345), venus_protocol_spec_version: 2 };
        let bytes = capset.to_bytes();
        let fields = [0, 4, 8, 12, 16, 148, 152, 156, 160, 164].map(|at| word(&bytes, at));
        assert_eq!(fields, [1, 0x40_3159, 1, 2, 1, 1, 1, 0, 0x3156_5556, 3]);
    }

    #[test]
    fn mask_names_the_transport_and_promoted_extensions() {
        let bytes = Capset::default().to_bytes();
        let is_set = |number: usize| word(&bytes, 20 + number / 32 * 4) & 1 << (number % 32) != 0;
        for number in [0, 384, 385, 315, 45, 226, 414, 139, 281, 296, 298, 336, 361, 471] {
            assert!(is_set(number), "extension {number}");
        }
        assert!(!is_set(2), "VK_KHR_swapchain has no decodable structs");
    }

    #[test]
    fn every_extension_of_upstream_has_a_bit_and_nothing_else_has_one() {
        let mask = extension_mask();
        let is_set = |number: u32| mask[number as usize / 32] & 1 << (number % 32) != 0;
        for number in 0..1024 {
            let known = EXTENSIONS.iter().find(|(extension, ..)| *extension == number);
            let is_public = known.is_some_and(|(_, name, _)| !PRIVATE.contains(name));
            assert_eq!(is_set(number), is_public || number == 0, "extension {number}");
        }
        let is_known = |private| EXTENSIONS.iter().any(|(_, name, _)| name == private);
        assert!(PRIVATE.iter().all(is_known), "a private extension that is not decoded");
        assert!(EXTENSIONS.iter().all(|(number, ..)| *number < 1024));
    }

    #[test]
    fn versions_are_packed_as_vulkan_packs_them() {
        assert_eq!(api_version(1, 0, 0), 0x40_0000);
        assert_eq!(api_version(1, 4, 0), 0x40_4000);
        assert_eq!(api_version(1, 3, 0xfff), 0x40_3fff);
        let (major, minor, patch) = REGISTRY_VERSION;
        let xml_version = word(&Capset::default().to_bytes(), 4);
        assert_eq!(
            (xml_version >> 22, xml_version >> 12 & 0x3ff, xml_version & 0xfff),
            (major, minor, patch)
        );
    }

    #[test]
    fn the_versions_are_the_only_bytes_that_vary() {
        let [one, other] =
            [(1, 2), (u32::MAX, u32::MAX)].map(|(vk_xml_version, venus_protocol_spec_version)| {
                Capset { vk_xml_version, venus_protocol_spec_version }.to_bytes()
            });
        for at in 0..SIZE {
            let is_version = (4..8).contains(&at) || (12..16).contains(&at);
            assert_eq!(one[at] != other[at], is_version, "byte {at}");
        }
    }
}
