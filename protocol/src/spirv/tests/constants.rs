//! Constants: the parts of composites, and declarations of specialisation (SPIR-V 1.6, 2.12 and 3.52.7).

use super::*;

#[test]
fn composites_have_the_parts_of_their_type() {
    let types = [
        op(23, &[50, 4, 3]),
        op(22, &[51, 32]),
        op(23, &[52, 51, 2]),
        op(24, &[53, 52, 2]),
        op(46, &[52, 54]),
    ];
    let more = [op(43, &[4, 55, 2]), op(28, &[56, 4, 55]), op(30, &[57, 4, 52]), op(30, &[58])];
    let composite = |opcode, ty, parts: &[u32]| {
        declaring(&[types.concat(), more.concat(), op(opcode, &[&[ty, 60], parts].concat())])
    };
    for (opcode, name) in [(44, "OpConstantComposite"), (51, "OpSpecConstantComposite")] {
        let of = |ty, parts: &[u32]| composite(opcode, ty, parts);
        let differ = &*format!("{name} %60: types of a constant and its parts differ");
        let twins: &[Twin<'_>] = &[
            ("a vector", of(50, &[13; 3]), of(50, &[13; 2]), differ),
            ("a vector, not more", of(50, &[13; 3]), of(50, &[13; 4]), differ),
            ("a matrix has columns", of(53, &[54; 2]), of(53, &[54; 4]), differ),
            ("an array", of(56, &[13; 2]), of(56, &[13]), differ),
            ("an array, not more", of(56, &[13; 2]), of(56, &[13; 3]), differ),
            ("a struct", of(57, &[13, 54]), of(57, &[13]), differ),
            ("a struct of nothing", of(58, &[]), of(58, &[13]), differ),
        ];
        check_twins(&device(), twins);
    }
    let of_type = |ty, part| composite(44, ty, &[13, part, 13]);
    let twins: &[Twin<'_>] = &[
        (
            "parts are defined",
            of_type(50, 55),
            of_type(50, 61),
            "OpConstantComposite %60: id %61 is not defined here",
        ),
        ("and of some type", of_type(50, 13), of_type(13, 13), "OpConstantComposite %60: id %13 is no type"),
    ];
    check_twins(&device(), twins);
}

#[test]
fn parts_of_an_array_are_counted_when_its_length_is_known() {
    // The module's array is as long as its specialisation constant, whose default is 16.
    let of = |parts: usize, given: Option<&[(u32, u64)]>| {
        let words = declaring(&[op(51, &[&[5, 60][..], &vec![13; parts]].concat())]);
        judge_with(&words, given).map(|_| ())
    };
    let differ = Err(ErrorKind::Mismatch("a constant and its parts"));
    assert_eq!([of(3, None), of(16, None)], [Ok(()), Ok(())]);
    assert_eq!([of(3, Some(&[])), of(16, Some(&[]))], [differ, Ok(())]);
    assert_eq!([of(3, Some(&[(7, 3)])), of(16, Some(&[(7, 3)]))], [Ok(()), differ]);
}

#[test]
fn what_can_be_specialised_is_told_with_the_bytes_of_its_type() {
    let types = [
        op(21, &[50, 8, 0]),
        op(21, &[51, 16, 1]),
        op(21, &[52, 64, 0]),
        op(22, &[53, 16]),
        op(22, &[54, 64]),
    ];
    let narrow = [op(50, &[50, 60, 1]), op(50, &[51, 61, 1]), op(50, &[52, 62, 1, 0])];
    let others = [
        op(50, &[53, 63, 1]),
        op(50, &[54, 64, 1, 0]),
        op(48, &[9, 65]),
        op(49, &[9, 66]),
        op(50, &[4, 67, 1]),
    ];
    // The id 67 has no SpecId; a decoration group gives 65 and 66 theirs.
    let direct: Vec<u32> = (60..65).flat_map(|id| op(71, &[id, 1, id + 100])).collect();
    let of_group = [op(71, &[70, 1, 99]), op(73, &[70]), op(74, &[70, 65, 66])].concat();
    let words = with_all(&[
        ("spec id", [direct, of_group].concat()),
        ("zero", behind_zero(&[types.concat(), narrow.concat(), others.concat()])),
    ]);
    let found = judge(&words).unwrap();
    assert_eq!(found.specialisable, [(160, 1), (161, 2), (162, 8), (163, 2), (164, 8), (99, 4), (99, 4)]);
}

#[test]
fn a_module_says_whether_its_sizes_vary() {
    let fixed = op(43, &[4, 20, 16]);
    let of_mode = |constant: Vec<u32>| {
        let mode = ("local size", op(331, &[1, 38, 60, 60, 60]));
        with_all(&[mode, ("spec length", [fixed.clone(), constant].concat())])
    };
    // The built-in size, with this constant as one part.
    let of_built_in = |constant: &[u32], part: usize| {
        let mut parts = [63; 3];
        parts[part] = 60;
        let vector = op(51, &[&[61, 62][..], &parts].concat());
        let size = [constant, &op(43, &[4, 63, 1]), &op(23, &[61, 4, 3]), &vector].concat();
        let decorations = [op(71, &[20, 1, 7]), op(71, &[62, 11, 25])].concat();
        with_all(&[("spec id", decorations), ("spec length", [fixed.clone(), size].concat())])
    };
    let (number, to_be_specialised) = (op(43, &[4, 60, 1]), op(50, &[4, 60, 1]));
    let of_two_modes = {
        let modes = [op(16, &[1, 17, 1, 1, 1]), op(331, &[1, 38, 60, 60, 60])].concat();
        let constants = [fixed.clone(), to_be_specialised.clone()].concat();
        with_all(&[("local size", modes), ("spec length", constants)])
    };
    let cases = [
        ("an array", module(&parts()), true),
        ("an array of fixed length", with("spec length", &fixed), false),
        (
            "a constant that sizes nothing",
            with("spec length", &[fixed.clone(), to_be_specialised.clone()].concat()),
            false,
        ),
        (
            "an array of a computed length",
            declaring(&[op(52, &[4, 60, 128, 13, 20]), op(28, &[61, 4, 60])]),
            true,
        ),
        ("a workgroup", of_mode(to_be_specialised.clone()), true),
        ("a workgroup of fixed size", of_mode(number.clone()), false),
        ("one of two sizes", of_two_modes, true),
        ("the built-in size in x", of_built_in(&to_be_specialised, 0), true),
        ("the built-in size in z", of_built_in(&to_be_specialised, 2), true),
        ("the built-in size, fixed", of_built_in(&number, 1), false),
    ];
    for (what, words, expected) in cases {
        assert_eq!(judge(&words).map(|found| found.sizes_vary), Ok(expected), "{what}");
    }
}
