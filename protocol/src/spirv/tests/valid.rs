//! The checker accepts modules that the specification allows and compilers seldom write, and refuses them once they are wrong by a little.

use super::*;
use ErrorKind::*;

const SPEC_SIZE: u32 = 40;

/// The module with these words in a name's place, and others behind `zero`.
fn annotated(name: &str, words: &[u32], declarations: &[u32]) -> Vec<u32> {
    with_all(&[(name, words.to_vec()), ("zero", behind_zero(&[declarations.to_vec()]))])
}

/// `PhysicalStorageBuffer`.
const PHYSICAL: u32 = 5349;

#[test]
fn types_may_be_made_of_pointers_that_come_later() {
    let forward = op(39, &[50, PHYSICAL]);
    let length = op(43, &[4, 57, 3]);
    let node = op(30, &[51, 4, 50]);
    let pointer = op(32, &[50, PHYSICAL, 51]);
    let made_of_it = [
        ("a struct", op(30, &[52, 4, 50])),
        ("an array", op(28, &[52, 50, 57])),
        ("an array without length", op(29, &[52, 50])),
        ("a pointer to it", op(32, &[52, PHYSICAL, 50])),
        ("a function", op(33, &[52, 2, 50])),
        ("a struct of arrays", [op(28, &[53, 50, 57]), op(30, &[52, 53, 53])].concat()),
    ];
    for (what, words) in made_of_it {
        let parts = [forward.clone(), length.clone(), words.clone(), node.clone(), pointer.clone()];
        assert!(judge(&declaring(&parts)).is_ok(), "{what} before the pointer");
        let unannounced = judge(&declaring(&[length.clone(), words, node.clone()]));
        let refused = matches!(unannounced, Err(IdMissing(50) | IdKind(50, _)));
        assert!(refused, "{what} of a pointer that never comes: {unannounced:?}");
    }
    // The same node through two structs that name each other.
    let other =
        [op(39, &[54, PHYSICAL]), op(30, &[51, 54]), op(30, &[55, 50, 51]), op(32, &[54, PHYSICAL, 55])];
    assert!(judge(&declaring(&[forward.clone(), other.concat(), pointer.clone()])).is_ok());
    let struct_later = [forward.clone(), pointer.clone(), node.clone()];
    assert!(judge(&declaring(&struct_later)).is_ok(), "a pointer to a struct that comes later");
}

#[test]
fn what_is_announced_as_a_pointer_is_one() {
    let forward = op(39, &[50, PHYSICAL]);
    let no_pointer = "pointer to a structure";
    let length = op(43, &[4, 57, 3]);
    let cases: &[(&str, Vec<Vec<u32>>, ErrorKind)] = &[
        ("never declared", vec![forward.clone(), op(30, &[51, 50])], IdMissing(50)),
        ("a struct in itself", vec![op(30, &[50, 4, 50])], IdMissing(50)),
        ("announced, a struct in itself", vec![forward.clone(), op(30, &[50, 50])], IdMissing(50)),
        (
            "structs in each other",
            vec![forward.clone(), op(30, &[51, 50]), op(30, &[50, 51])],
            IdKind(50, no_pointer),
        ),
        ("an array in itself", vec![forward.clone(), length.clone(), op(28, &[50, 50, 57])], IdMissing(50)),
        (
            "an array of pointers to that array",
            vec![forward.clone(), length, op(28, &[51, 50, 57]), op(32, &[50, PHYSICAL, 51])],
            IdKind(50, no_pointer),
        ),
        ("a pointer to itself", vec![forward.clone(), op(32, &[50, PHYSICAL, 50])], IdKind(50, no_pointer)),
        ("a number", vec![forward.clone(), op(43, &[4, 50, 1])], IdKind(50, no_pointer)),
        (
            "a pointer to what will be a number",
            vec![op(32, &[51, PHYSICAL, 52]), op(43, &[4, 52, 1])],
            IdKind(52, "type"),
        ),
        ("a value of a type to come", vec![forward, op(46, &[50, 51])], IdMissing(50)),
    ];
    for (what, words, expected) in cases {
        let found = judge(&declaring(words)).expect_err(what);
        assert_eq!(found, *expected, "{what}");
    }
}

