//! A whole libvirt domain, as `virsh dumpxml` prints it, with the device added: all the rest of the text stays as it is.

use super::libvirt::{ACCESS, NAMESPACE, SOURCE, arguments, commandline, memory_backing};
use super::{Unfit, neighbours, qemu};
use roxmltree::{Document, ExpandedName, Node};
use std::ops::Range;
use std::path::Path;

/// The reason why a domain cannot be given the device.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// The text is no XML.
    #[error("no XML: {0}")]
    Xml(#[from] roxmltree::Error),
    /// The text is no domain.
    #[error("<{0}> is no whole domain: give what `virsh dumpxml --inactive` prints")]
    NoDomain(String),
    /// The domain has another hypervisor than QEMU.
    #[error("a domain of type {0} is not run by QEMU")]
    Hypervisor(String),
    /// The domain has a device of this kind already.
    #[error("the domain has the device already, with other arguments: remove its <qemu:arg> elements first")]
    Other,
    /// A part of the domain's memory is private.
    #[error(
        "a NUMA cell of the domain has memAccess='private': remove that, for the daemon has to map the guest's memory"
    )]
    Private,
    /// The domain uses the prefix for another namespace.
    #[error("the domain uses the prefix qemu for another namespace than {NAMESPACE}")]
    Prefix,
    /// The socket's path cannot be used.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

/// A domain with the device.
#[derive(Debug, PartialEq, Eq)]
pub struct Given {
    /// The domain.
    pub domain: String,
    /// The sentences that tell an administrator of the features that its machine type lacks, and of changes to its other devices.
    pub advice: Vec<String>,
}

/// Returns the domain with the device at `socket`; unchanged if it has the device. Private memory is made shared. `window` is as for
/// [`super::qemu()`].
///
/// # Errors
///
/// The text is no domain of QEMU, or has such a device with other arguments.
pub fn with_gpu(text: &str, socket: &Path, window: u64) -> Result<Given, DomainError> {
    let document = Document::parse(text)?;
    let domain = document.root_element();
    let (true, Some(memory)) = (domain.has_tag_name("domain"), child(domain, "memory")) else {
        return Err(DomainError::NoDomain(domain.tag_name().name().to_owned()));
    };
    let kind = domain.attribute("type").unwrap_or_default();
    if !["kvm", "qemu"].contains(&kind) {
        return Err(DomainError::Hypervisor(kind.to_owned()));
    }
    if domain
        .descendants()
        .any(|node| node.has_tag_name("cell") && node.attribute("memAccess") == Some("private"))
    {
        return Err(DomainError::Private);
    }
    let mut edits = shared_memory(text, domain, memory);
    let passed = child(domain, (NAMESPACE, "commandline"));
    let words: Vec<_> = passed.into_iter().flat_map(|node| node.children()).filter_map(argument).collect();
    let wanted = qemu::device_behind_others(socket, window)?;
    let is_there = words.windows(wanted.len()).any(|some| some.iter().eq(&wanted));
    if !is_there && words.iter().any(|word| qemu::is_device(word)) {
        return Err(DomainError::Other);
    }
    match passed {
        _ if is_there => {}
        Some(node) => edits.push(append(text, node, &arguments(socket, window)?)),
        None => edits.push(append(text, domain, &commandline(socket, window)?)),
    }
    match domain.lookup_namespace_uri(Some("qemu")) {
        Some(NAMESPACE) => {}
        Some(_) => return Err(DomainError::Prefix),
        None if is_there => {}
        None => {
            let at = domain.range().start + 1 + raw_name(text, domain).len();
            edits.push(Edit(at..at, format!(" xmlns:qemu='{NAMESPACE}'")));
        }
    }
    let old = machine(domain).filter(|machine| lacks_pci_express(machine)).map(advice_for);
    let others = neighbours::advice(domain).into_iter().map(str::to_owned);
    Ok(Given { domain: edited(text, edits), advice: old.into_iter().chain(others).collect() })
}

/// Returns the domain's type of machine, if the domain names one.
fn machine<'a>(domain: Node<'a, '_>) -> Option<&'a str> {
    child(child(domain, "os")?, "type")?.attribute("machine")
}

/// Returns advice for the administrator of a machine without PCI Express, which QEMU starts with the device all the same.
fn advice_for(machine: &str) -> String {
    format!(
        "the machine type {machine} has no PCI Express, and the device was tried with q35 only: here the guest may not let go of the device, which plugging it again needs, and suspend to memory is not hidden from the guest. A new machine with <type arch='x86_64' machine='q35'> in <os> has both"
    )
}

/// Returns whether a type of machine has no PCI Express: for x86 these are all but q35 (`pc-i440fx-9.2`, `pc`, `isapc`, `microvm`).
fn lacks_pci_express(machine: &str) -> bool {
    let is_old = machine == "pc" || machine.starts_with("pc-") && !machine.starts_with("pc-q35");
    is_old || ["isapc", "microvm"].contains(&machine)
}

