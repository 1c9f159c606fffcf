//! Types: their parts, the sizes of their values, and the counts of the limits (SPIR-V 1.6, 2.8, 2.16.1 and 3.52.6).

use super::*;

/// A module that declares these words, mostly a type, as id 60.
fn declared(words: &[u32]) -> Vec<u32> {
    let before =
        [op(22, &[50, 32]), op(23, &[51, 50, 4]), op(26, &[52]), op(25, &[53, 50, 1, 0, 0, 0, 1, 0])];
    let constants = [op(43, &[4, 54, 3]), op(43, &[50, 55, 3]), op(22, &[56, 64]), op(21, &[57, 64, 1])];
    declaring(&[before.concat(), constants.concat(), op(43, &[57, 58, 3, 0]), words.to_vec()])
}

#[test]
fn numbers_have_the_widths_of_the_specification() {
    for width in 0..=130 {
        let is_width = [8, 16, 32, 64].contains(&width);
        let integer = judge(&declared(&op(21, &[60, width, 0])));
        let float = judge(&declared(&op(22, &[60, width])));
        let expected = |is_width, what| if is_width { Ok(()) } else { Err(ErrorKind::Range(what)) };
        assert_eq!(integer.map(|_| ()), expected(is_width, "width of an integer"), "{width}");
        // Floats of 8 bits have an encoding.
        assert_eq!(float.map(|_| ()), expected(is_width && width != 8, "width of a float"), "{width}");
    }
    for (signedness, is_valid) in [(0, true), (1, true), (2, false), (u32::MAX, false)] {
        assert_eq!(judge(&declared(&op(21, &[60, 32, signedness]))).is_ok(), is_valid, "{signedness}");
    }
}

#[test]
fn types_are_made_of_what_they_may_be_made_of() {
    let d = declared;
    let vector = |of, count| d(&op(23, &[60, of, count]));
    let matrix = |of, count| d(&op(24, &[60, of, count]));
    let array = |of, length| d(&op(28, &[60, of, length]));
    let image = |of| d(&op(25, &[60, of, 1, 0, 0, 0, 1, 0]));
    let (uint, float, boolean) = (4, 50, 9);
    let twins: &[Twin<'_>] = &[
        ("vectors of numbers", vector(float, 2), vector(51, 2), "OpTypeVector %60: id %51 is no scalar type"),
        ("vectors of truths", vector(boolean, 4), vector(7, 4), "OpTypeVector %60: id %7 is no scalar type"),
        ("but not of nothing", vector(uint, 3), vector(2, 3), "OpTypeVector %60: id %2 is no scalar type"),
        ("at least two", vector(uint, 2), vector(uint, 1), "OpTypeVector %60: size of a vector out of range"),
        ("at most four", vector(uint, 4), vector(uint, 5), "OpTypeVector %60: size of a vector out of range"),
        (
            "columns are vectors",
            matrix(51, 2),
            matrix(50, 2),
            "OpTypeMatrix %60: shape of a matrix out of range",
        ),
        ("two columns", matrix(51, 2), matrix(51, 1), "OpTypeMatrix %60: shape of a matrix out of range"),
        ("four columns", matrix(51, 4), matrix(51, 5), "OpTypeMatrix %60: shape of a matrix out of range"),
        (
            "a length is a constant",
            array(uint, 54),
            array(uint, 11),
            "OpTypeArray %60: id %11 is no integer constant",
        ),
        ("of an integer", array(uint, 58), array(uint, 55), "OpTypeArray %60: id %55 is no integer constant"),
        (
            "and not of a truth",
            array(uint, 54),
            array(uint, 12),
            "OpTypeArray %60: id %12 is no integer constant",
        ),
        (
            "and at least 1",
            array(uint, 54),
            array(uint, 13),
            "OpTypeArray %60: length of an array out of range",
        ),
        ("arrays hold values", array(51, 54), array(3, 54), "OpTypeArray %60: id %3 is no type of values"),
        (
            "and so do those without length",
            d(&op(29, &[60, uint])),
            d(&op(29, &[60, 2])),
            "OpTypeRuntimeArray %60: id %2 is no type of values",
        ),
        (
            "and structs",
            d(&op(30, &[60, 4, 51])),
            d(&op(30, &[60, 4, 3])),
            "OpTypeStruct %60: id %3 is no type of values",
        ),
        (
            "which may be empty",
            d(&op(30, &[60])),
            d(&op(30, &[60, 13])),
            "OpTypeStruct %60: id %13 is no type",
        ),
        (
            "pointers point to types",
            d(&op(32, &[60, 7, 4])),
            d(&op(32, &[60, 7, 13])),
            "OpTypePointer %60: id %13 is no type",
        ),
        (
            "functions return types",
            d(&op(33, &[60, 4])),
            d(&op(33, &[60, 13])),
            "OpTypeFunction %60: id %13 is no type",
        ),
        (
            "and take types",
            d(&op(33, &[60, 2, 4])),
            d(&op(33, &[60, 2, 4, 13])),
            "OpTypeFunction %60: id %13 is no type",
        ),
        ("texels are numbers", image(float), image(boolean), "OpTypeImage %60: id %9 is no scalar type"),
        ("or void", image(2), image(51), "OpTypeImage %60: id %51 is no scalar type"),
        (
            "images are sampled",
            d(&op(27, &[60, 53])),
            d(&op(27, &[60, 52])),
            "OpTypeSampledImage %60: id %52 is no image type",
        ),
        (
            "constants have types",
            d(&op(46, &[51, 60])),
            d(&op(46, &[13, 60])),
            "OpConstantNull %60: id %13 is no type",
        ),
    ];
    check_twins(&device(), twins);
}

