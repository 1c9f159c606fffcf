//! Functions and their blocks: one terminator each, phis and variables at their places, merges, branches, calls, and the cost of all of it (SPIR-V
//! 1.6, 2.4, 2.11 and 2.16.1).

use super::*;

const FIRST: u32 = 30;

fn label(id: u32) -> Vec<u32> {
    op(248, &[id])
}

fn branch(to: u32) -> Vec<u32> {
    op(249, &[to])
}

/// A branch on `true`.
fn branch_if(yes: u32, no: u32) -> Vec<u32> {
    op(250, &[12, yes, no])
}

fn selection_merge(block: u32) -> Vec<u32> {
    op(247, &[block, 0])
}

fn back() -> Vec<u32> {
    op(253, &[])
}

/// The module with this body and without more declarations.
fn body(words: &[Vec<u32>]) -> Vec<u32> {
    running(&[], words)
}

/// A function without parameters, whose only block has these instructions.
fn function(id: u32, instructions: &[Vec<u32>]) -> Vec<u32> {
    [op(54, &[2, id, 0, 3]), label(id + 400), instructions.concat(), back(), op(56, &[])].concat()
}

/// A call whose result is never used.
fn call(result: u32, callee: u32) -> Vec<u32> {
    op(57, &[2, result, callee])
}

/// The module with these functions behind `main`.
fn followed_by(functions: &[Vec<u32>]) -> Vec<u32> {
    let mut words = with("end", &[op(56, &[]), functions.concat()].concat());
    words[3] = LIMITS.ids;
    words
}

#[test]
fn each_terminator_ends_its_block_and_nothing_else_does() {
    let mesh = op(5294, &[13, 13, 13]);
    let terminators = [
        ("OpBranch", branch(41)),
        ("OpBranchConditional", branch_if(41, 41)),
        ("OpBranchConditional with weights", op(250, &[12, 41, 41, 1, 2])),
        ("OpSwitch", op(251, &[13, 41])),
        ("OpKill", op(252, &[])),
        ("OpReturn", back()),
        ("OpUnreachable", op(255, &[])),
        ("OpTerminateInvocation", op(4416, &[])),
        ("OpEmitMeshTasksEXT", mesh),
    ];
    let load = op(61, &[4, 50, 34]);
    let chain = op(65, &[14, 34, 10, 13]);
    for (what, terminator) in terminators {
        let with_tail = |tail: &[u32]| {
            // `MeshShadingEXT`.
            let all = [label(FIRST), chain.clone(), terminator.clone(), tail.to_vec(), label(41), back()];
            with_capabilities(body(&all), &[5283])
        };
        let device = device_with_everything();
        assert!(check(&with_tail(&[]), &device, &LIMITS).is_ok(), "{what}");
        assert_eq!(said(&device, &with_tail(&load)), "OpLoad %50: misplaced instruction", "behind {what}");
        assert_eq!(said(&device, &with_tail(&back())), "OpReturn: misplaced instruction", "behind {what}");
    }
    let open = body(&[label(FIRST), chain.clone(), label(41), back()]);
    assert_eq!(said(&device(), &open), "OpLabel %41: misplaced instruction");
    let never_ends = body(&[label(FIRST), chain]);
    assert_eq!(said(&device(), &never_ends), "OpFunctionEnd: misplaced instruction");
}

#[test]
fn instructions_of_functions_stand_in_their_order() {
    let parameter = op(55, &[4, 50]);
    let twins: &[Twin<'_>] = &[
        (
            "a function has a block",
            body(&[label(FIRST), back()]),
            body(&[]),
            "OpFunctionEnd: misplaced instruction",
        ),
        (
            "functions do not nest",
            followed_by(&[function(90, &[])]),
            body(&[label(FIRST), back(), function(90, &[])]),
            "OpFunction %90: misplaced function",
        ),
        (
            "instructions stand in functions",
            body(&[label(FIRST), op(61, &[5, 50, 10]), back()]),
            followed_by(&[op(61, &[5, 50, 10])]),
            "OpLoad %50: misplaced instruction",
        ),
        (
            "instructions stand in blocks",
            body(&[label(FIRST), op(61, &[5, 50, 10]), back()]),
            body(&[op(61, &[5, 50, 10]), label(FIRST), back()]),
            "OpLoad %50: misplaced instruction",
        ),
        (
            "parameters stand before the first block",
            body(&[label(FIRST), back()]),
            body(&[label(FIRST), parameter.clone(), back()]),
            "OpFunctionParameter %50: misplaced instruction",
        ),
        (
            "parameters do not stand between blocks",
            body(&[label(FIRST), back()]),
            body(&[label(FIRST), back(), parameter]),
            "OpFunctionParameter %50: misplaced instruction",
        ),
        (
            "a function has a function type",
            followed_by(&[function(90, &[])]),
            followed_by(&[op(54, &[2, 90, 0, 2]), label(91), back(), op(56, &[])]),
            "OpFunction %90: id %2 is no function type",
        ),
    ];
    check_twins(&device(), twins);
}

