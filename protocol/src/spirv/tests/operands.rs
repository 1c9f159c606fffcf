//! Operands of every kind: each word belongs to one, numbers are as wide as their type, and masks and enumerants bring operands of their
//! own (SPIR-V 1.6, 2.2.1, 2.3 and chapter 3).

use super::*;

/// The module with this instruction behind the load of `main`.
fn doing(words: &[u32]) -> Vec<u32> {
    with("load", &[&op(61, &[4, 35, 34]), words].concat())
}

fn declared(words: &[u32]) -> Vec<u32> {
    declaring(&[words.to_vec()])
}

const LENGTH: &str = "operands and length disagree";

#[test]
fn each_instruction_has_its_operands_and_no_more() {
    const OPEN: usize = usize::MAX;
    let ranges = [
        ("capability", 1, 1),
        ("memory model", 2, 2),
        ("entry point", 4, OPEN),
        ("local size", 5, 5),
        ("spec id", 3, 3),
        ("void", 1, 1),
        ("function type", 2, OPEN),
        ("uint", 3, 3),
        ("spec length", 3, 3),
        ("array", 3, 3),
        ("pointer", 3, 3),
        ("shared", 3, 4),
        ("struct", 1, OPEN),
        ("true", 2, 2),
        ("function", 4, 4),
        ("label", 1, 1),
        ("merge", 2, 2),
        ("branch", 3, OPEN),
        ("chain", 3, OPEN),
        ("load", 3, 4),
        ("leave", 1, 1),
        ("return", 0, 0),
        ("end", 0, 0),
    ];
    for (name, fewest, most) in ranges {
        let (_, words) = parts().into_iter().find(|part| part.0 == name).expect("there is such a part");
        let operands = [&words[1..], &[1; 3]].concat();
        for count in 0..=operands.len() {
            let found = judge(&with(name, &op(words[0] & 0xffff, &operands[..count])));
            let is_of_length = matches!(found, Err(ErrorKind::Length | ErrorKind::Text));
            assert_eq!(is_of_length, count < fewest || count > most, "{name}, {count} operands: {found:?}");
        }
    }
    // The operands of a phi come in pairs.
    for count in 0..6 {
        let phi = op(245, &[&[4, 36][..], &[13, 31, 13, 30, 13][..count]].concat());
        let found = judge(&with("phi", &phi));
        assert_eq!(found == Err(ErrorKind::Length), count % 2 == 1, "{count} operands of a phi");
    }
}

#[test]
fn masks_bring_the_operands_of_their_bits_in_order() {
    let load = |access: &[u32]| doing(&op(61, &[&[4, 50, 34], access].concat()));
    let looping = |control: &[u32]| {
        let head = [op(249, &[40]), op(248, &[40]), op(246, &[&[41, 42], control].concat()), op(249, &[42])];
        let rest = [op(248, &[42]), op(249, &[40]), op(248, &[41]), op(253, &[])];
        running(&[], &[op(248, &[30]), head.concat(), rest.concat()])
    };
    let store = |access: &[u32]| doing(&op(62, &[&[34, 13], access].concat()));
    let copy = |access: &[u32]| doing(&op(63, &[&[34, 34], access].concat()));
    let twins: &[Twin<'_>] = &[
        ("Aligned has a literal", load(&[2, 16]), load(&[2]), "OpLoad %50: operands and length disagree"),
        ("Volatile has nothing", load(&[1]), load(&[1, 16]), "OpLoad %50: operands and length disagree"),
        (
            "Aligned and MakePointerVisible have a literal and an id",
            load(&[2 | 16, 400, 13]),
            load(&[2 | 16, 13, 400]),
            "OpLoad %50: id %400 is 0 or not below the bound",
        ),
        ("bits exist", store(&[1 | 4]), store(&[1 | 1 << 10]), "OpStore: unknown bit"),
        ("zero is no bit", store(&[0]), store(&[1 << 31]), "OpStore: unknown bit"),
        ("two masks", copy(&[1, 2, 4]), copy(&[1, 2]), "OpCopyMemory: operands and length disagree"),
        ("and not three", copy(&[1, 1]), copy(&[1, 1, 1]), "OpCopyMemory: operands and length disagree"),
        (
            "MaxIterations and PeelCount have a literal each",
            looping(&[0x20 | 0x80, 9, 9]),
            looping(&[0x20 | 0x80, 9]),
            "OpLoopMerge: operands and length disagree",
        ),
    ];
    check_twins(&device(), twins);
}

