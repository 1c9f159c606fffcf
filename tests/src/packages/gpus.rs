//! The GPUs that a daemon lists on a driver, for programs that choose among them. Knows the form of `--list-gpus`.

use std::path::Path;

use anyhow::{Result, ensure};

use super::HostVulkan;

/// A GPU that guests can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGpu {
    /// The UUID, by which `--gpu` takes it.
    pub uuid: String,
    /// The name, with its driver and the version of Vulkan.
    pub name: String,
    /// The GPU is a software driver, which computes on the processor.
    pub software: bool,
}

impl HostVulkan {
    /// Has a daemon list the GPUs of this driver, and returns those that guests can use, in the daemon's order.
    ///
    /// # Errors
    /// The daemon cannot be run, or finds no driver.
    pub fn usable_gpus(&self, executable: &Path) -> Result<Vec<ListedGpu>> {
        let output = self.command(executable)?.arg("--list-gpus").output()?;
        ensure!(output.status.success(), "--list-gpus: {}", String::from_utf8_lossy(&output.stderr));
        Ok(usable(&String::from_utf8_lossy(&output.stdout)))
    }
}

fn usable(list: &str) -> Vec<ListedGpu> {
    list.lines().filter(|line| !line.contains("[unusable")).filter_map(gpu).collect()
}

/// A line has the UUID, the address, the name and marks.
fn gpu(line: &str) -> Option<ListedGpu> {
    let (line, software) = line.split_once(" [software]").map_or((line, false), |(line, _)| (line, true));
    let mut words = line.split_whitespace();
    let (uuid, _address) = (words.next()?.to_owned(), words.next()?);
    Some(ListedGpu { uuid, name: words.collect::<Vec<_>>().join(" "), software })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_guests_cannot_use_is_left_out() {
        let list = "  01-02  -             llvmpipe (LLVM 19) (Mesa 26, Vulkan 1.4.345) [software]\n\
                    \x20 03-04  0000:01:00.0  Old GPU (old 1, Vulkan 1.0.2) [unusable: its driver offers Vulkan 1.0]\n\
                    \x20 05-06  0000:02:00.0  NVIDIA H200 (NVIDIA 580, Vulkan 1.4.312)\n";
        let gpu =
            |uuid: &str, name: &str, software| ListedGpu { uuid: uuid.into(), name: name.into(), software };
        let expected = [
            gpu("01-02", "llvmpipe (LLVM 19) (Mesa 26, Vulkan 1.4.345)", true),
            gpu("05-06", "NVIDIA H200 (NVIDIA 580, Vulkan 1.4.312)", false),
        ];
        assert_eq!(usable(list), expected);
        assert_eq!(usable("\n"), []);
    }
}
