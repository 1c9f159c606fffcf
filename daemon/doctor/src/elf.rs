//! The needs of a library according to its file (System V ABI, "Dynamic Section"). A file may have any size and any contents: this module reads
//! a bounded part of the file, and loads none of it.

use std::env::consts::ARCH;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The libraries that a library needs, and the folders in which the loader looks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The names of the libraries (`DT_NEEDED`).
    pub libraries: Vec<String>,
    /// The folders for these libraries, as the file names them (`DT_RUNPATH`).
    pub own_folders: Vec<String>,
    /// The folders for these libraries and all that they need in turn (`DT_RPATH`); empty if the file has `DT_RUNPATH`.
    pub inherited_folders: Vec<String>,
}

/// The kind of processor in an ELF file's header (`e_machine`) that runs this program.
pub(crate) const MACHINE: u16 = match ARCH.as_bytes() {
    b"x86_64" => 62,
    b"aarch64" => 183,
    b"riscv64" => 243,
    // Any kind counts as right.
    _ => 0,
};

/// Bytes of the file's header, of a program header, and of an entry of the dynamic section.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const ENTRY: usize = 16;
/// The most bytes that are read of the program headers and of the dynamic section.
const TABLE_MAX: u64 = 64 << 10;
/// The most bytes that are read of a name and of a list of folders.
const TEXT_MAX: u64 = 4096;

/// Kinds of program headers.
const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
/// Kinds of entries of the dynamic section.
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// Returns whether a file with this beginning is for this program's kind of processor.
pub(crate) fn is_own(file: &[u8]) -> bool {
    let machine = file.get(18..20).map(|two| u16::from_le_bytes([two[0], two[1]]));
    file.starts_with(b"\x7fELF\x02\x01") && (MACHINE == 0 || machine == Some(MACHINE))
}

impl Needs {
    /// Reads the needs of a library for this program's kind of processor. Returns none if the file is no such library.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let header = piece(file, 0, HEADER as u64);
        if !is_own(&header) || half(&header, 54)? != PROGRAM_HEADER as u64 {
            return None;
        }
        let headers = piece(file, word(&header, 32)?, half(&header, 56)? * PROGRAM_HEADER as u64);
        let (_, start, bytes, _) = parts(&headers).find(|(kind, ..)| *kind == PT_DYNAMIC)?;
        let dynamic = piece(file, start, bytes);
        let entries =
            || dynamic.chunks_exact(ENTRY).filter_map(|entry| Some((word(entry, 0)?, word(entry, 8)?)));
        let entries = || entries().take_while(|(kind, _)| *kind != DT_NULL);
        let texts = place(&headers, entries().find(|(kind, _)| *kind == DT_STRTAB)?.1)?;
        let of_kind = |wanted| {
            let values = entries().filter(move |(kind, _)| *kind == wanted);
            values.filter_map(|(_, at)| Some(text(file, texts.checked_add(at)?))).collect::<Vec<_>>()
        };
        let folders =
            |kind| of_kind(kind).iter().flat_map(|list| list.split(':')).map(str::to_owned).collect();
        let own_folders: Vec<String> = folders(DT_RUNPATH);
        let inherited_folders = if own_folders.is_empty() { folders(DT_RPATH) } else { Vec::new() };
        Some(Self { libraries: of_kind(DT_NEEDED), own_folders, inherited_folders })
    }
}

/// Returns the program headers: the kind of each, its place in the file, its bytes there, and its address.
fn parts(headers: &[u8]) -> impl Iterator<Item = (u64, u64, u64, u64)> {
    let part =
        |part: &[u8]| Some((word(part, 0)? & 0xffff_ffff, word(part, 8)?, word(part, 32)?, word(part, 16)?));
    headers.chunks_exact(PROGRAM_HEADER).filter_map(part)
}

/// Returns the place of an address in the file.
fn place(headers: &[u8], address: u64) -> Option<u64> {
    let mut loaded = parts(headers).filter(|(kind, ..)| *kind == PT_LOAD);
    loaded.find_map(|(_, start, bytes, begin)| {
        let within = address.checked_sub(begin).filter(|within| *within < bytes)?;
        start.checked_add(within)
    })
}

