//! The code that all targets share: it counts the inputs that they handle.
//!
//! The number of runs of a target means little, because most inputs are refused early. So each target also counts the commands, events or messages
//! that got through its decoder. Where the environment names a folder in `FUZZ_COUNTS`, each process keeps a file there, `<target>.<pid>`, with two
//! numbers: runs and commands. The file is written every second, so a process that is killed loses at most one second's counts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Defines a fuzz target: a function from bytes to how many commands were in them.
#[macro_export]
macro_rules! target {
    ($run:path) => {
        std::thread_local! {
            static COUNTS: std::cell::RefCell<$crate::Counts> = std::cell::RefCell::default();
        }
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            let commands = $run(bytes);
            COUNTS.with_borrow_mut(|counts| counts.add(commands));
        });
    };
}

/// The number of runs and commands that this process has handled so far.
#[derive(Debug)]
pub struct Counts {
    runs: u64,
    commands: u64,
    written: Instant,
    file: Option<PathBuf>,
}

impl Default for Counts {
    fn default() -> Self {
        let file = std::env::var_os("FUZZ_COUNTS").map(|folder| {
            let target = std::env::current_exe().ok().and_then(|exe| Some(exe.file_stem()?.to_owned()));
            let target = target.unwrap_or_default().to_string_lossy().into_owned();
            PathBuf::from(folder).join(format!("{target}.{}", std::process::id()))
        });
        Self { runs: 0, commands: 0, written: Instant::now(), file }
    }
}

impl Counts {
    /// Counts one complete run, with its commands.
    pub fn add(&mut self, commands: usize) {
        self.runs += 1;
        self.commands += commands as u64;
        if let Some(file) = &self.file
            && self.written.elapsed() >= EVERY
        {
            // The file is replaced as a whole, so that a reader never sees half of it.
            let aside = file.with_extension(format!("{}.new", std::process::id()));
            let text = format!("{} {}\n", self.runs, self.commands);
            if std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, file)).is_err() {
                eprintln!("fuzz: {} cannot be written", file.display());
                self.file = None;
            }
            self.written = Instant::now();
        }
    }
}

const EVERY: Duration = Duration::from_secs(1);
