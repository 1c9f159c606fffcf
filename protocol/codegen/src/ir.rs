//! The resolved protocol: everything the emitters need, as plain structs.
//!
//! `resolve` produces it, and every file of `emit` reads it. This file knows neither XML nor Rust tokens, and no emitter needs the registry again:
//! aliases are followed, `FlagBits` are unified with their `Flags`, lengths are expressions over names, and only what the allow-list selects is
//! present. All maps are keyed by the canonical Vulkan name (`VkBufferCreateInfo`, `vkCreateBuffer`), that is, the name that remains when all aliases
//! are followed.
//!
//! Wire rules are those of the Venus protocol: `EXT_command_serialization` for values, `MESA_venus_protocol` for the rest.

use std::collections::BTreeMap;

/// The whole selected protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct Protocol {
    /// The registry from which the protocol was resolved.
    pub source: Source,
    /// Output files in allow-list order. Each holds commands and the structs used by that group alone.
    pub groups: Vec<Group>,
    /// Extensions whose pNext structs are all decodable, sorted by number: the bits of the capset's extension mask.
    pub extensions: Vec<Extension>,
    /// Enumerations, `VkStructureType`, `VkResult` and `VkObjectType` included.
    pub enums: BTreeMap<String, Enum>,
    /// Flag types (`VkBufferUsageFlags`), with the values of their `FlagBits` type.
    pub flags: BTreeMap<String, Flags>,
    /// Handle types.
    pub handles: BTreeMap<String, Handle>,
    /// Unions, by value only.
    pub unions: BTreeMap<String, Union>,
    /// Structs, those of pNext chains included.
    pub structs: BTreeMap<String, Struct>,
    /// Commands.
    pub commands: BTreeMap<String, Command>,
    /// Sizes of image formats, by canonical name of the `VkFormat` value.
    pub formats: BTreeMap<String, Format>,
    /// Every assigned command number with its Vulkan name, decodable or not, ascending: for messages.
    pub command_numbers: Vec<(i32, String)>,
    /// Capabilities of SPIR-V by name, each with another capability: a part of a device that enables the second also enables the first.
    pub capabilities_with: BTreeMap<String, String>,
}

/// The size of an image format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// Constant name in `Format` (`R8_UNORM`).
    pub rust: String,
    /// Bytes of one block, all planes together.
    pub block_bytes: u32,
    /// Texels of one block.
    pub block_extent: [u32; 3],
}

/// Identity of the registry file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// `VK_HEADER_VERSION_COMPLETE` as (major, minor, patch).
    pub header_version: (u32, u32, u32),
    /// SHA-256 of the file, lower-case hexadecimal.
    pub sha256: String,
}

/// One output file: a Vulkan object and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Module name (`buffer`), also the stem of the file name.
    pub name: String,
    /// One line for the file's head.
    pub doc: String,
    /// The commands of the group need a graphics queue.
    pub graphics: bool,
}

/// A registry extension.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extension {
    /// Registry number (315 for `VK_KHR_synchronization2`): the bit in the mask.
    pub number: u32,
    /// Registry name.
    pub name: String,
    /// `specVersion` in the registry.
    pub spec_version: u32,
    /// Core version that absorbed it, when one did.
    pub promoted_to: Option<(u32, u32)>,
}

/// A core version or an extension that makes a name exist.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// A core version.
    Core {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// An extension.
    Extension {
        /// Registry number.
        number: u32,
        /// Registry name.
        name: String,
    },
}

/// Names of a registry entity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// Canonical Vulkan name (`VkMemoryMapInfo`, `vkMapMemory2`).
    pub vk: String,
    /// Rust name, spelled as ash spells it (`MemoryMapInfo`, for commands `MapMemory2`).
    pub rust: String,
    /// Every other Vulkan name of the same entity (`VkMemoryMapInfoKHR`), sorted. For flags this includes the `FlagBits` names.
    pub aliases: Vec<String>,
}

/// A named value of an enumeration or of a flag type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Vulkan name (`VK_SHARING_MODE_CONCURRENT`).
    pub vk: String,
    /// Constant name as in ash (`CONCURRENT`, `STORAGE_BUFFER`, `TYPE_1D`).
    pub rust: String,
    /// The value. Flags are never negative.
    pub value: i64,
    /// True if this is another name for a value that the registry defines under a newer one; no constant is emitted for it.
    pub is_alias: bool,
}

/// An enumeration: `pub struct X(pub i32)`, 4 bytes on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enum {
    /// Names.
    pub names: Names,
    /// Values in registry order, Rust names unique.
    pub values: Vec<Value>,
    /// The core versions and extensions that provide the type.
    pub providers: Vec<Provider>,
}

