//! Tables of what is not as it should be and was agreed on: what is found is neither more nor less.

use std::collections::{BTreeMap, BTreeSet};

/// Compares sizes by place with the agreed ones; a place without an entry may have up to `free`. An entry that is larger than what is
/// found has to be lowered, so that nothing grows back.
#[must_use]
pub fn compare(agreed: &[(&str, usize)], found: &BTreeMap<String, usize>, free: usize) -> Vec<String> {
    let agreed: BTreeMap<&str, usize> = agreed.iter().copied().collect();
    let places: BTreeSet<&str> = agreed.keys().copied().chain(found.keys().map(String::as_str)).collect();
    let check = |place: &str| {
        let found = found.get(place).copied().unwrap_or_default();
        match agreed.get(place) {
            Some(&limit) if limit <= free => {
                Some(format!("{place}: an entry of {limit} is none: up to {free} are free"))
            }
            Some(&limit) if found > limit => Some(format!("{place}: {found}, {limit} are agreed")),
            Some(_) if found <= free => Some(format!("{place}: only {found} are left: delete the entry")),
            Some(&limit) if found < limit => {
                Some(format!("{place}: only {found} are left: lower the entry from {limit}"))
            }
            None if found > free => Some(format!("{place}: {found}, at most {free} may be")),
            _ => None,
        }
    };
    places.into_iter().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_exact() {
        let found: BTreeMap<_, _> = [("a", 5), ("b", 3)].map(|(place, size)| (place.to_owned(), size)).into();
        let wrong = |agreed| compare(agreed, &found, 3).len();
        assert_eq!(wrong(&[("a", 5)]), 0);
        assert_eq!(wrong(&[("a", 4)]), 1);
        assert_eq!(wrong(&[("a", 6)]), 1);
        assert_eq!(wrong(&[]), 1);
        assert_eq!(wrong(&[("a", 5), ("b", 3)]), 1);
        assert_eq!(wrong(&[("a", 5), ("b", 4)]), 1);
        assert_eq!(wrong(&[("a", 5), ("c", 4)]), 1);
    }
}
