//! Extended instructions: those of GLSL take part in the program, those for tools do not (SPIR-V 1.6, 3.52.2, and the sets themselves).

use super::*;

/// The module with this set as id 80, and these words behind the load of `main`.
fn doing(set: &str, words: &[u32]) -> Vec<u32> {
    let import = op(11, &[&[80][..], &text(set)].concat());
    with_all(&[
        ("capability", [op(17, &[1]), import].concat()),
        ("zero", behind_zero(&[op(22, &[70, 32]), op(46, &[70, 71])])),
        ("load", [op(61, &[4, 35, 34]), words.to_vec()].concat()),
    ])
}

const GLSL: &str = "GLSL.std.450";

fn extended(number: u32, operands: &[u32]) -> Vec<u32> {
    op(12, &[&[70, 50, 80, number], operands].concat())
}

#[test]
fn instructions_of_glsl_have_their_operands() {
    // Numbers and operands of the set's specification: Round, Pow, FMax, FClamp, FMix, Fma, Normalize, Refract,
    // InterpolateAtSample, NMin, NClamp.
    let instructions =
        [(1, 1), (26, 2), (40, 2), (43, 3), (46, 3), (50, 3), (69, 1), (72, 3), (77, 2), (79, 2), (81, 3)];
    for (number, operands) in instructions {
        for given in 0..5 {
            let found = judge(&doing(GLSL, &extended(number, &vec![71; given]))).map(|_| ());
            let expected = if given == operands { Ok(()) } else { Err(ErrorKind::Length) };
            assert_eq!(found, expected, "number {number} with {given}");
        }
    }
    for number in [0, 82, 83, 1000, u32::MAX] {
        let found = said(&device(), &doing(GLSL, &extended(number, &[13])));
        assert_eq!(found, "OpExtInst %50: unknown extended instruction");
    }
}

#[test]
fn an_extended_instruction_belongs_to_a_set_and_works_on_values() {
    let glsl = |operands: &[u32]| doing(GLSL, &extended(26, operands));
    let of_set = |set| doing(GLSL, &op(12, &[70, 50, set, 4, 71]));
    let later = |opcode, set| doing(set, &op(opcode, &[2, 50, 80, 1, 51]));
    let defined_later =
        |opcode, set| doing(set, &[op(opcode, &[2, 50, 80, 1, 51]), op(61, &[4, 51, 34])].concat());
    let tools = "NonSemantic.Somebody";
    let among_declarations = |ty| {
        let import = [op(17, &[1]), op(11, &[&[80][..], &text(tools)].concat())].concat();
        with_all(&[("capability", import), ("zero", behind_zero(&[op(12, &[ty, 50, 80, 1])]))])
    };
    let twins: &[Twin<'_>] = &[
        ("a set", of_set(80), of_set(13), "OpExtInst %50: id %13 is no instruction set"),
        ("that is imported", of_set(80), of_set(81), "OpExtInst %50: id %81 is no instruction set"),
        (
            "with operands",
            of_set(80),
            doing(GLSL, &op(12, &[4, 50])),
            "OpExtInst %50: operands and length disagree",
        ),
        (
            "with a number",
            of_set(80),
            doing(GLSL, &op(12, &[4, 50, 80])),
            "OpExtInst %50: operands and length disagree",
        ),
        ("no types", glsl(&[71, 71]), glsl(&[71, 4]), "OpExtInst %50: id %4 is no value"),
        ("no blocks", glsl(&[71, 71]), glsl(&[30, 71]), "OpExtInst %50: id %30 is no value"),
        (
            "no functions' results elsewhere",
            glsl(&[71, 71]),
            glsl(&[71, 36]),
            "OpExtInst %50: id %36 is not defined here",
        ),
        (
            "remarks look ahead by an instruction of their own",
            defined_later(4433, tools),
            defined_later(12, tools),
            "OpExtInst %50: id %51 is not defined here",
        ),
        (
            "to something that comes",
            defined_later(4433, tools),
            later(4433, tools),
            "OpExtInstWithForwardRefsKHR %50: id %51 is not defined here",
        ),
        (
            "and have a type",
            among_declarations(2),
            among_declarations(13),
            "OpExtInst %50: id %13 is no type",
        ),
        (
            "which is for tools only",
            defined_later(4433, tools),
            doing(GLSL, &op(4433, &[4, 50, 80, 4, 13])),
            "OpExtInstWithForwardRefsKHR %50: misplaced instruction",
        ),
    ];
    check_twins(&device(), twins);
}

#[test]
fn remarks_that_look_ahead_stand_between_functions_too() {
    for (set, expected) in [("NonSemantic.Somebody", Ok(())), (GLSL, Err(ErrorKind::Order("instruction")))] {
        let import = [op(17, &[1]), op(11, &[&[80][..], &text(set)].concat())].concat();
        let remark = [op(56, &[]), op(4433, &[2, 50, 80, 1, 13])].concat();
        let words = with_all(&[("capability", import), ("end", remark)]);
        assert_eq!(judge(&words).map(|_| ()), expected, "{set}");
    }
}

#[test]
fn sets_are_known_by_their_whole_name() {
    let not_offered = Err(ErrorKind::NotOffered("an extended instruction set"));
    for name in [
        "GLSL.std.450",
        "DebugInfo",
        "OpenCL.DebugInfo.100",
        "NonSemantic.",
        "NonSemantic.Shader.DebugInfo.100",
    ] {
        assert_eq!(judge(&doing(name, &[])).map(|_| ()), Ok(()), "{name}");
    }
    for name in [
        "",
        "GLSL.std.45",
        "GLSL.std.4500",
        "glsl.std.450",
        "DebugInf",
        "NonSemantic",
        "OpenCL.std",
        "OpenCL.DebugInfo.10",
    ] {
        assert_eq!(judge(&doing(name, &[])).map(|_| ()), not_offered, "{name}");
    }
}

#[test]
fn debug_information_of_either_set_has_its_operands() {
    for set in ["DebugInfo", "OpenCL.DebugInfo.100"] {
        // DebugTypeBasic: a name, a size and an encoding. The name may come later.
        let basic = |operands: &[u32]| {
            let words = op(12, &[&[2, 50, 80, 2], operands].concat());
            judge(&doing(set, &words)).map(|_| ())
        };
        assert_eq!(basic(&[13, 13, 3]), Ok(()), "{set}");
        assert_eq!(basic(&[13, 13]), Err(ErrorKind::Length), "{set}");
        assert_eq!(basic(&[60, 13, 3]), Err(ErrorKind::IdMissing(60)), "{set}");
        let unknown = op(12, &[2, 50, 80, 500]);
        assert_eq!(judge(&doing(set, &unknown)).map(|_| ()), Err(ErrorKind::Unknown("extended instruction")));
    }
}
