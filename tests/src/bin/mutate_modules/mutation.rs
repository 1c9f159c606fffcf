//! Changes of a module as an attacker tries them: ids, literals and whole instructions, so that most results are well-formed.

use tests::random::Random;

/// Words of the header.
const HEADER: usize = 5;
/// The index of the bound of ids.
const BOUND: usize = 3;

/// The module with one to three changes.
pub(crate) fn mutated(original: &[u32], random: &mut Random) -> Vec<u32> {
    let mut words = original.to_vec();
    for _ in 0..random.pick(&[1, 1, 1, 2, 3]) {
        let starts = starts(&words);
        if starts.is_empty() {
            break;
        }
        change(&mut words, &starts, random);
    }
    words
}

/// The index of each instruction's first word.
fn starts(words: &[u32]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = HEADER;
    while at < words.len() {
        let length = (words[at] >> 16) as usize;
        if length == 0 || at + length > words.len() {
            break;
        }
        found.push(at);
        at += length;
    }
    found
}

fn change(words: &mut Vec<u32>, starts: &[usize], random: &mut Random) {
    let at = starts[random.below(starts.len() as u64) as usize];
    let length = (words[at] >> 16) as usize;
    let bound = u64::from(words[BOUND].max(2));
    let other = starts[random.below(starts.len() as u64) as usize];
    let other_length = (words[other] >> 16) as usize;
    let operand = at + 1 + random.below(length.max(2) as u64 - 1) as usize;
    let alike: Vec<usize> = starts.iter().copied().filter(|start| words[*start] == words[at]).collect();
    match random.below(16) {
        // The same instruction with the opcode of another instruction of the same length.
        0 if other_length == length => words[at] = words[other],
        1 => drop(words.drain(at..at + length)),
        2 => {
            let copy = words[other..other + other_length].to_vec();
            drop(words.splice(at..at, copy));
        }
        _ if length < 2 => {}
        3 => words[operand] = random.nasty() as u32,
        4 => words[operand] = random.below(16) as u32,
        5 if other_length > 1 => {
            words[operand] = words[other + 1 + random.below(other_length as u64 - 1) as usize]
        }
        6 => words[operand] = words[operand].wrapping_add(1 + random.below(3) as u32),
        // The word at the same place in another instruction of this kind.
        7..=12 => words[operand] = words[alike[random.below(alike.len() as u64) as usize] + operand - at],
        _ => words[operand] = 1 + random.below(bound - 1) as u32,
    }
}
