//! The traits of values that have a wire form, in full and in partial form, and their implementations for numbers and for structs.
//!
//! The module knows the values of EXT_command_serialization and no Vulkan type. Pointers and arrays are in `shape`.

use super::chain::{self, Chain};
use super::generated::ObjectType;
use crate::cursor::{Reader, Writer};
use crate::error::DecodeError;

/// A value with a wire form.
pub trait Decode<'a>: Copy + Default + 'a {
    /// Fewest bytes of one value.
    const MIN_SIZE: usize;
    /// Reads one value.
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// A value with a partial wire form, that of out parameters in requests. Absent parts get their defaults.
pub trait DecodePartial<'a>: Copy + Default + 'a {
    /// Fewest bytes of one value in partial form; may be 0.
    const MIN_PARTIAL_SIZE: usize;
    /// Reads one value in partial form.
    fn decode_partial(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// The other direction of [`Decode`].
pub trait Encode {
    /// Appends the value.
    fn encode(&self, w: &mut Writer<'_>);
}

/// The other direction of [`DecodePartial`].
pub trait EncodePartial {
    /// Appends the value in partial form.
    fn encode_partial(&self, w: &mut Writer<'_>);
}

/// A struct with an `sType`. Its wire form is the sType, the chain and the members. In a chain, the parts of other structs stand between these (see
/// [`chain`]), so the members are separate here.
pub trait Structure<'a>: Copy + Default + 'a {
    /// The struct's `VkStructureType`.
    const S_TYPE: i32;
    /// Rust name, for errors.
    const NAME: &'static str;
    /// The sTypes accepted in its chain, ascending.
    const EXTENDED_BY: &'static [i32];
    /// Fewest bytes of the members.
    const MIN_MEMBERS: usize;
    /// Reads the members.
    fn decode_members(r: &mut Reader<'a>, p_next: Chain<'a>) -> Result<Self, DecodeError>;
    /// Appends the members.
    fn encode_members(&self, w: &mut Writer<'_>);
    /// The chain.
    fn p_next(&self) -> Chain<'a>;
}

/// A [`Structure`] that may be an out parameter.
pub trait OutStructure<'a>: Structure<'a> {
    /// Fewest bytes of the members in partial form.
    const MIN_PARTIAL_MEMBERS: usize;
    /// Reads the members in partial form.
    fn decode_members_partial(r: &mut Reader<'a>, p_next: Chain<'a>) -> Result<Self, DecodeError>;
    /// Appends the members in partial form.
    fn encode_members_partial(&self, w: &mut Writer<'_>);
}

/// A handle type, for code that treats all of them alike.
pub trait Handle: Copy {
    /// The constant of the handle type in `ObjectType`.
    const KIND: ObjectType;
    /// The guest's object id; 0 is null.
    fn id(self) -> u64;
    /// The handle with this object id.
    fn from_id(id: u64) -> Self;
}

/// The rule for a null pointer: allowed or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Null {
    /// Null is an error. For arrays: a count of 0 where the length says otherwise.
    Refused,
    /// Null is fine.
    Allowed,
}

impl<'a, T: Structure<'a>> Decode<'a> for T {
    const MIN_SIZE: usize = STRUCTURE_HEAD + T::MIN_MEMBERS;

    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        r.own_s_type::<T>()?;
        let p_next = chain::decode(r, T::NAME, T::EXTENDED_BY)?;
        T::decode_members(r, p_next)
    }
}

impl<'a, T: OutStructure<'a>> DecodePartial<'a> for T {
    const MIN_PARTIAL_SIZE: usize = STRUCTURE_HEAD + T::MIN_PARTIAL_MEMBERS;

    fn decode_partial(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        r.own_s_type::<T>()?;
        let p_next = chain::decode_partial(r, T::NAME, T::EXTENDED_BY)?;
        T::decode_members_partial(r, p_next)
    }
}

impl<'a, T: Structure<'a>> Encode for T {
    fn encode(&self, w: &mut Writer<'_>) {
        w.u32(T::S_TYPE as u32);
        chain::encode(self.p_next(), w);
        self.encode_members(w);
    }
}

impl<'a, T: OutStructure<'a>> EncodePartial for T {
    fn encode_partial(&self, w: &mut Writer<'_>) {
        w.u32(T::S_TYPE as u32);
        chain::encode_partial(self.p_next(), w);
        self.encode_members_partial(w);
    }
}

/// A number that serves as the length of an array.
pub(crate) trait Length {
    /// Returns the number.
    fn get(self) -> u64;
}

/// The value of a length member.
#[inline]
pub(crate) fn length(value: impl Length) -> u64 {
    value.get()
}

impl Length for u32 {
    fn get(self) -> u64 {
        u64::from(self)
    }
}

impl Length for u64 {
    fn get(self) -> u64 {
        self
    }
}

macro_rules! number {
    ($($ty:ty, $read:ident, $wire:ty, $size:expr;)*) => {$(
        impl Decode<'_> for $ty {
            const MIN_SIZE: usize = $size;
            #[inline]
            fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(r.$read()? as $ty)
            }
        }
        impl Encode for $ty {
            #[inline]
            fn encode(&self, w: &mut Writer<'_>) {
                w.$read(*self as $wire);
            }
        }
    )*};
}

// Numbers smaller than 4 bytes travel in the low bytes of 4.
number! {
    u8, u32, u32, 4;
    u16, u32, u32, 4;
    u32, u32, u32, 4;
    i32, u32, u32, 4;
    u64, u64, u64, 8;
    i64, u64, u64, 8;
}

impl Decode<'_> for f32 {
    const MIN_SIZE: usize = 4;
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::from_bits(r.u32()?))
    }
}

