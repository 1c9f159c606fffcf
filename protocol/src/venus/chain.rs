//! pNext chains.
//!
//! On the wire a chain A → B → C behind its owner is: 1, sType of A, 1, sType of B, 1, sType of C, 0, members of C, members of
//! B, members of A. Sizes follow from sTypes alone, so an unknown sType ends the stream. A struct inside a chain has no chain
//! of its own. The decoder collects the sTypes first, so it does not recurse.

use super::generated::ChainStruct;
use super::wire::{Null, OutStructure, Structure};
use crate::cursor::{MAX_CHAIN, Reader, Writer};
use crate::error::{DecodeError, DecodeErrorKind};

/// The structs behind a `pNext`, in chain order.
pub type Chain<'a> = &'a [ChainStruct<'a>];

/// The members of a struct in a chain, as they are on the wire: for structs of features, a `VkBool32` each.
pub fn members(link: &ChainStruct<'_>) -> Vec<u8> {
    let mut writer = Writer::growing();
    link.encode_members(&mut writer);
    writer.into_bytes()
}

type Members<'a> = fn(&mut Reader<'a>, i32) -> Result<ChainStruct<'a>, DecodeError>;

/// Reads the chain of `owner`, which accepts the sTypes in `allowed` (ascending).
pub(crate) fn decode<'a>(
    r: &mut Reader<'a>,
    owner: &'static str,
    allowed: &[i32],
) -> Result<Chain<'a>, DecodeError> {
    decode_with(r, owner, allowed, ChainStruct::decode_members)
}

/// Reads the chain of an out parameter in a request.
pub(crate) fn decode_partial<'a>(
    r: &mut Reader<'a>,
    owner: &'static str,
    allowed: &[i32],
) -> Result<Chain<'a>, DecodeError> {
    decode_with(r, owner, allowed, ChainStruct::decode_members_partial)
}

fn decode_with<'a>(
    r: &mut Reader<'a>,
    owner: &'static str,
    allowed: &[i32],
    members: Members<'a>,
) -> Result<Chain<'a>, DecodeError> {
    if !r.is_present(owner, Null::Allowed)? {
        return Ok(&[]);
    }
    let mut s_types = [0; MAX_CHAIN];
    let mut count = 0;
    loop {
        let s_type = r.u32().map_err(|e| e.within(owner))? as i32;
        if allowed.binary_search(&s_type).is_err() {
            return Err(r.error(DecodeErrorKind::ChainStructure(s_type)).within(owner));
        }
        let slot = s_types.get_mut(count).filter(|_| count < r.limits().max_chain);
        let Some(slot) = slot else { return Err(r.error(DecodeErrorKind::ChainLength).within(owner)) };
        *slot = s_type;
        count += 1;
        if !r.is_present(owner, Null::Allowed)? {
            break;
        }
    }
    let mut last_first = s_types.get(..count).unwrap_or_default().iter().rev();
    let chain = r.keep_all(count, |r| members(r, last_first.next().copied().unwrap_or_default()))?;
    chain.reverse();
    Ok(chain)
}

/// One link: its members, and no chain of its own.
pub(crate) fn link<'a, T: Structure<'a>>(r: &mut Reader<'a>) -> Result<&'a T, DecodeError> {
    let members = T::decode_members(r, &[])?;
    r.keep(members)
}

/// One link in partial form.
pub(crate) fn link_partial<'a, T: OutStructure<'a>>(r: &mut Reader<'a>) -> Result<&'a T, DecodeError> {
    let members = T::decode_members_partial(r, &[])?;
    r.keep(members)
}

/// Appends a chain.
pub(crate) fn encode(chain: Chain<'_>, w: &mut Writer<'_>) {
    encode_heads(chain, w);
    chain.iter().rev().for_each(|link| link.encode_members(w));
}

/// Appends a chain in partial form.
pub(crate) fn encode_partial(chain: Chain<'_>, w: &mut Writer<'_>) {
    encode_heads(chain, w);
    chain.iter().rev().for_each(|link| link.encode_members_partial(w));
}

fn encode_heads(chain: Chain<'_>, w: &mut Writer<'_>) {
    for link in chain {
        w.u64(1);
        w.u32(link.s_type() as u32);
    }
    w.u64(0);
}
