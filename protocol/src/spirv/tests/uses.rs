//! Ids that are named before they are defined: where that is allowed, and the kinds that they must turn out to be (SPIR-V 1.6, 2.4, 2.16.1).

use super::*;

/// The module with these annotations, and these declarations behind `zero`.
fn annotated(annotations: &[Vec<u32>], declarations: &[Vec<u32>]) -> Vec<u32> {
    with_all(&[
        ("spec id", [op(71, &[20, 1, 7]), annotations.concat()].concat()),
        ("zero", behind_zero(declarations)),
    ])
}

#[test]
fn annotations_are_of_ids_that_come() {
    let missing = |name: &str| format!("{name}: id %60 is not defined here");
    let (decorate, member, by_id) =
        (missing("OpDecorate"), missing("OpMemberDecorate"), missing("OpDecorateId"));
    let mode = |id| with("local size", &[op(16, &[1, 17, 64, 1, 1]), op(16, &[id, 17, 1, 1, 1])].concat());
    let twins: &[Twin<'_>] = &[
        (
            "a decoration",
            annotated(&[op(71, &[11, 24])], &[]),
            annotated(&[op(71, &[60, 24])], &[]),
            &decorate,
        ),
        (
            "one of a member",
            annotated(&[op(72, &[7, 0, 35, 0])], &[]),
            annotated(&[op(72, &[60, 0, 35, 0])], &[]),
            &member,
        ),
        (
            "one with an id",
            annotated(&[op(332, &[11, 27, 20])], &[]),
            annotated(&[op(332, &[11, 27, 60])], &[]),
            &by_id,
        ),
        ("a mode", mode(1), mode(60), "OpExecutionMode: id %60 is not defined here"),
    ];
    check_twins(&device(), twins);
}

#[test]
fn names_are_of_ids_that_come() {
    let name = text("name");
    let of_struct = op(5, &[&[7], &name[..]].concat());
    let of_member = op(6, &[&[7, 0], &name[..]].concat());
    let words = with("spec id", &[of_struct, of_member, op(71, &[20, 1, 7])].concat());
    assert_eq!(judge(&words).map(|_| ()), Ok(()));
}

#[test]
fn groups_of_decorations_are_declared_before_and_hold_no_groups() {
    let group = |words: &[u32]| annotated(&[op(71, &[60, 24]), op(73, &[60]), op(74, words)], &[]);
    let members = |words: &[u32]| annotated(&[op(71, &[60, 24]), op(73, &[60]), op(75, words)], &[]);
    let no_group = "OpGroupDecorate: id %60 is no target of a decoration group";
    let late = annotated(&[op(71, &[60, 24]), op(74, &[60, 11]), op(73, &[60])], &[]);
    let twins: &[Twin<'_>] = &[
        (
            "targets that come",
            group(&[60, 10, 11]),
            group(&[60, 10, 61]),
            "OpGroupDecorate: id %61 is not defined here",
        ),
        ("no group as a target", group(&[60, 11]), group(&[60, 60]), no_group),
        ("declared before", group(&[60, 11]), late, "OpGroupDecorate: id %60 is not defined here"),
        ("with a group", group(&[60]), group(&[]), "OpGroupDecorate: operands and length disagree"),
        (
            "members that come",
            members(&[60, 7, 0]),
            members(&[60, 61, 0]),
            "OpGroupMemberDecorate: id %61 is not defined here",
        ),
        (
            "with an index each",
            members(&[60, 7, 0]),
            members(&[60, 7]),
            "OpGroupMemberDecorate: operands and length disagree",
        ),
    ];
    check_twins(&device(), twins);
    // A name for a file is no group.
    for (name, decorate) in
        [("OpGroupDecorate", op(74, &[62, 11])), ("OpGroupMemberDecorate", op(75, &[62, 7, 0]))]
    {
        let named = [op(7, &[&[62][..], &text("a")].concat()), op(71, &[20, 1, 7]), decorate].concat();
        let expected = format!("{name}: id %62 is no decoration group");
        assert_eq!(said(&device(), &with("spec id", &named)), expected);
    }
}

#[test]
fn values_are_defined_before_they_are_used() {
    let late = |words: Vec<u32>| with("chain", &[words, op(65, &[14, 34, 10, 13])].concat());
    let before = op(65, &[14, 50, 10, 13]);
    let access =
        |base: u32, index: u32| with("chain", &[before.clone(), op(65, &[14, 34, base, index])].concat());
    let condition = |id| with("branch", &op(250, &[id, 31, 33]));
    let selector = |id| with("branch", &op(251, &[id, 33, 0, 31]));
    let twins: &[Twin<'_>] = &[
        ("an operand", access(10, 13), access(10, 60), "OpAccessChain %34: id %60 is not defined here"),
        ("which is no block", access(10, 13), access(10, 30), "OpAccessChain %34: id %30 is no value"),
        (
            "and not the instruction itself",
            access(10, 13),
            access(34, 13),
            "OpAccessChain %34: id %34 is not defined here",
        ),
        ("a condition", condition(12), condition(35), "OpBranchConditional: id %35 is not defined here"),
        ("which is no type", condition(12), condition(9), "OpBranchConditional: id %9 is no value"),
        ("a selector", selector(13), selector(35), "OpSwitch: id %35 is not defined here"),
        (
            "in a block that is there",
            late(vec![]),
            late(op(61, &[4, 50, 34])),
            "OpLoad %50: id %34 is not defined here",
        ),
    ];
    check_twins(&device(), twins);
}

#[test]
fn pointers_that_are_announced_come_as_pointers_to_structs() {
    const PHYSICAL: u32 = 5349;
    let announced = |words: &[Vec<u32>]| declaring(&[op(39, &[50, PHYSICAL]), words.concat()]);
    let valid = || announced(&[op(30, &[51, 50, 4]), op(32, &[50, PHYSICAL, 51])]);
    let no_struct = announced(&[op(30, &[51, 50, 4]), op(32, &[50, PHYSICAL, 4])]);
    let twins: &[Twin<'_>] = &[
        ("a struct", valid(), no_struct, "OpTypeForwardPointer: id %50 is no pointer to a structure"),
        ("that comes", valid(), announced(&[]), "OpTypeForwardPointer: id %50 is not defined here"),
        (
            "and an untyped pointer has no struct",
            announced(&[op(30, &[51, 50, 4]), op(4417, &[50, PHYSICAL])]),
            announced(&[op(30, &[51, 50, 4]), op(21, &[50, 16, 0])]),
            "OpTypeForwardPointer: id %50 is no pointer to a structure",
        ),
    ];
    check_twins(&device(), twins);
    // A struct needs no announcement of an id that turns out to be a pointer to a struct.
    let (node, pointer) = (op(30, &[51, 4, 50]), op(32, &[50, 12, 51]));
    let other = op(32, &[50, 12, 4]);
    let wrong = "OpTypeStruct %51: id %50 is no pointer to a structure";
    let twin = ("unannounced", declaring(&[node.clone(), pointer]), declaring(&[node, other]), wrong);
    check_twins(&device(), &[twin]);
}
