//! The parts of a libvirt domain (`formatdomain`): shared memory, and arguments that libvirt passes on to QEMU. Also the rules that libvirt's
//! confinement of QEMU needs.

use super::{Unfit, qemu, word};
use std::path::Path;

/// The namespace of the arguments that libvirt passes on.
pub(super) const NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";
pub(super) const SOURCE: &str = "<source type='memfd'/>";
pub(super) const ACCESS: &str = "<access mode='shared'/>";

/// Returns the parts of a domain for `virsh edit`, as an XML document whose comments say where each part goes. `window` is as for [`super::qemu()`].
///
/// # Errors
///
/// The path cannot be used in the text unchanged.
pub fn libvirt(socket: &Path, window: u64) -> Result<String, Unfit> {
    Ok(format!(
        "<!-- For `virsh edit`. The first line of the domain gets the attribute xmlns:qemu. -->\n\
         <domain type='kvm' xmlns:qemu='{NAMESPACE}'>\n  \
         <!-- Beside <memory>: -->\n{}  \
         <!-- Last, before </domain>: -->\n{}\
         </domain>\n",
        memory_backing(),
        commandline(socket, window)?
    ))
}

/// Returns the element that makes the guest's memory shared.
pub(super) fn memory_backing() -> String {
    format!("  <memoryBacking>\n    {SOURCE}\n    {ACCESS}\n  </memoryBacking>\n")
}

/// Returns the element with arguments for QEMU.
pub(super) fn commandline(socket: &Path, window: u64) -> Result<String, Unfit> {
    Ok(format!("  <qemu:commandline>\n{}  </qemu:commandline>\n", arguments(socket, window)?))
}

/// Returns the arguments alone.
pub(super) fn arguments(socket: &Path, window: u64) -> Result<String, Unfit> {
    Ok(qemu::device_behind_others(socket, window)?
        .iter()
        .map(|argument| format!("    <qemu:arg value='{argument}'/>\n"))
        .collect())
}

/// Returns advice for an administrator whose libvirt confines QEMU: libvirt does not know the sockets in arguments that it passes on.
///
/// # Errors
///
/// The path cannot be used in the text unchanged.
pub fn confinement(socket: &Path) -> Result<String, Unfit> {
    let path = word(socket)?;
    Ok(format!(
        "libvirt starts QEMU as its own user (libvirt-qemu:kvm on Debian and Ubuntu, qemu:qemu on Fedora), who must be able to open the socket:\n\
         socket-group = \"kvm\" in the VM's table, or --socket-group kvm.\n\
         The domain's <emulator> must be QEMU 11.1 or newer; its machine should be of type q35 (x86-64).\n\
         Where AppArmor confines QEMU (Debian, Ubuntu), add this line to /etc/apparmor.d/local/abstractions/libvirt-qemu,\n\
         which each start of a domain reads:\n\
         {path} rw,\n\
         Where SELinux confines QEMU (Fedora, RHEL), write these lines to vhost-user-vulkan.cil and run semodule -i vhost-user-vulkan.cil:\n\
         (allow svirt_t var_run_t (sock_file (getattr write)))\n\
         (allow svirt_t unconfined_service_t (unix_stream_socket (connectto)))\n\
         If the daemon runs in another domain than unconfined_service_t (ps -eZ), or QEMU without KVM (svirt_tcg_t), name those.\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxmltree::Document;

    #[test]
    fn the_text_is_a_document_with_both_parts() {
        let text = libvirt(Path::new("/run/vhost-user-vulkan/a.sock"), 0).unwrap();
        let document = Document::parse(&text).unwrap();
        let named = |name: &str| document.descendants().filter(|node| node.has_tag_name(name)).count();
        assert_eq!(["memoryBacking", "source", "access"].map(named), [1, 1, 1]);
        let arguments = document.descendants().filter(|node| node.has_tag_name((NAMESPACE, "arg")));
        let arguments: Vec<_> = arguments.filter_map(|node| node.attribute("value")).collect();
        assert_eq!(
            arguments,
            qemu::device_behind_others(Path::new("/run/vhost-user-vulkan/a.sock"), 0).unwrap()
        );
        let rules = confinement(Path::new("/run/vhost-user-vulkan/a.sock")).unwrap();
        for rule in ["\n/run/vhost-user-vulkan/a.sock rw,\n", "semodule -i", "socket-group = \"kvm\"", "11.1"]
        {
            assert!(rules.contains(rule), "{rule} is not in\n{rules}");
        }
    }
}