#[test]
fn enumerants_exist_and_bring_their_operands() {
    let of_kernels = |words| with_capabilities(words, &[5, 6]);
    let decorate =
        |words: &[u32]| of_kernels(with("spec id", &[op(71, &[20, 1, 7]), op(71, words)].concat()));
    let mode =
        |words: &[u32]| of_kernels(with("local size", &[op(16, &[1, 17, 64, 1, 1]), op(16, words)].concat()));
    let text = text("name");
    let twins: &[Twin<'_>] = &[
        (
            "ArrayStride has a literal",
            decorate(&[5, 6, 4]),
            decorate(&[5, 6]),
            "OpDecorate: operands and length disagree",
        ),
        (
            "NonWritable has none",
            decorate(&[11, 24]),
            decorate(&[11, 24, 1]),
            "OpDecorate: operands and length disagree",
        ),
        (
            "built-ins exist",
            decorate(&[11, 11, 28]),
            decorate(&[11, 11, 9999]),
            "OpDecorate: unknown enumerant",
        ),
        ("decorations exist", decorate(&[11, 24]), decorate(&[11, 12]), "OpDecorate: unknown enumerant"),
        (
            "LinkageAttributes has text and an enumerant",
            decorate(&[&[1, 41], &text[..], &[0]].concat()),
            decorate(&[&[1, 41], &text[..]].concat()),
            "OpDecorate: operands and length disagree",
        ),
        (
            "text ends",
            decorate(&[&[1, 41], &text[..], &[0]].concat()),
            decorate(&[1, 41, text[0], text[0]]),
            "OpDecorate: text without end",
        ),
        (
            "LocalSizeHint has three literals",
            mode(&[1, 18, 1, 1, 1]),
            mode(&[1, 18, 1, 1]),
            "OpExecutionMode: operands and length disagree",
        ),
        ("modes exist", mode(&[1, 31]), mode(&[1, 32]), "OpExecutionMode: unknown enumerant"),
        (
            "storage classes exist",
            declared(&op(32, &[50, 12, 4])),
            declared(&op(32, &[50, 13, 4])),
            "OpTypePointer %50: unknown enumerant",
        ),
        (
            "images may have an access qualifier",
            of_kernels(declared(&op(25, &[50, 4, 1, 0, 0, 0, 1, 0, 2]))),
            of_kernels(declared(&op(25, &[50, 4, 1, 0, 0, 0, 1, 0, 3]))),
            "OpTypeImage %50: unknown enumerant",
        ),
    ];
    check_twins(&Device { has_capability: &|_| true, ..device() }, twins);
}

#[test]
fn numbers_are_as_wide_as_their_type() {
    let types =
        [op(21, &[50, 64, 1]), op(22, &[51, 64]), op(21, &[52, 16, 1]), op(22, &[53, 32]), op(20, &[54])];
    let constant =
        |opcode, ty, words: &[u32]| declaring(&[types.concat(), op(opcode, &[&[ty, 60], words].concat())]);
    for opcode in [43, 50] {
        let name = if opcode == 43 { "OpConstant" } else { "OpSpecConstant" };
        let length = format!("{name} %60: {LENGTH}");
        for (ty, words) in [(50, 2), (51, 2), (52, 1), (53, 1)] {
            for given in 0..4 {
                let module = constant(opcode, ty, &[1, 2, 3][..given]);
                if given == words {
                    assert!(judge(&module).is_ok(), "{name} of type {ty}");
                } else {
                    assert_eq!(said(&device(), &module), length, "{given} words of type {ty}");
                }
            }
        }
        let no_number = format!("{name} %60: id %54 is no number type");
        assert_eq!(said(&device(), &constant(opcode, 54, &[1])), no_number);
    }
}

#[test]
fn cases_of_a_switch_are_as_wide_as_its_selector() {
    let switch = |selector, cases: &[u32]| {
        let types = [op(21, &[50, 64, 0]), op(43, &[50, 51, 7, 0]), op(22, &[52, 32]), op(46, &[52, 53])];
        let end = op(251, &[&[selector, 40], cases].concat());
        running(&types, &[op(248, &[30]), op(247, &[40, 0]), end, op(248, &[40]), op(253, &[])])
    };
    let (narrow, wide) = (13, 51);
    let twins: &[Twin<'_>] = &[
        (
            "of 32 bits: one word and a block each",
            switch(narrow, &[1, 40, 2, 40]),
            switch(narrow, &[1, 40, 2]),
            "OpSwitch: operands and length disagree",
        ),
        (
            "the block is an id",
            switch(narrow, &[400, 40]),
            switch(narrow, &[40, 400]),
            "OpSwitch: id %400 is 0 or not below the bound",
        ),
        (
            "of 64 bits: two words",
            switch(wide, &[1, 0, 40, 2, 500, 40]),
            switch(wide, &[1, 40, 2, 40]),
            "OpSwitch: operands and length disagree",
        ),
        (
            "selectors are integers or have no cases",
            switch(12, &[]),
            switch(12, &[1, 40]),
            "OpSwitch: id %9 is no number type",
        ),
        (
            "and are defined",
            switch(narrow, &[1, 40]),
            switch(60, &[1, 40]),
            "OpSwitch: id %60 is not defined here",
        ),
    ];
    check_twins(&device(), twins);
}

