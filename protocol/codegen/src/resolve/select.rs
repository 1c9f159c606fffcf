//! Pass 4: everything that the selected commands can reach, pNext chains included.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

use super::{Resolver, members, names};
use crate::ir::*;
use crate::registry::{CommandDef, Given, StructDef, TypeDef};

impl Resolver<'_> {
    /// Adds the commands of the allow-list.
    pub(super) fn add_commands(&self, protocol: &mut Protocol) -> Result<()> {
        let mut numbers: BTreeMap<&str, i32> = BTreeMap::new();
        for (name, &number) in &self.numbers.numbers {
            let clash = numbers.insert(self.aliases.canonical(name), number);
            ensure!(clash.is_none(), "commands.toml: {name} has two numbers");
        }
        for group in &self.allow.groups {
            protocol.groups.push(Group {
                name: group.name.clone(),
                doc: group.doc.clone(),
                graphics: group.graphics,
            });
            for name in &group.commands {
                let canonical = self.aliases.canonical(name);
                let number = numbers.get(canonical).with_context(|| format!("{name}: no command number"))?;
                let command = self.command(canonical, *number, &group.name).with_context(|| name.clone())?;
                let clash = protocol.commands.insert(canonical.to_owned(), command);
                ensure!(clash.is_none(), "allowlist.toml: {name} is listed twice");
            }
        }
        Ok(())
    }

    fn command(&self, canonical: &str, number: i32, module: &str) -> Result<Command> {
        let Some(CommandDef::Prototype { ret, params, queues }) = self.registry.commands.get(canonical)
        else {
            bail!("the registry has no such command");
        };
        let level = match params.first().map(|p| p.ty.as_str()) {
            Some("VkInstance") => Level::Instance,
            Some("VkPhysicalDevice") => Level::PhysicalDevice,
            Some("VkDevice") => Level::Device,
            Some("VkQueue") => Level::Queue,
            Some("VkCommandBuffer") => Level::CommandBuffer,
            _ if canonical.ends_with("MESA") => Level::Transport,
            _ => Level::Global,
        };
        let ret = match (ret.as_str(), members::classify(self.registry, &self.aliases, ret)) {
            ("void", _) => Return::Void,
            ("VkResult", _) => Return::Result,
            (_, Type::Scalar(scalar)) => Return::Value(scalar),
            (other, _) => bail!("return type {other} has no wire form"),
        };
        let members = members::resolve(self.registry, &self.aliases, params)?;
        let rust = names::upper(canonical);
        Ok(Command {
            snake: names::snake(&rust),
            names: Names { vk: canonical.to_owned(), rust, aliases: self.aliases.others(canonical) },
            number,
            params: members.into_iter().map(|member| Param { member, direction: Direction::In }).collect(),
            ret,
            level,
            module: module.to_owned(),
            providers: self.providers.of(canonical),
            queues: self.queue_flags(queues),
            execution: Execution::default(),
            replay: Replay::Breaks,
        })
    }

    /// The bits of these names of `VkQueueFlagBits`.
    fn queue_flags(&self, names: &[String]) -> u32 {
        let values = self.registry.enums.get("VkQueueFlagBits").into_iter().flat_map(|def| &def.values);
        let named =
            values.filter(|value| names.contains(&value.name)).filter_map(|value| match value.value {
                Given::Number(number) => u32::try_from(number).ok(),
                Given::Alias(_) => None,
            });
        named.sum()
    }

    /// Adds every type that the commands reach, until there is no new type.
    pub(super) fn add_types(&self, protocol: &mut Protocol) -> Result<()> {
        let mut queue: Vec<Type> =
            ["VkResult", "VkStructureType", "VkObjectType"].map(|n| Type::Enum(n.into())).into();
        queue.extend(self.root_types());
        queue.extend(protocol.commands.values().flat_map(|c| c.params.iter().map(|p| p.member.ty.clone())));
        let extenders = self.extenders();
        let mut seen = BTreeSet::new();
        while let Some(ty) = queue.pop() {
            let Some(name) = type_key(&ty) else { continue };
            if !seen.insert(name.clone()) {
                continue;
            }
            match self.registry.types.get(&name) {
                Some(TypeDef::Struct(def)) => {
                    let built = self.build_struct(&name, def).with_context(|| name.clone())?;
                    queue.extend(built.members.iter().map(|m| m.ty.clone()));
                    if built.s_type.is_some() {
                        let chained = extenders.get(name.as_str()).into_iter().flatten();
                        queue.extend(chained.map(|c| Type::Struct((*c).to_owned())));
                    }
                    protocol.structs.insert(name, built);
                }
                Some(TypeDef::Union(def)) => {
                    let built = self.build_union(&name, def).with_context(|| name.clone())?;
                    queue.extend(built.members.iter().map(|m| m.member.ty.clone()));
                    protocol.unions.insert(name, built);
                }
                _ => self.add_plain_type(protocol, &ty).with_context(|| name.clone())?,
            }
            // Parents exist as types even when no member names them.
            if let Type::Handle(handle) = &ty
                && let Some(parent) = protocol.handles.get(handle).and_then(|h| h.parent.clone())
            {
                queue.push(Type::Handle(parent));
            }
        }
        Ok(())
    }

    /// Flag types that the wire uses outside of any command (`VkCommandFlagsEXT` in front of every command).
    fn root_types(&self) -> Vec<Type> {
        let serialization = ["VkCommandFlagsEXT", "VkRingStatusFlagsMESA"];
        let known = serialization.into_iter().filter(|name| self.registry.types.contains_key(*name));
        known.map(|name| Type::Flags(name.to_owned())).collect()
    }

    /// Selected structs by the struct whose chain they may appear in.
    fn extenders(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut extenders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, def) in &self.registry.types {
            let TypeDef::Struct(def) = def else { continue };
            if !self.providers.is_selected(name) || self.overrides.excludes(name) {
                continue;
            }
            for parent in &def.extends {
                extenders.entry(self.aliases.canonical(parent)).or_default().insert(name);
            }
        }
        extenders
    }

    fn build_struct(&self, name: &str, def: &StructDef) -> Result<Struct> {
        let s_type = match def.members.first() {
            Some(first) if first.name == "sType" => {
                let value = first.values.as_deref().context("sType without a value")?;
                Some(self.structure_type(value)?)
            }
            _ => None,
        };
        Ok(Struct {
            names: self.names(name),
            s_type,
            members: members::resolve(self.registry, &self.aliases, &def.members)?,
            extended_by: Vec::new(),
            extends: def.extends.iter().map(|e| self.aliases.canonical(e).to_owned()).collect(),
            input: false,
            output: false,
            needs_lifetime: false,
            module: String::new(),
            providers: self.providers.of(name),
        })
    }

    fn build_union(&self, name: &str, def: &StructDef) -> Result<Union> {
        ensure!(
            def.members.iter().all(|m| m.selection.is_empty()),
            "unions with a selector are not implemented"
        );
        let members = members::resolve(self.registry, &self.aliases, &def.members)?;
        ensure!(
            members.iter().all(|m| matches!(m.shape, Shape::Value | Shape::Fixed(_))),
            "unions of pointers have no wire form"
        );
        let members = members.into_iter().map(|member| UnionMember {
            variant: names::variant(&member.vk),
            selections: Vec::new(),
            member,
        });
        Ok(Union {
            names: self.names(name),
            members: members.collect(),
            selector: None,
            needs_lifetime: false,
            providers: self.providers.of(name),
        })
    }
}

fn type_key(ty: &Type) -> Option<String> {
    match ty {
        Type::Scalar(_) | Type::Opaque(_) => None,
        Type::Enum(name)
        | Type::Flags(name)
        | Type::Handle(name)
        | Type::Struct(name)
        | Type::Union(name) => Some(name.clone()),
    }
}
