//! A small compute module, and the errors when any part of it is wrong.

mod constants;
mod entry_points;
mod evaluation;
mod functions;
mod layout;
mod operands;
mod resources;
mod sets;
mod types;
mod typing;
mod uses;
mod valid;
mod workgroups;
mod zeros;

use super::*;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// The module in parts, so that a test can replace one.
fn parts() -> Vec<(&'static str, Vec<u32>)> {
    let main = [u32::from_le_bytes(*b"main"), 0];
    vec![
        ("capability", offered().iter().flat_map(|number| op(17, &[*number])).collect()),
        ("memory model", op(14, &[0, 1])),
        ("entry point", op(15, &[&[5, 1][..], &main, &[10, 11]].concat())),
        ("local size", op(16, &[1, 17, 64, 1, 1])),
        ("spec id", op(71, &[20, 1, 7])),
        ("descriptor set", op(71, &[11, 34, 0])),
        ("void", op(19, &[2])),
        ("function type", op(33, &[3, 2])),
        ("uint", op(21, &[4, 32, 0])),
        ("spec length", op(50, &[4, 20, 16])),
        ("array", op(28, &[5, 4, 20])),
        ("pointer", op(32, &[6, 4, 5])),
        ("shared", op(59, &[6, 10, 4])),
        ("struct", op(30, &[7, 5])),
        ("buffer pointer", op(32, &[8, 12, 7])),
        ("buffer", op(59, &[8, 11, 12])),
        ("bool", op(20, &[9])),
        ("true", op(41, &[9, 12])),
        ("zero", op(43, &[4, 13, 0])),
        ("element pointer", op(32, &[14, 4, 4])),
        ("function", op(54, &[2, 1, 0, 3])),
        ("label", op(248, &[30])),
        ("merge", op(247, &[33, 0])),
        ("branch", op(250, &[12, 31, 33])),
        ("then", op(248, &[31])),
        ("chain", op(65, &[14, 34, 10, 13])),
        ("load", op(61, &[4, 35, 34])),
        ("leave", op(249, &[33])),
        ("join", op(248, &[33])),
        ("phi", op(245, &[4, 36, 35, 31, 13, 30])),
        ("return", op(253, &[])),
        ("end", op(56, &[])),
    ]
}

/// The capabilities of a device without extensions.
fn offered() -> &'static BTreeSet<u32> {
    static OFFERED: LazyLock<BTreeSet<u32>> =
        LazyLock::new(|| enabled(|enable| !matches!(enable, grammar::Enable::Extension(_))));
    &OFFERED
}

fn op(opcode: u32, operands: &[u32]) -> Vec<u32> {
    [&[(operands.len() as u32 + 1) << 16 | opcode][..], operands].concat()
}

fn module(parts: &[(&str, Vec<u32>)]) -> Vec<u32> {
    let header = [0x0723_0203, 0x1_0300, 0, 100, 0];
    [&header[..], &parts.iter().flat_map(|(_, words)| words.clone()).collect::<Vec<_>>()].concat()
}

const LIMITS: Limits = Limits {
    words: 1 << 20,
    ids: 1000,
    type_depth: 8,
    blocks: 100,
    nesting: 4,
    cost: 1 << 16,
    variable_bytes: 1 << 12,
};

fn judge(words: &[u32]) -> Result<Module, ErrorKind> {
    judge_with(words, None)
}

fn judge_with(words: &[u32], specialisation: Option<&[(u32, u64)]>) -> Result<Module, ErrorKind> {
    let specialisation = specialisation.map(|values| values.iter().copied().collect());
    check(words, &Device { specialisation, ..device() }, &LIMITS).map_err(|error| error.kind)
}

/// A device without extensions, and no pipeline.
fn device() -> Device<'static> {
    Device {
        version: 0x1_0600,
        has_capability: &|number| offered().contains(&number),
        graphics: false,
        workgroup_size: [1024, 1024, 64],
        workgroup_invocations: 1024,
        workgroup_bytes: 32 << 10,
        descriptor_sets: 4,
        specialisation: None,
    }
}