#[test]
fn ids_are_below_the_bound_and_not_zero() {
    // At each place where an id stands: a type, a result, a used id, one behind a literal or in a list.
    let names =
        |id: u32| with("spec id", &[op(5, &[&[id][..], &text("x")].concat()), op(71, &[20, 1, 7])].concat());
    type Place = fn(u32) -> Vec<u32>;
    let places: [(&str, Place); 6] = [
        ("a result", |id| declaring(&[op(43, &[4, id, 1])])),
        ("a type", |id| declaring(&[op(46, &[id, 50])])),
        ("a use", |id| doing(&op(62, &[34, id]))),
        ("in a list", |id| declaring(&[op(30, &[50, 4, id])])),
        ("before a literal", |id| with("spec id", &op(75, &[id, 5, 0]))),
        ("a merge block", |id| with("merge", &op(247, &[id, 0]))),
    ];
    for id in [0, 100, u32::MAX] {
        for (what, place) in places {
            let found = judge(&place(id)).map(|_| ());
            assert_eq!(found, Err(ErrorKind::IdRange(id)), "{what}");
        }
        assert_eq!(judge(&names(id)).map(|_| ()), Err(ErrorKind::IdRange(id)), "a name's target");
    }
    assert!(judge(&names(99)).is_ok());
}

#[test]
fn operations_on_constants_are_those_of_shaders() {
    // SPIR-V 1.6, OpSpecConstantOp: the operations that are valid with the capability Shader, and those that SPV_KHR_cooperative_matrix adds.
    let conversions = [113, 114, 115, 116, 124];
    let arithmetic = [126, 128, 130, 132, 134, 135, 137, 138, 139];
    let logical_and_bits = (164..=179).chain(194..=200);
    let composites = [79, 81, 82];
    let of_matrices = [4460];
    let valid: Vec<u32> = conversions
        .into_iter()
        .chain(arithmetic)
        .chain(logical_and_bits)
        .chain(composites)
        .chain(of_matrices)
        .collect();
    // More operands than any operation has: a known operation gets an error about its length, and no other error.
    for operation in 0..=6000 {
        let module = declared(&op(52, &[&[4, 50, operation][..], &[13; 9]].concat()));
        let found = judge(&module).map(|_| ());
        let takes_any_number = [79, 81, 82].contains(&operation);
        match valid.contains(&operation) {
            true if takes_any_number => {
                assert!(matches!(found, Err(ErrorKind::Mismatch(_) | ErrorKind::IdKind(..))), "{operation}")
            }
            true => assert_eq!(found, Err(ErrorKind::Length), "{operation}"),
            false => assert_eq!(found, Err(ErrorKind::Unknown("operation on constants")), "{operation}"),
        }
    }
}

#[test]
fn the_operation_on_constants_has_its_own_operands() {
    let operation = |words: &[u32]| declared(&op(52, &[&[4, 50], words].concat()));
    let length = "OpSpecConstantOp %50: operands and length disagree";
    let twins: &[Twin<'_>] = &[
        ("one", operation(&[126, 13]), operation(&[126]), length),
        ("one, not two", operation(&[200, 13]), operation(&[200, 13, 13]), length),
        ("two", operation(&[128, 13, 13]), operation(&[128, 13]), length),
        ("three", operation(&[169, 12, 13, 13]), operation(&[169, 12, 13]), length),
        (
            "ids that are defined",
            operation(&[128, 13, 20]),
            operation(&[128, 13, 60]),
            "OpSpecConstantOp %50: id %60 is not defined here",
        ),
        ("and an operation", operation(&[128, 13, 13]), operation(&[]), length),
        (
            "whose number has one word",
            operation(&[128, 13, 13]),
            operation(&[0x1_0000 | 128, 13, 13]),
            "OpSpecConstantOp %50: unknown operation on constants",
        ),
    ];
    check_twins(&device(), twins);
    // The count of a matrix's numbers that an invocation has: a type is the operand, and the result one like any other.
    let matrix = op(4456, &[50, 4, 20, 20, 20, 13]);
    let length = |of| [matrix.clone(), op(52, &[4, 51, 4460, of]), op(52, &[4, 52, 128, 51, 13])].concat();
    let missing = "OpSpecConstantOp %51: id %60 is not defined here";
    check_twins(&device(), &[("of a matrix", declared(&length(50)), declared(&length(60)), missing)]);
}
