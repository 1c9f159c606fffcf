//! Pass 6: directions of parameters, use of structs, partial encoding, lifetimes.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::lengths;
use crate::ir::*;

/// Out parameters are pointers to non-const; those that are also the length of a sibling go both ways.
pub(super) fn directions(protocol: &mut Protocol) {
    for command in protocol.commands.values_mut() {
        let lengths: BTreeSet<String> =
            command.params.iter().filter_map(|p| len_of(&p.member)).map(str::to_owned).collect();
        for param in &mut command.params {
            param.direction = match (param.member.is_const, lengths.contains(&param.member.rust)) {
                _ if !param.member.has_field() => Direction::In,
                (true, _) => Direction::In,
                (false, true) => Direction::InOut,
                (false, false) => Direction::Out,
            };
        }
    }
}

/// Fills `extended_by` and prunes `extends` to selected structs.
pub(super) fn chains(protocol: &mut Protocol) {
    let selected: BTreeSet<String> = protocol.structs.keys().cloned().collect();
    let mut pairs: Vec<(i32, String, String)> = Vec::new();
    for (name, found) in &mut protocol.structs {
        found.extends.retain(|parent| selected.contains(parent));
        found.extends.sort();
        found.extends.dedup();
        let value = found.s_type.as_ref().map_or(0, |s| s.value);
        pairs.extend(found.extends.iter().map(|parent| (value, parent.clone(), name.clone())));
    }
    pairs.sort();
    for (_, parent, child) in pairs {
        if let Some(parent) = protocol.structs.get_mut(&parent) {
            parent.extended_by.push(child);
        }
    }
}

/// Marks structs reachable from in and from out parameters.
pub(super) fn uses(protocol: &mut Protocol) {
    for output in [false, true] {
        let params = protocol.commands.values().flat_map(|c| &c.params);
        let matching = params.filter(|p| (p.direction == Direction::Out) == output);
        let mut queue: Vec<String> = matching.flat_map(|p| struct_names(protocol, &p.member.ty)).collect();
        let mut seen = BTreeSet::new();
        while let Some(name) = queue.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            let found = &protocol.structs[&name];
            queue.extend(found.extended_by.iter().cloned());
            queue.extend(found.members.iter().flat_map(|m| struct_names(protocol, &m.ty)));
        }
        for name in seen {
            if let Some(found) = protocol.structs.get_mut(&name) {
                if output { found.output = true } else { found.input = true }
            }
        }
    }
}

fn struct_names(protocol: &Protocol, ty: &Type) -> Vec<String> {
    match ty {
        Type::Struct(name) => vec![name.clone()],
        Type::Union(name) => {
            protocol.unions[name].members.iter().flat_map(|m| struct_names(protocol, &m.member.ty)).collect()
        }
        _ => Vec::new(),
    }
}

/// Determines what partial encoding keeps of every member and out parameter.
pub(super) fn partials(protocol: &mut Protocol) -> Result<()> {
    for found in protocol.structs.values_mut() {
        let lengths: BTreeSet<String> = found.members.iter().filter_map(len_of).map(str::to_owned).collect();
        for member in &mut found.members {
            member.partial = partial(member, lengths.contains(&member.rust));
            let has_text = matches!(member.shape, Shape::String | Shape::Strings(_));
            let has_union = matches!(member.ty, Type::Union(_));
            ensure!(
                !(found.output && (has_text || has_union)),
                "{}.{}: no partial form is defined for this member",
                found.names.vk,
                member.vk
            );
        }
    }
    for command in protocol.commands.values_mut() {
        for param in &mut command.params {
            param.member.partial = partial(&param.member, param.direction != Direction::Out);
        }
    }
    Ok(())
}

fn partial(member: &Member, is_needed: bool) -> Partial {
    if is_needed {
        return Partial::Full;
    }
    let is_counted = !matches!(member.shape, Shape::Value | Shape::Fixed(_));
    match (&member.ty, is_counted) {
        (Type::Handle(_), _) => Partial::Full,
        (Type::Struct(_), _) => Partial::Nested,
        (_, true) => Partial::CountOnly,
        (_, false) => Partial::Absent,
    }
}

/// A type has a lifetime when it has a chain, a pointer, or a member that has one.
pub(super) fn lifetimes(protocol: &mut Protocol) {
    loop {
        let borrows = |m: &Member| {
            let is_pointer = !matches!(m.shape, Shape::Value | Shape::Fixed(_));
            m.has_field() && (is_pointer || protocol.needs_lifetime(&m.ty))
        };
        let structs = protocol.structs.values().filter(|s| !s.needs_lifetime);
        let structs = structs.filter(|s| s.s_type.is_some() || s.members.iter().any(borrows));
        let structs: Vec<String> = structs.map(|s| s.names.vk.clone()).collect();
        let unions = protocol.unions.values().filter(|u| !u.needs_lifetime);
        let unions = unions.filter(|u| u.members.iter().any(|m| borrows(&m.member)));
        let unions: Vec<String> = unions.map(|u| u.names.vk.clone()).collect();
        if structs.is_empty() && unions.is_empty() {
            return;
        }
        for name in structs {
            protocol.structs.get_mut(&name).into_iter().for_each(|s| s.needs_lifetime = true);
        }
        for name in unions {
            protocol.unions.get_mut(&name).into_iter().for_each(|u| u.needs_lifetime = true);
        }
    }
}

/// Rust name of the sibling that holds a member's length.
pub(super) fn len_of(member: &Member) -> Option<&str> {
    match &member.shape {
        Shape::Array(len) | Shape::Blob(len) | Shape::Strings(len) => lengths::depends_on(len),
        _ => None,
    }
}
