//! This file writes why a context is lost: the party that the worker blames, and the worker's words.

use config::AtFault;
use std::fmt;

/// Returns the reason that a worker gives, behind the words for the party that it blames.
pub(in crate::serve) fn told(at_fault: Option<AtFault>, reason: impl fmt::Display) -> String {
    match at_fault.map(AtFault::words) {
        Some(words) => format!("{words}: {reason}"),
        None => reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outside::Quoted;

    #[test]
    fn a_reason_begins_with_the_party_at_fault_if_there_is_one() {
        let reason = "vkCreateBuffer (50): without a description";
        let guest =
            "the guest's program or its driver breaks a rule: \"vkCreateBuffer (50): without a description\"";
        assert_eq!(told(Some(AtFault::Guest), Quoted(reason)), guest);
        assert_eq!(told(None, "limit max-rings (64) reached"), "limit max-rings (64) reached");
    }
}
