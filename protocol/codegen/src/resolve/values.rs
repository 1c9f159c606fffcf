//! Pass 5: values of enumerations and flags, without those that only unselected blocks add.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::Resolver;
use super::names;
use crate::ir::{Enum, Flags, Format, Handle, Names, Protocol, StructureType, Type, Value};
use crate::registry::{FormatDef, Given, TypeDef};

impl Resolver<'_> {
    /// Names of a type.
    pub(super) fn names(&self, canonical: &str) -> Names {
        Names {
            vk: canonical.to_owned(),
            rust: names::upper(canonical),
            aliases: self.aliases.others(canonical),
        }
    }

    /// Adds the definition of an enumeration, flag type or handle.
    pub(super) fn add_plain_type(&self, protocol: &mut Protocol, ty: &Type) -> Result<()> {
        match ty {
            Type::Enum(name) => {
                let def = Enum {
                    names: self.names(name),
                    values: self.values(name)?,
                    providers: self.providers.of(name),
                };
                protocol.enums.insert(name.clone(), def);
            }
            Type::Flags(name) => {
                protocol.flags.insert(name.clone(), self.flags(name)?);
            }
            Type::Handle(name) => {
                protocol.handles.insert(name.clone(), self.handle(name)?);
            }
            Type::Scalar(_) | Type::Struct(_) | Type::Union(_) | Type::Opaque(_) => {}
        }
        Ok(())
    }

    fn flags(&self, name: &str) -> Result<Flags> {
        let Some(TypeDef::Bitmask { bits, wide }) = self.registry.types.get(name) else {
            anyhow::bail!("{name} is no flag type");
        };
        Ok(Flags {
            names: self.names(name),
            bits: if *wide { 64 } else { 32 },
            values: bits.as_deref().map(|bits| self.values(bits)).transpose()?.unwrap_or_default(),
            providers: self.providers.of(name),
        })
    }

    fn handle(&self, name: &str) -> Result<Handle> {
        let Some(TypeDef::Handle { parent, dispatchable, object_type }) = self.registry.types.get(name)
        else {
            anyhow::bail!("{name} is no handle");
        };
        Ok(Handle {
            names: self.names(name),
            dispatchable: *dispatchable,
            parent: parent.as_deref().map(|p| self.aliases.canonical(p).to_owned()),
            object_type: names::constant("VkObjectType", object_type),
            providers: self.providers.of(name),
        })
    }

    /// Selected values of an `<enums>` block. `type_name` may be a `FlagBits` type. Aliases of the type contribute too, since
    /// old extensions extend the old name.
    pub(super) fn values(&self, type_name: &str) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for (name, def) in &self.registry.enums {
            if name == type_name || self.aliases_of_bits(name) == type_name {
                all.extend(&def.values);
            }
        }
        let numbers: BTreeMap<&str, &Given> = all.iter().map(|v| (v.name.as_str(), &v.value)).collect();
        let mut seen = BTreeSet::new();
        let mut values = Vec::new();
        for given in all.iter().filter(|v| self.providers.selects_value(v.block.as_deref())) {
            let rust = names::constant(type_name, &given.name);
            if !seen.insert(rust.clone()) {
                continue;
            }
            let (mut target, mut hops) = (&given.value, 0);
            let value = loop {
                match target {
                    Given::Number(number) => break *number,
                    Given::Alias(name) if hops < 8 => {
                        target = numbers.get(name.as_str()).with_context(|| format!("no value {name}"))?;
                        hops += 1;
                    }
                    Given::Alias(name) => anyhow::bail!("alias loop at {name}"),
                }
            };
            values.push(Value { vk: given.name.clone(), rust, value, is_alias: hops > 0 });
        }
        Ok(values)
    }

    /// Sizes of the formats that the protocol can name.
    pub(super) fn add_formats(&self, protocol: &mut Protocol) {
        let values = protocol.enums.get("VkFormat").map_or(&[][..], |formats| &formats.values);
        let sized = values.iter().filter(|value| !value.is_alias).filter_map(|value| {
            let FormatDef { block_bytes, block_extent } = *self.registry.formats.get(&value.vk)?;
            Some((value.vk.clone(), Format { rust: value.rust.clone(), block_bytes, block_extent }))
        });
        protocol.formats = sized.collect();
    }

    /// `FlagBits` are aliases of their `Flags` in the alias table; here the alias among `FlagBits` is wanted.
    fn aliases_of_bits<'n>(&'n self, name: &'n str) -> &'n str {
        match self.registry.types.get(name) {
            Some(TypeDef::Alias(target)) => target,
            _ => name,
        }
    }

    /// The `VkStructureType` value that the registry gives as a struct's only `sType`.
    pub(super) fn structure_type(&self, vk: &str) -> Result<StructureType> {
        let found =
            self.structure_types.iter().find(|v| v.vk == vk).with_context(|| format!("no value {vk}"))?;
        Ok(StructureType { rust: found.rust.clone(), value: i32::try_from(found.value)? })
    }
}