#[test]
fn a_function_has_the_parameters_of_its_type_and_calls_have_its_arguments() {
    let module = |parameters: &[u32], arguments: &[u32]| {
        let parameters = parameters.iter().flat_map(|id| op(55, &[4, *id])).collect();
        let callee = [op(54, &[2, 90, 0, 51]), parameters, label(91), back(), op(56, &[])].concat();
        let call = op(57, &[&[2, 50, 90], arguments].concat());
        let types = behind_zero(&[op(33, &[51, 2, 4, 4])]);
        with_all(&[("zero", types), ("load", call), ("phi", vec![]), ("end", [op(56, &[]), callee].concat())])
    };
    let (two, both) = ([92, 93], [13, 13]);
    let twins: &[Twin<'_>] = &[
        (
            "not too few parameters",
            module(&two, &both),
            module(&two[..1], &both),
            "OpLabel %91: types of parameters differ",
        ),
        (
            "not too many parameters",
            module(&two, &both),
            module(&[92, 93, 94], &both),
            "OpFunctionParameter %94: types of parameters differ",
        ),
        (
            "not too few arguments",
            module(&two, &both),
            module(&two, &both[..1]),
            "OpFunctionCall %50: types of arguments differ",
        ),
        (
            "not too many arguments",
            module(&two, &both),
            module(&two, &[13; 3]),
            "OpFunctionCall %50: types of arguments differ",
        ),
        (
            "arguments are values",
            module(&two, &both),
            module(&two, &[13, 4]),
            "OpFunctionCall %50: id %4 is no value",
        ),
        (
            "the first one too",
            module(&two, &both),
            module(&two, &[4, 13]),
            "OpFunctionCall %50: id %4 is no value",
        ),
    ];
    check_twins(&device(), twins);
}

#[test]
fn variables_open_the_first_block() {
    let variable = |id| op(59, &[50, id, 7]);
    let pointer = [op(32, &[50, 7, 4]), op(4417, &[49, 7])];
    let untyped = |id| op(4418, &[49, id, 7, 4]);
    let module = |words: &[Vec<u32>]| running(&pointer, words);
    let (undef, line) = (op(1, &[4, 60]), op(317, &[]));
    let valid = module(&[label(FIRST), variable(51), line.clone(), undef, untyped(52), variable(53), back()]);
    let second = |variable: Vec<u32>| module(&[label(FIRST), branch(41), label(41), variable, back()]);
    let late = |variable: Vec<u32>| module(&[label(FIRST), op(61, &[5, 60, 10]), line, variable, back()]);
    let after_call = module(&[label(FIRST), call(60, 90), variable(51), back()]);
    let twins: &[Twin<'_>] = &[
        ("in the first block", valid.clone(), second(variable(51)), "OpVariable %51: misplaced variable"),
        (
            "untyped ones too",
            valid.clone(),
            second(untyped(51)),
            "OpUntypedVariableKHR %51: misplaced variable",
        ),
        ("before all else", valid.clone(), late(variable(51)), "OpVariable %51: misplaced variable"),
        ("before calls", valid.clone(), after_call, "OpVariable %51: misplaced variable"),
        (
            "of storage class Function",
            valid.clone(),
            running(&[op(32, &[50, 6, 4])], &[label(FIRST), op(59, &[50, 51, 6]), back()]),
            "OpVariable %51: types of a variable and its place differ",
        ),
        (
            "and others are not of it",
            valid,
            declaring(&[op(32, &[50, 7, 4]), op(59, &[50, 51, 7])]),
            "OpVariable %51: types of a variable and its place differ",
        ),
    ];
    check_twins(&device(), twins);
}