#[test]
fn each_kind_of_nesting_counts_and_pointers_end_it() {
    const FIRST: u32 = 60;
    let structs = |id, of| op(30, &[id, of]);
    let arrays = |id, of| op(28, &[id, of, 54]);
    let endless = |id, of| op(29, &[id, of]);
    let pointers = |id, of| op(32, &[id, 12, of]);
    type Around = fn(u32, u32) -> Vec<u32>;
    let tower = |around: &[Around]| {
        let floors =
            around.iter().zip(FIRST..).map(|(around, id)| around(id, if id == FIRST { 4 } else { id - 1 }));
        judge(&declared(&floors.collect::<Vec<_>>().concat())).map(|_| ())
    };
    let too_deep = Err(ErrorKind::Limit("nested types (shader_type_depth)"));
    let most = LIMITS.type_depth as usize;
    for (what, around) in
        [("structs", structs as Around), ("arrays", arrays), ("arrays without length", endless)]
    {
        assert_eq!(tower(&vec![around; most]), Ok(()), "{what}");
        assert_eq!(tower(&vec![around; most + 1]), too_deep, "{what}");
    }
    let mixed: Vec<Around> = [structs as Around, arrays].into_iter().cycle().take(most).collect();
    assert_eq!(tower(&mixed), Ok(()));
    assert_eq!(tower(&[mixed.clone(), vec![arrays]].concat()), too_deep);
    assert_eq!(tower(&[mixed.clone(), vec![pointers], mixed].concat()), Ok(()));
    // Vectors and matrices are as deep as numbers.
    let matrices = |id, _| op(24, &[id, 51, 4]);
    assert_eq!(tower(&[vec![matrices as Around], vec![structs; most]].concat()), Ok(()));
    assert_eq!(tower(&[vec![matrices as Around], vec![structs; most + 1]].concat()), too_deep);
    // The deepest member counts, wherever it is.
    let flat =
        declared(&[structs(60, 4), structs(61, 60), op(30, &[62, 61, 4]), op(30, &[63, 4, 62])].concat());
    let shallow = Limits { type_depth: 3, ..LIMITS };
    let found = check(&flat, &device(), &shallow).map_err(|error| error.kind);
    assert_eq!(found.map(|_| ()), too_deep);
}

/// Returns whether a private variable may be an array of this length of the type; the rest of the module has no private variable.
fn private_array_is_ok(of: u32, declarations: &[Vec<u32>], length: u32) -> bool {
    let array = [op(43, &[4, 90, length]), op(28, &[91, of, 90]), op(32, &[92, 6, 91]), op(59, &[92, 93, 6])];
    judge(&declaring(&[declarations.concat(), array.concat()])).is_ok()
}

#[test]
fn sizes_are_sums_of_the_numbers_inside() {
    let vector = op(23, &[51, 4, 3]);
    let float_vector = [op(22, &[50, 32]), op(23, &[51, 50, 4])].concat();
    let types: [(&str, u32, u64, Vec<Vec<u32>>); 10] = [
        ("a byte", 60, 1, vec![op(21, &[60, 8, 0])]),
        ("a half", 60, 2, vec![op(22, &[60, 16])]),
        ("an integer", 60, 4, vec![op(21, &[60, 32, 1])]),
        ("a double", 60, 8, vec![op(22, &[60, 64])]),
        ("a truth", 9, 4, vec![]),
        ("a vector", 51, 12, vec![vector.clone()]),
        ("a matrix", 60, 32, vec![float_vector, op(24, &[60, 51, 2])]),
        ("a pointer", 60, 8, vec![op(32, &[60, 12, 4])]),
        ("an untyped pointer", 60, 8, vec![op(4417, &[60, 12])]),
        ("a struct", 60, 20, vec![vector, op(22, &[50, 64]), op(30, &[60, 51, 50])]),
    ];
    for (what, id, bytes, declarations) in types {
        let most = (LIMITS.variable_bytes / bytes) as u32;
        assert!(private_array_is_ok(id, &declarations, most), "{most} times {what}");
        assert!(!private_array_is_ok(id, &declarations, most + 1), "{} times {what}", most + 1);
    }
}

