//! Pointers, arrays, text and fixed arrays: the shapes a member can have, as methods of `Reader` and `Writer`.
//!
//! Generated code consists of calls into this file, one per member. Every read names the member for errors, compares the count on the wire with the
//! length that was read before, and bounds it by the remaining bytes. This file knows no Vulkan type.

use std::ffi::CStr;

use super::wire::{Decode, DecodePartial, Encode, EncodePartial, Null, Structure};
use crate::cursor::{Reader, Writer};
use crate::error::{DecodeError, DecodeErrorKind};

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
        self.keep_filled(count, T::default()).map(Some).map_err(|e| e.within(what))
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

    /// A struct's own sType.
    pub(crate) fn own_s_type<T: Structure<'a>>(&mut self) -> Result<(), DecodeError> {
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

/// Count and one padded terminator.
const MIN_STRING: usize = 12;
