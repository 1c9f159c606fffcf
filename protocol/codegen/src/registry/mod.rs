//! The Vulkan registry as typed values, one to one with its XML.
//!
//! It knows nothing of Venus, of the allow-list or of Rust: names are those of the file, lengths are strings, aliases are
//! recorded and not followed. Entities of other APIs (`vulkansc`) are left out. Format: the registry's own document,
//! "The Khronos Vulkan API Registry".

mod declaration;
mod parse;
pub mod source;

use std::collections::BTreeMap;

pub use declaration::Declaration;

/// A parsed registry file, or several merged ones.
#[derive(Debug, Default)]
pub struct Registry {
    /// `VK_HEADER_VERSION_COMPLETE`: (major, minor, patch).
    pub header_version: (u32, u32, u32),
    /// `API Constants` with an unsigned value.
    pub constants: BTreeMap<String, u64>,
    /// `<type>` elements by name.
    pub types: BTreeMap<String, TypeDef>,
    /// `<enums>` blocks by name, with the values that features and extensions add.
    pub enums: BTreeMap<String, EnumDef>,
    /// `<command>` elements by name.
    pub commands: BTreeMap<String, CommandDef>,
    /// `<feature>` and `<extension>` elements in file order.
    pub blocks: Vec<Block>,
    /// `<format>` elements by name.
    pub formats: BTreeMap<String, FormatDef>,
}

/// A `<format>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FormatDef {
    /// `blockSize` in bytes, all planes together.
    pub block_bytes: u32,
    /// `blockExtent` in texels.
    pub block_extent: [u32; 3],
}

/// A `<type>`.
#[derive(Debug, Clone)]
pub enum TypeDef {
    /// Another name of a type.
    Alias(String),
    /// A struct.
    Struct(StructDef),
    /// A union.
    Union(StructDef),
    /// An enumeration or a `FlagBits` type; its values are in `Registry::enums`.
    Enum,
    /// A `Flags` type.
    Bitmask {
        /// The name of the `FlagBits` type, if there is one.
        bits: Option<String>,
        /// `VkFlags64`.
        wide: bool,
    },
    /// A handle.
    Handle {
        /// Handle it is created from.
        parent: Option<String>,
        /// `VK_DEFINE_HANDLE`.
        dispatchable: bool,
        /// `VK_OBJECT_TYPE_*`.
        object_type: String,
    },
    /// Anything else: base types, function pointers, platform types.
    Other,
}

/// A struct or union.
#[derive(Debug, Clone)]
pub struct StructDef {
    /// Members in declaration order, `sType` and `pNext` included.
    pub members: Vec<Declaration>,
    /// `structextends`.
    pub extends: Vec<String>,
}

/// An `<enums>` block.
#[derive(Debug, Clone, Default)]
pub struct EnumDef {
    /// Values in file order.
    pub values: Vec<EnumValue>,
}

/// An `<enum>` of a type.
#[derive(Debug, Clone)]
pub struct EnumValue {
    /// Name.
    pub name: String,
    /// The value of the enumerant, or the name that it stands for.
    pub value: Given,
    /// The block that adds it; `None` for values of the original type.
    pub block: Option<String>,
}

/// The form in which the registry gives an enumerant.
#[derive(Debug, Clone)]
pub enum Given {
    /// A number.
    Number(i64),
    /// Another enumerant.
    Alias(String),
}

/// A `<command>`.
#[derive(Debug, Clone)]
pub enum CommandDef {
    /// Another name of a command.
    Alias(String),
    /// A prototype.
    Prototype {
        /// C return type.
        ret: String,
        /// Parameters.
        params: Vec<Declaration>,
        /// Names of `VkQueueFlagBits`: a queue's family needs one of them to execute the command.
        queues: Vec<String>,
    },
}

/// A `<feature>` or `<extension>` and the names it requires.
#[derive(Debug, Clone)]
pub struct Block {
    /// `VK_VERSION_1_1`, `VK_KHR_maintenance5`.
    pub name: String,
    /// The kind of the block: a core version or an extension.
    pub kind: BlockKind,
    /// Required types.
    pub types: Vec<String>,
    /// Required commands.
    pub commands: Vec<String>,
}

/// Kinds of block.
#[derive(Debug, Clone)]
pub enum BlockKind {
    /// A core version.
    Core(u32, u32),
    /// An extension.
    Extension {
        /// The number of the extension.
        number: u32,
        /// The extension's `SPEC_VERSION`.
        spec_version: u32,
        /// `promotedto`.
        promoted_to: Option<String>,
    },
}