/// The module with this part replaced by these words.
fn with(name: &str, words: &[u32]) -> Vec<u32> {
    with_all(&[(name, words.to_vec())])
}

/// The module with these parts replaced.
fn with_all(changes: &[(&str, Vec<u32>)]) -> Vec<u32> {
    let mut parts = parts();
    for (name, words) in changes {
        parts.iter_mut().find(|part| part.0 == *name).expect("there is such a part").1 = words.clone();
    }
    module(&parts)
}

/// The module with more capabilities, which the device of the tests does not have.
fn with_capabilities(mut words: Vec<u32>, numbers: &[u32]) -> Vec<u32> {
    words.splice(5..5, numbers.iter().flat_map(|number| op(17, &[*number])));
    words
}

/// The words of `zero`, followed by these words, which are more declarations.
fn behind_zero(words: &[Vec<u32>]) -> Vec<u32> {
    [op(43, &[4, 13, 0]), words.concat()].concat()
}

/// The module with these words behind the declaration of `zero`.
fn declaring(words: &[Vec<u32>]) -> Vec<u32> {
    with("zero", &behind_zero(words))
}

/// The module with these declarations behind `zero`, and with this body of `main`, which begins with its first label.
fn running(declarations: &[Vec<u32>], body: &[Vec<u32>]) -> Vec<u32> {
    let mut parts = parts();
    let part = |name| move |part: &(&str, Vec<u32>)| part.0 == name;
    parts.iter_mut().find(|found| part("zero")(found)).expect("it is there").1 = behind_zero(declarations);
    parts.truncate(parts.iter().position(part("label")).expect("it is there"));
    parts.push(("body", body.concat()));
    parts.push(("end", op(56, &[])));
    module(&parts)
}

/// Text as words, padded with zeros behind its terminator.
fn text(text: &str) -> Vec<u32> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(text.len() / 4 * 4 + 4, 0);
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// The instructions that some device offers, by number and name.
fn offered_instructions() -> impl Iterator<Item = (u16, &'static str)> {
    use generated::tables::{CAPABILITIES, INSTRUCTIONS};
    let is_offered = |number: &u32| grammar::row(CAPABILITIES, *number).is_some();
    let offered = move |capabilities: &[u32]| capabilities.is_empty() || capabilities.iter().any(is_offered);
    let found = INSTRUCTIONS.iter().filter(move |(_, found)| offered(found.capabilities));
    found.map(|(number, instruction)| (*number as u16, instruction.name))
}

/// A device with every extension, which serves all stages.
fn device_with_everything() -> Device<'static> {
    Device { has_capability: &|number| enabled(|_| true).contains(&number), graphics: true, ..device() }
}

/// Returns the text of an error behind the number of its word.
fn said(device: &Device<'_>, words: &[u32]) -> String {
    let error = check(words, device, &LIMITS).expect_err("it is wrong").to_string();
    error.split_once([',', ':']).expect("it begins with the word").1.trim().to_owned()
}

/// A rule, a module that keeps it, a module that breaks it, and the error for the second module.
type Twin<'t> = (&'t str, Vec<u32>, Vec<u32>, &'t str);

/// Checks that the device takes the first module of each pair and refuses the second.
fn check_twins(device: &Device<'_>, twins: &[Twin<'_>]) {
    for (rule, valid, wrong, expected) in twins {
        let found = check(valid, device, &LIMITS);
        assert!(found.is_ok(), "{rule}: {}", found.expect_err("it is refused"));
        assert_eq!(said(device, wrong), *expected, "{rule}");
    }
}

#[test]
fn a_sound_module_is_accepted_and_described() {
    let found = judge(&module(&parts())).unwrap();
    assert_eq!(found.entry_points, [EntryPoint { model: 5, name: b"main".to_vec(), launch: Ok(()) }]);
    assert_eq!(found.specialisable, [(7, 4)]);
    assert!(found.sizes_vary);
}

