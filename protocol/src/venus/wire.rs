//! Wire shapes: numbers, pointers, arrays, text, structs, in full and in partial form.
//!
//! Generated code consists of calls into this file, one per member. It knows the shapes of EXT_command_serialization and no
//! Vulkan type.

use std::ffi::CStr;

use super::chain::{self, Chain};
use super::generated::ObjectType;
use crate::cursor::{Reader, Writer};
use crate::error::{DecodeError, DecodeErrorKind};

/// A value with a wire form.
pub trait Decode<'a>: Copy + Default + 'a {
    /// Fewest bytes of one value.
    const MIN_SIZE: usize;
    /// Reads one value.
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// A value with a partial wire form, that of out parameters in requests. What is absent gets its default.
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

/// A struct with an `sType`. Its wire form is the sType, the chain and the members, and in a chain other structs' parts come
/// between (see [`chain`]), so the members are separate here.
pub trait Structure<'a>: Copy + Default + 'a {
    /// Its `VkStructureType`.
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
    /// Its constant in `ObjectType`.
    const KIND: ObjectType;
    /// The guest's object id; 0 is null.
    fn id(self) -> u64;
    /// The handle with this object id.
    fn from_id(id: u64) -> Self;
}

/// Whether a pointer may be null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Null {
    /// Null is an error. For arrays: a count of 0 where the length says otherwise.
    Refused,
    /// Null is fine.
    Allowed,
}

impl DecodeError {
    /// Names the member, unless an inner one is named already.
    #[cold]
    pub(crate) fn within(mut self, what: &'static str) -> Self {
        if self.what.is_empty() {
            self.what = what;
        }
        self
    }
}

