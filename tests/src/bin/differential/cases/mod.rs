//! All cases, by group.

mod arithmetic;
mod elementwise;

use crate::case::Case;

/// Every case, in the order in which they run.
pub fn all() -> Vec<Case> {
    [arithmetic::cases()].into_iter().flatten().collect()
}
