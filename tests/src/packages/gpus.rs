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
    // Below the head of the table.
    list.lines().skip(1).filter(|line| !line.contains("[unusable")).filter_map(gpu).collect()
}

/// A line has the name, the kind, the memory, the driver, the version of Vulkan, the address and the UUID, with two spaces or more between.
fn gpu(line: &str) -> Option<ListedGpu> {
    let cells: Vec<_> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let [name, kind, _memory, driver, version, _address, uuid] = cells[..] else { return None };
    let (name, software) = (format!("{name} ({driver}, Vulkan {version})"), kind == "software");
    Some(ListedGpu { uuid: uuid.to_owned(), name, software })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_guests_cannot_use_is_left_out() {
        let list = "NAME                KIND      MEMORY    DRIVER      VULKAN   PCI ADDRESS   UUID\n\
                    llvmpipe (LLVM 19)  software  15.6GiB   Mesa 26     1.4.345  -             01-02\n\
                    Old GPU             discrete  1.0GiB    -           1.0.2    0000:01:00.0  03-04  [unusable: its driver offers Vulkan 1.0]\n\
                    NVIDIA H200         discrete  139.8GiB  NVIDIA 580  1.4.312  0000:02:00.0  05-06\n";
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
