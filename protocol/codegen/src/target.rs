//! Generated folders: writes them, or says how they differ from the content that it would write.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::emit::Output;

/// A folder that holds nothing but generated files.
#[derive(Debug)]
pub struct Target {
    /// The folder.
    pub folder: PathBuf,
    /// The complete content of the folder.
    pub outputs: Vec<Output>,
}

impl Target {
    /// Paths that are missing, different or left over.
    pub fn differences(&self) -> Result<Vec<PathBuf>> {
        let mut differences: Vec<PathBuf> = self.stale()?;
        for output in &self.outputs {
            let path = self.folder.join(&output.name);
            if fs::read_to_string(&path).ok().as_deref() != Some(output.text.as_str()) {
                differences.push(path);
            }
        }
        differences.sort();
        Ok(differences)
    }

    /// Brings the folder up to date. It does not touch files that are already right.
    pub fn write(&self) -> Result<()> {
        fs::create_dir_all(&self.folder)?;
        for path in self.differences()? {
            let output = self.outputs.iter().find(|o| path == self.folder.join(&o.name));
            match output {
                Some(output) => fs::write(&path, &output.text),
                None => fs::remove_file(&path),
            }
            .with_context(|| format!("{}", path.display()))?;
        }
        Ok(())
    }

    fn stale(&self) -> Result<Vec<PathBuf>> {
        if !self.folder.exists() {
            return Ok(Vec::new());
        }
        let wanted: BTreeSet<&Path> = self.outputs.iter().map(|o| Path::new(&o.name)).collect();
        let mut stale = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| !wanted.contains(Path::new(name))) {
                stale.push(path);
            }
        }
        Ok(stale)
    }
}