#[test]
fn variables_of_a_storage_class_are_counted_together() {
    let most = (LIMITS.variable_bytes / 4) as u32;
    let too_many = Err(ErrorKind::Limit("bytes of variables (shader_variable_bytes)"));
    let types = |class, first, second| {
        let pair = |id, length| {
            [op(43, &[4, id, length]), op(28, &[id + 1, 4, id]), op(32, &[id + 2, class, id + 1])]
        };
        [pair(60, first).concat(), pair(70, second).concat()].concat()
    };
    let private = |first, second| {
        let variables = [op(59, &[62, 63, 6]), op(59, &[72, 73, 6])].concat();
        judge(&declaring(&[types(6, first, second), variables])).map(|_| ())
    };
    // Variables of functions add up over all of them, as if all were inlined.
    let in_functions = |first, second| {
        let main = [op(248, &[30]), op(59, &[62, 63, 7]), op(253, &[])];
        let other = [op(54, &[2, 74, 0, 3]), op(248, &[75]), op(59, &[72, 73, 7]), op(253, &[]), op(56, &[])];
        judge(&[running(&[types(7, first, second)], &main), other.concat()].concat()).map(|_| ())
    };
    for (what, of) in [("private", &private as &dyn Fn(u32, u32) -> _), ("of functions", &in_functions)] {
        assert_eq!(of(most - 1, 1), Ok(()), "{what}");
        assert_eq!(of(most, 1), too_many, "{what}");
        assert_eq!(of(1, most), too_many, "{what}");
    }
    // Workgroup memory has a limit of its own. The module's array is 4 bytes as long as nothing is specialised.
    let shared = |length| {
        let array =
            [op(43, &[4, 60, length]), op(28, &[61, 4, 60]), op(32, &[62, 4, 61]), op(59, &[62, 63, 4])];
        judge(&declaring(&array)).map(|_| ())
    };
    let most = 16 * device().workgroup_bytes / 4 - 1;
    assert_eq!(shared(most), Ok(()));
    assert_eq!(shared(most + 1), too_many);
}

#[test]
fn untyped_variables_have_the_class_of_their_pointer_and_say_what_they_hold() {
    let module = |class, rest: &[u32]| {
        declaring(&[
            op(4417, &[60, 4]),
            op(4417, &[61, 12]),
            op(4418, &[&[60 + u32::from(class == 12), 62, class], rest].concat()),
        ])
    };
    let (workgroup, buffer) = (4, 12);
    let twins: &[Twin<'_>] = &[
        (
            "of a block",
            module(workgroup, &[5]),
            module(workgroup, &[]),
            "OpUntypedVariableKHR %62: no type of a variable's contents",
        ),
        (
            "of the pointer's class",
            module(workgroup, &[5]),
            module(6, &[5]),
            "OpUntypedVariableKHR %62: types of a variable and its pointer differ",
        ),
        (
            "that is untyped",
            module(buffer, &[]),
            declaring(&[op(4418, &[8, 62, 12, 7])]),
            "OpUntypedVariableKHR %62: types of a variable and its pointer differ",
        ),
        (
            "with contents that are a type",
            module(workgroup, &[4]),
            module(workgroup, &[13]),
            "OpUntypedVariableKHR %62: id %13 is no type",
        ),
    ];
    check_twins(&device(), twins);
    let most = 16 * device().workgroup_bytes / 4 - 1;
    let holding = |length| {
        let array =
            [op(43, &[4, 63, length]), op(28, &[64, 4, 63]), op(4417, &[60, 4]), op(4418, &[60, 62, 4, 64])];
        judge(&declaring(&array)).is_ok()
    };
    assert!(holding(most) && !holding(most + 1), "their bytes count");
}

#[test]
fn numbers_in_constants_are_counted() {
    // The module has three constants of one number, and each array one more: its length.
    let nulls = |lengths: &[u32]| {
        let one = |(at, length): (u32, &u32)| {
            [op(43, &[4, at, *length]), op(28, &[at + 1, 4, at]), op(46, &[at + 1, at + 2])].concat()
        };
        let all = (50..).step_by(3).zip(lengths).map(one).collect::<Vec<_>>();
        judge(&declaring(&all)).map(|_| ())
    };
    let too_many = Err(ErrorKind::Limit("numbers in constants (shader_cost, raised by --max-shader-cost)"));
    let most = LIMITS.cost as u32 - 4;
    assert_eq!(nulls(&[most]), Ok(()));
    assert_eq!(nulls(&[most + 1]), too_many);
    assert_eq!(nulls(&[most / 2, most / 2 - 1]), Ok(()));
    assert_eq!(nulls(&[most / 2, most / 2]), too_many);
}

#[test]
fn each_type_and_constant_that_a_device_may_offer_is_one() {
    use crate::spirv::layout::opcode;
    for (number, name) in offered_instructions() {
        let is_type = name.starts_with("OpType") && name != "OpTypeForwardPointer";
        let is_constant =
            ["OpConstant", "OpSpecConstant", "OpUndef"].iter().any(|start| name.starts_with(start));
        assert_eq!((opcode::is_type(number), opcode::is_constant(number)), (is_type, is_constant), "{name}");
    }
}
