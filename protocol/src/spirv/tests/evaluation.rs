//! The values of constants, which decide how long arrays are, for every way in which SPIR-V makes an integer (1.6, 3.52.7 and 3.52.11).
//!
//! A value is found from outside: a constant of an array type has as many parts as the array is long.

use super::*;

/// The id whose value is looked for.
const RESULT: u32 = 60;
const BYTE: u32 = 50;
const SHORT: u32 = 51;
const LONG: u32 = 52;
const PAIR: u32 = 53;
const TRUTHS: u32 = 54;
const FALSE: u32 = 49;
/// The constants 1 to 8 are the ids 71 to 78.
const ZERO: u32 = 70;

/// The value of `RESULT` with these values for `SpecId`s, if it is a number from 1 to 40.
fn value(constants: &[Vec<u32>], given: &[(u32, u64)]) -> Option<usize> {
    let types =
        [op(21, &[BYTE, 8, 1]), op(21, &[SHORT, 16, 0]), op(21, &[LONG, 64, 1]), op(23, &[PAIR, 4, 2])];
    let numbers: Vec<u32> = (1..=8).flat_map(|number| op(43, &[4, ZERO + number, number])).collect();
    let truths = [op(23, &[TRUTHS, 9, 2]), op(42, &[9, FALSE])].concat();
    let before = [types.concat(), truths, numbers, constants.concat(), op(28, &[90, 4, RESULT])].concat();
    (1..=40).find(|count| {
        let parts = op(51, &[&[90, 91][..], &vec![13; *count]].concat());
        judge_with(&declaring(&[before.clone(), parts]), Some(given)).is_ok()
    })
}

fn operation(ty: u32, id: u32, operation: u32, operands: &[u32]) -> Vec<u32> {
    op(52, &[&[ty, id, operation], operands].concat())
}

/// The id of a small number.
fn n(number: u32) -> u32 {
    ZERO + number
}

/// A case: its name, the constants, and the value.
type Case<'c> = (&'c str, Vec<Vec<u32>>, Option<usize>);