/// Checks that a pipeline can be made of `main`, with the constants that have these `SpecId`s.
fn launch(words: &[u32], values: &[(u32, u64)]) -> Result<(), ErrorKind> {
    let before = judge(words)?;
    let module = judge_with(words, Some(values))?;
    assert_eq!(before.entry_points.len(), module.entry_points.len());
    module.entry_points[0].launch.map_err(|error| error.kind)
}

#[test]
fn workgroups_are_judged_when_there_is_a_pipeline() {
    let literal = |x, y, z| with("local size", &op(16, &[1, 17, x, y, z]));
    assert_eq!(launch(&literal(1024, 1, 1), &[]), Ok(()));
    for (x, y, z, what) in [
        (1025, 1, 1, "workgroup size"),
        (0, 1, 1, "workgroup size"),
        (1, 1, 65, "workgroup size"),
        (1024, 2, 1, "number of invocations of a workgroup"),
        (u32::MAX, u32::MAX, u32::MAX, "workgroup size"),
    ] {
        assert_eq!(launch(&literal(x, y, z), &[]), Err(Range(what)), "{x} {y} {z}");
    }
    assert_eq!(launch(&with("local size", &[]), &[]), Err(Missing("workgroup size")));
}

#[test]
fn workgroups_may_be_sized_by_specialisation() {
    // Unusable unless it is specialised, as many are.
    for default in [0, 1, 1 << 20, u32::MAX] {
        let spec = op(50, &[4, SPEC_SIZE, default]);
        let one = op(43, &[4, 42, 1]);
        let id = op(71, &[SPEC_SIZE, 1, 9]);
        let by_mode = {
            let mut parts = parts();
            let mut set = |name: &str, words: Vec<u32>| {
                parts.iter_mut().find(|part| part.0 == name).expect("there is such a part").1 = words;
            };
            set("local size", op(331, &[1, 38, SPEC_SIZE, 42, 42]));
            set("spec id", [op(71, &[20, 1, 7]), id.clone()].concat());
            set("zero", [op(43, &[4, 13, 0]), spec.clone(), one.clone()].concat());
            module(&parts)
        };
        let vector = [spec.clone(), one.clone(), op(23, &[43, 4, 3]), op(51, &[43, 44, SPEC_SIZE, 42, 42])];
        let annotation = [op(71, &[20, 1, 7]), id.clone(), op(71, &[44, 11, 25])].concat();
        let by_built_in = annotated("spec id", &annotation, &vector.concat());
        // The same annotations by way of groups.
        let groups = [op(71, &[60, 1, 9]), op(71, &[61, 11, 25]), op(73, &[60]), op(73, &[61])].concat();
        let groups = [groups, op(74, &[60, SPEC_SIZE]), op(74, &[61, 44]), op(71, &[20, 1, 7])].concat();
        let by_group = annotated("spec id", &groups, &vector.concat());
        for (what, words) in [("mode", by_mode), ("built-in", by_built_in), ("group", by_group)] {
            let found = judge(&words).unwrap_or_else(|error| panic!("{what} {default}: {error}"));
            assert!(found.sizes_vary);
            for (value, expected) in [(1, Ok(())), (64, Ok(())), (1024, Ok(()))] {
                assert_eq!(launch(&words, &[(9, value)]), expected, "{what} {default} {value}");
            }
            for value in [0, 1025, u64::from(u32::MAX)] {
                assert_eq!(launch(&words, &[(9, value)]), Err(Range("workgroup size")), "{what} {value}");
            }
            let usable = if default == 1 { Ok(()) } else { Err(Range("workgroup size")) };
            assert_eq!(launch(&words, &[]), usable, "{what} with the default {default}");
        }
    }
}

