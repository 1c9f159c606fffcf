//! Records the commands of real clients as seeds: the commands of one worker, in the order of execution.
//!
//! With `FUZZ_RECORD=<folder>` each worker that may write there (`--sandbox=none`) leaves a file with its commands, one behind the other,
//! as the target `venus_stream` reads them. It keeps the first few commands of each kind, and no long command.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

/// The number of commands of one kind that are kept.
const KEPT: u32 = 4;
/// Bytes of a command that is kept.
const LONGEST: usize = 4096;

struct Record {
    file: File,
    kept: FxHashMap<i32, u32>,
}

static RECORD: LazyLock<Option<Mutex<Record>>> = LazyLock::new(|| {
    let folder = std::env::var_os("FUZZ_RECORD")?;
    let file = File::create(Path::new(&folder).join(format!("commands_{}", std::process::id()))).ok()?;
    Some(Mutex::new(Record { file, kept: FxHashMap::default() }))
});

/// Returns whether commands are recorded.
pub fn is_wanted() -> bool {
    RECORD.is_some()
}

/// Records a command that is about to be executed; `bytes` is its encoding.
pub fn command(number: i32, bytes: &[u8]) {
    let Some(record) = RECORD.as_ref().filter(|_| bytes.len() <= LONGEST) else { return };
    let mut record = record.lock();
    let kept = record.kept.entry(number).or_default();
    *kept += 1;
    if *kept <= KEPT {
        // If a command cannot be written, the seed lacks it.
        let _ = record.file.write_all(bytes);
    }
}
