//! Sizes of workgroups: which entry points need one, where it may be given, and which sizes the device takes (SPIR-V 1.6, 3.6, `WorkgroupSize`).

use super::*;

/// A device whose limits differ in each direction.
fn narrow_device(specialisation: Option<&[(u32, u64)]>) -> Device<'static> {
    let specialisation = specialisation.map(|values| values.iter().copied().collect());
    Device {
        workgroup_size: [16, 8, 4],
        workgroup_invocations: 64,
        has_capability: &|_| true,
        specialisation,
        ..device_with_everything()
    }
}

/// Returns the error that keeps the first entry point from being launched there, without the number of its word.
fn launched(words: &[u32]) -> Result<(), String> {
    // `Kernel`, `MeshShadingNV`, `MeshShadingEXT` and `RayTracingKHR`.
    let words = with_capabilities(words.to_vec(), &[6, 5266, 5283, 4479]);
    let module = check(&words, &narrow_device(Some(&[])), &LIMITS).expect("it is a module");
    let launch = module.entry_points[0].launch;
    launch.map_err(|error| {
        error.to_string().split_once([',', ':']).expect("it begins with the word").1.trim().to_owned()
    })
}

fn refused(what: &str) -> Result<(), String> {
    Err(what.to_owned())
}

#[test]
fn each_direction_has_its_limit() {
    let too_large = refused("OpExecutionMode: workgroup size out of range");
    let too_many = refused("OpExecutionMode: number of invocations of a workgroup out of range");
    let cases = [
        ([16, 1, 1], Ok(())),
        ([1, 8, 1], Ok(())),
        ([1, 1, 4], Ok(())),
        ([17, 1, 1], too_large.clone()),
        ([1, 9, 1], too_large.clone()),
        ([1, 1, 5], too_large.clone()),
        ([0, 1, 1], too_large.clone()),
        ([1, 0, 1], too_large.clone()),
        ([1, 1, 0], too_large),
        ([16, 4, 1], Ok(())),
        ([4, 4, 4], Ok(())),
        ([16, 5, 1], too_many.clone()),
        ([4, 5, 4], too_many),
    ];
    for ([x, y, z], expected) in cases {
        assert_eq!(launched(&with("local size", &op(16, &[1, 17, x, y, z]))), expected, "{x} {y} {z}");
    }
}

#[test]
fn every_size_of_an_entry_point_counts_and_none_of_another() {
    let size = |function, x| op(16, &[function, 17, x, 1, 1]);
    let other = |function| op(16, &[function, 18, 99, 99, 99]);
    let modes = |modes: &[Vec<u32>]| launched(&with("local size", &modes.concat()));
    let too_large = refused("OpExecutionMode: workgroup size out of range");
    assert_eq!(modes(&[size(1, 16), size(1, 8)]), Ok(()));
    assert_eq!(modes(&[size(1, 16), size(1, 17)]), too_large);
    assert_eq!(modes(&[size(1, 17), size(1, 16)]), too_large);
    assert_eq!(modes(&[size(1, 16), other(1)]), Ok(()), "a hint is no size");
    let missing = refused("no workgroup size");
    assert_eq!(modes(&[other(1)]), missing);
    // A function without a mode, beside one that has one.
    assert_eq!(modes(&[size(2, 16)]), missing);
}

#[test]
fn sizes_by_constants_are_integers() {
    let vectors =
        [op(23, &[50, 4, 3]), op(23, &[51, 4, 2]), op(23, &[52, 9, 3]), op(43, &[4, 53, 4])].concat();
    let constants = [
        op(44, &[50, 60, 53, 53, 53]),
        op(44, &[51, 61, 53, 53]),
        op(44, &[52, 62, 12, 12, 12]),
        op(44, &[50, 63, 53, 53, 13]),
        op(22, &[54, 32]),
        op(43, &[54, 64, 4]),
    ];
    let declarations = behind_zero(&[vectors, constants.concat()]);
    let by_mode = |ids: [u32; 3]| {
        let mode = op(331, &[&[1, 38][..], &ids].concat());
        launched(&with_all(&[("local size", mode), ("zero", declarations.clone())]))
    };
    assert_eq!(by_mode([53, 53, 53]), Ok(()));
    let of_mode = |what: &str| refused(&format!("OpExecutionModeId: {what}"));
    assert_eq!(by_mode([53, 13, 53]), of_mode("workgroup size out of range"));
    for (at, id) in [(0, 12), (1, 64), (2, 60), (1, 11)] {
        let mut ids = [53; 3];
        ids[at] = id;
        assert_eq!(by_mode(ids), of_mode(&format!("id %{id} is no integer constant")));
    }
    let by_built_in = |id| {
        let decorations = [op(71, &[20, 1, 7]), op(71, &[id, 11, 25])].concat();
        launched(&with_all(&[("spec id", decorations), ("zero", declarations.clone())]))
    };
    assert_eq!(by_built_in(60), Ok(()));
    assert_eq!(by_built_in(63), refused("OpDecorate: workgroup size out of range"));
    for id in [53, 61, 62, 11] {
        let expected = format!("OpDecorate: id %{id} is no constant vector of three integers");
        assert_eq!(by_built_in(id), refused(&expected));
    }
}

#[test]
fn each_direction_of_a_vector_has_its_limit() {
    for (direction, limit) in [16, 8, 4].into_iter().enumerate() {
        for (size, is_taken) in [(0, false), (1, true), (limit, true), (limit + 1, false)] {
            let numbers = [op(43, &[4, 60, 1]), op(43, &[4, 61, size]), op(23, &[62, 4, 3])].concat();
            let mut parts = [60; 3];
            parts[direction] = 61;
            let vector = op(44, &[&[62, 63][..], &parts].concat());
            let decorations = [op(71, &[20, 1, 7]), op(71, &[63, 11, 25])].concat();
            let declarations = behind_zero(&[numbers, vector]);
            let words = with_all(&[("spec id", decorations), ("zero", declarations)]);
            assert_eq!(launched(&words).is_ok(), is_taken, "{size} in direction {direction}");
        }
    }
}

#[test]
fn the_stages_that_run_in_workgroups_need_a_size() {
    let entry_point = |model| op(15, &[model, 1, 0x6e69_616d, 0, 10, 11]);
    for (model, needs_one) in [
        (0, false),
        (1, false),
        (2, false),
        (3, false),
        (4, false),
        (5, true),
        (5267, true),
        (5268, true),
        (5313, false),
        (5364, true),
        (5365, true),
    ] {
        let without = with_all(&[("entry point", entry_point(model)), ("local size", vec![])]);
        let expected = if needs_one { refused("no workgroup size") } else { Ok(()) };
        assert_eq!(launched(&without), expected, "{model}");
        let of_size =
            |x| with_all(&[("entry point", entry_point(model)), ("local size", op(16, &[1, 17, x, 1, 1]))]);
        assert_eq!(launched(&of_size(16)), Ok(()), "{model}");
        assert_eq!(launched(&of_size(17)).is_ok(), !needs_one, "{model}");
    }
}
