//! Resources: an entry point has those of the functions that it reaches (Vulkan, "Shader Resource Interface").

use super::*;

/// The module with these decorations of its buffer, which `main` measures unless it is left alone.
fn with_buffer(decorations: &[u32], is_used: bool) -> Vec<u32> {
    let load = op(61, &[4, 35, 34]);
    let read = op(61, &[7, 50, 11]);
    let body = if is_used { [load, read].concat() } else { load };
    with_all(&[("descriptor set", decorations.to_vec()), ("load", body)])
}

#[test]
fn an_entry_point_uses_what_its_functions_name() {
    let bound = [op(71, &[11, 34, 2]), op(71, &[11, 33, 5])].concat();
    let used = |words: &[u32]| judge(words).expect("it is a module").resources.used_by(0);
    assert_eq!(used(&with_buffer(&bound, true)), Ok(vec![(2, 5)]));
    assert_eq!(used(&with_buffer(&bound, false)), Ok(vec![]));
    let missing = Err(ErrorKind::Missing("DescriptorSet and Binding of a variable"));
    assert_eq!(used(&with_buffer(&op(71, &[11, 34, 2]), true)), missing);
    assert_eq!(used(&with_buffer(&op(71, &[11, 33, 2]), true)), missing);
    let group = [op(71, &[80, 34, 1]), op(71, &[80, 33, 3]), op(73, &[80]), op(74, &[80, 11])].concat();
    assert_eq!(used(&with_buffer(&group, true)), Ok(vec![(1, 3)]));
    assert_eq!(
        judge(&module(&parts())).unwrap().resources.used_by(1),
        Err(ErrorKind::Missing("entry point"))
    );
}

#[test]
fn functions_that_are_called_count_and_others_do_not() {
    let reader =
        [op(54, &[2, 90, 0, 3]), op(248, &[91]), op(61, &[7, 92, 11]), op(253, &[]), op(56, &[])].concat();
    let bound = [op(71, &[11, 34, 0]), op(71, &[11, 33, 1])].concat();
    let module = |load: Vec<u32>| {
        let end = [op(56, &[]), reader.clone()].concat();
        with_all(&[("descriptor set", bound.clone()), ("load", load), ("end", end)])
    };
    let load = op(61, &[4, 35, 34]);
    let used = |words: &[u32]| judge(words).expect("it is a module").resources.used_by(0);
    assert_eq!(used(&module(load.clone())), Ok(vec![]));
    assert_eq!(used(&module([load, op(57, &[2, 50, 90])].concat())), Ok(vec![(0, 1)]));
}