/// A flag type: `pub struct X(pub u32)` or `u64`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// Names.
    pub names: Names,
    /// 32 or 64.
    pub bits: u32,
    /// Values (single bits and combinations), Rust names unique.
    pub values: Vec<Value>,
    /// The core versions and extensions that provide the type.
    pub providers: Vec<Provider>,
}

/// A handle type: `pub struct X(pub u64)` holding the guest's object id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// Names.
    pub names: Names,
    /// `VkInstance`, `VkDevice`, `VkQueue`, `VkCommandBuffer`, `VkPhysicalDevice`.
    pub dispatchable: bool,
    /// Canonical name of the handle it is created from.
    pub parent: Option<String>,
    /// Rust name of its constant in `ObjectType`.
    pub object_type: String,
    /// The core versions and extensions that provide the type.
    pub providers: Vec<Provider>,
}

/// A union. Tag unions have a `u32` member index on the wire, selector unions the selector's value.
#[derive(Debug, Clone, PartialEq)]
pub struct Union {
    /// Names.
    pub names: Names,
    /// Members; each is a `Shape::Value` or `Shape::Fixed`.
    pub members: Vec<UnionMember>,
    /// Canonical name of the selecting enumeration; `None` for tag unions.
    pub selector: Option<String>,
    /// True if any member borrows.
    pub needs_lifetime: bool,
    /// The core versions and extensions that provide the type.
    pub providers: Vec<Provider>,
}

/// One alternative of a union.
#[derive(Debug, Clone, PartialEq)]
pub struct UnionMember {
    /// The member; its `rust` is the snake-case field name as ash has it.
    pub member: Member,
    /// Name of the Rust enum's variant (`Float32`).
    pub variant: String,
    /// Rust constant names of the selector values that select it; empty for tag unions, whose tag is the member's index.
    pub selections: Vec<String>,
}

/// A struct.
#[derive(Debug, Clone, PartialEq)]
pub struct Struct {
    /// Names.
    pub names: Names,
    /// `sType`, for structs that have one. Such structs have a pNext chain on the wire and a `p_next: Chain<'a>` field.
    pub s_type: Option<StructureType>,
    /// Members in wire order, without `sType` and `pNext`. Wire order is API order, except that a length is moved in front of
    /// its array where the registry declares it later; `api_index` recovers API order.
    pub members: Vec<Member>,
    /// Canonical names of the selected structs that may appear in this struct's chain, sorted by sType value.
    pub extended_by: Vec<String>,
    /// Canonical names of the selected structs whose chain this one may appear in, sorted.
    pub extends: Vec<String>,
    /// Reachable from an in parameter (decoded in full).
    pub input: bool,
    /// Reachable from an out parameter (decoded partially, encoded in full into the reply).
    pub output: bool,
    /// True if the Rust type has a lifetime parameter.
    pub needs_lifetime: bool,
    /// The output file: a group's name, or one of `types` (shared), `features`, `properties`.
    pub module: String,
    /// The core versions and extensions that provide the type.
    pub providers: Vec<Provider>,
}

/// A `VkStructureType` value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StructureType {
    /// Constant name in `StructureType` (`BUFFER_CREATE_INFO`).
    pub rust: String,
    /// Value on the wire.
    pub value: i32,
}

/// A struct member or a command parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Vulkan name (`pQueueFamilyIndices`).
    pub vk: String,
    /// Field name as in ash (`p_queue_family_indices`, `ty`).
    pub rust: String,
    /// Position in the C declaration, counted without `sType` and `pNext`.
    pub api_index: usize,
    /// Type of the value itself, without pointers and arrays.
    pub ty: Type,
    /// The number of elements, and the pointer or array that holds them.
    pub shape: Shape,
    /// The pointer may be null. For arrays: a count of 0 on the wire is accepted, whatever the length is.
    pub optional: bool,
    /// The pointee is `const` (always true for values): false marks memory that the driver writes.
    pub is_const: bool,
    /// The condition under which Vulkan reads the pointer. When it does not hold, Vulkan ignores the pointer: the guest sends 0, the
    /// executor passes null.
    pub condition: Option<Condition>,
    /// The content of the wire when the enclosing struct or parameter is encoded partially.
    pub partial: Partial,
}