#[test]
fn phis_open_a_block_that_is_not_the_first() {
    let phi = |id, from| op(245, &[4, id, 13, from]);
    let line = op(317, &[]);
    let valid = body(&[
        label(FIRST),
        branch(41),
        label(41),
        line.clone(),
        phi(50, FIRST),
        line,
        phi(51, FIRST),
        back(),
    ]);
    let merged =
        [label(FIRST), branch(41), label(41), selection_merge(42), phi(50, FIRST), branch_if(42, 42)];
    let twins: &[Twin<'_>] = &[
        (
            "not in the first block",
            valid.clone(),
            body(&[label(FIRST), phi(50, FIRST), back()]),
            "OpPhi %50: misplaced phi",
        ),
        (
            "not behind a call",
            valid.clone(),
            body(&[label(FIRST), branch(41), label(41), call(60, 90), phi(50, FIRST), back()]),
            "OpPhi %50: misplaced phi",
        ),
        (
            "not behind a merge instruction",
            valid.clone(),
            body(&[merged.concat(), label(42), back()]),
            "OpPhi %50: misplaced phi",
        ),
    ];
    check_twins(&device(), twins);
    // A value from a block that is still to come is known when the function ends.
    let around = |value| {
        let (head, tail) = (op(245, &[4, 50, 13, FIRST, value, 42]), op(128, &[4, 51, 13, 13]));
        body(&[label(FIRST), branch(41), label(41), head, branch(42), label(42), tail, branch(41)])
    };
    assert!(judge(&around(51)).is_ok());
    assert_eq!(judge(&around(52)), Err(ErrorKind::IdMissing(52)));
}

#[test]
fn a_merge_instruction_stands_before_the_branch_that_it_is_about() {
    let selection = |end: Vec<u32>| body(&[label(FIRST), selection_merge(41), end, label(41), back()]);
    let looping = |end: Vec<u32>| {
        let head = [label(FIRST), branch(40), label(40), op(246, &[41, 42, 0])];
        body(&[head.concat(), end, label(42), branch(40), label(41), back()])
    };
    for end in [branch_if(41, 41), op(251, &[13, 41]), [op(317, &[]), branch_if(41, 41)].concat()] {
        assert!(judge(&selection(end.clone())).is_ok(), "{end:?}");
    }
    for end in [branch(42), branch_if(42, 41)] {
        assert!(judge(&looping(end.clone())).is_ok(), "{end:?}");
    }
    for (name, end) in [("OpReturn", back()), ("OpKill", op(252, &[])), ("OpLoad %50", op(61, &[5, 50, 10]))]
    {
        let expected = format!("{name}: misplaced merge instruction");
        assert_eq!(said(&device(), &selection(end.clone())), expected);
        assert_eq!(said(&device(), &looping(end)), expected);
    }
}

#[test]
fn branches_and_merges_name_blocks_of_their_function_and_not_its_first() {
    let looping = |merge, continues| {
        let head = [label(FIRST), branch(40), label(40), op(246, &[merge, continues, 0]), branch(42)];
        body(&[head.concat(), label(42), branch(40), label(41), back()])
    };
    let switch = |default, target| {
        let head = [label(FIRST), selection_merge(41), op(251, &[13, default, 5, target])];
        body(&[head.concat(), label(41), back()])
    };
    let first = "OpFunctionEnd: id %30 is no block to branch to";
    let twins: &[Twin<'_>] = &[
        ("a merge block", looping(41, 42), looping(FIRST, 42), first),
        ("a continue target", looping(41, 42), looping(41, FIRST), first),
        (
            "a value as a continue target",
            looping(41, 42),
            looping(41, 13),
            "OpFunctionEnd: id %13 is no block to branch to",
        ),
        ("a default", switch(41, 41), switch(FIRST, 41), first),
        ("a case", switch(41, 41), switch(41, FIRST), first),
        (
            "a value as a default",
            switch(41, 41),
            switch(13, 41),
            "OpFunctionEnd: id %13 is no block to branch to",
        ),
        (
            "a block of another function",
            followed_by(&[function(90, &[])]),
            followed_by(&[op(54, &[2, 90, 0, 3]), label(91), branch(33), op(56, &[])]),
            "OpFunctionEnd: id %33 is not defined here",
        ),
        (
            "a value of another function",
            followed_by(&[function(90, &[op(61, &[5, 91, 10])])]),
            followed_by(&[function(90, &[op(61, &[4, 91, 34])])]),
            "OpLoad %91: id %34 is not defined here",
        ),
        (
            "a merge block that has one already",
            body(&nested(2)),
            body(&[label(FIRST), selection_merge(40), branch_if(41, 40), label(41), selection_merge(40)]),
            "OpSelectionMerge: misplaced merge block",
        ),
    ];
    check_twins(&device(), twins);
}

/// Selections of this depth, one inside the other.
fn nested(depth: u32) -> Vec<Vec<u32>> {
    let open = (0..depth)
        .flat_map(|at| [label(FIRST + at), selection_merge(99 - at), branch_if(FIRST + at + 1, 99 - at)]);
    let inner = [label(FIRST + depth), branch(100 - depth)];
    let close = (1..depth).rev().flat_map(|at| [label(99 - at), branch(100 - at)]);
    open.chain(inner).chain(close).chain([label(99), back()]).collect()
}

