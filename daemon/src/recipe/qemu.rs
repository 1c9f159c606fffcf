//! QEMU's arguments. QEMU 11.1 and newer attach any vhost-user device with a window through `vhost-user-test-device-pci`.

use super::{CHARDEV, DEVICE_ID, MEMORY, PORT_ID, Unfit, word};
use std::path::Path;

/// QEMU's device for any device that a vhost-user socket offers.
const DEVICE: &str = "vhost-user-test-device-pci";
/// The properties of a virtio-gpu device (virtio 1.3, section 5.7: device 16 with two queues).
const PROPERTIES: [(&str, Value<'_>); 4] = [
    ("virtio-id", Value::Number(16)),
    ("num_vqs", Value::Number(2)),
    ("vq_size", Value::Number(1024)),
    ("config_size", Value::Number(16)),
];
/// A port of its own, from which the device can be unplugged while the VM runs. This is necessary when the daemon was started anew under a running
/// VM. The chassis number must differ from those of the VM's other ports; libvirt counts its own from 1.
const PORT: (&str, [(&str, Value<'_>); 2]) =
    ("pcie-root-port", [("id", Value::Word(PORT_ID)), ("chassis", Value::Number(240))]);
/// Suspend to memory resets the device, which neither stock guests nor QEMU 11.1 survive, so the firmware does not offer suspend to memory. Only
/// QEMU's machines for x86-64 have the switch.
const NO_SUSPEND: &[&str] =
    if cfg!(target_arch = "x86_64") { &["-global", "ICH9-LPC.disable_s3=1"] } else { &[] };
/// The smallest window, in bytes, for which OVMF finds no place by itself on a machine with 40 address bits. OVMF is told to leave twice as much.
pub const OVMF_LARGE: u64 = 128 << 30;

/// Returns the arguments for a VM of `memory` bytes, separated by spaces: none needs to be quoted. `window` is the size of the window in bytes, which
/// is announced to the firmware if it is large.
///
/// # Errors
///
/// The path would have to be quoted.
pub fn qemu(socket: &Path, memory: u64, window: u64) -> Result<String, Unfit> {
    let size = size(memory);
    let arguments = [
        "-object".to_owned(),
        format!("memory-backend-memfd,id={MEMORY},size={size},share=on"),
        "-machine".to_owned(),
        format!("memory-backend={MEMORY}"),
        "-m".to_owned(),
        size,
    ];
    Ok(arguments.into_iter().chain(device(socket, window, plain)?).collect::<Vec<_>>().join(" "))
}

/// Returns the arguments for the device alone, which come after those of libvirt. QEMU makes devices that are described in JSON, as libvirt's are,
/// after all others. Described in another way, this device would take a PCI address that libvirt has given to one of its own devices.
pub(super) fn device_behind_others(socket: &Path, window: u64) -> Result<Vec<String>, Unfit> {
    device(socket, window, json)
}

/// Returns the arguments for the device alone, described in one of two ways.
fn device(
    socket: &Path,
    window: u64,
    described: fn(&str, &[(&str, Value<'_>)]) -> String,
) -> Result<Vec<String>, Unfit> {
    let path = word(socket)?;
    let mut arguments: Vec<String> = NO_SUSPEND.iter().map(|&argument| argument.to_owned()).collect();
    if window >= OVMF_LARGE {
        let mib = window.next_power_of_two().saturating_mul(2) >> 20;
        arguments.extend(["-fw_cfg".into(), format!("name=opt/ovmf/X-PciMmio64Mb,string={mib}")]);
    }
    let (port, of_port) = PORT;
    let own = [("chardev", CHARDEV), ("id", DEVICE_ID), ("bus", PORT_ID)];
    let properties: Vec<_> =
        PROPERTIES.into_iter().chain(own.map(|(name, word)| (name, Value::Word(word)))).collect();
    arguments.extend(["-chardev".into(), format!("socket,id={CHARDEV},path={path}")]);
    arguments.extend(["-device".into(), described(port, &of_port)]);
    arguments.extend(["-device".into(), described(DEVICE, &properties)]);
    Ok(arguments)
}

/// A property's value.
#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u32),
    Word(&'a str),
}

/// Returns a device in the plain form of QEMU's command line.
fn plain(driver: &str, properties: &[(&str, Value<'_>)]) -> String {
    let property = |(name, value): &(&str, Value<'_>)| match value {
        Value::Number(number) => format!(",{name}={number}"),
        Value::Word(word) => format!(",{name}={word}"),
    };
    driver.to_owned() + &properties.iter().map(property).collect::<String>()
}

/// Returns a device in JSON.
fn json(driver: &str, properties: &[(&str, Value<'_>)]) -> String {
    let property = |(name, value): &(&str, Value<'_>)| match value {
        Value::Number(number) => format!(r#","{name}":{number}"#),
        Value::Word(word) => format!(r#","{name}":"{word}""#),
    };
    format!(r#"{{"driver":"{driver}"{}}}"#, properties.iter().map(property).collect::<String>())
}

/// Returns whether an argument makes such a device, described in either way.
pub(super) fn is_device(argument: &str) -> bool {
    argument.starts_with(DEVICE) || argument.starts_with('{') && argument.contains(DEVICE)
}

/// Returns a size as QEMU reads it.
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
        let text = qemu(Path::new("/run/a.sock"), 4 << 30, 0).unwrap();
        assert_eq!(
            text.replace("-global ICH9-LPC.disable_s3=1 ", ""),
            "-object memory-backend-memfd,id=vhost-user-vulkan-memory,size=4G,share=on \
             -machine memory-backend=vhost-user-vulkan-memory -m 4G \
             -chardev socket,id=vhost-user-vulkan,path=/run/a.sock \
             -device pcie-root-port,id=vhost-user-vulkan-port,chassis=240 \
             -device vhost-user-test-device-pci,virtio-id=16,num_vqs=2,vq_size=1024,config_size=16,chardev=vhost-user-vulkan,\
             id=vhost-user-vulkan,bus=vhost-user-vulkan-port"
        );
        assert_eq!(text.contains("ICH9-LPC.disable_s3=1"), cfg!(target_arch = "x86_64"));
    }

    #[test]
    fn ovmf_is_told_of_windows_for_which_it_finds_no_place_by_itself() {
        let told = |window| {
            let text = qemu(Path::new("/run/a.sock"), 4 << 30, window).unwrap();
            text.split_once("name=opt/ovmf/X-PciMmio64Mb,string=")
                .map(|(_, rest)| rest.split(' ').next().unwrap().to_owned())
        };
        assert_eq!((told(0), told(64 << 30)), (None, None));
        for (window, mib) in [(128, "262144"), (129, "524288"), (256, "524288")] {
            assert_eq!(told(window << 30).as_deref(), Some(mib));
        }
    }

    #[test]
    fn sizes_are_exact() {
        let sizes = [(4 << 30, "4G"), (1536 << 20, "1536M"), (3 << 10, "3K"), (4097, "4097B"), (0, "0B")];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
    }
}