/// Element types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// A number.
    Scalar(Scalar),
    /// An enumeration, by canonical name.
    Enum(String),
    /// A flag type, by canonical name of the `Flags` type.
    Flags(String),
    /// A handle.
    Handle(String),
    /// A struct.
    Struct(String),
    /// A union.
    Union(String),
    /// A type that has no wire form: `VkAllocationCallbacks`, function pointers, user data, platform handles. The member has no Rust field. On the
    /// wire there is a pointer that must be 0. The string is the C type.
    Opaque(String),
}

/// Numbers. Rust types are u8, u16, u32, u64, i32, i64, f32, f64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scalar {
    /// `uint8_t` and `char`: 4 bytes alone, packed and padded in arrays.
    U8,
    /// `uint16_t`: 4 bytes on the wire.
    U16,
    /// `uint32_t`, `VkSampleMask`.
    U32,
    /// `VkBool32`; a `u32` in Rust.
    Bool32,
    /// `uint64_t`, `VkDeviceSize`, `VkDeviceAddress`.
    U64,
    /// `size_t`; a `u64` in Rust and on the wire.
    Size,
    /// `int32_t`, `int`.
    I32,
    /// `int64_t`.
    I64,
    /// `float`.
    F32,
    /// `double`.
    F64,
}

/// Pointers and arrays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// `T x`: Rust `T`.
    Value,
    /// `T x[N]`, dimensions multiplied: Rust `[T; N]`. Characters are `[u8; N]`.
    Fixed(usize),
    /// `T *x` without a length: Rust `Option<&'a T>`.
    Pointer,
    /// `T *x` with a length in elements: Rust `Option<&'a [T]>`.
    Array(Len),
    /// `void *x` or `uint8_t *x` with a length in bytes: Rust `Option<&'a [u8]>`. The `ty` is `Scalar::U8`.
    Blob(Len),
    /// `const char *x`: Rust `Option<&'a CStr>`.
    String,
    /// `const char *const *x`: Rust `Option<&'a [&'a CStr]>`.
    Strings(Len),
}

/// A length: an expression over names that have been decoded before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Len {
    /// A constant (`2*VK_UUID_SIZE`).
    Constant(u64),
    /// The value of a sibling member or parameter, by Rust field name.
    Member(String),
    /// The value that a sibling pointer parameter points to (`*pPhysicalDeviceCount`).
    Deref(String),
    /// A member of the struct that a sibling pointer parameter points to (`pAllocateInfo->descriptorSetCount`).
    Field {
        /// Rust name of the sibling pointer.
        pointer: String,
        /// Rust name of the member in the struct.
        field: String,
    },
    /// Exactly divisible by the divisor, else the input is refused (`codeSize / 4`).
    DivExact(Box<Len>, u64),
    /// Divided, rounding up (`(rasterizationSamples + 31) / 32`).
    DivCeil(Box<Len>, u64),
}

/// The condition under which a pointer is meaningful.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Only when a sibling enumeration has a value (`sharing_mode`, `CONCURRENT`).
    Equals {
        /// Rust name of the sibling.
        member: String,
        /// Rust constant name in the sibling's type.
        constant: String,
    },
    /// Only when a sibling flag is clear (`flags`, `IMAGELESS`).
    FlagClear {
        /// Rust name of the sibling.
        member: String,
        /// Rust constant name in the sibling's type.
        constant: String,
    },
}

/// Wire content of a member in partial encoding, the form of out parameters in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partial {
    /// Nothing; the Rust field gets its default.
    Absent,
    /// The content that full encoding has too: handles, and scalars that are lengths of siblings.
    Full,
    /// The presence or count only; elements get their default (out arrays of scalars, out pointers to scalars, out blobs).
    CountOnly,
    /// Presence or count, then the pointees or elements, each in partial form (structs).
    Nested,
}

/// A command.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// Names. `aliases` are the KHR/EXT names under which an older host exports it.
    pub names: Names,
    /// Snake-case name without `vk` (`create_buffer`), as ash calls the method.
    pub snake: String,
    /// `VkCommandTypeEXT` value.
    pub number: i32,
    /// Parameters in API (= wire) order.
    pub params: Vec<Param>,
    /// Return value.
    pub ret: Return,
    /// The dispatch level, from the first parameter.
    pub level: Level,
    /// Output file.
    pub module: String,
    /// The core versions and extensions that provide the command.
    pub providers: Vec<Provider>,
    /// Bits of `VkQueueFlags`: a family needs one of them to execute the command; none if the registry does not say so.
    pub queues: u32,
    /// The parts of its execution that are written by hand.
    pub execution: Execution,
    /// The class of the command in a journal.
    pub replay: Replay,
}