#[test]
fn blocks_nest_so_deep_and_no_deeper() {
    let most = LIMITS.nesting;
    assert_eq!(judge(&body(&nested(most))).map(|_| ()), Ok(()));
    let error = said(&device(), &body(&nested(most + 1)));
    assert_eq!(error, "OpSelectionMerge: more nested blocks (shader_nesting) than the limit");
    // Selections one after the other are not nested.
    let flat = (0..2 * most).flat_map(|at| {
        let (here, next) = (FIRST + at, FIRST + at + 1);
        [label(here), selection_merge(next), branch_if(next, next)]
    });
    let flat: Vec<_> = flat.chain([label(FIRST + 2 * most), back()]).collect();
    assert_eq!(judge(&body(&flat)).map(|_| ()), Ok(()));
    // After the end of two selections, the limit allows as many selections as before.
    let over = [
        [label(30), selection_merge(99), branch_if(31, 99)].concat(),
        [label(31), selection_merge(98), branch_if(32, 98)].concat(),
        [label(32), selection_merge(33), branch_if(33, 33)].concat(),
        [label(33), selection_merge(34), branch_if(34, 34)].concat(),
    ];
    let more = |depth: u32| {
        let open =
            (34..34 + depth).flat_map(|at| [label(at), selection_merge(at + 40), branch_if(at + 1, at + 40)]);
        let inner = [label(34 + depth), branch(98)];
        let close = (34..34 + depth).rev().flat_map(|at| [label(at + 40), branch(98)]);
        let rest = [label(98), branch(99), label(99), back()];
        let all = [over.concat()].into_iter().chain(open).chain(inner).chain(close).chain(rest);
        judge(&body(&all.collect::<Vec<_>>())).map(|_| ())
    };
    assert_eq!(more(most - 2), Ok(()));
    assert_eq!(more(most - 1), Err(ErrorKind::Limit("nested blocks (shader_nesting)")));
}

#[test]
fn blocks_are_counted_by_function() {
    let blocks = |from: u32, count: u32| {
        let all = (from..from + count).flat_map(|id| [label(id), back()]);
        all.collect::<Vec<_>>().concat()
    };
    let two = |first, second| {
        let other = [op(54, &[2, 90, 0, 3]), blocks(300, second), op(56, &[])].concat();
        let mut words = [running(&[], &[blocks(100, first)]), other].concat();
        words[3] = LIMITS.ids;
        judge(&words).map(|_| ())
    };
    let too_many = Err(ErrorKind::Limit("blocks in a function (shader_blocks)"));
    assert_eq!(two(LIMITS.blocks, LIMITS.blocks), Ok(()));
    assert_eq!(two(LIMITS.blocks + 1, 1), too_many);
    assert_eq!(two(1, LIMITS.blocks + 1), too_many);
}

#[test]
fn a_function_does_not_come_back_to_itself() {
    let calls = |of_90: u32, of_91: u32| {
        followed_by(&[
            function(90, &[call(200, of_90)]),
            function(91, &[call(201, of_91)]),
            function(92, &[]),
        ])
    };
    let twins: &[Twin<'_>] = &[
        ("directly", calls(92, 92), calls(90, 92), "recursion"),
        ("by way of another", calls(91, 92), calls(91, 90), "recursion"),
        ("and calls a function", calls(91, 92), calls(3, 92), "OpFunctionCall %200: id %3 is no function"),
        ("that there is", calls(91, 92), calls(93, 92), "OpFunctionCall %200: id %93 is not defined here"),
    ];
    check_twins(&device(), twins);
}