impl<'a> Reader<'a> {
    /// A value.
    #[inline]
    pub fn value<T: Decode<'a>>(&mut self, what: &'static str) -> Result<T, DecodeError> {
        T::decode(self).map_err(|e| e.within(what))
    }

    /// A value in partial form.
    pub fn partial<T: DecodePartial<'a>>(&mut self, what: &'static str) -> Result<T, DecodeError> {
        T::decode_partial(self).map_err(|e| e.within(what))
    }

    /// A pointer to one value.
    pub fn pointer<T: Decode<'a>>(
        &mut self,
        what: &'static str,
        null: Null,
    ) -> Result<Option<&'a T>, DecodeError> {
        if !self.is_present(what, null)? {
            return Ok(None);
        }
        let value = self.value(what)?;
        self.keep(value).map(Some)
    }

    /// A pointer to one value in partial form.
    pub fn partial_pointer<T: DecodePartial<'a>>(
        &mut self,
        what: &'static str,
        null: Null,
    ) -> Result<Option<&'a T>, DecodeError> {
        if !self.is_present(what, null)? {
            return Ok(None);
        }
        let value = self.partial(what)?;
        self.keep(value).map(Some)
    }

    /// A pointer to one number that the driver will write: presence only.
    pub fn out_pointer<T: Copy + Default>(
        &mut self,
        what: &'static str,
        null: Null,
    ) -> Result<Option<&'a T>, DecodeError> {
        if !self.is_present(what, null)? {
            return Ok(None);
        }
        self.keep(T::default()).map(Some)
    }

    /// A pointer without a wire form: must be null.
    pub fn null_pointer(&mut self, what: &'static str) -> Result<(), DecodeError> {
        match self.u64().map_err(|e| e.within(what))? {
            0 => Ok(()),
            _ => Err(self.error(DecodeErrorKind::NotNull).within(what)),
        }
    }

    /// An array whose length is known.
    pub fn array<T: Decode<'a>>(
        &mut self,
        what: &'static str,
        len: u64,
        null: Null,
    ) -> Result<Option<&'a [T]>, DecodeError> {
        let Some(count) = self.count(what, len, null)? else { return Ok(None) };
        self.elements(what, count).map(Some)
    }

    /// An array whose length only the wire tells (replies, as the guest reads them).
    pub fn sized_array<T: Decode<'a>>(&mut self, what: &'static str) -> Result<Option<&'a [T]>, DecodeError> {
        match self.u64().map_err(|e| e.within(what))? {
            0 => Ok(None),
            count => self.elements(what, count).map(Some),
        }
    }

    fn elements<T: Decode<'a>>(&mut self, what: &'static str, count: u64) -> Result<&'a [T], DecodeError> {
        let count = self.bounded(count, T::MIN_SIZE).map_err(|e| e.within(what))?;
        self.keep_all(count, T::decode).map(|all| &*all).map_err(|e| e.within(what))
    }

    /// An array of values in partial form.
    pub fn partial_array<T: DecodePartial<'a>>(
        &mut self,
        what: &'static str,
        len: u64,
        null: Null,
    ) -> Result<Option<&'a [T]>, DecodeError> {
        let Some(count) = self.count(what, len, null)? else { return Ok(None) };
        let count = self.bounded(count, T::MIN_PARTIAL_SIZE).map_err(|e| e.within(what))?;
        self.keep_all(count, T::decode_partial).map(|all| Some(&*all)).map_err(|e| e.within(what))
    }

    /// An array of numbers that the driver will write: count only.
    pub fn out_array<T: Copy + Default>(
        &mut self,
        what: &'static str,
        len: u64,
        null: Null,
    ) -> Result<Option<&'a [T]>, DecodeError> {
        let Some(count) = self.count(what, len, null)? else { return Ok(None) };
        let count = self.spend(count, size_of::<T>()).map_err(|e| e.within(what))?;
        self.keep_all(count, |_| Ok(T::default())).map(|all| Some(&*all)).map_err(|e| e.within(what))
    }

    /// Bytes whose length is known; they stay where they are.
    pub fn bytes(
        &mut self,
        what: &'static str,
        len: u64,
        null: Null,
    ) -> Result<Option<&'a [u8]>, DecodeError> {
        let Some(count) = self.count(what, len, null)? else { return Ok(None) };
        self.padded_bytes(count).map(Some).map_err(|e| e.within(what))
    }

    /// Bytes whose length only the wire tells.
    pub fn sized_bytes(&mut self, what: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
        match self.u64().map_err(|e| e.within(what))? {
            0 => Ok(None),
            count => self.padded_bytes(count).map(Some).map_err(|e| e.within(what)),
        }
    }

    /// Text.
    pub fn string(&mut self, what: &'static str, null: Null) -> Result<Option<&'a CStr>, DecodeError> {
        match self.u64().map_err(|e| e.within(what))? {
            0 if null == Null::Allowed => Ok(None),
            0 => Err(self.error(DecodeErrorKind::Null).within(what)),
            size => self.text(what, size).map(Some),
        }
    }

    /// An array of texts.
    pub fn strings(
        &mut self,
        what: &'static str,
        len: u64,
        null: Null,
    ) -> Result<Option<&'a [&'a CStr]>, DecodeError> {
        let Some(count) = self.count(what, len, null)? else { return Ok(None) };
        let count = self.bounded(count, MIN_STRING).map_err(|e| e.within(what))?;
        let strings = self.keep_all(count, |r| {
            let size = r.u64()?;
            r.text(what, size)
        });
        strings.map(|all| Some(&*all)).map_err(|e| e.within(what))
    }

    fn text(&mut self, what: &'static str, size: u64) -> Result<&'a CStr, DecodeError> {
        let bytes = self.padded_bytes(size).map_err(|e| e.within(what))?;
        CStr::from_bytes_with_nul(bytes)
            .map_err(|_| self.error(DecodeErrorKind::String { size }).within(what))
    }

    /// An array inside a struct.
    pub fn fixed<T: Decode<'a>, const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[T; N], DecodeError> {
        self.fixed_count::<N>(what)?;
        let mut all = [T::default(); N];
        for element in &mut all {
            *element = self.value(what)?;
        }
        Ok(all)
    }

    /// An array inside a struct, of values in partial form.
    pub fn partial_fixed<T: DecodePartial<'a>, const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[T; N], DecodeError> {
        self.fixed_count::<N>(what)?;
        let mut all = [T::default(); N];
        for element in &mut all {
            *element = self.partial(what)?;
        }
        Ok(all)
    }

    /// Bytes or characters inside a struct.
    pub fn fixed_bytes<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        self.fixed_count::<N>(what)?;
        let bytes = self.padded_bytes(N as u64).map_err(|e| e.within(what))?;
        <[u8; N]>::try_from(bytes).map_err(|_| self.error(DecodeErrorKind::Truncated).within(what))
    }

    fn fixed_count<const N: usize>(&mut self, what: &'static str) -> Result<(), DecodeError> {
        match self.u64().map_err(|e| e.within(what))? {
            found if found == N as u64 => Ok(()),
            found => Err(self.error(DecodeErrorKind::Count { found, expected: N as u64 }).within(what)),
        }
    }

    /// The count in front of an array; `None` for null and for empty arrays, which look alike.
    fn count(&mut self, what: &'static str, len: u64, null: Null) -> Result<Option<u64>, DecodeError> {
        match self.u64().map_err(|e| e.within(what))? {
            0 if len == 0 || null == Null::Allowed => Ok(None),
            found if found == len => Ok(Some(found)),
            found => Err(self.error(DecodeErrorKind::Count { found, expected: len }).within(what)),
        }
    }

    /// The presence in front of a pointee.
    pub(crate) fn is_present(&mut self, what: &'static str, null: Null) -> Result<bool, DecodeError> {
        let kind = match (self.u64().map_err(|e| e.within(what))?, null) {
            (0, Null::Allowed) => return Ok(false),
            (1, _) => return Ok(true),
            (0, Null::Refused) => DecodeErrorKind::Null,
            (other, _) => DecodeErrorKind::Presence(other),
        };
        Err(self.error(kind).within(what))
    }

    /// `len / divisor`, where a remainder is an error.
    pub fn div_exact(&self, what: &'static str, len: u64, divisor: u64) -> Result<u64, DecodeError> {
        match len.checked_rem(divisor) {
            Some(0) => Ok(len / divisor),
            _ => Err(self.error(DecodeErrorKind::Length(len)).within(what)),
        }
    }

    /// The command number in front of a reply.
    #[cfg(feature = "driver")]
    pub(crate) fn command_number(&mut self, expected: i32) -> Result<(), DecodeError> {
        match self.u32().map_err(|e| e.within("reply"))? as i32 {
            found if found == expected => Ok(()),
            found => Err(self.error(DecodeErrorKind::Command(found)).within("reply")),
        }
    }

    fn own_s_type<T: Structure<'a>>(&mut self) -> Result<(), DecodeError> {
        match self.u32().map_err(|e| e.within(T::NAME))? as i32 {
            found if found == T::S_TYPE => Ok(()),
            found => {
                let kind = DecodeErrorKind::StructureType { found, expected: T::S_TYPE };
                Err(self.error(kind).within(T::NAME))
            }
        }
    }
}

