//! Entry points and what the device has to offer for them: stages, capabilities, extensions, descriptor sets (SPIR-V 1.6, 2.16.1, 3.52.2).

use super::*;

fn entry_point(model: u32, function: u32, name: &str, interface: &[u32]) -> Vec<u32> {
    op(15, &[&[model, function], &text(name)[..], interface].concat())
}

fn entered(entry_points: &[Vec<u32>]) -> Vec<u32> {
    with("entry point", &entry_points.concat())
}

const VERTEX: u32 = 0;
const FRAGMENT: u32 = 4;
const COMPUTE: u32 = 5;

#[test]
fn entry_points_have_names_functions_and_variables() {
    let main = || entry_point(COMPUTE, 1, "main", &[10, 11]);
    let valid = || entered(&[main()]);
    let wrong = |id, kind| format!("OpEntryPoint: id %{id} is no {kind}");
    let (no_function, no_variable) = (wrong(3, "function"), wrong(13, "variable"));
    let twins: &[Twin<'_>] = &[
        ("a function", valid(), entered(&[entry_point(COMPUTE, 3, "main", &[])]), &no_function),
        (
            "that there is",
            valid(),
            entered(&[entry_point(COMPUTE, 60, "main", &[])]),
            "OpEntryPoint: id %60 is not defined here",
        ),
        ("variables", valid(), entered(&[entry_point(COMPUTE, 1, "main", &[10, 13])]), &no_variable),
        (
            "that there are",
            valid(),
            entered(&[entry_point(COMPUTE, 1, "main", &[60])]),
            "OpEntryPoint: id %60 is not defined here",
        ),
        (
            "one of each name and stage",
            entered(&[main(), entry_point(COMPUTE, 1, "main2", &[])]),
            entered(&[main(), entry_point(COMPUTE, 1, "main", &[])]),
            "OpEntryPoint: second entry point of this name and execution model",
        ),
        (
            "of any stage that is served",
            entered(&[main(), entry_point(FRAGMENT, 1, "main", &[]), entry_point(VERTEX, 1, "main", &[])]),
            entered(&[main(), entry_point(7777, 1, "main", &[])]),
            "OpEntryPoint: unknown enumerant",
        ),
    ];
    check_twins(&device_with_everything(), twins);
    let untyped = behind_zero(&[op(4417, &[60, 12]), op(4418, &[60, 61, 12])]);
    let names_it = entry_point(COMPUTE, 1, "main", &[10, 11, 61]);
    assert!(judge(&with_all(&[("entry point", names_it), ("zero", untyped)])).is_ok());
}

#[test]
fn a_module_tells_its_entry_points_in_their_order() {
    let words = entered(&[
        entry_point(FRAGMENT, 1, "", &[]),
        entry_point(COMPUTE, 1, "a long name", &[10]),
        entry_point(COMPUTE, 1, "four", &[]),
    ]);
    let found = check(&words, &device_with_everything(), &LIMITS).unwrap().entry_points;
    let expected = [(FRAGMENT, &b""[..]), (COMPUTE, b"a long name"), (COMPUTE, b"four")];
    assert_eq!(found.iter().map(|entry| (entry.model, &entry.name[..])).collect::<Vec<_>>(), expected);
    // Without graphics, only compute is served.
    let without = said(&device(), &words);
    assert_eq!(without, "OpEntryPoint: a stage that is not offered");
}

#[test]
fn capabilities_come_with_the_device_and_are_declared() {
    let (shader, ballot, kernel) = (1, 4423, 6);
    let with_ballot = Device { has_capability: &|number| [shader, ballot].contains(&number), ..device() };
    let declares = |capability| with("capability", &[op(17, &[shader]), op(17, &[capability])].concat());
    assert!(check(&declares(ballot), &with_ballot, &LIMITS).is_ok());
    let not_enabled = "whose feature or extension the program has not enabled on its device";
    assert_eq!(
        said(&device(), &declares(ballot)),
        format!("OpCapability: capability SubgroupBallotKHR, {not_enabled}")
    );
    assert_eq!(said(&with_ballot, &declares(kernel)), format!("OpCapability: capability 6, {not_enabled}"));
    // An instruction that needs it.
    let uses = |capability| {
        let load = [op(61, &[4, 35, 34]), op(4421, &[4, 50, 12])].concat();
        with_all(&[("capability", [op(17, &[shader]), op(17, &[capability])].concat()), ("load", load)])
    };
    assert!(check(&uses(ballot), &with_ballot, &LIMITS).is_ok());
    let undeclared = "OpSubgroupBallotKHR %50: capability SubgroupBallotKHR is not declared";
    assert_eq!(said(&with_ballot, &uses(shader)), undeclared);
}

#[test]
fn errors_tell_whether_another_device_would_take_the_module() {
    let kind = |words: &[u32]| judge(words).expect_err("it is wrong");
    let for_another = [
        with("capability", &op(17, &[4423])),
        with("entry point", &entry_point(FRAGMENT, 1, "main", &[])),
        with("descriptor set", &op(71, &[11, 34, 4])),
    ];
    assert!(for_another.iter().all(|words| kind(words).is_for_another_device()));
    let for_none =
        [vec![], with("void", &[]), with("return", &op(253, &[1])), with("uint", &op(21, &[4, 33, 0]))];
    assert!(!for_none.iter().any(|words| kind(words).is_for_another_device()));
}

#[test]
fn descriptor_sets_are_below_the_limit() {
    let of = |set, limit| {
        let words = with("descriptor set", &op(71, &[11, 34, set]));
        check(&words, &Device { descriptor_sets: limit, ..device() }, &LIMITS)
            .map(|_| ())
            .map_err(|error| error.kind)
    };
    let not_offered = Err(ErrorKind::NotOffered("a descriptor set (maxBoundDescriptorSets)"));
    for limit in [0, 1, 4, 32] {
        for set in [0, 1, 3, 4, 31, 32, u32::MAX] {
            assert_eq!(of(set, limit), if set < limit { Ok(()) } else { not_offered }, "{set} of {limit}");
        }
    }
    // Other decorations have literals of their own.
    assert!(judge(&with("descriptor set", &op(71, &[11, 33, 99]))).is_ok());
}
