//! Sizes by place that have a bound.

use std::collections::BTreeMap;

/// Names the places where more was found than may be.
#[must_use]
pub fn larger(found: &BTreeMap<String, usize>, most: usize) -> Vec<String> {
    let larger = found.iter().filter(|(_, size)| **size > most);
    larger.map(|(place, size)| format!("{place}: {size}, at most {most} may be")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_above_the_bound_are_named() {
        let found: BTreeMap<_, _> = [("a", 5), ("b", 3)].map(|(place, size)| (place.to_owned(), size)).into();
        assert_eq!(larger(&found, 3), ["a: 5, at most 3 may be"]);
        assert!(larger(&found, 5).is_empty());
    }
}
