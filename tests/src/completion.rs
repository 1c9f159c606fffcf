//! llama.cpp generating text: the same model and arguments in a guest, through the bridge and on the host, so that the
//! words can be compared.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;

use crate::model::{self, Shape};
use crate::packages::{ClientRoot, Suite};
use crate::vm::Script;

/// Seed of the model that all tests use. Its words are far enough apart that rounding does not change them.
const SEED: u64 = 1;

/// The program prints from a thread of its own, and its end sometimes cuts off the last words (a dozen was seen): this number of words is generated
/// beyond those that are compared.
pub const SPARE_WORDS: u32 = 32;

/// The model file's bytes.
#[must_use]
pub fn model() -> Vec<u8> {
    model::make(&Shape::SMALL, SEED)
}

/// Arguments of `llama-completion`: all layers on the GPU, the likeliest word each time.
#[must_use]
pub fn arguments(model: &Path, words: u32) -> Vec<String> {
    let fixed = "-p hello --temp 0 --seed 1 -ngl 99 --ignore-eos --no-warmup --no-display-prompt -no-cnv";
    let mut arguments =
        vec!["-m".to_owned(), model.display().to_string(), "-n".to_owned(), words.to_string()];
    arguments.extend(fixed.split(' ').map(str::to_owned));
    arguments
}

/// A guest script that first runs `before` and then generates `words` and a few more, with which the output ends.
#[must_use]
pub fn script(before: &str, words: u32) -> Script {
    script_then(before, words, "")
}

/// A guest script like that of [`script`], which runs `after` when all words are printed. llama.cpp's messages are in `/tmp/log` then.
#[must_use]
pub fn script_then(before: &str, words: u32, after: &str) -> Script {
    let command = arguments(Path::new("/model.gguf"), words + SPARE_WORDS).join(" ");
    // Messages go to a file that is shown only when the program fails. Into a pipe the program prints no colours.
    let text = format!(
        "{before}
echo
echo '{MARK}'
set -o pipefail
llama-completion {command} </dev/null 2>/tmp/log | cat
status=$?
[ $status = 0 ] || cat /tmp/log
{after}
exit $status
"
    );
    Script::new(&text).with_file("model.gguf", model())
}

/// The first `words` that a guest generated when it ran [`script`].
#[must_use]
pub fn words_of(output: &str, words: u32) -> Option<String> {
    output.rsplit_once(MARK).map(|(_, text)| first_words(text, words))
}

/// The first `words` of `text`, with one space between.
#[must_use]
pub fn first_words(text: &str, words: u32) -> String {
    text.split_whitespace().take(words as usize).collect::<Vec<_>>().join(" ")
}

/// The first `words` that the host's software driver computes without any virtual GPU, for a guest with `client`'s Mesa.
///
/// # Errors
/// The program fails, or says too little.
pub fn native(client: &ClientRoot, words: u32) -> Result<String> {
    let mut command = client.native("llama-completion")?;
    if client.suite() == Suite::Trixie && !client.is_patched() {
        // Stock Mesa before 26.0 does not pass cooperative matrices on, and other shaders round differently.
        command.env("GGML_VK_DISABLE_COOPMAT", "1");
    }
    let said = first_words(&run(command, words + SPARE_WORDS)?, words);
    ensure!(said.split(' ').count() == words as usize, "llama-completion said only {said:?}");
    Ok(said)
}

/// Returns the words that `command`, a `llama-completion` without arguments, generates.
///
/// # Errors
/// The program fails, or says nothing.
pub fn run(mut command: Command, words: u32) -> Result<String> {
    let file = NamedTempFile::new()?;
    fs::write(file.path(), model())?;
    command.args(arguments(file.path(), words)).stdin(Stdio::null());
    let output = command.output().context("cannot run llama-completion")?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "llama-completion failed ({})\n{messages}", output.status);
    let words = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(!words.is_empty(), "llama-completion said nothing\n{messages}");
    Ok(words)
}

const MARK: &str = "--- words:";
