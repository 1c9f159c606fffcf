//! The form of a module: its header, the order of its parts, and its end (SPIR-V 1.6, 2.3 and 2.4).

use super::*;

#[test]
fn versions_are_those_from_the_first_to_the_newest_of_the_device() {
    let of = |version, newest| {
        let mut words = module(&parts());
        words[1] = version;
        check(&words, &Device { version: newest, ..device() }, &LIMITS)
            .map_err(|error| error.kind)
            .map(|_| ())
    };
    for newest in [0x1_0000, 0x1_0300, 0x1_0600] {
        for version in (0x1_0000..=0x1_0700).step_by(0x100) {
            let expected = if version <= newest { Ok(()) } else { Err(ErrorKind::Header) };
            assert_eq!(of(version, newest), expected, "{version:#x} for {newest:#x}");
        }
        for version in [0, 0xff00, 0x1_0001, 0x1_0080, 0x101_0000, 0x8001_0000, u32::MAX] {
            assert_eq!(of(version, newest), Err(ErrorKind::Header), "{version:#x}");
        }
    }
}

#[test]
fn a_header_has_five_words_and_a_module_a_memory_model() {
    let words = module(&parts());
    for end in 0..5 {
        assert_eq!(judge(&words[..end]).map(|_| ()), Err(ErrorKind::Header), "{end} words");
    }
    assert_eq!(said(&device(), &words[..5]), "misplaced memory model");
    // The smallest module that there is.
    assert!(judge(&[&words[..5], &op(17, &[1]), &op(14, &[0, 1])].concat()).is_ok());
    // The generator may be any.
    let by_another = [&words[..2], &[0xdead_beef], &words[3..]].concat();
    assert!(judge(&by_another).is_ok());
}

#[test]
fn a_module_ends_between_functions() {
    let words = module(&parts());
    let functions = words.windows(2).position(|pair| pair == [5 << 16 | 54, 2]).expect("it has a function");
    let before = check(&words[..functions], &device(), &LIMITS).map_err(|error| error.kind);
    assert_eq!(before.map(|_| ()), Err(ErrorKind::IdMissing(1)), "the entry point's function is missing");
    for end in functions + 1..words.len() {
        let found = judge(&words[..end]).map(|_| ());
        assert!(matches!(found, Err(ErrorKind::Length | ErrorKind::Order("end"))), "{end} words: {found:?}");
    }
}

#[test]
fn the_limit_of_words_is_the_most() {
    let words = module(&parts());
    let within = |most: usize| check(&words, &device(), &Limits { words: most, ..LIMITS }).map(|_| ());
    assert_eq!(within(words.len()), Ok(()));
    assert_eq!(within(words.len() - 1), Err(ErrorKind::Limit("words (shader_bytes)").at(0)));
    let ids = |most| check(&words, &device(), &Limits { ids: most, ..LIMITS }).map(|_| ());
    assert_eq!(ids(100), Ok(()));
    assert_eq!(ids(99), Err(ErrorKind::Limit("ids (shader_ids)").at(0)));
}

/// An instruction of each part, in the order of the parts, with its name.
fn one_of_each_part() -> Vec<(&'static str, Vec<u32>)> {
    let main = [u32::from_le_bytes(*b"more"), 0];
    vec![
        ("OpCapability", op(17, &[1])),
        ("OpExtension", op(10, &text("SPV_KHR_non_semantic_info"))),
        ("OpExtInstImport %80", op(11, &[&[80][..], &text("GLSL.std.450")].concat())),
        ("OpMemoryModel", op(14, &[0, 1])),
        ("OpEntryPoint", op(15, &[&[5, 1][..], &main].concat())),
        ("OpExecutionMode", op(16, &[1, 17, 1, 1, 1])),
        ("OpString %81", op(7, &[&[81][..], &text("x.comp")].concat())),
        ("OpDecorate", op(71, &[11, 33, 0])),
        ("OpTypeFloat %82", op(22, &[82, 32])),
        ("OpFunction %83", [op(54, &[2, 83, 0, 3]), op(248, &[84]), op(253, &[]), op(56, &[])].concat()),
    ]
}

/// The whole module, with these words in front of the part that begins with this opcode.
fn inserted(before: u32, words: &[u32]) -> Vec<u32> {
    let mut parts = parts();
    let at = parts.iter().position(|(_, found)| found[0] & 0xffff == before).expect("it is there");
    parts.insert(at, ("inserted", words.to_vec()));
    module(&parts)
}

#[test]
fn parts_come_in_their_order() {
    // The opcodes before which there is room for each part, and those behind which a part is over.
    let own = [17, 14, 14, 14, 15, 16, 71, 71, 19, 54];
    let over = [(3, 15), (4, 16), (5, 71), (7, 19), (8, 33), (9, 56)];
    for (part, (name, words)) in one_of_each_part().into_iter().enumerate() {
        if name != "OpMemoryModel" {
            assert_eq!(judge(&inserted(own[part], &words)).map(|_| ()), Ok(()), "{name} at its own place");
        }
        for (_, before) in over.into_iter().filter(|(later, _)| *later > part) {
            let expected = format!("{name}: misplaced instruction");
            assert_eq!(said(&device(), &inserted(before, &words)), expected, "before {before}");
        }
    }
    // Everything but capabilities, extensions and imports comes behind the memory model.
    for (name, words) in one_of_each_part().into_iter().skip(4) {
        let expected = format!("{name}: misplaced memory model");
        assert_eq!(said(&device(), &inserted(14, &words)), expected);
    }
}

#[test]
fn each_instruction_belongs_to_the_part_that_its_name_says() {
    use crate::spirv::layout::section::{Section, of};
    let debug = [
        "OpSource",
        "OpSourceContinued",
        "OpSourceExtension",
        "OpName",
        "OpMemberName",
        "OpString",
        "OpModuleProcessed",
    ];
    for (number, name) in offered_instructions() {
        let found = of(number);
        let is_annotation = name.starts_with("OpDecorat")
            || name.starts_with("OpMemberDecorate")
            || name.starts_with("OpGroup") && name.ends_with("Decorate");
        assert_eq!(found == Some(Section::Annotations), is_annotation, "{name}");
        assert_eq!(found == Some(Section::Debug), debug.contains(&name), "{name}");
        assert_eq!(found == Some(Section::ExecutionModes), name.starts_with("OpExecutionMode"), "{name}");
    }
}

#[test]
fn lines_stand_among_declarations_and_in_functions() {
    let line = [op(8, &[81, 1, 1]), op(317, &[])].concat();
    let of = |parts: &[(&str, u32)]| {
        let string = op(7, &[&[81][..], &text("x.comp")].concat());
        let changed = parts.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let mut all = super::parts();
        for (name, words) in &mut all {
            if *name == "spec id" {
                *words = [string.clone(), words.clone()].concat();
            }
            if changed.contains(name) {
                words.extend(&line);
            }
        }
        judge(&module(&all)).map(|_| ())
    };
    for name in [
        "void", "array", "shared", "zero", "function", "label", "merge", "branch", "load", "leave", "join",
        "return", "end",
    ] {
        assert_eq!(of(&[(name, 0)]), Ok(()), "behind {name}");
    }
    assert_eq!(
        of(&[("spec id", 0)]),
        Err(ErrorKind::Order("instruction")),
        "a decoration is late behind a line"
    );
}