#[test]
fn the_built_in_size_takes_precedence_and_other_entry_points_do_not_matter() {
    let vector = [op(43, &[4, 42, 8]), op(23, &[43, 4, 3]), op(44, &[43, 44, 42, 42, 42])].concat();
    let annotation = [op(71, &[20, 1, 7]), op(71, &[44, 11, 25])].concat();
    let mut words = annotated("spec id", &annotation, &vector);
    assert_eq!(launch(&words, &[]), Ok(()));
    let at = words.windows(2).position(|pair| pair == [17, 64]).expect("there is a local size");
    words[at + 1] = 4096;
    assert_eq!(launch(&words, &[]), Ok(()), "the execution mode does not count");

    let other = u32::from_le_bytes(*b"big\0");
    let two = [op(15, &[5, 1, 0x6e69_616d, 0, 10, 11]), op(15, &[5, 70, other])].concat();
    let mut parts = parts();
    parts.iter_mut().for_each(|part| match part.0 {
        "entry point" => part.1 = two.clone(),
        "local size" => part.1 = [op(16, &[1, 17, 64, 1, 1]), op(16, &[70, 17, 2048, 1, 1])].concat(),
        "end" => {
            let function = [op(54, &[2, 70, 0, 3]), op(248, &[71]), op(253, &[]), op(56, &[])].concat();
            part.1 = [op(56, &[]), function].concat();
        }
        _ => {}
    });
    let found = judge(&module(&parts))
        .expect("a size too large for this device matters to the program that launches it");
    let launches: Vec<_> = found.entry_points.iter().map(|entry| entry.launch.is_ok()).collect();
    assert_eq!(launches, [true, false]);
}

#[test]
fn sizes_are_computed_as_the_module_says() {
    // (16 + 4) * 3 - 1, chosen by a comparison, through a vector and back.
    let constants = [
        op(43, &[4, 41, 4]),
        op(43, &[4, 42, 3]),
        op(43, &[4, 43, 1]),
        op(52, &[4, 44, 128, 20, 41]),
        op(52, &[4, 45, 132, 44, 42]),
        op(52, &[4, 46, 130, 45, 43]),
        op(52, &[9, 47, 172, 46, 41]),
        op(52, &[4, 48, 169, 47, 46, 43]),
        op(23, &[49, 4, 2]),
        op(51, &[49, 50, 43, 48]),
        op(52, &[49, 51, 79, 50, 50, 1, 2]),
        op(52, &[4, 52, 81, 51, 0]),
        op(28, &[53, 4, 52]),
        op(32, &[54, 6, 53]),
        op(59, &[54, 55, 6]),
    ];
    let mut words = with("true", &[op(41, &[9, 12]), constants.concat()].concat());
    words[1] = 0x1_0300;
    assert!(judge(&words).is_ok());
    let of = |length: u64| judge_with(&words, Some(&[(7, length)])).map(|_| ());
    assert_eq!(of(16), Ok(()));
    // 59 numbers are 236 bytes; ((340 + 4) * 3 - 1) are more than the 4096 bytes that are allowed.
    assert_eq!(of(340), Err(Limit("bytes of variables (shader_variable_bytes)")));
    let divided = declaring(&[op(52, &[4, 44, 134, 20, 13]), op(28, &[53, 4, 44])]);
    assert!(judge(&divided).is_ok());
    assert_eq!(judge_with(&divided, Some(&[])).map(|_| ()), Err(Range("length of an array")));
}

#[test]
fn arrays_in_buffers_may_be_larger_than_memory() {
    let huge = [op(43, &[4, 41, u32::MAX]), op(28, &[42, 4, 41]), op(30, &[43, 42])].concat();
    let pointer = |class: u32| [op(32, &[44, class, 43]), op(59, &[44, 45, class])].concat();
    assert!(judge(&declaring(&[huge.clone(), pointer(12)])).is_ok());
    assert_eq!(judge(&declaring(&[huge.clone(), pointer(1)])), Err(Range("size of a variable")));
    assert!(matches!(judge(&declaring(&[huge.clone(), pointer(6)])), Err(Limit(_))));
    // A driver copies it number by number.
    let buffer = [huge, pointer(12), op(32, &[46, 12, 43])].concat();
    for copy in [op(61, &[43, 47, 45]), op(63, &[45, 45])] {
        let mut parts = parts();
        parts.iter_mut().for_each(|part| match part.0 {
            "zero" => part.1 = [op(43, &[4, 13, 0]), buffer.clone()].concat(),
            "load" => part.1 = [part.1.clone(), copy.clone()].concat(),
            _ => {}
        });
        assert!(matches!(judge(&module(&parts)), Err(Limit(_))), "{copy:?}");
    }
}

