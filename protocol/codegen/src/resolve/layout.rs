//! Pass 7: wire order of members, and the output file of every struct.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};

use super::usage::len_of;
use crate::ir::*;

/// Moves a length in front of the array that needs it.
pub(super) fn order(protocol: &mut Protocol) {
    for found in protocol.structs.values_mut() {
        let mut at = 0;
        while at < found.members.len() {
            let needed = len_of(&found.members[at]).map(str::to_owned);
            let later = needed.and_then(|n| found.members[at..].iter().position(|m| m.rust == n));
            match later {
                Some(distance) if distance > 0 => {
                    let length = found.members.remove(at + distance);
                    found.members.insert(at, length);
                }
                _ => at += 1,
            }
        }
    }
}

/// Features and properties have files of their own, structs of one group go to the group, all other structs are shared.
pub(super) fn modules(protocol: &mut Protocol) {
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut queue: Vec<(String, String)> = Vec::new();
    for command in protocol.commands.values() {
        for param in &command.params {
            queue.extend(struct_name(&param.member.ty).map(|name| (name, command.module.clone())));
        }
    }
    // Unions are shared, and so are the structs in them.
    let held = protocol.unions.values().flat_map(|union| &union.members);
    queue.extend(held.filter_map(|m| Some((struct_name(&m.member.ty)?, "types".to_owned()))));
    while let Some((name, user)) = queue.pop() {
        let found = &protocol.structs[&name];
        let user = own_module(found).map_or(user, str::to_owned);
        if users.entry(name).or_default().insert(user.clone()) {
            let members = found.members.iter().filter_map(|m| struct_name(&m.ty));
            let related = members.chain(found.extended_by.iter().cloned());
            queue.extend(related.map(|name| (name, user.clone())));
        }
    }
    for (name, found) in &mut protocol.structs {
        let only_user = users.get(name).filter(|u| u.len() == 1).and_then(|u| u.first());
        found.module = only_user.cloned().unwrap_or_else(|| "types".to_owned());
    }
}

fn own_module(found: &Struct) -> Option<&'static str> {
    let extends = |parent: &str| found.extends.iter().any(|e| e == parent);
    match (extends("VkPhysicalDeviceFeatures2"), extends("VkPhysicalDeviceProperties2")) {
        (true, _) => Some("features"),
        (_, true) => Some("properties"),
        _ => None,
    }
}

fn struct_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Struct(name) => Some(name.clone()),
        _ => None,
    }
}

/// Refuses what the emitted code could not handle: lengths after their arrays, and types that contain themselves, which would
/// let the guest choose how deep decoding recurses.
pub(super) fn check(protocol: &Protocol) -> Result<()> {
    for command in protocol.commands.values() {
        for (at, param) in command.params.iter().enumerate() {
            let Some(name) = len_of(&param.member) else { continue };
            let found = command.params[..at].iter().any(|p| p.member.rust == name);
            ensure!(found, "{}.{}: length follows its array", command.names.vk, param.member.vk);
        }
    }
    let mut done = BTreeSet::new();
    for name in protocol.structs.keys() {
        visit(protocol, name, true, &mut Vec::new(), &mut done)?;
    }
    Ok(())
}

/// A struct in a chain is decoded without a chain of its own, hence two nodes per struct.
fn visit(
    protocol: &Protocol,
    name: &str,
    with_chain: bool,
    path: &mut Vec<(String, bool)>,
    done: &mut BTreeSet<(String, bool)>,
) -> Result<()> {
    let node = (name.to_owned(), with_chain);
    if done.contains(&node) {
        return Ok(());
    }
    if path.contains(&node) {
        bail!("{name} contains itself: {path:?}");
    }
    path.push(node.clone());
    let found = &protocol.structs[name];
    if with_chain {
        for child in &found.extended_by {
            visit(protocol, child, false, path, done)?;
        }
    }
    for member in &found.members {
        if let Type::Struct(inner) = &member.ty {
            visit(protocol, inner, true, path, done)?;
        }
    }
    path.pop();
    done.insert(node);
    Ok(())
}
