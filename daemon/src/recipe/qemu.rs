//! QEMU's arguments. QEMU 11.1 and newer attach any vhost-user device with a window by `vhost-user-test-device-pci`.

use super::{CHARDEV, MEMORY, Unfit, word};
use std::path::Path;

/// QEMU's device for whatever a vhost-user socket offers.
const DEVICE: &str = "vhost-user-test-device-pci";
/// The properties of a virtio-gpu device (virtio 1.3, section 5.7: device 16 with two queues).
const PROPERTIES: [(&str, u32); 4] =
    [("virtio-id", 16), ("num_vqs", 2), ("vq_size", 1024), ("config_size", 16)];

/// Returns the arguments for a VM of `memory` bytes, separated by spaces: none needs to be quoted.
///
/// # Errors
///
/// The path would have to be.
pub fn qemu(socket: &Path, memory: u64) -> Result<String, Unfit> {
    let size = size(memory);
    let arguments = [
        "-object".to_owned(),
        format!("memory-backend-memfd,id={MEMORY},size={size},share=on"),
        "-machine".to_owned(),
        format!("memory-backend={MEMORY}"),
        "-m".to_owned(),
        size,
    ];
    Ok(arguments.into_iter().chain(device(socket)?).collect::<Vec<_>>().join(" "))
}

/// The arguments for the device alone, for VMs whose memory is shared already.
fn device(socket: &Path) -> Result<[String; 4], Unfit> {
    let properties: String = PROPERTIES.iter().map(|(name, value)| format!("{name}={value},")).collect();
    with_character_device(socket, format!("{DEVICE},{properties}chardev={CHARDEV}"))
}

/// The arguments for the device alone, behind those of libvirt. QEMU makes devices that are described in JSON, as libvirt's are, after all
/// others; described otherwise this one would take a PCI address that libvirt has given to one of its own.
pub(super) fn device_behind_others(socket: &Path) -> Result<[String; 4], Unfit> {
    let properties: String = PROPERTIES.iter().map(|(name, value)| format!(r#""{name}":{value},"#)).collect();
    with_character_device(socket, format!(r#"{{"driver":"{DEVICE}",{properties}"chardev":"{CHARDEV}"}}"#))
}

fn with_character_device(socket: &Path, device: String) -> Result<[String; 4], Unfit> {
    let path = word(socket)?;
    Ok(["-chardev".into(), format!("socket,id={CHARDEV},path={path}"), "-device".into(), device])
}

/// Returns whether an argument makes such a device, described in whichever way.
pub(super) fn is_device(argument: &str) -> bool {
    argument.starts_with(DEVICE) || argument.starts_with('{') && argument.contains(DEVICE)
}

/// A size as QEMU reads it.
fn size(bytes: u64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes}B"), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_words_of_one_line() {
        assert_eq!(
            qemu(Path::new("/run/a.sock"), 4 << 30).unwrap(),
            "-object memory-backend-memfd,id=vhost-user-vulkan-memory,size=4G,share=on \
             -machine memory-backend=vhost-user-vulkan-memory -m 4G \
             -chardev socket,id=vhost-user-vulkan,path=/run/a.sock \
             -device vhost-user-test-device-pci,virtio-id=16,num_vqs=2,vq_size=1024,config_size=16,chardev=vhost-user-vulkan"
        );
    }

    #[test]
    fn sizes_are_exact() {
        let sizes = [(4 << 30, "4G"), (1536 << 20, "1536M"), (3 << 10, "3K"), (4097, "4097B"), (0, "0B")];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
    }
}
