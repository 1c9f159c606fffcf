//! Independent Vulkan programs as clients: their list, the task of each, and the part of its output that is its result.
//!
//! `place` says where a client runs: on the host's driver, behind the bridge, or on a machine prepared by hand. `setup` is a daemon with a bridge,
//! `crowd` runs many clients at once and kills some, `turns` has two VMs share too little memory. `docs/clients.md` lists the findings.

pub mod crowd;
mod place;
mod setup;
pub mod turns;
mod whisper_model;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::completion;
use crate::packages::{ClientRoot, Device, Suite, Wheels};
use crate::program::Program as Running;

pub use place::{Machine, Packages, Place};
pub use setup::Setup;

/// An independent program with a task.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The name by which people know the client.
    pub name: &'static str,
    /// The program that is run.
    pub program: Program,
    /// The program's arguments; `FILES` in them is the folder with the clients' files.
    arguments: &'static [&'static str],
    /// The function that takes from the output the part that must be the same everywhere.
    result: fn(&str) -> String,
}

/// The source of a client.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// A Debian package: a name in `/usr/bin`, or a path.
    Debian(&'static str),
    /// Python packages, used by the script of this name among the clients' files.
    Python(&'static str),
}

/// The Python packages the scripts use, for Debian 12's interpreter.
pub const WHEELS: Wheels = Wheels {
    name: "clients-2",
    requirements: "\
cffi==2.1.1 --hash=sha256:34e261f78cb6ceaaa36f42f2613f4380d94d9c759a9c73c769ee6e0247364632
ncnn==1.0.20261020 --hash=sha256:8107eeaa269e7b725afdd5c4492109c2682de5bf2a76670ab5f8f5fbfe9c152d
numpy==2.4.6 --hash=sha256:89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93
pycparser==3.12 --hash=sha256:a076f3f489b39b43ed13563a1dafe42447445bec2e294154ec5c57fcdda4c85e
rendercanvas==2.7.2 --hash=sha256:0d98ca3f59fdf90c2601b6162f239d3beeced64d27d44bacb15c4253b21c4784
vkdispatch-core==0.1.0 --hash=sha256:a6f3d53c1f20c462eee2e4f6ce514660d346791ae39e212a9349c76c143b2e86
vkdispatch-vulkan-native==0.1.0 --hash=sha256:523adf892882ccc734df28cd6a522874b862eeda9739587165a11868de45a488
wgpu==0.32.0 --hash=sha256:6499a31b5a29a10b4f1089fea4a0806411f42605fa86b6c0b543a07ca0de8568
",
};

/// llama.cpp generating text.
pub const LLAMA: Client = Client {
    name: "llama.cpp",
    program: Program::Debian("llama-completion"),
    arguments: &[
        "-m",
        "FILES/model.gguf",
        "-n",
        "56",
        "-p",
        "hello",
        "--temp",
        "0",
        "--seed",
        "1",
        "-ngl",
        "99",
        "--ignore-eos",
        "--no-warmup",
        "--no-display-prompt",
        "-no-cnv",
    ],
    result: |output| completion::first_words(output, 56 - completion::SPARE_WORDS),
};

/// llama.cpp's own tests of single operators, a few that a software driver executes within seconds.
pub const OPERATORS: Client = Client {
    name: "llama.cpp operators",
    program: Program::Debian(OPERATORS_PROGRAM),
    arguments: &["-b", "Vulkan0", "-o", "SCALE,RMS_NORM,SSM_CONV,GELU,ARGMAX"],
    result: verdicts,
};

/// All of llama.cpp's tests of single operators: hours on a software driver.
pub const ALL_OPERATORS: Client = Client {
    name: "llama.cpp all operators",
    program: Program::Debian(OPERATORS_PROGRAM),
    arguments: &["-b", "Vulkan0"],
    result: verdicts,
};

/// whisper.cpp listening to a tone.
pub const WHISPER: Client = Client {
    name: "whisper.cpp",
    program: Program::Debian("whisper-cli"),
    arguments: &[
        "-m",
        "FILES/whisper.bin",
        "-f",
        "FILES/speech.wav",
        "-nf",
        "-bs",
        "1",
        "-bo",
        "1",
        "-nt",
        "-tp",
        "0",
        "-np",
    ],
    result: whole,
};

/// The program `many_threads` at `executable` on the bridge's `socket`: two threads of it compute on one device, and check each result.
///
/// # Errors
/// The packages cannot be had.
pub fn many_threads(executable: &Path, socket: &Path, rounds: &str) -> Result<Command> {
    let mut command = ClientRoot::open(Suite::Testing)?.own(executable, Device::Venus(socket))?;
    command.args(["--instances", "1", "--devices", "1", "--lanes", "2"]);
    command.args(["--words", "4096", "--steps", "500", "--rounds", rounds]);
    Ok(command)
}

/// A network in ncnn.
pub const NCNN: Client =
    Client { name: "ncnn", program: Program::Python("ncnn_network.py"), arguments: &[], result: whole };

/// The network in ncnn with one of its four arithmetics, in a quarter of the time.
pub const NCNN_SINGLE: Client = Client { name: "ncnn (fp32)", arguments: &["fp32"], ..NCNN };

/// Kernels, FFTs and reductions in vkdispatch, which brings VkFFT.
pub const VKDISPATCH: Client = Client {
    name: "vkdispatch and VkFFT",
    program: Program::Python("vkdispatch_fft.py"),
    arguments: &[],
    result: whole,
};

/// wgpu-native, which finds a device only if `--queues` is not `compute`.
pub const WGPU: Client =
    Client { name: "wgpu", program: Program::Python("wgpu_squares.py"), arguments: &[], result: whole };

/// Every client that computes on queues that only compute.
pub const ALL: [Client; 6] = [LLAMA, WHISPER, NCNN, VKDISPATCH, OPERATORS, ALL_OPERATORS];

const OPERATORS_PROGRAM: &str = "/usr/libexec/x86_64-linux-gnu/llama.cpp-tests/test-backend-ops";

/// The folder with models, recordings and scripts.
pub struct Files(TempDir);

impl Files {
    /// Writes the files.
    ///
    /// # Errors
    /// There is no room for 12 MB.
    pub fn write() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes);
        write("model.gguf", &completion::model())?;
        write("whisper.bin", &whisper_model::model())?;
        write("speech.wav", &whisper_model::speech())?;
        write("ncnn_network.py", include_bytes!("ncnn_network.py"))?;
        write("vkdispatch_fft.py", include_bytes!("vkdispatch_fft.py"))?;
        write("wgpu_squares.py", include_bytes!("wgpu_squares.py"))?;
        Ok(Self(folder))
    }

    /// The folder in which the files are.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Client {
    /// The command that runs the client in `place`.
    ///
    /// # Errors
    /// The place lacks the program.
    pub fn command(&self, place: &Place, files: &Files) -> Result<Command> {
        let mut command = place.command(self.program, files)?;
        let folder = files.path().to_string_lossy();
        command.args(self.arguments.iter().map(|argument| argument.replace("FILES", &folder)));
        Ok(command)
    }

    /// Runs the client to its end in `place`; returns its result.
    ///
    /// # Errors
    /// The client fails, says nothing, or takes longer than `limit`.
    pub fn run(&self, place: &Place, files: &Files, limit: Duration) -> Result<String> {
        self.result_of(&Running::start(self.command(place, files)?)?.wait(limit)?)
    }

    /// Returns the result in the client's output.
    ///
    /// # Errors
    /// The client failed or said nothing.
    pub fn result_of(&self, output: &Output) -> Result<String> {
        let text = String::from_utf8_lossy(&output.stdout);
        let messages = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} failed ({})\n{text}\n{messages}", self.name, output.status);
        let result = (self.result)(&text);
        ensure!(!result.is_empty(), "{} has no result\n{text}\n{messages}", self.name);
        Ok(result)
    }
}

