//! `vhost-user-vulkan trace`: an operator's end of a trace. It reads the broker's events about a VM's submissions, and writes a file in the Trace
//! Event Format, which Perfetto and `chrome://tracing` open.
//!
//! | file | is |
//! | --- | --- |
//! | `collected` | the events that were read, as many as are kept |
//! | `lanes` | which of several rows of a track a slice is on |
//! | `occupancy` | the holders of a GPU, and the part of some time that each held it |
//! | `picture` | the collected events as events of the format |
//! | `format` | events of the format, and the file |
//! | `rules` | the rules of the format, for tests |

mod collected;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod lanes;
mod occupancy;
mod picture;
#[cfg(any(test, feature = "fuzzing"))]
mod rules;

use crate::broker::{Answer, ClientError, Request, Stream, TraceEvent};
use collected::{Collected, Kept};
use outside::{Makes, tell};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Events that are kept by default: submissions, the times at which guests learned of their ends, and work of other VMs. The file then has at most
/// 200 MB.
pub const EVENTS_MAX: usize = 200_000;

/// Bytes of a line.
const LINE_BYTES: u64 = 64 << 10;
/// Time between two reports of progress.
const PROGRESS: Duration = Duration::from_secs(1);

/// The trace that an operator wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The VM's name.
    pub vm: String,
    /// The seconds that the trace takes; the broker checks their number.
    pub seconds: u32,
    /// The file that is written, if not the default one.
    pub output: Option<PathBuf>,
    /// Other VMs are named in the trace.
    pub names: bool,
    /// The number of events that are kept; the trace ends when more come.
    pub events_max: usize,
}

/// The reason why no trace is written.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// No broker listens, or the broker refuses, or sends anything other than a trace.
    #[error(transparent)]
    Broker(#[from] ClientError),
    /// The file cannot be written.
    #[error("{}: {}; --output names another file", .0.display(), .1)]
    File(PathBuf, io::Error),
    /// The system does not let signals be caught.
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
}

/// Takes a trace and writes it. SIGINT and SIGTERM end it early, and the events read by then are kept. Progress is shown on standard error.
///
/// # Errors
///
/// The broker gives no trace, or the file cannot be written.
pub fn take(socket: &Path, wanted: &Wanted) -> Result<(), TraceError> {
    let Wanted { vm, seconds, names, events_max, .. } = wanted;
    let request = Request::Trace { vm: vm.clone(), seconds: *seconds, names: *names };
    let (answer, mut stream) = Stream::open(socket, &request)?;
    let Answer::Tracing { begin } = answer else {
        return Err(ClientError::Protocol(socket.to_owned(), "no trace".into()).into());
    };
    for signal in [SIGINT, SIGTERM] {
        // A byte on the connection ends the trace.
        let socket = stream.socket().try_clone().map_err(TraceError::Signals)?;
        signal_hook::low_level::pipe::register(signal, socket).map_err(TraceError::Signals)?;
    }
    // The file is made before the seconds of the trace pass, so that a failure does not cost them.
    let path = wanted.output.clone().unwrap_or_else(|| PathBuf::from(format!("{vm}-trace.json")));
    let failed = |error| TraceError::File(path.clone(), error);
    let file = outside::create(&path, Makes::Any).map_err(failed)?;
    let mut collected = Collected::new(vm, begin, *events_max);
    read(&mut stream, &mut collected, *seconds);
    let mut out = BufWriter::new(file);
    let picture = picture::picture(&collected);
    format::write(&mut out, &picture).and_then(|()| out.flush()).map_err(failed)?;
    say(&collected, &path);
    Ok(())
}

/// Reads until the last line. A broker that ends, or sends anything else, ends the trace; the events read before stay.
fn read(stream: &mut Stream, collected: &mut Collected, seconds: u32) {
    let (start, shows) = (Instant::now(), io::stderr().is_terminal());
    let mut shown = Duration::ZERO;
    loop {
        match stream.next_line::<TraceEvent>(LINE_BYTES) {
            Ok(Some(event)) => {
                if collected.keep(event) == Kept::NoRoom {
                    // The broker need not go on. Its last line still comes.
                    let mut socket = stream.socket();
                    let _ = socket.write_all(b"\n");
                }
                if collected.is_over() {
                    break;
                }
            }
            Ok(None) => break tell("vhost-user-vulkan: the broker has ended the trace early\n"),
            Err(error) => break tell(&format!("vhost-user-vulkan: the trace ends early: {error}\n")),
        }
        let passed = start.elapsed();
        if shows && passed >= shown {
            shown = passed + PROGRESS;
            let count = collected.submissions.len();
            tell(&format!("\r{} of {seconds} s, {count} submissions; Ctrl-C ends early ", passed.as_secs()));
        }
    }
    if shows {
        tell("\n");
    }
}

/// Tells the operator the contents of the file, and the parts that are missing.
fn say(collected: &Collected, path: &Path) {
    let seconds = |nanoseconds: u64| Duration::from_nanos(nanoseconds).as_secs_f64();
    let sum = |of: fn(&crate::broker::Submission) -> u64| -> f64 {
        seconds(collected.submissions.iter().map(of).fold(0, u64::saturating_add))
    };
    tell(&format!(
        "{}: {} submissions of {} in {:.1} s; together {:.3} s not ready, {:.3} s at the gate, {:.3} s in the driver, {:.3} s on the GPU\n",
        path.display(),
        collected.submissions.len(),
        collected.vm,
        seconds(collected.end() - collected.begin),
        sum(|s| s.ready - s.submitted),
        sum(|s| s.dispatched - s.ready),
        sum(|s| s.begin - s.dispatched),
        sum(|s| s.end - s.begin),
    ));
    tell("open it in https://ui.perfetto.dev or chrome://tracing; docs/trace.md says what it shows\n");
    collected.lacks().iter().for_each(|lack| tell(&format!("vhost-user-vulkan: {lack}\n")));
}
