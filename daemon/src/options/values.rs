//! The spelling of values, on the command line and in a file.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use config::{MemoryBackEnd, WINDOW_MAX, size};
use log::LevelFilter;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Bytes of the longest path that Linux takes (`PATH_MAX`).
pub const PATH_BYTES: usize = 4096;

/// Returns a parser for the values of a type, by their names. The help of the option explains each name; the names have no help of their own.
pub fn words<T: ValueEnum + Clone + Send + Sync + 'static>() -> impl TypedValueParser<Value = T> {
    let all = T::value_variants().iter().filter_map(T::to_possible_value);
    let names = all.map(|value| value.help(None::<&'static str>));
    PossibleValuesParser::new(names).try_map(|name| T::from_str(&name, false))
}

/// The kind of memory that guests map: one back end, or the first that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory(pub Option<MemoryBackEnd>);

/// The name of the choice among all back ends.
const AUTO: &str = "auto";

/// Reads a back end, or `auto`.
pub(super) fn memory() -> impl TypedValueParser<Value = Memory> {
    let auto = PossibleValue::new(AUTO).help("The first of the others that works on the GPU");
    let others = MemoryBackEnd::value_variants().iter().filter_map(MemoryBackEnd::to_possible_value);
    PossibleValuesParser::new(std::iter::once(auto).chain(others)).try_map(|name| match name.as_str() {
        AUTO => Ok(Memory(None)),
        name => MemoryBackEnd::from_str(name, false).map(|back_end| Memory(Some(back_end))),
    })
}

/// Reads a level of the log, the most severe first.
pub fn log_level() -> impl TypedValueParser<Value = LevelFilter> {
    PossibleValuesParser::new(["off", "error", "warn", "info", "debug", "trace"])
        .try_map(|name| name.parse::<LevelFilter>())
}

/// Returns a level of the log as [`log_level`] reads it.
#[must_use]
pub fn level_name(level: LevelFilter) -> String {
    level.as_str().to_ascii_lowercase()
}

/// Permissions of a socket file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketMode(pub u32);

/// Reads permissions in octal.
pub(super) fn socket_mode(text: &str) -> Result<SocketMode, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.map(SocketMode).ok_or_else(|| "not octal permissions from 0000 to 0777".into())
}

/// A group's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group(pub u32);

/// Reads a group's number, or looks up its name.
pub fn group(text: &str) -> Result<Group, String> {
    outside::group(text).map(Group).map_err(|error| error.to_string())
}

/// The sizes of the smallest and the largest window.
const WINDOW_SIZES: std::ops::RangeInclusive<u64> = 1 << 20..=WINDOW_MAX;

/// Reads the size of the window.
pub(super) fn window_size(text: &str) -> Result<u64, String> {
    let size = size(text)?;
    if !WINDOW_SIZES.contains(&size) || !size.is_power_of_two() {
        return Err("not a power of two from 1MiB to 256GiB".into());
    }
    Ok(size)
}

/// Reads a time of a test, in milliseconds.
pub(super) fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds = text.parse::<u32>().ok().filter(|milliseconds| *milliseconds != 0);
    milliseconds
        .map(|milliseconds| Duration::from_millis(milliseconds.into()))
        .ok_or_else(|| "not a whole number of milliseconds from 1".into())
}