/// The result of comparing a client's output in two places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Byte for byte the same.
    Same,
    /// The first line that differs, as it is in the first place and in the second.
    Differs(String, String),
}

/// The command that runs `executable`, the program `many_threads`, as a guest's: one thread repeats a computation in `rounds` rounds and checks each
/// result.
///
/// # Errors
/// Debian testing's Mesa cannot be had.
pub fn computing(executable: &Path, socket: &Path, rounds: &str) -> Result<Command> {
    let mut command = ClientRoot::open(Suite::Testing)?.own(executable, Device::Venus(socket))?;
    command.args(["--instances", "1", "--devices", "1", "--lanes", "1", "--rounds", rounds]);
    command.args(["--words", "4096", "--steps", "5000"]);
    Ok(command)
}

/// Runs `client` in both places, one after the other.
///
/// # Errors
/// The client fails in one of them.
pub fn compare(
    client: &Client,
    native: &Place,
    guest: &Place,
    files: &Files,
    limit: Duration,
) -> Result<Verdict> {
    let expected = client.run(native, files, limit).context("natively")?;
    let found = client.run(guest, files, limit).context("in the guest")?;
    let line = |text: &str, number: usize| text.lines().nth(number).unwrap_or("(nothing)").to_owned();
    let lines = expected.lines().count().max(found.lines().count());
    let differing = (0..lines).find(|&number| line(&expected, number) != line(&found, number));
    Ok(match differing {
        Some(number) => Verdict::Differs(line(&expected, number), line(&found, number)),
        None => Verdict::Same,
    })
}

fn whole(output: &str) -> String {
    output.trim().to_owned()
}

/// Returns the lines about operators that passed, failed or are not supported, without the colours.
fn verdicts(output: &str) -> String {
    let is_verdict = |line: &&str| line.starts_with("  ") && line.contains("): ");
    let plain =
        |line: &str| line.replace("\u{1b}[1;32m", "").replace("\u{1b}[1;31m", "").replace("\u{1b}[0m", "");
    output.lines().filter(is_verdict).map(|line| plain(line) + "\n").collect()
}