fn argument<'a>(node: Node<'a, '_>) -> Option<&'a str> {
    node.has_tag_name((NAMESPACE, "arg")).then(|| node.attribute("value")).flatten()
}

fn child<'a, 'input>(
    node: Node<'a, 'input>,
    name: impl Into<ExpandedName<'static, 'static>>,
) -> Option<Node<'a, 'input>> {
    let name = name.into();
    node.children().find(|child| child.has_tag_name(name))
}

/// A text that replaces a part of the document.
struct Edit(Range<usize>, String);

/// Returns the changes that share the guest's memory with the daemon: the memory gets an unnamed file, unless it is in a file already.
fn shared_memory(text: &str, domain: Node<'_, '_>, memory: Node<'_, '_>) -> Vec<Edit> {
    let Some(backing) = child(domain, "memoryBacking") else {
        let end = memory.range().end;
        return vec![Edit(end..end, format!("\n{}", memory_backing().trim_end()))];
    };
    let wanted =
        [("source", "type", ["memfd", "file"].as_slice(), SOURCE), ("access", "mode", &["shared"], ACCESS)];
    let mut missing = String::new();
    let mut edits = Vec::new();
    for (name, attribute, good, element) in wanted {
        match child(backing, name) {
            Some(node) if node.attribute(attribute).is_some_and(|value| good.contains(&value)) => {}
            Some(node) => edits.push(Edit(node.range(), element.to_owned())),
            None => missing.push_str(&format!("    {element}\n")),
        }
    }
    if !missing.is_empty() {
        edits.push(append(text, backing, &missing));
    }
    edits
}

/// Returns the edit that puts lines before the end of an element.
fn append(text: &str, node: Node<'_, '_>, lines: &str) -> Edit {
    let range = node.range();
    let element = &text[range.clone()];
    if let Some(opening) = element.strip_suffix("/>") {
        let name = raw_name(text, node);
        return Edit(range.start + opening.len()..range.end, format!(">\n{lines}  </{name}>"));
    }
    // An element that is not empty ends with a closing tag.
    let end = range.start + element.rfind("</").unwrap_or(element.len());
    let line = text[..end].rfind('\n').map_or(0, |newline| newline + 1);
    match text[line..end].trim().is_empty() {
        true => Edit(line..line, lines.to_owned()),
        false => Edit(end..end, format!("\n{lines}")),
    }
}

/// Returns the name of an element as it is written, with its prefix.
fn raw_name<'a>(text: &'a str, node: Node<'_, '_>) -> &'a str {
    let element = &text[node.range().start + 1..];
    &element[..element.find(|c: char| c.is_whitespace() || c == '/' || c == '>').unwrap_or(element.len())]
}

