//! Numbers that people give to tests in the environment.

use anyhow::{Context, Result};
use std::error::Error;
use std::str::FromStr;

/// Returns the number that an environment variable has; none if it is not set.
///
/// # Errors
///
/// The variable has something else.
pub fn number<T>(name: &str) -> Result<Option<T>>
where
    T: FromStr<Err: Error + Send + Sync + 'static>,
{
    let Some(value) = std::env::var_os(name) else { return Ok(None) };
    let number = value.to_string_lossy().parse();
    number.map(Some).with_context(|| format!("{name}={value:?} is not a number that fits"))
}
