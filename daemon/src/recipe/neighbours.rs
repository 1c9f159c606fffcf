//! The devices of a libvirt domain that do not go well with the GPU, and the remedies: other vhost back ends, which have to take as many memory
//! regions as the VM has mappings (docs/maps.md, "Other back ends of the VM"), and a display that is a virtio-gpu device as well.

use roxmltree::Node;

/// A kind of device, and the advice for an administrator who adds the GPU beside it.
struct Neighbour {
    is: fn(Node<'_, '_>) -> bool,
    advice: &'static str,
}

const NEIGHBOURS: [Neighbour; 5] = [
    Neighbour {
        is: is_of_the_kernel,
        advice: "vhost-net and vhost-vsock of the kernel take 64 memory regions, and do not start again with more: write `options vhost max_mem_regions=512` into /etc/modprobe.d/vhost.conf on the host and load the module anew, or give the VM's daemon --max-maps 56",
    },
    Neighbour {
        is: is_passt,
        advice: "passt takes 8 memory regions, and the network is lost when its driver starts again: use another <interface>, such as type='network'",
    },
    Neighbour {
        is: is_other_vhost_user,
        advice: "another vhost-user program has to take as many memory regions as the VM has mappings (400): if it takes fewer, give the VM's daemon a smaller --max-maps",
    },
    Neighbour {
        is: is_virtiofs,
        advice: "virtiofsd of QEMU 7.2 (Debian 12) takes 32 memory regions, and QEMU crashes with more: give the VM's daemon --max-maps 24. virtiofsd 1.13 (Debian 13) ends when the GPU's own memory is mapped: use 1.14, or give the VM's daemon --map-device-memory never",
    },
    Neighbour {
        is: is_virtio_display,
        advice: "<video> is a virtio-gpu device too, and Mesa in the guest shows programs the GPUs of one such device alone: make it <model type='vga'/>, or none",
    },
];

/// Returns the advice about other devices of a domain, in sentences: each once.
pub(super) fn advice(domain: Node<'_, '_>) -> Vec<&'static str> {
    let devices = domain.children().find(|child| child.has_tag_name("devices"));
    let has = |neighbour: &&Neighbour| devices.is_some_and(|devices| devices.children().any(neighbour.is));
    NEIGHBOURS.iter().filter(has).map(|neighbour| neighbour.advice).collect()
}

/// Returns the attribute of a device's child.
fn of_child<'a>(device: Node<'a, '_>, child: &str, attribute: &str) -> Option<&'a str> {
    device.children().find(|node| node.has_tag_name(child))?.attribute(attribute)
}

/// Returns whether the kernel serves the device: a virtio network card on a tap device, unless QEMU is to serve it itself, or vhost-vsock.
fn is_of_the_kernel(device: Node<'_, '_>) -> bool {
    let has_tap = ["network", "bridge", "direct", "ethernet"].map(Some).contains(&device.attribute("type"));
    let is_virtio = of_child(device, "model", "type").is_some_and(|model| model.starts_with("virtio"));
    let is_qemus = of_child(device, "driver", "name") == Some("qemu");
    device.has_tag_name("vsock") || device.has_tag_name("interface") && has_tap && is_virtio && !is_qemus
}

fn is_vhost_user(device: Node<'_, '_>) -> bool {
    ["interface", "disk"].iter().any(|name| device.has_tag_name(*name))
        && device.attribute("type") == Some("vhostuser")
}

fn is_passt(device: Node<'_, '_>) -> bool {
    is_vhost_user(device) && of_child(device, "backend", "type") == Some("passt")
}

fn is_other_vhost_user(device: Node<'_, '_>) -> bool {
    is_vhost_user(device) && !is_passt(device)
}

fn is_virtiofs(device: Node<'_, '_>) -> bool {
    device.has_tag_name("filesystem") && of_child(device, "driver", "type") == Some("virtiofs")
}

fn is_virtio_display(device: Node<'_, '_>) -> bool {
    device.has_tag_name("video") && of_child(device, "model", "type") == Some("virtio")
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxmltree::Document;

    #[track_caller]
    fn assert_told(devices: &str, beginnings: &[&str]) {
        let text = format!("<domain><devices>{devices}</devices></domain>");
        let document = Document::parse(&text).unwrap();
        let advice = advice(document.root_element());
        assert_eq!(advice.len(), beginnings.len(), "{advice:?}");
        for (advice, beginning) in advice.iter().zip(beginnings) {
            assert!(advice.starts_with(beginning), "{advice}");
        }
    }

    #[test]
    fn each_device_that_the_gpu_does_not_go_well_with_is_told_once() {
        let tap = "<interface type='network'><source network='default'/><model type='virtio'/></interface>";
        let files =
            "<filesystem type='mount'><driver type='virtiofs' queue='1024'/><target dir='x'/></filesystem>";
        let passt = "<interface type='vhostuser'><backend type='passt'/><model type='virtio'/></interface>";
        let display = "<video><model type='virtio' heads='1'/></video>";
        assert_told(&[tap, tap].concat(), &["vhost-net"]);
        assert_told("<vsock model='virtio'><cid auto='yes'/></vsock>", &["vhost-net and vhost-vsock"]);
        assert_told(files, &["virtiofsd of QEMU 7.2"]);
        assert_told(passt, &["passt takes 8"]);
        assert_told(
            "<interface type='vhostuser'><model type='virtio'/></interface>",
            &["another vhost-user"],
        );
        assert_told("<disk type='vhostuser' device='disk'/>", &["another vhost-user"]);
        assert_told(display, &["<video> is a virtio-gpu"]);
        assert_told(&[display, files, tap].concat(), &["vhost-net", "virtiofsd", "<video>"]);
    }

    #[test]
    fn other_devices_are_not_told() {
        for devices in [
            "",
            "<interface type='network'><model type='e1000e'/></interface>",
            "<interface type='bridge'><model type='virtio'/><driver name='qemu'/></interface>",
            "<interface type='user'><backend type='passt'/><model type='virtio'/></interface>",
            "<interface type='hostdev'/><disk type='file'/><memballoon model='virtio'/>",
            "<filesystem type='mount'><driver type='path'/></filesystem>",
            "<video><model type='vga'/></video><video><model type='none'/></video>",
        ] {
            assert_told(devices, &[]);
        }
        let document = Document::parse("<domain/>").unwrap();
        assert!(advice(document.root_element()).is_empty());
    }
}
