//! The rewriting that initialises workgroup memory: which variables get a null, and its type.

use super::*;

/// A module with these declarations instead of its workgroup variable.
fn with_shared(declarations: &[Vec<u32>]) -> Vec<u32> {
    with_all(&[
        ("shared", declarations.concat()),
        ("entry point", op(15, &[5, 1, 0x6e69_616d, 0, 11])),
        ("chain", vec![]),
        ("load", vec![]),
        ("phi", vec![]),
    ])
}

/// The rewritten module is one that the checker takes, and rewriting it again changes nothing.
fn rewritten(before: &[u32]) -> Vec<u32> {
    let after = zero::workgroup(before).expect("it has a variable without an initialiser");
    let limits = Limits { ids: before[3] + 8, ..LIMITS };
    assert_eq!(check(&after, &device(), &limits), check(before, &device(), &limits));
    assert_eq!(zero::workgroup(&after), None);
    after
}

#[test]
fn variables_of_one_type_share_a_null() {
    let pointers = [op(32, &[50, 4, 4]), op(32, &[51, 4, 5])];
    let variable = |ty, id, null: &[u32]| op(59, &[&[ty, id, 4], null].concat());
    let before = with_shared(&[
        pointers.concat(),
        variable(50, 60, &[]),
        variable(51, 61, &[]),
        variable(50, 62, &[]),
    ]);
    let nulls = |ty, id| op(46, &[ty, id]);
    let mut expected = with_shared(&[
        pointers.concat(),
        nulls(4, 100),
        variable(50, 60, &[100]),
        nulls(5, 101),
        variable(51, 61, &[101]),
        variable(50, 62, &[100]),
    ]);
    expected[3] = 102;
    assert_eq!(rewritten(&before), expected);
}

#[test]
fn pointers_of_other_types_to_the_same_contents_share_it_too() {
    let pointers = [op(32, &[50, 4, 4]), op(4417, &[51, 4])];
    let before = with_shared(&[pointers.concat(), op(59, &[50, 60, 4]), op(4418, &[51, 61, 4, 4])]);
    let variables = [op(46, &[4, 100]), op(59, &[50, 60, 4, 100]), op(4418, &[51, 61, 4, 4, 100])].concat();
    let mut expected = with_shared(&[pointers.concat(), variables]);
    expected[3] = 101;
    assert_eq!(rewritten(&before), expected);
}

#[test]
fn a_module_without_functions_is_rewritten_too() {
    let before = [
        &[0x0723_0203, 0x1_0300, 0, 5, 0][..],
        &op(14, &[0, 1]),
        &op(21, &[1, 32, 0]),
        &op(32, &[2, 4, 1]),
        &op(59, &[2, 3, 4]),
    ];
    let mut expected = [&before[..4], &[&op(46, &[1, 5]), &op(59, &[2, 3, 4, 5])]].concat().concat();
    expected[3] = 6;
    assert_eq!(rewritten(&before.concat()), expected);
}

#[test]
fn what_is_initialised_or_elsewhere_stays_as_it_is() {
    let null = [op(32, &[50, 4, 4]), op(46, &[4, 51])];
    let unchanged = [
        ("an initialised variable", with_shared(&[null.concat(), op(59, &[50, 60, 4, 51])])),
        ("an untyped one", with_shared(&[null.concat(), op(4417, &[52, 4]), op(4418, &[52, 60, 4, 4, 51])])),
        ("private memory", with_shared(&[op(32, &[50, 6, 4]), op(59, &[50, 60, 6])])),
        ("a buffer", with_shared(&[])),
    ];
    for (what, words) in unchanged {
        assert!(judge(&words).is_ok(), "{what}");
        assert_eq!(zero::workgroup(&words), None, "{what}");
    }
    // One variable of each kind: only the one without a null gets one.
    let mixed = |last: Vec<u32>| with_shared(&[null.concat(), op(59, &[50, 60, 4, 51]), last]);
    let mut expected = mixed([op(46, &[4, 100]), op(59, &[50, 61, 4, 100])].concat());
    expected[3] = 101;
    assert_eq!(rewritten(&mixed(op(59, &[50, 61, 4]))), expected);
}
