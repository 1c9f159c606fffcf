//! The measures, by name. Everything that a measure needs is made before its time begins and ends after it, unless stated otherwise.

mod copies;
mod held;
mod objects;
mod scale;
mod submissions;

use crate::gpu::Gpu;
use crate::kernel::Shader;
use crate::memory::Kind;
use anyhow::{Context, Result, bail};
use std::str::SplitWhitespace;
use std::time::Duration;
use tests::looping_shader::GROUP;

/// The measures on one device.
pub(crate) struct Bench<'g> {
    gpu: &'g Gpu,
    /// The shader that computes in one workgroup.
    small: Shader<'g>,
}

/// Parameters of a measure, in the order in which they are asked for.
pub(crate) struct Words<'l>(SplitWhitespace<'l>);

impl<'l> Words<'l> {
    /// The words of a line.
    pub(crate) fn new(line: &'l str) -> Self {
        Self(line.split_whitespace())
    }

    fn word(&mut self) -> Result<&'l str> {
        self.0.next().context("a parameter is missing")
    }

    fn number(&mut self) -> Result<u64> {
        let word = self.word()?;
        word.parse().with_context(|| format!("{word:?} is no number"))
    }

    fn small(&mut self) -> Result<u32> {
        Ok(u32::try_from(self.number()?)?)
    }

    fn kind(&mut self) -> Result<Kind> {
        Kind::named(self.word()?)
    }

    fn time(&mut self) -> Result<Duration> {
        Ok(Duration::from_millis(self.number()?))
    }
}

impl<'g> Bench<'g> {
    /// Makes the objects that many measures need.
    pub(crate) fn new(gpu: &'g Gpu) -> Result<Self> {
        Ok(Self { gpu, small: Shader::new(gpu, GROUP)? })
    }

    /// Takes the measure that these words name.
    pub(crate) fn measure(&self, words: &mut Words<'_>) -> Result<String> {
        match words.word()? {
            "empty" => self.empty(words.time()?),
            "dispatch" => self.dispatch(words.time()?),
            "timeline" => self.timeline(words.time()?),
            "waits" => self.waits(Duration::from_micros(words.number()?), words.time()?),
            "paced" => self.paced(Duration::from_micros(words.number()?), words.time()?),
            "submissions" => self.submissions(words.number()? as usize, words.time()?),
            "graph" => self.graph(words.number()? as usize, words.number()? != 0, words.time()?),
            "record" => self.recording(words.small()?, words.time()?),
            "dispatches" => self.dispatches(words.small()?, words.time()?),
            "kernels" => {
                self.kernels(words.small()?, words.small()?, words.number()? as usize, words.time()?)
            }
            "upload" => self.upload(words.number()?, words.number()? != 0, words.time()?),
            "download" => self.download(words.number()?, words.number()? != 0, words.time()?),
            "hold" => self.hold(words.number()?, words.time()?),
            "write" => self.write(words.kind()?, words.number()?, words.time()?),
            "read" => self.read(words.kind()?, words.number()?, words.time()?),
            "allocate" => self.allocate(words.kind()?, words.number()?, words.number()? != 0, words.time()?),
            "pipelines" => {
                self.pipelines(words.small()?, words.small()?, words.number()? != 0, words.time()?)
            }
            "objects" => self.many_objects(words.number()? as usize, words.time()?),
            "maps" => self.many_maps(words.number()? as usize, words.number()?),
            other => bail!("{other:?} is no measure"),
        }
    }
}

fn missing(what: &str) -> Result<String> {
    Ok(serde_json::json!({ "missing": what }).to_string())
}