#[test]
fn headers_are_looked_at() {
    for (at, word) in [(0, 0x0302_2307), (1, 0x1_0700), (1, 0x1_0301), (1, 0x2_0000), (3, 0), (4, 1)] {
        let mut words = module(&parts());
        words[at] = word;
        assert_eq!(judge(&words), Err(ErrorKind::Header), "word {at}");
    }
    assert_eq!(judge(&[]), Err(ErrorKind::Header));
    let mut words = module(&parts());
    words[3] = LIMITS.ids + 1;
    assert!(matches!(judge(&words), Err(ErrorKind::Limit(_))));
    words[3] = 36;
    assert_eq!(judge(&words), Err(ErrorKind::IdRange(36)));
}

#[test]
fn whatever_is_wrong_is_refused() {
    use ErrorKind::*;
    let cases: &[(&str, Vec<u32>, ErrorKind)] = &[
        ("return", vec![253], Length),
        ("return", vec![3 << 16 | 253], Length),
        ("return", op(253, &[1]), Length),
        ("end", vec![9 << 16 | 56], Length),
        ("capability", op(17, &[4479]), Capability(4479)),
        ("capability", op(17, &[6]), Capability(6)),
        ("capability", op(17, &[99_999]), Capability(99_999)),
        ("chain", op(9999, &[14, 34]), Unknown("instruction")),
        ("memory model", vec![], Order("memory model")),
        ("memory model", [op(14, &[0, 1]), op(14, &[0, 1])].concat(), Order("memory model")),
        ("void", [op(19, &[2]), op(17, &[1])].concat(), Order("instruction")),
        ("entry point", op(15, &[5, 1, 0x6e69_616d, 0x6e69_616d]), Text),
        ("entry point", op(15, &[4, 1, 0]), NotOffered("a stage")),
        ("entry point", op(15, &[5, 2, 0]), IdKind(2, "function")),
        ("entry point", op(15, &[5, 1, 0, 2]), IdKind(2, "variable")),
        ("descriptor set", op(71, &[11, 34, 4]), NotOffered("a descriptor set (maxBoundDescriptorSets)")),
        ("descriptor set", op(71, &[99, 34, 0]), IdMissing(99)),
        ("uint", op(21, &[4, 33, 0]), Range("width of an integer")),
        ("uint", op(21, &[3, 32, 0]), IdTwice(3)),
        ("array", op(28, &[5, 4, 11]), IdMissing(11)),
        ("array", op(28, &[5, 2, 20]), IdKind(2, "type of values")),
        ("array", op(28, &[5, 20, 20]), IdKind(20, "type")),
        ("spec length", op(43, &[4, 20, 0]), Range("length of an array")),
        ("spec length", op(43, &[4, 20, u32::MAX]), Limit("bytes of variables (shader_variable_bytes)")),
        ("spec length", op(43, &[4, 20, 1 << 20]), Limit("bytes of variables (shader_variable_bytes)")),
        ("shared", op(59, &[6, 10, 6]), Mismatch("a variable and its pointer")),
        ("shared", op(59, &[4, 10, 4]), Mismatch("a variable and its pointer")),
        ("label", vec![], Order("instruction")),
        ("merge", op(247, &[30, 0]), Order("merge block")),
        ("branch", op(250, &[12, 31, 32]), IdMissing(32)),
        ("branch", op(250, &[12, 30, 33]), IdKind(30, "block to branch to")),
        ("branch", op(250, &[12, 13, 33]), IdKind(13, "block to branch to")),
        ("branch", op(250, &[30, 31, 33]), IdKind(30, "value")),
        ("leave", vec![], Order("instruction")),
        ("leave", op(249, &[1]), IdKind(1, "block to branch to")),
        ("load", op(61, &[4, 35, 36]), IdMissing(36)),
        ("load", op(61, &[13, 35, 34]), IdKind(13, "type")),
        ("load", op(61, &[4, 34, 34]), IdTwice(34)),
        ("phi", op(245, &[4, 36, 35, 31, 37, 30]), IdMissing(37)),
        ("phi", op(245, &[4, 36, 35]), Length),
        ("load", [op(61, &[4, 35, 34]), op(245, &[4, 40, 13, 30])].concat(), Order("phi")),
        ("load", [op(61, &[4, 35, 34]), op(57, &[2, 60, 1])].concat(), Recursion),
        ("load", [op(61, &[4, 35, 34]), op(57, &[2, 60, 1, 13])].concat(), Mismatch("arguments")),
        ("load", [op(61, &[4, 35, 34]), op(57, &[2, 60, 10])].concat(), IdKind(10, "function")),
        ("end", vec![], Order("end")),
        ("return", [op(253, &[]), op(248, &[41])].concat(), Order("instruction")),
        ("struct", [op(74, &[7])].concat(), Order("instruction")),
        (
            "void",
            [op(73, &[50]), op(74, &[50, 50]), op(19, &[2])].concat(),
            IdKind(50, "target of a decoration group"),
        ),
    ];
    for (name, words, expected) in cases {
        assert_eq!(judge(&with(name, words)), Err(*expected), "{name} {words:?}");
    }
}

