//! llama.cpp's own benchmark: how fast it reads a prompt, and how fast it generates.

use super::figures::{Quartiles, Reading};
use super::sides::Side;
use super::taken::Taken;
use crate::model::{Shape, make};
use crate::program::{LIMIT, succeed};
use crate::stand::Place;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;
use tempfile::NamedTempFile;

/// The benchmark, its model and its arguments.
#[derive(Debug)]
pub struct Llama {
    program: PathBuf,
    model: PathBuf,
    arguments: Vec<String>,
    // Holds the model if this program made it.
    _made: Option<NamedTempFile>,
}

/// The arguments unless others are given. A prompt of half a thousand words consists of one large multiplication after the other.
const ARGUMENTS: &str = "-p 512 -n 64 -r 1 -ngl 99";
/// The arguments of a shorter run: a driver in software takes its time.
const FEWER: &str = "-p 64 -n 16 -r 1 -ngl 99";

impl Llama {
    /// A benchmark of this machine, with a model.
    #[must_use]
    pub fn on_machine(program: PathBuf, model: PathBuf, arguments: Option<String>) -> Self {
        let arguments = arguments.unwrap_or_else(|| ARGUMENTS.to_owned());
        Self {
            program,
            model,
            arguments: arguments.split_whitespace().map(str::to_owned).collect(),
            _made: None,
        }
    }

    /// The benchmark of the packages, with a small model of random weights.
    ///
    /// # Errors
    /// There is no room for the model.
    pub fn packaged() -> Result<Self> {
        let file = NamedTempFile::new()?;
        std::fs::write(file.path(), make(&Shape::SMALL, 1))?;
        let arguments = FEWER.split_whitespace().map(str::to_owned).collect();
        Ok(Self {
            program: "llama-bench".into(),
            model: file.path().to_owned(),
            arguments,
            _made: Some(file),
        })
    }
}

/// Nanoseconds for a token of the prompt, and for a generated token.
pub(super) fn take(side: &Side, place: &Place, llama: &Llama) -> Result<Taken> {
    let mut command = side.command(place, &llama.program)?;
    command.arg("-m").arg(&llama.model).args(&llama.arguments).args(["-o", "json"]);
    // Mesa does not pass on the matrices of this extension of one vendor's; with them, the host would run another program.
    command.env("GGML_VK_DISABLE_COOPMAT2", "1");
    let said = succeed(command, LIMIT)?;
    let said: Vec<Value> =
        serde_json::from_str(&said).with_context(|| format!("llama-bench said {said:?}"))?;
    // The median of its repetitions, because in the first a GPU that did nothing while a model was loaded has a low clock.
    let speed = |is_it: fn(&Value) -> bool| {
        let test = said.iter().find(|test| is_it(test))?;
        let repetitions = test["samples_ts"].as_array()?.iter().filter_map(Value::as_f64);
        Some(Reading::of(1e9 / Quartiles::of(repetitions.collect())?.median))
    };
    let prompt = speed(|test| test["n_prompt"].as_u64().unwrap_or(0) > 0);
    let generate = speed(|test| test["n_gen"].as_u64().unwrap_or(0) > 0);
    Ok(Taken::Readings(vec![prompt, generate], None))
}
