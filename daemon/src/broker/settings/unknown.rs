//! The message for a key that does not exist: it names the key that was probably meant, or the keys that exist.

/// Returns the message for a key that is not among the allowed ones.
pub(super) fn unknown(key: &str, allowed: &[&str]) -> String {
    let mut allowed = allowed.to_vec();
    allowed.sort_unstable();
    match similar(key, &allowed) {
        Some(meant) => format!("unknown (did you mean {meant}?)"),
        None => format!("unknown; allowed are {}", allowed.join(", ")),
    }
}

/// The most bytes of a key that is compared with others. A longer key is not mistyped, and comparing it would take long.
const BYTES_MAX: usize = 64;

/// Returns the word that is most like a mistyped one, if no more than a third of the letters are wrong, missing or in excess.
fn similar<'a>(typed: &str, words: &[&'a str]) -> Option<&'a str> {
    let (words, most) = match typed.len() {
        0..=BYTES_MAX => (words, typed.len().max(3) / 3),
        _ => return None,
    };
    let like = words.iter().map(|word| (strsim::osa_distance(typed, word), *word));
    like.filter(|(wrong, _)| *wrong <= most).min().map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_has_few_other_letters() {
        let words = ["gpu", "max-contexts", "max-maps", "vm"];
        for (typed, meant) in [
            ("gup", Some("gpu")),
            ("gpus", Some("gpu")),
            ("vms", Some("vm")),
            ("max_contexts", Some("max-contexts")),
            ("maxmap", Some("max-maps")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(similar(typed, &words), meant, "{typed}");
        }
        let long = "max-contexts".repeat(10);
        assert_eq!(similar(&long, &[long.as_str()]), None, "it takes long to compare");
    }
}
