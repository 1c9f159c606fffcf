//! Types of operations: operands that are reached, moved and computed fit (SPIR-V 1.6, 3.52.8 to 3.52.15).

use super::*;

/// Types and values for operations: uint 4 and 13, uint vectors of two (71, 81) and three (72, 82), float 73 and 83, float vector 74
/// and 84, matrix 75 and 85 of two of these, a struct 76 of uint and vector, 86, an array 77 of three structs, and Private variables
/// 87 of the struct and 88 of the array.
fn declarations() -> Vec<Vec<u32>> {
    let null = |ty| op(46, &[ty, ty + 10]);
    vec![
        op(23, &[71, 4, 2]),
        op(23, &[72, 4, 3]),
        op(22, &[73, 32]),
        op(23, &[74, 73, 3]),
        op(24, &[75, 74, 2]),
        op(30, &[76, 4, 74]),
        op(43, &[4, 69, 3]),
        op(43, &[4, 68, 1]),
        op(28, &[77, 76, 69]),
        [71, 72, 73, 74, 75, 76].into_iter().flat_map(null).collect(),
        op(32, &[60, 6, 76]),
        op(32, &[61, 6, 77]),
        op(32, &[62, 6, 4]),
        op(32, &[63, 6, 73]),
        op(32, &[64, 6, 74]),
        op(59, &[60, 87, 6]),
        op(59, &[61, 88, 6]),
    ]
}

/// The module whose `main` has these instructions; results have the ids from 50 on.
fn doing(words: &[u32]) -> Vec<u32> {
    running(&declarations(), &[op(248, &[30]), words.to_vec(), op(253, &[])])
}

/// Checks that the valid operations are accepted, and that each other is refused with its error.
fn check_operations(valid: &[Vec<u32>], wrong: &[(Vec<u32>, &str)]) {
    for words in valid {
        let found = judge(&doing(words));
        assert!(found.is_ok(), "{words:?}: {found:?}");
    }
    for (words, expected) in wrong {
        let found = said(&device(), &doing(words));
        let (_, reason) = found.split_once(": ").expect("an error has a reason");
        assert_eq!(reason, *expected, "{words:?}");
    }
}

#[test]
fn access_chains_end_inside_of_their_types() {
    for opcode in [65, 66] {
        let chain = |ty: u32, path: &[u32]| op(opcode, &[&[ty, 50], path].concat());
        check_operations(
            &[
                chain(62, &[87, 13]),
                chain(64, &[87, 68]),
                chain(63, &[87, 68, 13]),
                chain(60, &[88, 13]),
                chain(63, &[88, 69, 68, 13]),
                chain(60, &[87]),
            ],
            &[
                (chain(62, &[87, 69]), "index of a member out of range"),
                (chain(62, &[88, 13, 69]), "index of a member out of range"),
                (chain(62, &[87, 13, 13]), "id %4 is no type with parts"),
                (chain(63, &[87, 68, 13, 13]), "id %73 is no type with parts"),
                (chain(63, &[87, 13]), "types of an access chain and its pointer differ"),
                (chain(14, &[87, 13]), "types of an access chain and its pointer differ"),
                (chain(4, &[87, 13]), "id %4 is no pointer type"),
                (chain(62, &[13, 13]), "id %13 is no pointer"),
                (chain(62, &[87, 83]), "id %83 is no integer"),
                (chain(60, &[88, 82]), "id %82 is no integer"),
                // The index of a member may be neither a specialisation constant nor a computed value.
                (chain(62, &[87, 20]), "id %20 is no integer constant"),
            ],
        );
    }
}

#[test]
fn parts_of_composites_are_those_of_the_type() {
    let extract = |ty: u32, path: &[u32]| op(81, &[&[ty, 50], path].concat());
    let insert = |ty: u32, path: &[u32]| op(82, &[&[ty, 50], path].concat());
    let (part, outside) = ("types of a part and its place differ", "index of a part out of range");
    check_operations(
        &[
            extract(4, &[82, 2]),
            extract(73, &[85, 1, 2]),
            extract(74, &[86, 1]),
            insert(76, &[13, 86, 0]),
            insert(72, &[13, 82, 2]),
            op(80, &[72, 50, 81, 13]),
            op(80, &[75, 50, 84, 84]),
            op(80, &[76, 50, 13, 84]),
            op(79, &[71, 50, 82, 81, 4, u32::MAX]),
            op(77, &[4, 50, 82, 13]),
            op(78, &[72, 50, 82, 13, 13]),
        ],
        &[
            (extract(4, &[82, 3]), outside),
            (extract(73, &[85, 2, 0]), outside),
            (extract(4, &[86, 2]), "index of a member out of range"),
            (extract(4, &[13, 0]), "id %4 is no type with parts"),
            (extract(73, &[82, 0]), part),
            (insert(76, &[83, 86, 0]), part),
            (insert(76, &[13, 86, 2]), "index of a member out of range"),
            (insert(72, &[13, 81, 0]), "types of a composite and its copy differ"),
            (op(80, &[72, 50, 81]), "types of a vector and its parts differ"),
            (op(80, &[72, 50, 81, 83]), "types of a vector and its parts differ"),
            (op(80, &[75, 50, 84]), "types of a composite and its parts differ"),
            (op(80, &[76, 50, 84, 13]), "types of a composite and its parts differ"),
            (op(80, &[4, 50, 13]), "id %4 is no type with parts"),
            (op(79, &[71, 50, 82, 81, 4, 5]), "index of a component out of range"),
            (op(79, &[71, 50, 82, 81, 0]), "types of a vector and its parts differ"),
            (op(79, &[71, 50, 82, 84, 0, 1]), "types of a vector and its parts differ"),
            (op(77, &[73, 50, 82, 13]), "types of a vector and its component differ"),
            (op(77, &[4, 50, 13, 13]), "id %4 is no vector type"),
            (op(78, &[72, 50, 82, 83, 13]), "types of a vector and its component differ"),
        ],
    );
}