#[test]
fn the_numbers_that_instructions_make_are_counted() {
    // 65 arrays of 1000 numbers are within the limit, 66 are not, whichever instruction moves them.
    let most = LIMITS.cost / 1000;
    let types = [op(43, &[4, 41, 1000]), op(28, &[42, 4, 41]), op(32, &[43, 12, 42]), op(59, &[43, 44, 12])];
    let null = op(46, &[42, 45]);
    type Move = fn(u32) -> Vec<u32>;
    let moves: [(&str, Move); 3] = [
        ("loads", |id| op(61, &[42, id, 44])),
        ("stores", |_| op(62, &[44, 45])),
        ("copies", |_| op(63, &[44, 44])),
    ];
    let of = |instruction: Move, count: u64| {
        let all = (0..count as u32).map(|id| instruction(200 + id)).collect::<Vec<_>>().concat();
        let mut words = running(&[types.concat(), null.clone()], &[label(FIRST), all, back()]);
        words[3] = LIMITS.ids;
        judge(&words).map(|_| ())
    };
    let too_much =
        Err(ErrorKind::Limit("instructions after inlining (shader_cost, raised by --max-shader-cost)"));
    for (what, instruction) in moves {
        assert_eq!(of(instruction, most), Ok(()), "{what}");
        assert_eq!(of(instruction, most + 1), too_much, "{what}");
    }
    // Each instruction counts as at least one, so the cost of the whole module is the number of its instructions.
    let words = module(&parts());
    let instructions = parts().iter().skip_while(|(name, _)| *name != "function").count() as u64;
    let within =
        |cost| check(&words, &device(), &Limits { cost, ..LIMITS }).map(|_| ()).map_err(|error| error.kind);
    assert_eq!(within(instructions), Ok(()));
    assert_eq!(within(instructions - 1), too_much);
    // And a call costs as much as its callee.
    let calls = |count: u64| {
        let all = (0..count as u32).map(|id| call(500 + id, 91)).collect::<Vec<_>>();
        let loads = (0..most as u32 / 2).map(|id| op(61, &[42, 200 + id, 44])).collect::<Vec<_>>();
        let mut words = running(&types, &[label(FIRST), all.concat(), back()]);
        words.extend(function(91, &loads));
        words[3] = LIMITS.ids;
        judge(&words).map(|_| ())
    };
    assert_eq!(calls(2), Ok(()));
    assert_eq!(calls(3), too_much);
}

/// `main` with these instructions, then a function with this number of parameters, which has these instructions.
fn calling_back(parameters: u32, instructions: &[Vec<u32>], of_function: &[Vec<u32>]) -> Vec<u32> {
    let numbers = vec![4; parameters as usize];
    let of_type = op(33, &[&[80, 4], &numbers[..]].concat());
    let main = running(&[of_type], &[vec![label(FIRST)], instructions.to_vec(), vec![back()]].concat());
    let given: Vec<u32> = (0..parameters).flat_map(|at| op(55, &[4, 91 + at])).collect();
    let ending = [op(254, &[91]), op(56, &[])].concat();
    let mut words = [main, op(54, &[4, 90, 0, 80]), given, label(100), of_function.concat(), ending].concat();
    words[3] = LIMITS.ids;
    words
}

#[test]
fn a_function_that_is_called_for_each_element_may_come_later_and_does_not_recur() {
    use ErrorKind::*;
    let reduce = |function| op(5366, &[4, 50, 10, 1, function]);
    let per_element = op(5369, &[4, 50, 10, 90, 10]);
    let load = |function| op(5367, &[4, 50, 13, 10, 10, 0, 2, function]);
    let view = op(5367, &[4, 50, 13, 10, 10, 0, 1, 10]);
    let judge =
        |words: &[u32]| check(words, &device_with_everything(), &LIMITS).map(|_| ()).map_err(|e| e.kind);
    let sound: &[(&str, u32, Vec<u32>)] = &[
        ("reduction", 2, reduce(90)),
        ("each element", 4, per_element.clone()),
        ("decoding", 3, load(90)),
        ("no decoding", 3, view),
    ];
    for (what, parameters, instruction) in sound {
        let words = calling_back(*parameters, std::slice::from_ref(instruction), &[]);
        assert_eq!(judge(&words), Ok(()), "{what}");
    }
    let wrong: &[(&str, u32, Vec<u32>, ErrorKind)] = &[
        ("no function", 2, reduce(10), IdKind(10, "function")),
        ("never defined", 2, reduce(99), IdMissing(99)),
        ("never defined", 3, load(99), IdMissing(99)),
        ("a parameter too many", 3, reduce(90), Mismatch("arguments")),
        ("a parameter too few", 3, per_element, Mismatch("arguments")),
        ("another number of parameters", 2, load(90), Mismatch("arguments")),
        ("a label for a function", 2, reduce(FIRST), IdKind(FIRST, "function")),
        ("a label as a value", 2, op(5366, &[4, 50, FIRST, 1, 90]), IdKind(FIRST, "value")),
    ];
    for (what, parameters, instruction, expected) in wrong {
        let words = calling_back(*parameters, std::slice::from_ref(instruction), &[]);
        assert_eq!(judge(&words), Err(*expected), "{what}");
    }
    let again = [op(5366, &[4, 60, 10, 1, 90]), op(5367, &[4, 60, 13, 10, 10, 0, 2, 90])];
    for (parameters, instruction) in [2, 3].into_iter().zip(again) {
        assert_eq!(judge(&calling_back(parameters, &[], &[instruction])), Err(Recursion), "of {parameters}");
    }
}
