//! XML to `Registry`.

use anyhow::{Context, Result, bail};
use roxmltree::{Document, Node, ParsingOptions};

use super::*;

impl Registry {
    /// Adds the content of a registry file to this registry.
    pub fn add(&mut self, xml: &str) -> Result<()> {
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        let document = Document::parse_with_options(xml, options)?;
        for section in document.root_element().children().filter(of_vulkan) {
            match section.tag_name().name() {
                "types" => section.children().filter(of_vulkan).try_for_each(|n| self.add_type(n))?,
                "enums" => self.add_enums(section)?,
                "commands" => section.children().filter(of_vulkan).try_for_each(|n| self.add_command(n))?,
                "feature" => self.add_feature(section)?,
                "formats" => section.children().filter(of_vulkan).try_for_each(|n| self.add_format(n))?,
                "extensions" => {
                    section.children().filter(of_vulkan).try_for_each(|n| self.add_extension(n))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_type(&mut self, node: Node<'_, '_>) -> Result<()> {
        if !node.has_tag_name("type") {
            return Ok(());
        }
        let name_child = node.children().find(|c| c.has_tag_name("name")).and_then(|c| c.text());
        let Some(name) = node.attribute("name").or(name_child) else { return Ok(()) };
        if name == "VK_HEADER_VERSION" || name == "VK_HEADER_VERSION_COMPLETE" {
            return self.add_header_version(node, name);
        }
        let owned = |attribute: &str| node.attribute(attribute).map(str::to_owned);
        let text = || node.descendants().filter_map(|d| d.text()).collect::<String>();
        let def = match (node.attribute("alias"), node.attribute("category")) {
            (Some(alias), _) => TypeDef::Alias(alias.to_owned()),
            (None, Some("struct")) => TypeDef::Struct(struct_def(node)?),
            (None, Some("union")) => TypeDef::Union(struct_def(node)?),
            (None, Some("enum")) => TypeDef::Enum,
            (None, Some("bitmask")) => TypeDef::Bitmask {
                bits: owned("requires").or_else(|| owned("bitvalues")),
                wide: text().contains("VkFlags64"),
            },
            (None, Some("handle")) => TypeDef::Handle {
                parent: owned("parent"),
                dispatchable: !text().contains("NON_DISPATCHABLE"),
                object_type: owned("objtypeenum").with_context(|| format!("{name}: no objtypeenum"))?,
            },
            _ => TypeDef::Other,
        };
        self.types.insert(name.to_owned(), def);
        Ok(())
    }

    fn add_header_version(&mut self, node: Node<'_, '_>, name: &str) -> Result<()> {
        let text: String = node.children().filter(Node::is_text).filter_map(|c| c.text()).collect();
        let numbers: Vec<u32> =
            text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        match (name, numbers[..].split_first()) {
            ("VK_HEADER_VERSION", Some((patch, []))) => self.header_version.2 = *patch,
            ("VK_HEADER_VERSION_COMPLETE", Some((0, [major, minor, ..]))) => {
                (self.header_version.0, self.header_version.1) = (*major, *minor);
            }
            _ => bail!("{name}: unexpected form {text:?}"),
        }
        Ok(())
    }

    fn add_enums(&mut self, section: Node<'_, '_>) -> Result<()> {
        let name = section.attribute("name").context("enums without a name")?;
        let constants = section.attribute("type") == Some("constants");
        for node in section.children().filter(of_vulkan).filter(|n| n.has_tag_name("enum")) {
            let value_name = node.attribute("name").context("enum without a name")?.to_owned();
            if constants {
                if let Some(value) = node.attribute("value").and_then(|v| v.parse().ok()) {
                    self.constants.insert(value_name, value);
                }
                continue;
            }
            let value = given(node, None)?.with_context(|| format!("{value_name}: no value"))?;
            let def = self.enums.entry(name.to_owned()).or_default();
            def.values.push(EnumValue { name: value_name, value, block: None });
        }
        Ok(())
    }

    fn add_command(&mut self, node: Node<'_, '_>) -> Result<()> {
        if !node.has_tag_name("command") || !names_vulkan(node.attribute("export")) {
            return Ok(());
        }
        if let (Some(name), Some(alias)) = (node.attribute("name"), node.attribute("alias")) {
            self.commands.insert(name.to_owned(), CommandDef::Alias(alias.to_owned()));
            return Ok(());
        }
        let proto = node.children().find(|c| c.has_tag_name("proto")).context("command without proto")?;
        let proto = Declaration::parse(proto)?;
        let params = node.children().filter(of_vulkan).filter(|c| c.has_tag_name("param"));
        let params = params.map(Declaration::parse).collect::<Result<_>>()?;
        let queues = node.attribute("queues").unwrap_or_default().split(',').map(str::to_owned).collect();
        self.commands.insert(proto.name, CommandDef::Prototype { ret: proto.ty, params, queues });
        Ok(())
    }

    fn add_feature(&mut self, node: Node<'_, '_>) -> Result<()> {
        let name = node.attribute("name").context("feature without a name")?;
        let number = node.attribute("number").context("feature without a number")?;
        let (major, minor) = number.split_once('.').context("feature number")?;
        self.add_block(node, name, BlockKind::Core(major.parse()?, minor.parse()?))
    }

    fn add_extension(&mut self, node: Node<'_, '_>) -> Result<()> {
        if !node.has_tag_name("extension") || !names_vulkan(node.attribute("supported")) {
            return Ok(());
        }
        let name = node.attribute("name").context("extension without a name")?;
        let number = node.attribute("number").context("extension without a number")?.parse()?;
        let version = node.descendants().find(|d| {
            d.has_tag_name("enum") && d.attribute("name").is_some_and(|n| n.ends_with("_SPEC_VERSION"))
        });
        let spec_version =
            version.and_then(|v| v.attribute("value")).and_then(|v| v.parse().ok()).unwrap_or(1);
        let promoted_to = node.attribute("promotedto").map(str::to_owned);
        self.add_block(node, name, BlockKind::Extension { number, spec_version, promoted_to })
    }

    fn add_format(&mut self, node: Node<'_, '_>) -> Result<()> {
        let name = node.attribute("name").context("format without a name")?;
        let block_bytes = node.attribute("blockSize").context("format without a block size")?.parse()?;
        let mut block_extent = [1; 3];
        let extent = node.attribute("blockExtent").unwrap_or_default().split(',').filter(|n| !n.is_empty());
        for (slot, texels) in block_extent.iter_mut().zip(extent) {
            *slot = texels.parse()?;
        }
        self.formats.insert(name.to_owned(), FormatDef { block_bytes, block_extent });
        Ok(())
    }

    fn add_block(&mut self, node: Node<'_, '_>, name: &str, kind: BlockKind) -> Result<()> {
        let number = if let BlockKind::Extension { number, .. } = kind { Some(number) } else { None };
        let mut block = Block { name: name.to_owned(), kind, types: Vec::new(), commands: Vec::new() };
        let requires = node.children().filter(of_vulkan).filter(|n| n.has_tag_name("require"));
        for item in requires.flat_map(|r| r.children().filter(of_vulkan)) {
            let Some(item_name) = item.attribute("name").map(str::to_owned) else { continue };
            match (item.tag_name().name(), item.attribute("extends")) {
                ("type", _) => block.types.push(item_name),
                ("command", _) => block.commands.push(item_name),
                ("enum", Some(extended)) => {
                    let Some(value) = given(item, number)? else { continue };
                    let def = self.enums.entry(extended.to_owned()).or_default();
                    def.values.push(EnumValue { name: item_name, value, block: Some(name.to_owned()) });
                }
                _ => {}
            }
        }
        self.blocks.push(block);
        Ok(())
    }
}

fn struct_def(node: Node<'_, '_>) -> Result<StructDef> {
    let members = node.children().filter(of_vulkan).filter(|c| c.has_tag_name("member"));
    let extends = node.attribute("structextends").unwrap_or_default();
    Ok(StructDef {
        members: members.map(Declaration::parse).collect::<Result<_>>()?,
        extends: extends.split(',').filter(|e| !e.is_empty()).map(str::to_owned).collect(),
    })
}

/// The value of an `<enum>`: `value`, `bitpos`, `alias`, or `offset` within an extension's block of 1000 values.
fn given(node: Node<'_, '_>, block_number: Option<u32>) -> Result<Option<Given>> {
    if let Some(alias) = node.attribute("alias") {
        return Ok(Some(Given::Alias(alias.to_owned())));
    }
    if let Some(position) = node.attribute("bitpos") {
        return Ok(Some(Given::Number(1_i64 << position.parse::<u32>()?)));
    }
    let sign = if node.attribute("dir") == Some("-") { -1 } else { 1 };
    if let Some(offset) = node.attribute("offset") {
        let number = match node.attribute("extnumber") {
            Some(number) => number.parse()?,
            None => block_number.context("offset without an extension number")?,
        };
        let base = 1_000_000_000 + i64::from(number - 1) * 1000;
        return Ok(Some(Given::Number(sign * (base + offset.parse::<i64>()?))));
    }
    let Some(value) = node.attribute("value") else { return Ok(None) };
    let number = match value.strip_prefix("0x") {
        Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16)?,
        None => value.parse::<i64>()?,
    };
    Ok(Some(Given::Number(sign * number)))
}

/// Elements without an `api` attribute belong to every API.
fn of_vulkan(node: &Node<'_, '_>) -> bool {
    node.is_element() && names_vulkan(node.attribute("api"))
}

fn names_vulkan(list: Option<&str>) -> bool {
    list.is_none_or(|list| list.split(',').any(|api| api == "vulkan"))
}