#[test]
fn types_nest_so_deep_and_no_deeper() {
    let nested = |depth: u32| {
        let structs = (0..depth).flat_map(|i| op(30, &[50 + i, if i == 0 { 4 } else { 49 + i }]));
        with("zero", &[op(43, &[4, 13, 0]), structs.collect()].concat())
    };
    assert!(judge(&nested(LIMITS.type_depth)).is_ok());
    assert!(matches!(judge(&nested(LIMITS.type_depth + 1)), Err(ErrorKind::Limit(_))));
}

#[test]
fn calls_that_double_at_each_level_are_counted() {
    let function = |id: u32, callee: Option<u32>| {
        let calls = callee
            .into_iter()
            .flat_map(|callee| (0..2).flat_map(move |i| op(57, &[2, 200 + id * 2 + i, callee])));
        [op(54, &[2, id, 0, 3]), op(248, &[300 + id]), calls.collect(), op(253, &[]), op(56, &[])].concat()
    };
    let tower = |levels: u32| {
        let functions: Vec<_> = (0..levels).flat_map(|i| function(50 + i, (i > 0).then(|| 49 + i))).collect();
        let mut words = with("end", &[op(56, &[]), functions].concat());
        words[3] = LIMITS.ids;
        words
    };
    assert!(judge(&tower(10)).is_ok());
    assert!(matches!(judge(&tower(20)), Err(ErrorKind::Limit(_))));
}

#[test]
fn sizes_are_judged_with_the_values_of_specialisation() {
    let words = module(&parts());
    let with_length = |length: u64| judge_with(&words, Some(&[(7, length)]));
    assert!(with_length(1024).is_ok());
    assert_eq!(with_length(0), Err(ErrorKind::Range("length of an array")));
    assert_eq!(
        with_length(u64::from(u32::MAX)),
        Err(ErrorKind::Limit("bytes of variables (shader_variable_bytes)"))
    );
    assert!(matches!(with_length(1 << 20), Err(ErrorKind::Limit(_))));
    let unusable = with("spec length", &op(50, &[4, 20, 0]));
    assert!(judge(&unusable).is_ok());
    assert!(judge_with(&unusable, Some(&[(7, 1)])).is_ok());
    assert!(judge_with(&unusable, Some(&[(8, 1)])).is_err());
}

#[test]
fn workgroup_variables_get_a_null_and_nothing_else_changes() {
    let before = module(&parts());
    let after = zero::workgroup(&before).expect("it has a variable");
    assert_eq!(judge(&after).unwrap(), judge(&before).unwrap());
    let mut expected = with("shared", &[op(46, &[5, 100]), op(59, &[6, 10, 4, 100])].concat());
    expected[3] = 101;
    assert_eq!(after, expected);
    assert_eq!(zero::workgroup(&after), None);
}

#[test]
fn random_changes_are_survived() {
    let sound = module(&parts());
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as u32
    };
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut words = sound.clone();
        for _ in 0..1 + random() % 3 {
            let at = random() as usize % words.len();
            words[at] = match random() % 4 {
                0 => random(),
                1 => random() % 64,
                2 => words[at] ^ 1 << (random() % 32),
                _ => words[random() as usize % words.len()],
            };
        }
        if judge(&words).is_ok() {
            accepted += 1;
            zero::workgroup(&words);
        }
    }
    assert!((100..19_900).contains(&accepted), "{accepted}");
}
