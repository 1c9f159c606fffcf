//! Choosing the GPU at start-up. A child process asks the driver, so that none is ever loaded here.

use crate::config::{GpuChoice, GpuInfo, MemoryBackEnd};
use crate::ipc::{Channel, ChildRole, DriverFamily, ProbeReport};
use crate::sandbox::Launcher;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::{self, Write};
use std::time::Duration;

/// Time a driver has to say what GPUs it has, and then to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// The probe among the launcher's children; workers are counted from 0.
const PROBE: u32 = u32::MAX;

/// Why there is no GPU to use.
#[derive(Debug, thiserror::Error)]
pub enum NoGpu {
    /// The child could not be run.
    #[error("cannot ask for GPUs: {0}")]
    Probe(String),
    /// There is no driver, or it has no GPU.
    #[error("no Vulkan device: {0}")]
    None(String),
    /// The selection fits none.
    #[error("no GPU matches \"{selection}\"; there are:{list}")]
    Unknown {
        /// As given.
        selection: String,
        /// All GPUs.
        list: List,
    },
    /// The selection fits several.
    #[error("\"{selection}\" matches more than one GPU; there are:{list}")]
    Ambiguous {
        /// As given.
        selection: String,
        /// All GPUs.
        list: List,
    },
    /// The one that was chosen cannot serve guests.
    #[error("{name} cannot be used: {reason}")]
    Unusable {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}

/// GPUs as people see them, one per line.
#[derive(Clone, Debug)]
pub struct List(Vec<GpuInfo>);

/// Asks the driver for its GPUs in a child process.
pub fn probe(launcher: &Launcher) -> Result<Vec<GpuInfo>, NoGpu> {
    let failed = |e: &dyn fmt::Display| NoGpu::Probe(e.to_string());
    let (channel, theirs) = Channel::pair().map_err(|e| failed(&e))?;
    let theirs = theirs.into_socket();
    launcher.launch(PROBE, ChildRole::Probe, DriverFamily::Any, &theirs).map_err(|e| failed(&e))?;
    drop(theirs);
    let mut ready = [PollFd::new(&channel, PollFlags::IN)];
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let report = match poll(&mut ready, Some(&patience)) {
        Ok(0) => {
            launcher.kill(PROBE);
            Err(NoGpu::Probe(format!("the driver did not answer within {} s", PATIENCE.as_secs())))
        }
        _ => channel.receive::<ProbeReport>().map_err(|e| failed(&e)),
    };
    let ended = launcher.ended_within(PATIENCE).map_err(|e| failed(&e))?;
    match report {
        Ok((Ok(gpus), _)) => Ok(gpus),
        Ok((Err(reason), _)) => Err(NoGpu::None(reason)),
        Err(error) => Err(match ended.status {
            Ok(status) if !status.success() => NoGpu::Probe(format!("{error} ({status})")),
            Ok(_) => error,
            Err(reason) => NoGpu::Probe(reason),
        }),
    }
}

/// Chooses by UUID, PCI address or a part of the name that only one GPU has; without a selection the first usable GPU that is
/// no software, or else the first usable one. `memory` demands one back end.
pub fn select(
    gpus: Vec<GpuInfo>,
    selection: Option<&str>,
    memory: Option<MemoryBackEnd>,
) -> Result<(GpuInfo, GpuChoice), NoGpu> {
    if gpus.is_empty() {
        return Err(NoGpu::None("the driver reports none".into()));
    }
    let chosen = match selection {
        Some(selection) => named(&gpus, selection)?,
        None => default(&gpus, memory),
    };
    match chosen.choice(memory) {
        Err(reason) => Err(NoGpu::Unusable { name: chosen.name.clone(), reason }),
        Ok(choice) => Ok((chosen.clone(), choice)),
    }
}

/// What kind of driver a GPU has.
pub fn family(gpu: &GpuInfo) -> DriverFamily {
    match gpu {
        gpu if gpu.software => DriverFamily::Software,
        gpu if gpu.driver.starts_with("NVIDIA") => DriverFamily::Nvidia,
        _ => DriverFamily::Mesa,
    }
}

fn default(gpus: &[GpuInfo], memory: Option<MemoryBackEnd>) -> &GpuInfo {
    let usable = |gpu: &&GpuInfo| gpu.choice(memory).is_ok();
    let hardware = gpus.iter().filter(usable).find(|gpu| !gpu.software);
    hardware.or_else(|| gpus.iter().find(usable)).unwrap_or(&gpus[0])
}

fn named<'a>(gpus: &'a [GpuInfo], selection: &str) -> Result<&'a GpuInfo, NoGpu> {
    let wanted = selection.to_lowercase();
    let uuid = wanted.replace('-', "");
    let exactly = |gpu: &&GpuInfo| {
        let pci = gpu.pci_address.as_deref().map(str::to_lowercase);
        hex(&gpu.uuid) == uuid
            || pci.is_some_and(|pci| pci == wanted || pci.strip_prefix("0000:") == Some(wanted.as_str()))
    };
    if let Some(gpu) = gpus.iter().find(exactly) {
        return Ok(gpu);
    }
    let mut by_name =
        gpus.iter().filter(|gpu| !wanted.is_empty() && gpu.name.to_lowercase().contains(&wanted));
    let (selection, list) = (selection.to_owned(), List(gpus.to_vec()));
    match (by_name.next(), by_name.next()) {
        (Some(gpu), None) => Ok(gpu),
        (Some(_), Some(_)) => Err(NoGpu::Ambiguous { selection, list }),
        (None, _) => Err(NoGpu::Unknown { selection, list }),
    }
}

