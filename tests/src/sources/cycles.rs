//! Cycles of arrows.

use super::arrows::Arrows;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The sets of places that all lead to each other, the largest first; places on no cycle are left out.
#[must_use]
pub fn cycles(arrows: &Arrows) -> Vec<BTreeSet<&str>> {
    let mut places: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        places.entry(from).or_default().insert(to);
        places.entry(to).or_default();
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        places.keys().map(|&place| (place, reachable(&places, place))).collect();
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for (&place, there) in &reached {
        let cycle: BTreeSet<&str> =
            there.iter().copied().filter(|other| reached[other].contains(place)).collect();
        if cycle.len() > 1 && done.insert(cycle.clone()) {
            found.push(cycle);
        }
    }
    found.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    found
}

fn reachable<'a>(places: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next = vec![from];
    while let Some(place) = next.pop() {
        next.extend(places[place].iter().copied().filter(|&other| found.insert(other)));
    }
    found
}

/// The arrows of `arrows` that make a cycle of places, one on each line, with paths from `folder` on; `place` gives the place in which a file counts.
#[must_use]
pub fn described<'a>(
    cycle: &BTreeSet<&str>,
    arrows: &'a Arrows,
    place: impl Fn(&'a str) -> &'a str,
    folder: &str,
) -> String {
    let mut text = String::new();
    for ((from, to), names) in arrows {
        let (from_place, to_place) = (place(from), place(to));
        if from_place != to_place && cycle.contains(from_place) && cycle.contains(to_place) {
            let short = |path: &'a str| path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/');
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            writeln!(text, "  {} -> {} ({})", short(from), short(to), names.join(", ")).expect("text grows");
        }
    }
    text
}

/// The deepest folder that is one of these places or has some of them below it.
#[must_use]
pub fn common_folder(places: &BTreeSet<&str>) -> String {
    let folder = |place: &&'_ str| {
        let mut parts: Vec<_> = place.split('/').map(str::to_owned).collect();
        parts.pop_if(|last| last.ends_with(".rs"));
        parts
    };
    let mut folders = places.iter().map(folder);
    let mut common = folders.next().unwrap_or_default();
    for folder in folders {
        let same = common.iter().zip(&folder).take_while(|(a, b)| a == b).count();
        common.truncate(same);
    }
    common.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(pairs: &[(&str, &str)]) -> Arrows {
        let arrow = |&(from, to): &(&str, &str)| ((from.to_owned(), to.to_owned()), ["x".to_owned()].into());
        pairs.iter().map(arrow).collect()
    }

    #[test]
    fn cycles_are_found_and_told_from_ways_between_them() {
        let pairs = [
            ("s/a.rs", "s/b.rs"),
            ("s/b.rs", "s/a.rs"),
            ("s/b.rs", "s/t/c.rs"),
            ("s/t/c.rs", "s/t"),
            ("s/t", "u/e.rs"),
            ("u/e.rs", "s/t/c.rs"),
        ];
        let arrows = arrows(&pairs);
        let found = cycles(&arrows);
        assert_eq!(
            found,
            [BTreeSet::from(["s/t/c.rs", "s/t", "u/e.rs"]), BTreeSet::from(["s/a.rs", "s/b.rs"])]
        );
        assert_eq!((common_folder(&found[0]), common_folder(&found[1])), (String::new(), "s".to_owned()));
        assert_eq!(common_folder(&["s/t/c.rs", "s/t"].into()), "s/t");
        assert_eq!(
            described(&found[1], &arrows, |file| file, "s"),
            "  a.rs -> b.rs (x)\n  b.rs -> a.rs (x)\n"
        );
        let place = |file| if file == "s/a.rs" { "s/t" } else { file };
        assert_eq!(described(&["s/t", "s/b.rs"].into(), &arrows, place, "s").lines().count(), 2);
    }
}
