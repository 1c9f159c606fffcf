//! Vulkan names to Rust names, spelled as ash spells them.

/// `maxImageDimension2D` to `max_image_dimension2_d`: a word starts at a capital after a small letter, and at the last capital
/// of a run. Digits count as the kind of letter they follow.
pub(super) fn snake(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut out = String::new();
    let mut after_small = false;
    for (i, &c) in chars.iter().enumerate() {
        let next_is_small = chars.get(i + 1).is_some_and(|n| n.is_ascii_lowercase());
        let ends_run = i > 0 && next_is_small && chars[i - 1].is_ascii_uppercase();
        if c.is_ascii_uppercase() && i > 0 && (after_small || ends_run) && !out.ends_with('_') {
            out.push('_');
        }
        if c.is_ascii_alphabetic() {
            after_small = c.is_ascii_lowercase();
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// Field name: snake case, keywords avoided.
pub(super) fn field(name: &str) -> String {
    if name == "type" { "ty".to_owned() } else { snake(name) }
}

/// Type or command name: the `Vk` or `vk` goes, `FlagBits` become `Flags`, `VkResult` keeps its prefix to leave `Result` alone.
pub(super) fn upper(name: &str) -> String {
    if name == "VkResult" {
        return name.to_owned();
    }
    let bare = name.strip_prefix("Vk").or_else(|| name.strip_prefix("vk")).unwrap_or(name);
    bare.replace("FlagBits", "Flags")
}

/// Constant name of an enumerant: `VK_BUFFER_USAGE_STORAGE_BUFFER_BIT` of `VkBufferUsageFlags` to `STORAGE_BUFFER`.
pub(super) fn constant(type_name: &str, value: &str) -> String {
    let vendor = vendor_of(type_name);
    let type_name = type_name.strip_suffix(vendor).unwrap_or(type_name);
    let (stem, is_flags) = match type_name.find("FlagBits").or_else(|| type_name.find("Flags")) {
        Some(at) => (type_name.replace("FlagBits", "").replace("Flags", ""), at > 0),
        None => (type_name.to_owned(), false),
    };
    let rest = strip_type_prefix(value, &stem).or_else(|| value.strip_prefix("VK_")).unwrap_or(value);
    let rest = match (vendor, rest.strip_suffix(vendor)) {
        ("", _) | (_, None) => rest,
        (_, Some(bare)) => bare.strip_suffix('_').unwrap_or(rest),
    };
    let mut rest = rest.to_owned();
    if is_flags {
        if let Some(bare) = rest.strip_suffix("_BIT") {
            rest = bare.to_owned();
        } else if let Some((bare, tag)) = rest.rsplit_once("_BIT_") {
            rest = format!("{bare}_{tag}");
        }
    }
    let rest = rest.to_ascii_uppercase();
    if rest.starts_with(|c: char| c.is_ascii_digit()) { format!("TYPE_{rest}") } else { rest }
}

/// Variant name of a union member: `float32` to `Float32`.
pub(super) fn variant(member: &str) -> String {
    let mut chars = member.chars();
    chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}

/// The trailing vendor tag (`KHR`), or nothing.
fn vendor_of(type_name: &str) -> &str {
    let start = type_name.rfind(|c: char| !c.is_ascii_uppercase()).map_or(0, |at| at + 1);
    let tag = &type_name[start..];
    if tag.len() >= 2 { tag } else { "" }
}

/// Removes the type's name from the front of an enumerant, underscores ignored: `VkPipelineStage2` from
/// `VK_PIPELINE_STAGE_2_NONE`.
fn strip_type_prefix<'v>(value: &'v str, stem: &str) -> Option<&'v str> {
    let mut rest = value;
    for expected in stem.chars() {
        let bare = rest.trim_start_matches('_');
        let found = bare.chars().next()?;
        if !found.eq_ignore_ascii_case(&expected) {
            return None;
        }
        rest = &bare[found.len_utf8()..];
    }
    rest.strip_prefix('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_spelled_as_in_ash() {
        for (vk, rust) in [
            ("pNext", "p_next"),
            ("ppEnabledLayerNames", "pp_enabled_layer_names"),
            ("maxImageDimension2D", "max_image_dimension2_d"),
            ("image2DViewOf3D", "image2_d_view_of3_d"),
            ("formatA4R4G4B4", "format_a4r4g4b4"),
            ("deviceUUID", "device_uuid"),
            ("storageBuffer8BitAccess", "storage_buffer8_bit_access"),
            ("type", "ty"),
        ] {
            assert_eq!(field(vk), rust);
        }
    }

    #[test]
    fn constants_lose_type_name_bit_and_vendor() {
        for (ty, vk, rust) in [
            ("VkBufferUsageFlags", "VK_BUFFER_USAGE_STORAGE_BUFFER_BIT", "STORAGE_BUFFER"),
            (
                "VkBufferUsageFlags",
                "VK_BUFFER_USAGE_TRANSFORM_FEEDBACK_BUFFER_BIT_EXT",
                "TRANSFORM_FEEDBACK_BUFFER_EXT",
            ),
            ("VkPipelineStageFlags2", "VK_PIPELINE_STAGE_2_NONE", "NONE"),
            ("VkTimeDomainKHR", "VK_TIME_DOMAIN_DEVICE_KHR", "DEVICE"),
            ("VkImageType", "VK_IMAGE_TYPE_2D", "TYPE_2D"),
            ("VkResult", "VK_ERROR_DEVICE_LOST", "ERROR_DEVICE_LOST"),
            ("VkSampleCountFlags", "VK_SAMPLE_COUNT_1_BIT", "TYPE_1"),
            ("VkRingStatusFlagsMESA", "VK_RING_STATUS_IDLE_BIT_MESA", "IDLE"),
        ] {
            assert_eq!(constant(ty, vk), rust);
        }
    }
}