#[test]
fn values_are_of_the_type_of_their_place() {
    let place = "types of a pointer and a value differ";
    check_operations(
        &[
            op(61, &[76, 50, 87]),
            op(62, &[87, 86]),
            op(63, &[87, 87]),
            op(83, &[76, 50, 86]),
            op(169, &[76, 50, 12, 86, 86]),
        ],
        &[
            (op(61, &[4, 50, 87]), place),
            (op(61, &[4, 50, 13]), "id %13 is no pointer"),
            (op(62, &[87, 13]), place),
            (op(62, &[13, 13]), "id %13 is no pointer"),
            (op(63, &[87, 88]), "types of a copy and its source differ"),
            (op(83, &[4, 50, 86]), "types of a copy and its source differ"),
            (op(169, &[4, 50, 12, 13, 83]), "types of a choice and its result differ"),
            (op(169, &[4, 50, 13, 13, 13]), "types of a condition and its choices differ"),
            (op(254, &[13]), "types of a function and its result differ"),
        ],
    );
}

#[test]
fn operations_take_numbers_like_those_that_they_make() {
    let wrong = "types of operands and result differ";
    check_operations(
        &[
            op(128, &[4, 50, 13, 13]),
            op(129, &[74, 50, 84, 84]),
            op(110, &[4, 50, 83]),
            op(112, &[73, 50, 13]),
            op(170, &[9, 50, 13, 13]),
            op(194, &[72, 50, 82, 82]),
            op(201, &[72, 50, 82, 82, 13, 13]),
            op(142, &[74, 50, 84, 83]),
            op(148, &[73, 50, 84, 84]),
            op(143, &[75, 50, 85, 83]),
        ],
        &[
            (op(128, &[4, 50, 13, 82]), wrong),
            (op(128, &[73, 50, 83, 83]), wrong),
            (op(129, &[74, 50, 84, 83]), wrong),
            (op(110, &[72, 50, 83]), wrong),
            (op(112, &[73, 50, 83]), wrong),
            (op(170, &[4, 50, 13, 13]), wrong),
            (op(170, &[9, 50, 82, 82]), wrong),
            (op(194, &[72, 50, 82, 13]), wrong),
            (op(201, &[72, 50, 82, 82, 82, 13]), wrong),
            (op(142, &[74, 50, 84, 84]), wrong),
            (op(145, &[74, 50, 85, 84]), wrong),
            (op(148, &[73, 50, 84, 83]), wrong),
            (op(84, &[75, 50, 85]), wrong),
            (op(128, &[76, 50, 86, 86]), wrong),
        ],
    );
}

#[test]
fn types_that_are_declared_twice_alike_are_one() {
    let again = [op(30, &[90, 4, 74]), op(28, &[91, 90, 69]), op(43, &[4, 92, 3]), op(28, &[93, 76, 92])];
    let other = [op(30, &[94, 74, 4]), op(28, &[95, 76, 68])];
    let module = |ty| {
        let declarations = [declarations(), again.to_vec(), other.to_vec()].concat();
        running(&declarations, &[op(248, &[30]), op(61, &[ty, 50, 88]), op(253, &[])])
    };
    for ty in [77, 91, 93] {
        assert!(judge(&module(ty)).is_ok(), "{ty}");
    }
    assert_eq!(judge(&module(95)), Err(ErrorKind::Mismatch("a pointer and a value")));
    assert_eq!(judge(&module(94)), Err(ErrorKind::Mismatch("a pointer and a value")));
}