fn check_values(cases: &[Case<'_>]) {
    for (what, constants, expected) in cases {
        assert_eq!(value(constants, &[]), *expected, "{what}");
    }
}

#[test]
fn each_kind_of_constant_has_a_value() {
    let chosen_by = |condition: Vec<u32>| vec![condition, operation(4, RESULT, 169, &[61, n(5), n(7)])];
    check_values(&[
        ("a number", vec![op(43, &[4, RESULT, 6])], Some(6)),
        ("a number to be specialised", vec![op(50, &[4, RESULT, 6])], Some(6)),
        ("null", vec![op(46, &[4, 61]), operation(4, RESULT, 128, &[61, n(3)])], Some(3)),
        ("nothing", vec![op(1, &[4, RESULT])], None),
        ("true", chosen_by(op(41, &[9, 61])), Some(5)),
        ("false", chosen_by(op(42, &[9, 61])), Some(7)),
        ("true to be specialised", chosen_by(op(48, &[9, 61])), Some(5)),
        ("false to be specialised", chosen_by(op(49, &[9, 61])), Some(7)),
        ("a null truth", chosen_by(op(46, &[9, 61])), Some(7)),
    ]);
}

#[test]
fn numbers_have_the_width_of_their_type() {
    let narrow = |id, conversion| operation(4, id, conversion, &[61]);
    check_values(&[
        // A narrow number is sign-extended to its word.
        (
            "-3, and 8",
            vec![
                op(43, &[BYTE, 61, 0u32.wrapping_sub(3)]),
                narrow(62, 114),
                operation(4, RESULT, 128, &[62, n(8)]),
            ],
            Some(5),
        ),
        (
            "253, less 250",
            vec![
                op(43, &[BYTE, 61, 0u32.wrapping_sub(3)]),
                narrow(62, 113),
                op(43, &[4, 63, 250]),
                operation(4, RESULT, 130, &[62, 63]),
            ],
            Some(3),
        ),
        (
            "250 and 10, in 8 bits",
            vec![
                op(43, &[BYTE, 62, 250]),
                op(43, &[BYTE, 63, 10]),
                operation(BYTE, 61, 128, &[62, 63]),
                narrow(RESULT, 113),
            ],
            Some(4),
        ),
        ("a long number's low half", vec![op(43, &[LONG, 61, 3, 1]), narrow(RESULT, 113)], Some(3)),
        (
            "and its high half",
            vec![
                op(43, &[LONG, 62, 3, 9]),
                op(43, &[4, 63, 32]),
                operation(LONG, 61, 194, &[62, 63]),
                narrow(RESULT, 113),
            ],
            Some(9),
        ),
        (
            "a short number's bits turned over",
            vec![op(43, &[SHORT, 62, 0xfff0]), operation(SHORT, 61, 200, &[62]), narrow(RESULT, 113)],
            Some(15),
        ),
        (
            "a number's negation",
            vec![operation(4, 61, 126, &[n(3)]), operation(4, RESULT, 128, &[61, n(8)])],
            Some(5),
        ),
        ("a cast", vec![op(21, &[62, 32, 1]), operation(62, RESULT, 124, &[n(6)])], Some(6)),
        ("a shift of all bits", vec![op(43, &[4, 61, 32]), operation(4, RESULT, 196, &[n(1), 61])], None),
        ("a division by zero", vec![operation(4, RESULT, 134, &[n(1), 13])], None),
        (
            "and what depends on it",
            vec![operation(4, 61, 137, &[n(1), 13]), operation(4, RESULT, 128, &[61, n(1)])],
            None,
        ),
    ]);
}

#[test]
fn operations_on_vectors_are_on_their_components() {
    let vectors = [op(44, &[PAIR, 61, n(1), n(2)]), op(44, &[PAIR, 62, n(3), n(5)])].concat();
    let part = |index, words: Vec<u32>| vec![vectors.clone(), words, operation(4, RESULT, 81, &[63, index])];
    let both = |words: Vec<u32>| [0, 1].map(|index| value(&part(index, words.clone()), &[]));
    let truths = [op(44, &[TRUTHS, 64, 12, FALSE])].concat();
    let chosen = |condition| [truths.clone(), operation(PAIR, 63, 169, &[condition, 61, 62])].concat();
    let insert = |at| operation(PAIR, 63, 82, &[n(8), 61, at]);
    let shuffle = |components: &[u32]| operation(PAIR, 63, 79, &[&[61, 62], components].concat());
    let cases = [
        ("a sum", operation(PAIR, 63, 128, &[61, 62]), [4, 7].map(Some)),
        ("a choice by components", chosen(64), [1, 5].map(Some)),
        ("a choice of all", chosen(12), [1, 2].map(Some)),
        ("the other choice of all", chosen(FALSE), [3, 5].map(Some)),
        ("the first put in", insert(0), [8, 2].map(Some)),
        ("the second put in", insert(1), [1, 8].map(Some)),
        ("the order turned", shuffle(&[1, 0]), [2, 1].map(Some)),
        ("some of either", shuffle(&[3, 0]), [5, 1].map(Some)),
        ("one of no vector", shuffle(&[u32::MAX, 2]), [None, Some(3)]),
        ("null", op(46, &[PAIR, 63]), [None, None]),
        ("one for all", op(4461, &[PAIR, 63, n(6)]), [6, 6].map(Some)),
        ("one for all, to be specialised", op(4462, &[PAIR, 63, n(6)]), [6, 6].map(Some)),
        (
            "parts of which one is not known",
            [op(1, &[4, 65]), op(44, &[PAIR, 63, n(4), 65])].concat(),
            [Some(4), None],
        ),
    ];
    for (what, words, expected) in cases {
        assert_eq!(both(words), expected, "{what}");
    }
}

#[test]
fn parts_are_found_in_composites() {
    // A struct of a vector, a number, and two vectors in an array.
    let types = [op(28, &[55, PAIR, n(2)]), op(30, &[56, PAIR, 4, 55])].concat();
    let vectors = [op(44, &[PAIR, 61, n(1), n(2)]), op(44, &[PAIR, 62, n(3), n(5)])].concat();
    let composites = [op(44, &[55, 63, 61, 62]), op(51, &[56, 64, 62, n(8), 63])].concat();
    let found = |path: &[u32]| {
        let extract = operation(4, RESULT, 81, &[&[64], path].concat());
        value(&[types.clone(), vectors.clone(), composites.clone(), extract], &[])
    };
    for (path, expected) in [
        (&[0, 0][..], Some(3)),
        (&[0, 1], Some(5)),
        (&[1], Some(8)),
        (&[2, 0, 1], Some(2)),
        (&[2, 1, 0], Some(3)),
        // A part outside has no value.
        (&[0, 0, 0], None),
        (&[1, 0], None),
        (&[3], None),
        (&[2, 2, 0], None),
        (&[0, u32::MAX], None),
    ] {
        assert_eq!(found(path), expected, "{path:?}");
    }
    // A vector, and one of its components.
    for (path, component, expected) in [(&[0][..], 1, 5), (&[2, 0], 1, 2), (&[2, 1], 0, 3)] {
        let vector = operation(PAIR, 65, 81, &[&[64], path].concat());
        let extract = operation(4, RESULT, 81, &[65, component]);
        let found = value(&[types.clone(), vectors.clone(), composites.clone(), vector, extract], &[]);
        assert_eq!(found, Some(expected), "{component} of {path:?}");
    }
}

#[test]
fn values_are_those_of_the_pipeline() {
    let decorated = |constants: &[Vec<u32>], given: &[(u32, u64)]| {
        let decorations = [op(71, &[20, 1, 7]), op(71, &[60, 1, 8]), op(71, &[61, 1, 9])].concat();
        let types = [op(21, &[BYTE, 8, 1]), op(43, &[4, 71, 1]), op(43, &[4, 72, 2])].concat();
        let array = [constants.concat(), op(28, &[90, 4, 60])].concat();
        (1..=40).find(|count| {
            let parts = op(51, &[&[90, 91][..], &vec![13; *count]].concat());
            let declarations = behind_zero(&[types.clone(), array.clone(), parts]);
            let words = with_all(&[("spec id", decorations.clone()), ("zero", declarations)]);
            judge_with(&words, Some(given)).is_ok()
        })
    };
    let number = vec![op(50, &[4, 61, 6]), op(50, &[4, 60, 6])];
    let narrow = vec![op(50, &[BYTE, 61, 6]), op(52, &[4, 60, 113, 61])];
    let truth = |opcode| vec![op(opcode, &[9, 61]), op(52, &[4, 60, 169, 61, 71, 72])];
    let cases = [
        ("the default", &number, (9, 5), 6),
        ("another", &number, (8, 5), 5),
        ("a narrow one", &narrow, (9, 5), 5),
        ("a narrow one of its bits", &narrow, (9, 0x105), 5),
        ("true", &truth(49), (9, 1), 1),
        ("true by another number", &truth(49), (9, 2), 1),
        ("false", &truth(48), (9, 0), 2),
        ("true by default", &truth(48), (8, 0), 1),
        ("false by default", &truth(49), (8, 1), 2),
    ];
    for (what, constants, given, expected) in cases {
        assert_eq!(decorated(constants, &[given]), Some(expected), "{what}");
    }
    // A constant without the decoration is never specialised.
    assert_eq!(decorated(&[op(43, &[4, 61, 6]), op(43, &[4, 60, 3])], &[(8, 5)]), Some(3));
}
