//! Length expressions of the registry (`len`, `altlen`) to `ir::Len`.

use anyhow::{Context, Result, bail};

use super::names;
use crate::ir::Len;
use crate::registry::{Declaration, Registry};

/// Parses one expression over the names of `siblings`.
pub(super) fn parse(registry: &Registry, siblings: &[Declaration], text: &str) -> Result<Len> {
    let text = text.trim();
    if let Some((numerator, divisor)) = text.split_once('/') {
        let divisor: u64 = divisor.trim().parse().with_context(|| format!("divisor in {text:?}"))?;
        let Some(sum) = numerator.trim().strip_prefix('(').and_then(|n| n.strip_suffix(')')) else {
            return Ok(Len::DivExact(Box::new(parse(registry, siblings, numerator)?), divisor));
        };
        let (value, round) = sum.split_once('+').with_context(|| format!("sum in {text:?}"))?;
        if round.trim().parse::<u64>()? + 1 != divisor {
            bail!("{text:?} is not a division rounding up");
        }
        return Ok(Len::DivCeil(Box::new(parse(registry, siblings, value)?), divisor));
    }
    if let Some((left, right)) = text.split_once('*') {
        return Ok(Len::Constant(constant(registry, left)? * constant(registry, right)?));
    }
    if let Some((pointer, field)) = text.split_once("->") {
        return Ok(Len::Field { pointer: names::field(pointer), field: names::field(field) });
    }
    if let Ok(constant) = constant(registry, text) {
        return Ok(Len::Constant(constant));
    }
    let sibling = siblings.iter().find(|s| s.name == text).with_context(|| format!("no member {text:?}"))?;
    let name = names::field(text);
    Ok(if sibling.pointers > 0 { Len::Deref(name) } else { Len::Member(name) })
}

/// A number or the name of an API constant.
pub(super) fn constant(registry: &Registry, text: &str) -> Result<u64> {
    let text = text.trim();
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    registry.constants.get(text).copied().with_context(|| format!("no constant {text:?}"))
}

/// Rust name of the sibling that a length depends on.
pub(super) fn depends_on(len: &Len) -> Option<&str> {
    match len {
        Len::Constant(_) => None,
        Len::Member(name) | Len::Deref(name) | Len::Field { pointer: name, .. } => Some(name),
        Len::DivExact(inner, _) | Len::DivCeil(inner, _) => depends_on(inner),
    }
}