#[test]
fn calls_and_phis_have_the_types_that_functions_declare() {
    let returning = |value| {
        let types = op(33, &[90, 4, 73]);
        let function =
            [op(54, &[4, 91, 0, 90]), op(55, &[73, 92]), op(248, &[93]), op(254, &[value]), op(56, &[])];
        (types, function.concat())
    };
    let module = |value, call: &[u32]| {
        let (types, function) = returning(value);
        let mut words =
            running(&[declarations().concat(), types], &[op(248, &[30]), op(57, call), op(253, &[])]);
        words.extend(function);
        words
    };
    assert!(judge(&module(13, &[4, 50, 91, 83])).is_ok());
    assert_eq!(judge(&module(83, &[4, 50, 91, 83])), Err(ErrorKind::Mismatch("a function and its result")));
    assert_eq!(judge(&module(13, &[73, 50, 91, 83])), Err(ErrorKind::Mismatch("a call and its function")));
    assert_eq!(
        judge(&module(13, &[4, 50, 91, 13])),
        Err(ErrorKind::Mismatch("an argument and its parameter"))
    );
    let phi = |value| doing(&[op(249, &[40]), op(248, &[40]), op(245, &[4, 50, value, 30])].concat());
    assert!(judge(&phi(13)).is_ok());
    assert_eq!(judge(&phi(83)), Err(ErrorKind::Mismatch("a phi and its values")));
}

#[test]
fn types_of_a_capability_need_it_declared() {
    let none =
        |words: &[u32]| with_all(&[("capability", op(17, &[1])), ("zero", behind_zero(&[words.to_vec()]))]);
    let types = [
        (op(21, &[60, 8, 0]), 39),
        (op(21, &[60, 16, 0]), 22),
        (op(21, &[60, 64, 0]), 11),
        (op(22, &[60, 16]), 9),
        (op(22, &[60, 64]), 10),
        (op(22, &[60, 16, 0]), 5116),
        (op(22, &[60, 8, 4214]), 4212),
        (op(22, &[60, 8, 4215]), 4212),
        (op(4456, &[60, 4, 13, 13, 13, 13]), 6022),
        (op(25, &[60, 4, 0, 0, 0, 0, 1, 0]), 43),
    ];
    let everything = device_with_everything();
    for (words, capability) in types {
        let found = check(&none(&words), &everything, &LIMITS).map_err(|error| error.kind);
        assert_eq!(found.map(|_| ()), Err(ErrorKind::Undeclared(capability)), "{words:?}");
        let declared = with_capabilities(none(&words), &[capability]);
        assert!(check(&declared, &everything, &LIMITS).is_ok(), "{words:?}");
        // On a device without it.
        let kind = check(&declared, &Device { has_capability: &|number| number == 1, ..device() }, &LIMITS);
        assert_eq!(kind.map_err(|error| error.kind).map(|_| ()), Err(ErrorKind::Capability(capability)));
    }
    // 16-bit storage suffices for a type that is only stored.
    assert!(check(&with_capabilities(none(&op(22, &[60, 16])), &[4433]), &everything, &LIMITS).is_ok());
}

#[test]
fn operations_of_glsl_take_what_the_set_says() {
    let extended =
        |ty: u32, number: u32, operands: &[u32]| op(12, &[&[ty, 50, 79, number], operands].concat());
    let doing = |words: &[u32]| {
        let types = [
            op(22, &[90, 64]),
            op(23, &[91, 73, 2]),
            op(24, &[92, 74, 3]),
            op(30, &[93, 73, 73]),
            op(30, &[94, 73, 4]),
            [90, 91, 92].into_iter().flat_map(|ty| op(46, &[ty, ty + 5])).collect(),
            op(59, &[63, 89, 6]),
            op(59, &[62, 99, 6]),
        ];
        let declared = [declarations(), types.to_vec()].concat();
        let mut module = running(&declared, &[op(248, &[30]), words.to_vec(), op(253, &[])]);
        let memory_model =
            module.windows(3).position(|words| words == op(14, &[0, 1])).expect("there is one");
        module.splice(memory_model..memory_model, op(11, &[&[79][..], &text("GLSL.std.450")].concat()));
        module
    };
    let cases = [
        (extended(74, 4, &[84]), extended(74, 4, &[83])),
        (extended(72, 38, &[82, 82]), extended(73, 38, &[83, 83])),
        (extended(73, 66, &[84]), extended(74, 66, &[84])),
        (extended(73, 67, &[84, 84]), extended(73, 67, &[84, 83])),
        (extended(73, 53, &[83, 13]), extended(73, 53, &[83, 83])),
        (extended(74, 72, &[84, 84, 83]), extended(74, 72, &[84, 83, 83])),
        (extended(73, 33, &[97]), extended(73, 33, &[85])),
        (extended(92, 34, &[97]), extended(92, 34, &[82])),
        (extended(73, 35, &[83, 89]), extended(73, 35, &[83, 99])),
        (extended(73, 51, &[83, 99]), extended(73, 51, &[83, 89])),
        (extended(93, 36, &[83]), extended(94, 36, &[83])),
        (extended(94, 52, &[83]), extended(93, 52, &[83])),
        (extended(4, 58, &[96]), extended(4, 58, &[84])),
        (extended(90, 59, &[81]), extended(73, 59, &[81])),
        (extended(91, 62, &[13]), extended(91, 62, &[83])),
        (extended(71, 65, &[95]), extended(71, 65, &[83])),
    ];
    for (valid, wrong) in cases {
        let found = judge(&doing(&valid));
        assert!(found.is_ok(), "{valid:?}: {found:?}");
        assert_eq!(judge(&doing(&wrong)), Err(ErrorKind::Mismatch("operands and result")), "{wrong:?}");
    }
}
