//! Pass 7: wire order of members, and the output file of every struct.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};

use super::usage::len_of;
use crate::ir::*;

/// Moves a length in front of the array that needs it.
pub fn order(protocol: &mut Protocol) {
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

/// Features and properties have files of their own, structs of one group go to the group, the rest is shared.
pub fn modules(protocol: &mut Protocol) {
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for group in &protocol.groups {
        let commands = protocol.commands.values().filter(|c| c.module == group.name);
        let mut queue: Vec<&Type> = commands.flat_map(|c| c.params.iter().map(|p| &p.member.ty)).collect();
        while let Some(ty) = queue.pop() {
            let Type::Struct(name) = ty else { continue };
            if users.entry(name.clone()).or_default().insert(group.name.clone()) {
                queue.extend(protocol.structs[name].members.iter().map(|m| &m.ty));
            }
        }
    }
    let direct = users.clone();
    for (name, found) in &protocol.structs {
        for parent in &found.extends {
            let inherited = direct.get(parent).cloned().unwrap_or_default();
            users.entry(name.clone()).or_default().extend(inherited);
        }
    }
    for (name, found) in &mut protocol.structs {
        let extends = |parent: &str| found.extends.iter().any(|e| e == parent);
        let only_user = users.get(name).filter(|u| u.len() == 1).and_then(|u| u.first());
        found.module = if extends("VkPhysicalDeviceFeatures2") {
            "features".to_owned()
        } else if extends("VkPhysicalDeviceProperties2") {
            "properties".to_owned()
        } else {
            only_user.cloned().unwrap_or_else(|| "types".to_owned())
        };
    }
}

/// Refuses what the emitted code could not handle: lengths after their arrays, and types that contain themselves, which would
/// make decoding recurse as deep as the guest likes.
pub fn check(protocol: &Protocol) -> Result<()> {
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