impl From<Vec<GpuInfo>> for List {
    fn from(gpus: Vec<GpuInfo>) -> Self {
        Self(gpus)
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for gpu in &self.0 {
            let version = gpu.api_version;
            let (major, minor, patch) = (version >> 22 & 0x7f, version >> 12 & 0x3ff, version & 0xfff);
            write!(f, "\n  {}", dashed(&gpu.uuid))?;
            write!(f, "  {:12}", gpu.pci_address.as_deref().unwrap_or("-"))?;
            write!(f, "  {} ({}, Vulkan {major}.{minor}.{patch})", gpu.name, gpu.driver)?;
            if gpu.software {
                f.write_str(" [software]")?;
            }
            if let Err(reason) = gpu.choice(None) {
                write!(f, " [unusable: {reason}]")?;
            }
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn dashed(uuid: &[u8; 16]) -> String {
    let text = hex(uuid);
    [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MemoryTrial;

    const TRIAL: MemoryTrial = MemoryTrial { mappable_types: 1, shareable: true };

    fn gpu(name: &str, id: u8, pci: Option<&str>, software: bool, unusable: Option<&str>) -> GpuInfo {
        GpuInfo {
            name: name.into(),
            uuid: [id; 16],
            pci_address: pci.map(Into::into),
            driver: "driver 1".into(),
            api_version: 1 << 22 | 3 << 12 | 290,
            software,
            memfd: unusable.map_or(Ok(TRIAL), |reason| Err(reason.into())),
            dma_buf: Err(unusable.unwrap_or("no dma-buf").into()),
        }
    }

    fn gpus() -> Vec<GpuInfo> {
        vec![
            gpu("llvmpipe (LLVM 19)", 1, None, true, None),
            gpu("Old GPU", 2, Some("0000:01:00.0"), false, Some("no Vulkan 1.3")),
            gpu("NVIDIA H200", 3, Some("0000:02:00.0"), false, None),
            gpu("NVIDIA H100", 4, Some("0000:03:00.0"), false, None),
        ]
    }

    fn chosen(selection: Option<&str>) -> Result<u8, NoGpu> {
        select(gpus(), selection, None).map(|(_, choice)| choice.uuid[0])
    }

    #[test]
    fn a_gpu_is_found_by_uuid_address_and_name() {
        assert_eq!(chosen(Some("04040404-0404-0404-0404-040404040404")).unwrap(), 4);
        assert_eq!(chosen(Some("0404040404040404040404040404040404").map(|s| &s[..32])).unwrap(), 4);
        assert_eq!(chosen(Some("0000:03:00.0")).unwrap(), 4);
        assert_eq!(chosen(Some("02:00.0")).unwrap(), 3);
        assert_eq!(chosen(Some("h200")).unwrap(), 3);
        assert_eq!(chosen(Some("llvmpipe")).unwrap(), 1);
    }

    #[test]
    fn the_default_is_the_first_usable_gpu_that_is_no_software() {
        assert_eq!(chosen(None).unwrap(), 3);
        assert_eq!(select(gpus()[..2].to_vec(), None, None).unwrap().0.uuid[0], 1);
        assert!(matches!(select(gpus()[1..2].to_vec(), None, None), Err(NoGpu::Unusable { .. })));
        assert!(matches!(select(Vec::new(), None, None), Err(NoGpu::None(_))));
    }

    #[test]
    fn what_does_not_name_one_usable_gpu_is_refused_with_the_list() {
        let list = "\n  01010101-0101-0101-0101-010101010101  -             llvmpipe (LLVM 19) (driver 1, Vulkan 1.3.290) [software]";
        for selection in ["", "radeon"] {
            let error = chosen(Some(selection)).unwrap_err();
            assert!(matches!(error, NoGpu::Unknown { .. }));
            assert!(error.to_string().contains(list), "{error}");
        }
        assert!(matches!(chosen(Some("nvidia")), Err(NoGpu::Ambiguous { .. })));
        assert!(matches!(chosen(Some("old")), Err(NoGpu::Unusable { .. })));
    }

    #[test]
    fn the_back_end_is_the_first_that_works_or_the_one_that_is_wanted() {
        let mut both = gpus().remove(2);
        let used =
            |gpu: &GpuInfo, wanted| select(vec![gpu.clone()], None, wanted).map(|(_, choice)| choice.memory);
        let (memfd, dma_buf) = (MemoryBackEnd::Memfd, MemoryBackEnd::DmaBuf);
        assert_eq!(used(&both, None).unwrap(), memfd);
        let refused = used(&both, Some(dma_buf)).unwrap_err();
        assert_eq!(refused.to_string(), "NVIDIA H200 cannot be used: no dma-buf");
        both.dma_buf = Ok(TRIAL);
        assert_eq!(used(&both, None).unwrap(), memfd);
        assert_eq!(used(&both, Some(dma_buf)).unwrap(), dma_buf);
        both.memfd = Err("no memfd".into());
        assert_eq!(used(&both, None).unwrap(), dma_buf);
        assert!(used(&both, Some(memfd)).is_err());
        both.dma_buf = Err("no dma-buf".into());
        let refused = used(&both, None).unwrap_err();
        assert_eq!(refused.to_string(), "NVIDIA H200 cannot be used: no memfd, and no dma-buf");
    }
}