#[test]
fn tools_may_be_told_of_functions_and_between_blocks() {
    let with_import = |set: &str, part: &str, remark: &[u32]| {
        let mut parts = parts();
        parts.iter_mut().for_each(|(name, words)| match *name {
            "capability" => words.extend(op(11, &[&[80][..], &text(set)].concat())),
            name if name == part => words.extend(remark),
            _ => {}
        });
        judge(&module(&parts)).map(|_| ())
    };
    let non_semantic = "NonSemantic.Somebody";
    let debug_info = "OpenCL.DebugInfo.100";
    let of_function = op(12, &[2, 81, 80, 1, 1, 10]);
    for part in ["end", "label", "join", "leave", "function"] {
        assert_eq!(with_import(non_semantic, part, &of_function), Ok(()), "behind {part}");
    }
    assert_eq!(with_import(non_semantic, "merge", &of_function), Err(Order("merge instruction")));
    assert_eq!(with_import(non_semantic, "end", &op(12, &[2, 81, 80, 1, 34])), Err(IdMissing(34)));
    // DebugTypeFunction has flags before its types; they are no ids.
    let types = op(12, &[2, 81, 80, 8, 0x8000_0000, 2, 4]);
    assert_eq!(with_import(debug_info, "buffer", &types), Ok(()));
    assert_eq!(with_import(debug_info, "buffer", &op(12, &[2, 81, 80, 8])), Err(Length));
    assert_eq!(
        with_import(debug_info, "buffer", &op(12, &[2, 81, 80, 999])),
        Err(Unknown("extended instruction"))
    );
    let later = op(12, &[2, 81, 80, 31, 82]);
    assert_eq!(with_import(debug_info, "buffer", &later), Err(IdMissing(82)));
    assert_eq!(with_import(debug_info, "buffer", &[later, op(12, &[2, 82, 80, 0])].concat()), Ok(()));
    // GLSL's take part in the program: they stand in blocks, and before no phi.
    let absolute = op(12, &[4, 81, 80, 5, 13]);
    assert_eq!(with_import("GLSL.std.450", "load", &absolute), Ok(()));
    assert_eq!(with_import("GLSL.std.450", "join", &absolute), Err(Order("phi")));
    for part in ["end", "leave", "function"] {
        assert_eq!(with_import("GLSL.std.450", part, &absolute), Err(Order("instruction")), "behind {part}");
    }
    let not_offered = Err(NotOffered("an extended instruction set"));
    assert_eq!(with_import("OpenCL.std", "end", &[]), not_offered);
}

#[test]
fn a_merge_block_that_nothing_reaches_may_stand_before() {
    let body = |merge: &[u32], branch: &[u32]| {
        let early = [op(249, &[40]), op(248, &[41]), op(255, &[]), op(248, &[40])].concat();
        with("merge", &[&early[..], merge, branch, &op(248, &[42]), &op(247, &[33, 0])].concat())
    };
    let to = |yes, no| op(250, &[12, yes, no]);
    assert!(judge(&body(&op(247, &[41, 0]), &to(42, 42))).is_ok());
    assert_eq!(judge(&body(&op(247, &[41, 0]), &to(42, 41))), Err(Order("merge block")), "it is reached");
    assert_eq!(judge(&body(&op(247, &[40, 0]), &to(42, 42))), Err(Order("merge block")), "its own block");
}

#[test]
fn an_error_says_which_instruction_breaks_which_rule() {
    let said = |words: &[u32]| check(words, &device(), &LIMITS).expect_err("it is wrong").to_string();
    let words = with("load", &op(61, &[4, 35, 36]));
    let at = words.windows(4).position(|words| words == [4 << 16 | 61, 4, 35, 36]).expect("it is there");
    assert_eq!(said(&words), format!("word {at}, OpLoad %35: id %36 is not defined here"));
    assert_eq!(
        said(&with("capability", &op(17, &[6]))),
        "word 5, OpCapability: capability 6, whose feature or extension the program has not enabled on its device"
    );
    assert_eq!(
        said(&with("chain", &op(9999, &[]))).split(", ").last(),
        Some("instruction 9999: unknown instruction")
    );
    assert_eq!(said(&with("end", &[])), "word 0: misplaced end");
}
