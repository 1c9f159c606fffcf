//! Folders that the service manager has made for this process.

use std::env::{split_paths, var_os};
use std::path::PathBuf;

/// Returns the folder for sockets, which is gone when the service ends (`RuntimeDirectory=`), if the manager has made one.
#[must_use]
pub fn runtime_folder() -> Option<PathBuf> {
    first("RUNTIME_DIRECTORY")
}

/// Returns the folder for state that survives a restart (`StateDirectory=`), if the manager has made one.
#[must_use]
pub fn state_folder() -> Option<PathBuf> {
    first("STATE_DIRECTORY")
}

/// Returns the first of the folders that a variable lists, as `PATH` does.
fn first(variable: &str) -> Option<PathBuf> {
    split_paths(&var_os(variable)?).next().filter(|folder| folder.is_absolute())
}