impl Writer<'_> {
    /// A value.
    #[inline]
    pub fn value(&mut self, value: &impl Encode) {
        value.encode(self);
    }

    /// A value in partial form.
    pub fn partial(&mut self, value: &impl EncodePartial) {
        value.encode_partial(self);
    }

    /// A pointer to one value.
    pub fn pointer<T: Encode>(&mut self, value: Option<&T>) {
        self.u64(u64::from(value.is_some()));
        if let Some(value) = value {
            value.encode(self);
        }
    }

    /// A pointer to one value in partial form.
    pub fn partial_pointer<T: EncodePartial>(&mut self, value: Option<&T>) {
        self.u64(u64::from(value.is_some()));
        if let Some(value) = value {
            value.encode_partial(self);
        }
    }

    /// A pointer to one number that the driver will write.
    pub fn out_pointer<T>(&mut self, value: Option<&T>) {
        self.u64(u64::from(value.is_some()));
    }

    /// A pointer without a wire form.
    pub fn null_pointer(&mut self) {
        self.u64(0);
    }

    /// An array.
    pub fn array<T: Encode>(&mut self, values: Option<&[T]>) {
        self.out_array(values);
        values.unwrap_or_default().iter().for_each(|value| value.encode(self));
    }

    /// An array of values in partial form.
    pub fn partial_array<T: EncodePartial>(&mut self, values: Option<&[T]>) {
        self.out_array(values);
        values.unwrap_or_default().iter().for_each(|value| value.encode_partial(self));
    }

    /// An array of numbers that the driver will write.
    pub fn out_array<T>(&mut self, values: Option<&[T]>) {
        self.u64(values.unwrap_or_default().len() as u64);
    }

    /// Bytes.
    pub fn bytes(&mut self, bytes: Option<&[u8]>) {
        let bytes = bytes.unwrap_or_default();
        self.u64(bytes.len() as u64);
        self.padded_bytes(bytes);
    }

    /// Text.
    pub fn string(&mut self, text: Option<&CStr>) {
        self.bytes(text.map(CStr::to_bytes_with_nul));
    }

    /// An array of texts.
    pub fn strings(&mut self, texts: Option<&[&CStr]>) {
        self.out_array(texts);
        texts.unwrap_or_default().iter().for_each(|text| self.string(Some(text)));
    }

    /// An array inside a struct.
    pub fn fixed<T: Encode, const N: usize>(&mut self, values: &[T; N]) {
        self.array(Some(values.as_slice()));
    }

    /// An array inside a struct, of values in partial form.
    pub fn partial_fixed<T: EncodePartial, const N: usize>(&mut self, values: &[T; N]) {
        self.partial_array(Some(values.as_slice()));
    }

    /// Bytes or characters inside a struct.
    pub fn fixed_bytes<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.bytes(Some(bytes.as_slice()));
    }
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
    /// Its value.
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

/// Flags: an integer newtype with set operations.
macro_rules! flags {
    ($name:ident, $ty:ty) => {
        crate::venus::wire::enumeration!($name, $ty);
        impl $name {
            /// No flag.
            pub const fn empty() -> Self {
                Self(0)
            }
            /// Whether no flag is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
            /// Whether all of these flags are set.
            pub const fn contains(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }
            /// Whether any of these flags is set.
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
            /// Its constant in `ObjectType`.
            pub const KIND: ObjectType = ObjectType::$kind;
            /// `VK_NULL_HANDLE`.
            pub const NULL: Self = Self(0);
            /// Whether it is `VK_NULL_HANDLE`.
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
/// Count and one padded terminator.
const MIN_STRING: usize = 12;