/// Returns a part of a file, or as much of the part as the file has.
fn piece(file: &File, start: u64, bytes: u64) -> Vec<u8> {
    let mut piece = vec![0; usize::try_from(bytes.min(TABLE_MAX)).unwrap_or(0)];
    let mut read = 0;
    while let Ok(more @ 1..) = file.read_at(&mut piece[read..], start.saturating_add(read as u64)) {
        read += more;
    }
    piece.truncate(read);
    piece
}

/// Returns the text at a place of the file, up to the text's end or to [`TEXT_MAX`].
fn text(file: &File, start: u64) -> String {
    let bytes = piece(file, start, TEXT_MAX);
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes).map(u64::from)
}

/// Libraries that tests make.
#[cfg(test)]
pub(crate) mod made {
    use super::*;

    /// Returns the file of a library for this kind of processor, with these entries of the dynamic section, each of them a text.
    pub(crate) fn library(entries: &[(u64, &str)]) -> Vec<u8> {
        const LOADED: u64 = 0x10_000;
        let texts_at = HEADER + 2 * PROGRAM_HEADER + (entries.len() + 2) * ENTRY;
        let (mut dynamic, mut texts) = (vec![DT_STRTAB, LOADED + texts_at as u64], b"\0".to_vec());
        for (kind, text) in entries {
            dynamic.extend([*kind, texts.len() as u64]);
            texts.extend(text.bytes().chain([0]));
        }
        dynamic.extend([DT_NULL, 0]);
        let end = (texts_at + texts.len()) as u64;
        let dynamic_at = (HEADER + 2 * PROGRAM_HEADER) as u64;
        let header = |kind, start, address, bytes| [kind, start, address, address, bytes, bytes, 8];
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(HEADER, 0);
        file[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        file[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
        file[54..58].copy_from_slice(&[PROGRAM_HEADER as u8, 0, 2, 0]);
        let headers = [
            header(PT_LOAD, 0, LOADED, end),
            header(PT_DYNAMIC, dynamic_at, LOADED + dynamic_at, dynamic.len() as u64 * 8),
        ];
        let words = headers.iter().flatten().chain(&dynamic);
        file.extend(words.flat_map(|word| word.to_le_bytes()));
        file.extend(texts);
        file
    }

    /// Returns the file of a library that needs these.
    pub(crate) fn needing(names: &[&str]) -> Vec<u8> {
        library(&names.iter().map(|name| (DT_NEEDED, *name)).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn needs(bytes: &[u8]) -> Option<Needs> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Needs::of(&file)
    }

    #[test]
    fn a_file_tells_what_it_needs_and_where_to_look() {
        let all = [(DT_NEEDED, "liba.so.1"), (DT_RPATH, "/old"), (DT_NEEDED, "libb.so")];
        let found = needs(&made::library(&all)).unwrap();
        assert_eq!(found.libraries, ["liba.so.1", "libb.so"]);
        assert_eq!((found.own_folders.len(), found.inherited_folders), (0, vec!["/old".to_owned()]));
        let both = needs(&made::library(&[(DT_RPATH, "/old"), (DT_RUNPATH, "/x:$ORIGIN")])).unwrap();
        assert_eq!(
            (both.own_folders, both.inherited_folders.len()),
            (vec!["/x".into(), "$ORIGIN".into()], 0)
        );
        assert_eq!(needs(&made::library(&[])), Some(Needs::default()));
    }

    #[test]
    fn this_program_needs_the_library_of_c() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let found = Needs::of(&file).unwrap().libraries;
        assert!(found.iter().any(|name| name.starts_with("libc.")), "{found:?}");
    }

    #[test]
    fn a_file_that_lies_costs_little_and_needs_nothing() {
        let sound = made::needing(&["liba.so.1"]);
        for length in 0..sound.len() {
            let _ = needs(&sound[..length]);
        }
        for at in 0..sound.len() {
            let mut changed = sound.clone();
            changed[at..sound.len().min(at + 8)].fill(0xff);
            let _ = needs(&changed);
        }
        let mut foreign = sound.clone();
        foreign[4] = 1;
        assert_eq!(needs(&foreign), None);
        let far = [&sound[..32], &u64::MAX.to_le_bytes(), &sound[40..]].concat();
        assert_eq!(needs(&far), None);
    }
}