/// Returns the text with edits of parts that do not overlap.
fn edited(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|Edit(range, _)| range.start);
    let mut result = text.to_owned();
    for Edit(range, new) in edits.into_iter().rev() {
        result.replace_range(range, &new);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &str = "<domain type='kvm' id='3'>
  <name>web</name>
  <memory unit='KiB'>4194304</memory>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
  </devices>
</domain>
";

    fn add(text: &str) -> Result<String, String> {
        let given = with_gpu(text, Path::new("/run/a.sock"), 0);
        given.map(|given| given.domain).map_err(|error| error.to_string())
    }

    /// Adds the device, and checks that the result has every part once, and that a second call adds nothing.
    #[track_caller]
    fn added(text: &str) -> String {
        let result = add(text).unwrap();
        let document = Document::parse(&result).unwrap_or_else(|error| panic!("{error}\n{result}"));
        let domain = document.root_element();
        let backing = child(domain, "memoryBacking").unwrap();
        assert!(
            ["memfd", "file"].contains(&child(backing, "source").unwrap().attribute("type").unwrap()),
            "{result}"
        );
        assert_eq!(child(backing, "access").unwrap().attribute("mode"), Some("shared"), "{result}");
        let passed = child(domain, (NAMESPACE, "commandline")).unwrap();
        let words: Vec<_> = passed.children().filter_map(argument).collect();
        let wanted = qemu::device_behind_others(Path::new("/run/a.sock"), 0).unwrap();
        assert!(words.ends_with(&wanted.iter().map(String::as_str).collect::<Vec<_>>()), "{result}");
        assert_eq!(add(&result).as_ref(), Ok(&result), "it is added twice");
        result
    }

    #[test]
    fn a_plain_domain_gets_memory_arguments_and_the_namespace_and_keeps_the_rest() {
        let result = added(DOMAIN);
        let suspend = |line: &&str| !["'-global'", "disable_s3"].iter().any(|word| line.contains(word));
        let new: Vec<&str> =
            result.lines().filter(|line| !DOMAIN.lines().any(|old| old == *line)).filter(suspend).collect();
        assert_eq!(
            new,
            [
                "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0' type='kvm' id='3'>",
                "  <memoryBacking>",
                "    <source type='memfd'/>",
                "    <access mode='shared'/>",
                "  </memoryBacking>",
                "  <qemu:commandline>",
                "    <qemu:arg value='-chardev'/>",
                "    <qemu:arg value='socket,id=vhost-user-vulkan,path=/run/a.sock'/>",
                "    <qemu:arg value='-device'/>",
                "    <qemu:arg value='{\"driver\":\"pcie-root-port\",\"id\":\"vhost-user-vulkan-port\",\"chassis\":240}'/>",
                "    <qemu:arg value='-device'/>",
                "    <qemu:arg value='{\"driver\":\"vhost-user-test-device-pci\",\"virtio-id\":16,\"num_vqs\":2,\"vq_size\":1024,\"config_size\":16,\"chardev\":\"vhost-user-vulkan\",\"id\":\"vhost-user-vulkan\",\"bus\":\"vhost-user-vulkan-port\"}'/>",
                "  </qemu:commandline>",
            ]
        );
    }

    #[test]
    fn what_is_there_already_is_used_and_what_would_not_work_replaced() {
        let memory = |backing: &str| DOMAIN.replace("  <devices>", &format!("  {backing}\n  <devices>"));
        for backing in [
            "<memoryBacking/>",
            "<memoryBacking></memoryBacking>",
            "<memoryBacking><hugepages/></memoryBacking>",
            "<memoryBacking>\n    <locked/>\n  </memoryBacking>",
            "<memoryBacking>\n    <source type='anonymous'/>\n    <access mode=\"private\" />\n  </memoryBacking>",
            "<memoryBacking><source type='file'/><access mode='shared'></access></memoryBacking>",
        ] {
            let result = added(&memory(backing));
            assert_eq!(result.contains("type='file'"), backing.contains("type='file'"), "{result}");
            assert_eq!(result.contains("<hugepages/>"), backing.contains("<hugepages/>"), "{result}");
        }
        let more = "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'><q:arg value='-s'/></q:commandline>";
        let result = added(&DOMAIN.replace("</domain>", &format!("{more}</domain>")));
        assert!(result.contains("<q:arg value='-s'/>"), "{result}");
        let empty = "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'/>";
        added(&DOMAIN.replace("</domain>", &format!("{empty}</domain>")));
    }

    #[test]
    fn what_is_no_domain_for_it_is_refused_with_the_reason() {
        let other = with_gpu(DOMAIN, Path::new("/run/b.sock"), 0).unwrap().domain;
        let cell =
            DOMAIN.replace("<devices>", "<cpu><numa><cell memAccess='private'/></numa></cpu><devices>");
        let prefix = DOMAIN.replace("<domain", "<domain xmlns:qemu='x'");
        for (text, error) in [
            ("web", "no XML: "),
            ("<!DOCTYPE x [<!ENTITY a 'b'>]><domain type='kvm'/>", "no XML: "),
            ("<network/>", "<network> is no whole domain: give what `virsh dumpxml"),
            ("<domain type='kvm'/>", "<domain> is no whole domain: give what `virsh dumpxml"),
            ("<domain type='xen'><memory>1</memory></domain>", "a domain of type xen is not run by QEMU"),
            (&other, "the domain has the device already, with other arguments"),
            (&cell, "a NUMA cell of the domain has memAccess='private'"),
            (&prefix, "the domain uses the prefix qemu for another namespace"),
        ] {
            let said = add(text).unwrap_err();
            assert!(said.starts_with(error), "{said}");
        }
    }

    #[test]
    fn a_machine_without_pci_express_is_told_with_the_remedy() {
        let of = |machine: &str| {
            let os = format!("<os><type arch='x86_64' machine='{machine}'>hvm</type></os>");
            let text = DOMAIN.replace("  <devices>", &format!("  {os}\n  <devices>"));
            with_gpu(&text, Path::new("/run/a.sock"), 0).unwrap().advice
        };
        for fit in ["q35", "pc-q35-9.2", "pc-q35-noble", "virt", "virt-9.2"] {
            assert!(of(fit).is_empty(), "{fit}");
        }
        for unfit in ["pc", "pc-i440fx-9.2", "pc-i440fx-jammy", "isapc", "microvm"] {
            let [said] = &of(unfit)[..] else { panic!("{unfit}") };
            assert!(said.starts_with(&format!("the machine type {unfit} has no PCI Express")), "{said}");
            assert!(said.contains("machine='q35'"), "{said}");
        }
    }

    #[test]
    fn what_other_devices_need_comes_with_the_domain() {
        let display = DOMAIN.replace("</devices>", "<video><model type='virtio'/></video></devices>");
        let given = |text| with_gpu(text, Path::new("/run/a.sock"), 0).unwrap();
        assert_eq!((given(DOMAIN).advice.len(), given(&display).advice.len()), (0, 1));
    }
}