/// The class of a command in a journal: it says what a successor does with a command that was executed after the last checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// The successor executes it again.
    Again,
    /// The successor executes it again. Submissions may wait for it.
    Signals,
    /// The successor submits it again without command buffers.
    Submits,
    /// The successor passes it over.
    Nothing,
    /// The successor cannot do it again.
    Breaks,
}

/// The parts of a command's execution that are written by hand: for each, the module of `vulkan` that has a function of the
/// command's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Execution {
    /// The module whose function executes the whole command.
    pub by_hand: Option<String>,
    /// The command goes into a recording although its execution is written by hand.
    pub is_recorded: bool,
    /// The module whose function checks the command before parameters are lowered.
    pub checked: Option<String>,
    /// The module whose function runs before the command.
    pub before: Option<String>,
    /// The module whose function changes the answer.
    pub after: Option<String>,
    /// The module whose function runs if the command fails.
    pub failed: Option<String>,
}

/// A command parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Declaration. `partial` applies to `Out` and `InOut` parameters in the request.
    pub member: Member,
    /// The parties that write the parameter: the guest, the driver, or both.
    pub direction: Direction,
}

/// Direction of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Request only.
    In,
    /// Partial in the request, full in the reply.
    Out,
    /// Full in the request and in the reply: counts (`uint32_t *pPhysicalDeviceCount`).
    InOut,
}

/// Return type of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Return {
    /// Nothing.
    Void,
    /// `VkResult`; the reply's first field is `result: VkResult`.
    Result,
    /// Another value (`VkDeviceAddress`, `VkBool32`); the reply's first field is `ret`.
    Value(Scalar),
}

/// The dispatch level of a command: the kind of object through whose function pointer it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// No dispatchable parameter (`vkCreateInstance`).
    Global,
    /// `VkInstance`.
    Instance,
    /// `VkPhysicalDevice`.
    PhysicalDevice,
    /// `VkDevice`.
    Device,
    /// `VkQueue`.
    Queue,
    /// `VkCommandBuffer`.
    CommandBuffer,
    /// The Venus transport itself (`vkCreateRingMESA`). No function of the host's driver. The same holds for every other command that extension 385
    /// provides, at any level.
    Transport,
}

impl Scalar {
    /// The Rust type.
    pub fn rust(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 | Self::Bool32 => "u32",
            Self::U64 | Self::Size => "u64",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
}

impl Protocol {
    /// Rust name of a type, without lifetime.
    pub fn rust_name<'a>(&'a self, ty: &'a Type) -> &'a str {
        match ty {
            Type::Scalar(scalar) => scalar.rust(),
            Type::Enum(name) => &self.enums[name].names.rust,
            Type::Flags(name) => &self.flags[name].names.rust,
            Type::Handle(name) => &self.handles[name].names.rust,
            Type::Struct(name) => &self.structs[name].names.rust,
            Type::Union(name) => &self.unions[name].names.rust,
            Type::Opaque(name) => name,
        }
    }

    /// Returns whether the Rust type takes a lifetime parameter.
    pub fn needs_lifetime(&self, ty: &Type) -> bool {
        match ty {
            Type::Struct(name) => self.structs[name].needs_lifetime,
            Type::Union(name) => self.unions[name].needs_lifetime,
            _ => false,
        }
    }

    /// Commands of one output file, by number.
    pub fn commands_of<'a>(&'a self, module: &'a str) -> impl Iterator<Item = &'a Command> {
        let mut commands: Vec<_> = self.commands.values().filter(|c| c.module == module).collect();
        commands.sort_by_key(|c| c.number);
        commands.into_iter()
    }

    /// Structs of one output file, by canonical name.
    pub fn structs_of<'a>(&'a self, module: &'a str) -> impl Iterator<Item = &'a Struct> {
        self.structs.values().filter(move |s| s.module == module)
    }
}

impl Struct {
    /// Returns whether the members, after the chain, are all plain numbers and absent from a request. Such structs differ in names only.
    pub fn is_plain(&self) -> bool {
        let is_number = |member: &Member| {
            let is_number = matches!(member.ty, Type::Scalar(_) | Type::Enum(_) | Type::Flags(_));
            is_number && member.shape == Shape::Value && member.partial == Partial::Absent
        };
        let is_named = self.names.vk.strip_prefix("Vk") == Some(&*self.names.rust);
        let is_in_order = self.members.is_sorted_by_key(|member| member.api_index);
        let is_chained = self.s_type.is_some() && self.output;
        is_chained && is_named && is_in_order && self.members.iter().all(is_number)
    }
}

impl Member {
    /// Returns whether the Rust struct has a field for the member.
    pub fn has_field(&self) -> bool {
        !matches!(self.ty, Type::Opaque(_))
    }
}
