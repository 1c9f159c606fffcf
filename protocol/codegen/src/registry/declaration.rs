//! C declarations as the registry marks them up: `<type>`, `<name>` and the text around them.

use anyhow::{Context, Result};
use roxmltree::Node;

/// A struct member or a command parameter.
#[derive(Debug, Clone)]
pub struct Declaration {
    /// Name.
    pub name: String,
    /// Type name, without qualifiers and pointers.
    pub ty: String,
    /// Number of `*`.
    pub pointers: usize,
    /// `const` in front of the type.
    pub is_const: bool,
    /// Array dimensions: numbers or names of constants.
    pub dimensions: Vec<String>,
    /// Declared as a bit field.
    pub is_bit_field: bool,
    /// `altlen` when present, else `len`, split at commas.
    pub len: Vec<String>,
    /// `optional`, per pointer level.
    pub optional: Vec<bool>,
    /// `noautovalidity`.
    pub no_auto_validity: bool,
    /// `selector`: the member that selects this union's alternative.
    pub selector: Option<String>,
    /// `selection`: the selector values for this alternative.
    pub selection: Vec<String>,
    /// `values`: for `sType`, its only value.
    pub values: Option<String>,
}

impl Declaration {
    /// Reads a `<member>`, `<param>` or `<proto>`.
    pub fn parse(node: Node<'_, '_>) -> Result<Self> {
        let text_of = |tag: &str| {
            node.children().find(|c| c.has_tag_name(tag)).and_then(|c| c.text()).map(str::to_owned)
        };
        let name = text_of("name").context("declaration without a name")?;
        let ty = text_of("type").with_context(|| format!("{name}: declaration without a type"))?;
        let (mut before, mut between, mut after) = (String::new(), String::new(), String::new());
        let mut part = &mut before;
        for child in node.children() {
            if child.has_tag_name("type") {
                part = &mut between;
            } else if child.has_tag_name("name") {
                part = &mut after;
            } else if !child.has_tag_name("comment") {
                part.push_str(child.text().unwrap_or_default());
            }
        }
        let list = |attribute: &str| -> Vec<String> {
            node.attribute(attribute).map(|v| v.split(',').map(str::to_owned).collect()).unwrap_or_default()
        };
        let len = if node.has_attribute("altlen") { list("altlen") } else { list("len") };
        Ok(Self {
            name,
            ty,
            pointers: between.matches('*').count(),
            is_const: before.contains("const"),
            dimensions: dimensions(&after),
            is_bit_field: after.contains(':'),
            len,
            optional: list("optional").iter().map(|v| v == "true").collect(),
            no_auto_validity: node.attribute("noautovalidity") == Some("true"),
            selector: node.attribute("selector").map(str::to_owned),
            selection: list("selection"),
            values: node.attribute("values").map(str::to_owned),
        })
    }
}

fn dimensions(after: &str) -> Vec<String> {
    after.split('[').skip(1).filter_map(|d| d.split(']').next()).map(|d| d.trim().to_owned()).collect()
}