impl Encode for f32 {
    fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.to_bits());
    }
}

impl Decode<'_> for f64 {
    const MIN_SIZE: usize = 8;
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::from_bits(r.u64()?))
    }
}

impl Encode for f64 {
    fn encode(&self, w: &mut Writer<'_>) {
        w.u64(self.to_bits());
    }
}

/// Wire form of an integer newtype, and the functions every one has.
macro_rules! enumeration {
    ($name:ident, $ty:ty) => {
        impl crate::venus::wire::Decode<'_> for $name {
            const MIN_SIZE: usize = size_of::<$ty>();
            fn decode(r: &mut crate::cursor::Reader<'_>) -> Result<Self, crate::error::DecodeError> {
                <$ty as crate::venus::wire::Decode>::decode(r).map(Self)
            }
        }
        impl crate::venus::wire::Encode for $name {
            fn encode(&self, w: &mut crate::cursor::Writer<'_>) {
                w.value(&self.0);
            }
        }
    };
}
pub(crate) use enumeration;

/// An enumeration. The selected part of the registry names some of its values.
pub trait Enumeration: Copy {
    /// Returns whether the value is one of those that the registry names.
    fn is_known(self) -> bool;
    /// The number.
    fn number(self) -> i32;
}

/// The values of an enumeration, as a pattern.
macro_rules! known {
    ($name:ident, $($values:tt)*) => {
        impl crate::venus::wire::Enumeration for $name {
            #[inline]
            fn is_known(self) -> bool {
                matches!(self.0, $($values)*)
            }
            #[inline]
            fn number(self) -> i32 {
                self.0
            }
        }
    };
}
pub(crate) use known;

/// The bits of flags that the selected part of the registry names.
macro_rules! known_flags {
    ($name:ident, $bits:literal) => {
        impl $name {
            /// Returns the flags that the registry names.
            #[must_use]
            pub const fn known(self) -> Self {
                Self(self.0 & $bits)
            }
        }
    };
}
pub(crate) use known_flags;

/// Flags: an integer newtype with set operations.
macro_rules! flags {
    ($name:ident, $ty:ty) => {
        crate::venus::wire::enumeration!($name, $ty);
        impl $name {
            /// Returns no flags.
            pub const fn empty() -> Self {
                Self(0)
            }
            /// Returns whether no flag is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
            /// Returns whether all of these flags are set.
            pub const fn contains(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }
            /// Returns whether any of these flags is set.
            pub const fn intersects(self, flags: Self) -> bool {
                self.0 & flags.0 != 0
            }
        }
        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
        impl crate::venus::wire::Length for $name {
            fn get(self) -> u64 {
                u64::from(self.0)
            }
        }
    };
}
pub(crate) use flags;

/// A handle: the guest's object id. Partial and full form are the same.
macro_rules! handle {
    ($name:ident, $kind:ident) => {
        crate::venus::wire::enumeration!($name, u64);
        impl crate::venus::wire::DecodePartial<'_> for $name {
            const MIN_PARTIAL_SIZE: usize = 8;
            fn decode_partial(r: &mut crate::cursor::Reader<'_>) -> Result<Self, crate::error::DecodeError> {
                crate::venus::wire::Decode::decode(r)
            }
        }
        impl crate::venus::wire::EncodePartial for $name {
            fn encode_partial(&self, w: &mut crate::cursor::Writer<'_>) {
                w.value(self);
            }
        }
        impl $name {
            /// The constant of the handle type in `ObjectType`.
            pub const KIND: ObjectType = ObjectType::$kind;
            /// `VK_NULL_HANDLE`.
            pub const NULL: Self = Self(0);
            /// Returns whether the handle is `VK_NULL_HANDLE`.
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }
        }
        impl crate::venus::wire::Handle for $name {
            const KIND: ObjectType = ObjectType::$kind;
            fn id(self) -> u64 {
                self.0
            }
            fn from_id(id: u64) -> Self {
                Self(id)
            }
        }
    };
}
pub(crate) use handle;

/// sType and an empty chain.
const STRUCTURE_HEAD: usize = 12;
