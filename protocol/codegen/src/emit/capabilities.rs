//! The capabilities that a module may declare, and the parts of a device that enable each: the registry's table "List of SPIR-V Capabilities".

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use proc_macro2::{Literal, TokenStream};
use quote::quote;
use roxmltree::Node;
use rspirv::dr::Operand;
use rspirv::spirv;

use super::output::Rows;
use super::spirv::{ENUMERANT_MAX, capabilities_of, number};
use crate::ir::{Protocol, Struct};

/// `VkPhysicalDeviceFeatures`, which has no `sType`: a device is created with it inside of the other.
const FEATURES: [&str; 2] = ["VkPhysicalDeviceFeatures", "VkPhysicalDeviceFeatures2"];
/// The start of structs that unite features of older structs, under the same names.
const UNITED: &str = "VkPhysicalDeviceVulkan1";

/// The table of the capabilities that a served part of a device enables.
pub(super) fn capabilities(protocol: &Protocol, registry: &str, rows: &mut Rows) -> Result<TokenStream> {
    let document = roxmltree::Document::parse(registry).context("the registry is not XML")?;
    let known: BTreeMap<String, spirv::Capability> = (0..ENUMERANT_MAX)
        .filter_map(spirv::Capability::from_u32)
        .map(|capability| (format!("{capability:?}"), capability))
        .collect();
    let listed = document.descendants().filter(|node| node.has_tag_name("spirvcapability"));
    let nodes: BTreeMap<_, _> = listed.filter_map(|node| Some((node.attribute("name")?, node))).collect();
    let mut of_each = BTreeMap::new();
    for (name, node) in &nodes {
        let Some(capability) = known.get(*name).copied() else { continue };
        let mut enables = enablers(protocol, *node)?;
        if let Some(other) = protocol.capabilities_with.get(*name) {
            let other = nodes.get(other.as_str()).with_context(|| format!("no capability {other}"))?;
            enables.extend(enablers(protocol, *other)?);
        }
        if enables.is_empty() {
            continue;
        }
        let key = number(capability as u32);
        let declared = capabilities_of(&Operand::Capability(capability));
        let declared = declared.into_iter().map(number);
        of_each.insert(
            capability as u32,
            quote! { (#key, Capability { name: #name, declares: &[#(#declared),*], enabled_by: &[#(#enables),*] }) },
        );
    }
    let of_each = rows.list(of_each.into_values());
    Ok(quote! {
        /// What enables each capability that a module may declare, ascending: nothing that is served enables the others.
        pub(crate) static CAPABILITIES: &[(u32, Capability)] = &[#of_each];
    })
}

/// Returns the parts of a device that enable a capability, as far as they are served.
fn enablers(protocol: &Protocol, capability: Node<'_, '_>) -> Result<Vec<TokenStream>> {
    let mut enables = Vec::new();
    for enable in capability.children().filter(|child| child.has_tag_name("enable")) {
        enables.extend(served(protocol, enable)?);
    }
    Ok(enables)
}

/// The parts of a device that a row of the registry means, as far as they are served.
fn served(protocol: &Protocol, enable: Node<'_, '_>) -> Result<Vec<TokenStream>> {
    if let Some(version) = enable.attribute("version") {
        let minor = version.strip_prefix("VK_VERSION_1_").and_then(|minor| minor.parse().ok());
        let minor = Literal::u32_unsuffixed(minor.with_context(|| format!("version {version}"))?);
        return Ok(vec![quote! { Enable::Version(#minor) }]);
    }
    if let Some(name) = enable.attribute("extension") {
        let is_served = protocol.extensions.iter().any(|extension| extension.name == name);
        return Ok(is_served.then(|| quote! { Enable::Extension(#name) }).into_iter().collect());
    }
    if let Some(owner) = enable.attribute("property") {
        return Ok(find(protocol, owner).map(|_| quote! { Enable::Property }).into_iter().collect());
    }
    let (owner, feature) = enable
        .attribute("struct")
        .zip(enable.attribute("feature"))
        .context("a capability that is enabled by something unknown")?;
    Ok(features(protocol, owner, feature))
}

fn find<'p>(protocol: &'p Protocol, name: &str) -> Option<&'p Struct> {
    let is_named = |found: &&Struct| found.names.aliases.iter().any(|alias| alias == name);
    protocol.structs.get(name).or_else(|| protocol.structs.values().find(is_named))
}

/// A feature in the struct that the registry names, and in those that had it before.
fn features(protocol: &Protocol, owner: &str, feature: &str) -> Vec<TokenStream> {
    let mut found = BTreeSet::new();
    let mut add = |members: &Struct, chained: &Struct| {
        let at = members.members.iter().find(|member| member.vk == feature);
        found.extend(at.zip(chained.s_type.as_ref()).map(|(at, s_type)| (s_type.value, at.api_index)));
    };
    if owner == FEATURES[0] {
        find(protocol, owner)
            .zip(find(protocol, FEATURES[1]))
            .into_iter()
            .for_each(|(one, other)| add(one, other));
    } else if let Some(named) = find(protocol, owner) {
        add(named, named);
        let others = protocol.structs.values().filter(|other| other.module == "features");
        others.filter(|_| owner.starts_with(UNITED)).for_each(|other| add(other, other));
    }
    found
        .into_iter()
        .map(|(s_type, index)| {
            let (s_type, index) = (Literal::i32_unsuffixed(s_type), Literal::usize_unsuffixed(index));
            quote! { Enable::Feature { s_type: #s_type, index: #index } }
        })
        .collect()
}
