//! This file chooses the GPUs at start-up. A child process asks the driver, so that this process never loads one.

use super::list::List;
use crate::ipc::{Channel, ChildRole, DriverFamily, ProbeReport};
use crate::options::{Memory, VmOptions};
use crate::sandbox::Launcher;
use crate::serve::logging::output::{Budget, Heard, Output, Printer};
use config::{DeviceLimits, GpuChoice, GpuInfo, MemoryBackEnd, meant};
use outside::Span;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fmt;
use std::time::{Duration, Instant};

/// Time between two reports of the wait for the driver.
const LATE_EVERY: Duration = Duration::from_secs(10);
/// The time that the probe has to end when it has reported the GPUs.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// The number of the probe among the launcher's children; workers are counted from 0.
const PROBE: u32 = u32::MAX;

/// The remedy where a GPU is missing.
const REMEDY: &str = "install its driver, or wait until its device nodes exist (vhost-user-vulkan doctor tells); restart a service of systemd if the driver was installed or loaded after that had started";

/// The reason why there is no GPU to use.
#[derive(Debug, thiserror::Error)]
pub enum NoGpu {
    /// The child could not be run.
    #[error("cannot ask for GPUs: {0}")]
    Probe(String),
    /// The driver takes longer than it may.
    #[error(
        "limit driver-timeout ({}) reached: the GPU's driver has not listed its GPUs; remedy: raise --driver-timeout if this host is slow or busy; otherwise the driver hangs, and the kernel's log (dmesg) may say why",
        Span(*.0)
    )]
    Late(Duration),
    /// There is no driver, or it has no GPU.
    #[error("no Vulkan device: {0}; remedy: {REMEDY}")]
    None(String),
    /// The selection fits no GPU.
    #[error("no GPU matches \"{selection}\" (remedy: {REMEDY}); there are:\n{list}")]
    Unknown {
        /// The selection as given.
        selection: String,
        /// All GPUs.
        list: List,
    },
    /// The selection fits several GPUs.
    #[error("\"{selection}\" matches more than one GPU; there are:\n{list}")]
    Ambiguous {
        /// The selection as given.
        selection: String,
        /// All GPUs.
        list: List,
    },
    /// The chosen GPU cannot serve guests.
    #[error("{name} cannot be used: {reason}")]
    Unusable {
        /// The GPU's name.
        name: String,
        /// The reason why it cannot be used.
        reason: String,
    },
    /// The chosen GPU cannot serve guests with memory files, which programs need that are to change their worker.
    #[error(
        "{name} cannot be used with --movable, which needs memory files (--memory memfd): {reason}; remedy: leave --movable out, so that programs keep their workers, or choose another --gpu"
    )]
    NotMovable {
        /// The GPU's name.
        name: String,
        /// The reason why memory files cannot be used.
        reason: String,
    },
    /// Two selections mean the same GPU.
    #[error("\"{first}\" and \"{second}\" are the same GPU, {name}: name each GPU of a VM once")]
    Twice {
        /// The selection that was given first.
        first: String,
        /// The selection that was given later.
        second: String,
        /// The GPU's name.
        name: String,
    },
    /// A spare GPU is like none of the VM's GPUs, so no program could be moved to it.
    #[error(
        "spare GPU {spare} cannot take programs over from {gpu}: its {what} differ; choose one of the same model for --spare-gpu"
    )]
    Unlike {
        /// The spare GPU's name.
        spare: String,
        /// The name of one of the VM's GPUs.
        gpu: String,
        /// The first property visible to programs that differs, in words.
        what: &'static str,
    },
    /// Each of the chosen GPUs can be used, but they cannot be used together.
    #[error(
        "these GPUs cannot serve one VM together, for memory that guests map is made of the same on all: {0}; choose others"
    )]
    Apart(String),
}

/// The news that the driver is late, for people who wait for it.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    waited: Duration,
    limit: Duration,
}

impl Late {
    /// Tells the user at a terminal.
    pub fn tell(self) {
        outside::tell(&outside::lines_for_terminal(&format!("{self}\n")));
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waited, limit) = (Span(self.waited), Span(self.limit));
        write!(f, "waiting for the GPU's driver for {waited} so far; the limit is {limit} (driver-timeout)")
    }
}

/// Asks the driver for its GPUs in a child process, which has the time `limit` to report them. Calls `told` every 10 s until the answer comes.
///
/// # Errors
///
/// The child cannot be run, the driver is late, or there is no GPU.
pub fn probe(
    launcher: &Launcher,
    limit: Duration,
    mut told: impl FnMut(Late),
) -> Result<Vec<GpuInfo>, NoGpu> {
    let failed = |e: &dyn fmt::Display| NoGpu::Probe(e.to_string());
    let (channel, theirs) = Channel::pair().map_err(|e| failed(&e))?;
    let theirs = theirs.into_socket();
    let (mut output, printed) = Output::new(Printer::Probe).map_err(|e| failed(&e))?;
    launcher.launch(PROBE, ChildRole::Probe, DriverFamily::Any, &theirs, &printed).map_err(|e| failed(&e))?;
    drop((theirs, printed));
    let mut printing = Budget::new(DeviceLimits::default().log_lines);
    if !answers(&channel, (&mut output, &mut printing), limit, &mut told) {
        // A process that waits within the kernel ends much later, or never.
        launcher.kill(PROBE);
        return Err(NoGpu::Late(limit));
    }
    let report = channel.receive::<ProbeReport>().map_err(|e| failed(&e));
    let ended = launcher.ended_within(END_PATIENCE).map_err(|e| failed(&e))?;
    output.hear(&mut printing);
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

/// Waits for the probe's answer or end, and meanwhile logs its output: a probe whose socket is full waits until that is read. Returns whether there is
/// something to receive within the time.
fn answers(
    channel: &Channel,
    (output, printing): (&mut Output, &mut Budget),
    limit: Duration,
    told: &mut impl FnMut(Late),
) -> bool {
    let (begin, mut next) = (Instant::now(), LATE_EVERY);
    let mut prints = true;
    loop {
        let waited = begin.elapsed();
        if waited >= next {
            told(Late { waited: Duration::from_secs(waited.as_secs()), limit });
            next = waited + LATE_EVERY;
        }
        if waited >= limit {
            return false;
        }
        let left = Timespec::try_from(next.min(limit).saturating_sub(waited)).unwrap_or_default();
        let mut ready = [PollFd::new(channel, PollFlags::IN), PollFd::new(&*output, PollFlags::IN)];
        let all = &mut ready[..if prints { 2 } else { 1 }];
        match poll(all, Some(&left)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) | Err(_) => {}
        }
        if !ready[0].revents().is_empty() {
            return true;
        }
        prints = output.hear(printing) == Heard::More;
    }
}

/// A GPU that was chosen, and how to use it.
pub type Chosen = (GpuInfo, GpuChoice);

/// The GPUs of a VM.
#[derive(Debug)]
pub struct Selected {
    /// The GPUs: those that guests see, at least one, followed by spare GPUs.
    pub gpus: Vec<Chosen>,
    /// The number of GPUs that guests see.
    pub seen: usize,
}

impl Selected {
    /// Returns how many bytes of their own memory the GPUs that guests see have together.
    #[must_use]
    pub fn device_memory(&self) -> u64 {
        self.gpus[..self.seen].iter().map(|(gpu, _)| gpu.device_memory).sum()
    }
}

/// Chooses GPUs by UUID, PCI address or a part of the name that only one GPU has, each once and in this order. Without a selection it chooses the
/// first usable GPU that is not software, or else the first usable one. Then it chooses the spare GPUs, each of the model of one that the guest
/// sees. `--memory` demands one back end; otherwise the first that works on all of them is used. With `--movable` the back end is memory files.
///
/// # Errors
///
/// The selection that is wrong, and the GPUs that exist.
pub fn select(gpus: &[GpuInfo], options: &VmOptions) -> Result<Selected, NoGpu> {
    let VmOptions { gpu: selections, spare_gpu: spares, memory: Memory(memory), movable, .. } = options;
    if gpus.is_empty() {
        return Err(NoGpu::None("the driver reports none".into()));
    }
    let seen = selections.len().max(1);
    let mut chosen: Vec<(&str, &GpuInfo)> = Vec::new();
    if selections.is_empty() {
        chosen.push(("the default", default(gpus, *memory)));
    }
    for second in selections.iter().chain(spares) {
        let gpu = named(gpus, second)?;
        if let Some((first, _)) = chosen.iter().find(|(_, other)| other.uuid == gpu.uuid) {
            let (first, second) = ((*first).to_owned(), second.clone());
            return Err(NoGpu::Twice { first, second, name: gpu.name.clone() });
        }
        chosen.push((second, gpu));
    }
    let chosen: Vec<_> = chosen.into_iter().map(|(_, gpu)| gpu).collect();
    chosen[seen..].iter().try_for_each(|spare| demand_like(spare, &chosen[..seen]))?;
    let gpus = if *movable { with_memory_files(&chosen)? } else { choices(&chosen, *memory)? };
    Ok(Selected { gpus, seen })
}

/// Returns how to use these GPUs for programs that change their worker.
fn with_memory_files(chosen: &[&GpuInfo]) -> Result<Vec<Chosen>, NoGpu> {
    // A GPU that no guest can use has another remedy.
    choices(chosen, None)?;
    choices(chosen, Some(MemoryBackEnd::Memfd)).map_err(|error| match error {
        NoGpu::Unusable { name, reason } => NoGpu::NotMovable { name, reason },
        other => other,
    })
}

/// Demands that a spare GPU is like one that guests see.
fn demand_like(spare: &GpuInfo, seen: &[&GpuInfo]) -> Result<(), NoGpu> {
    let unlike = seen.iter().map(|gpu| Some((gpu, gpu.likeness.difference(&spare.likeness)?)));
    // The differences from all GPUs, or none if one GPU is like the spare.
    match unlike.collect::<Option<Vec<_>>>().as_deref() {
        Some([(gpu, what), ..]) => {
            Err(NoGpu::Unlike { spare: spare.name.clone(), gpu: gpu.name.clone(), what })
        }
        _ => Ok(()),
    }
}

/// Returns how to use these GPUs, with the same back end on all.
fn choices(chosen: &[&GpuInfo], memory: Option<MemoryBackEnd>) -> Result<Vec<Chosen>, NoGpu> {
    let with = |gpu: &&GpuInfo, memory| match gpu.choice(memory) {
        Ok(choice) => Ok(((*gpu).clone(), choice)),
        Err(reason) => Err(NoGpu::Unusable { name: gpu.name.clone(), reason }),
    };
    let all = |memory| chosen.iter().map(|gpu| with(gpu, memory)).collect::<Result<Vec<_>, _>>();
    let first = all(memory)?;
    if first.iter().all(|(_, choice)| choice.memory == first[0].1.memory) {
        return Ok(first);
    }
    // Each GPU that can use memory files has them as its first choice, so some GPU here can use only dma-bufs.
    all(Some(MemoryBackEnd::DmaBuf)).map_err(|_| {
        let back_end = |(gpu, choice): &Chosen| format!("{} with {}", gpu.name, back_end(choice.memory));
        NoGpu::Apart(first.iter().map(back_end).collect::<Vec<_>>().join(", "))
    })
}

/// Returns the name of a back end, as on the command line.
pub fn back_end(memory: MemoryBackEnd) -> &'static str {
    match memory {
        MemoryBackEnd::Memfd => "memfd",
        MemoryBackEnd::DmaBuf => "dma-buf",
    }
}

/// Returns what kind of driver serves all of these.
pub fn family(gpus: &[Chosen]) -> DriverFamily {
    let mut families = gpus.iter().map(|(gpu, _)| family_of(gpu));
    match families.next() {
        Some(first) if families.all(|family| family == first) => first,
        _ => DriverFamily::Any,
    }
}

/// Returns what kind of driver a GPU has.
fn family_of(gpu: &GpuInfo) -> DriverFamily {
    match gpu {
        gpu if gpu.is_software() => DriverFamily::Software,
        gpu if gpu.driver.starts_with("NVIDIA") => DriverFamily::Nvidia,
        _ => DriverFamily::Mesa,
    }
}

fn default(gpus: &[GpuInfo], memory: Option<MemoryBackEnd>) -> &GpuInfo {
    let usable = |gpu: &&GpuInfo| gpu.choice(memory).is_ok();
    let hardware = gpus.iter().filter(usable).find(|gpu| !gpu.is_software());
    hardware.or_else(|| gpus.iter().find(usable)).unwrap_or(&gpus[0])
}

fn named<'a>(gpus: &'a [GpuInfo], selection: &str) -> Result<&'a GpuInfo, NoGpu> {
    let refused = || (selection.to_owned(), List::from(gpus.to_vec()));
    match meant(gpus.iter().map(GpuInfo::names), selection)[..] {
        [at] => Ok(&gpus[at]),
        [] => {
            let (selection, list) = refused();
            Err(NoGpu::Unknown { selection, list })
        }
        _ => {
            let (selection, list) = refused();
            Err(NoGpu::Ambiguous { selection, list })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{DriverMapped, GpuKind, Likeness, MemoryTrial};

    const TRIAL: MemoryTrial = MemoryTrial {
        mappable_types: 1,
        shareable: true,
        driver_mapped: DriverMapped { types: 0, device: 0 },
        exportable_types: 0,
    };

    fn gpu(name: &str, id: u8, pci: Option<&str>, software: bool, unusable: Option<&str>) -> GpuInfo {
        GpuInfo {
            name: name.into(),
            uuid: [id; 16],
            pci_address: pci.map(Into::into),
            driver: "driver 1".into(),
            api_version: 1 << 22 | 3 << 12 | 290,
            kind: if software { GpuKind::Software } else { GpuKind::Discrete },
            device_memory: 8 << 30,
            likeness: Likeness::default(),
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

    fn with_gpus(gpu: &[&str], spare_gpu: &[&str]) -> VmOptions {
        let [gpu, spare_gpu] = [gpu, spare_gpu].map(|all| all.iter().map(|one| (*one).to_owned()).collect());
        VmOptions { gpu, spare_gpu, ..VmOptions::default() }
    }

    fn chosen(selection: Option<&str>) -> Result<u8, NoGpu> {
        let options = with_gpus(selection.as_slice(), &[]);
        select(&gpus(), &options).map(|chosen| chosen.gpus[0].1.uuid[0])
    }

    fn several(selections: &[&str]) -> Result<Vec<u8>, String> {
        let chosen = select(&gpus(), &with_gpus(selections, &[])).map_err(|error| error.to_string())?;
        Ok(chosen.gpus.iter().map(|(_, choice)| choice.uuid[0]).collect())
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
        let options = VmOptions::default();
        assert_eq!(select(&gpus()[..2], &options).unwrap().gpus[0].0.uuid[0], 1);
        assert!(matches!(select(&gpus()[1..2], &options), Err(NoGpu::Unusable { .. })));
        assert!(matches!(select(&[], &options), Err(NoGpu::None(_))));
    }

    #[test]
    fn what_does_not_name_one_usable_gpu_is_refused_with_the_list() {
        let list = "\nNVIDIA H100         discrete  8.0GiB  driver 1  1.3.290  0000:03:00.0  04040404-0404-0404-0404-040404040404";
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
        let used = |gpu: &GpuInfo, wanted| {
            let options = VmOptions { memory: Memory(wanted), ..VmOptions::default() };
            select(std::slice::from_ref(gpu), &options).map(|chosen| chosen.gpus[0].1.memory)
        };
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
        let movable = |gpu: &GpuInfo| {
            let gpus = [gpu.clone(), gpus().remove(0)];
            let options = VmOptions { movable: true, ..VmOptions::default() };
            select(&gpus, &options).map(|chosen| chosen.gpus[0].1.memory)
        };
        let refused = movable(&both).expect_err("a software driver takes no GPU's place").to_string();
        assert!(refused.starts_with("NVIDIA H200 cannot be used with --movable, "), "{refused}");
        assert!(refused.contains(": no memfd; remedy: "), "{refused}");
        assert_eq!(movable(&GpuInfo { memfd: Ok(TRIAL), ..both.clone() }).unwrap(), memfd);
        both.dma_buf = Err("no dma-buf".into());
        let refused = used(&both, None).unwrap_err();
        assert_eq!(refused.to_string(), "NVIDIA H200 cannot be used: no memfd, and no dma-buf");
    }

    #[test]
    fn several_are_chosen_in_the_order_they_are_named_in() {
        assert_eq!(several(&["h100", "02:00.0"]).unwrap(), [4, 3]);
        assert_eq!(several(&["llvmpipe", "h200", "h100"]).unwrap(), [1, 3, 4]);
    }

    #[test]
    fn a_gpu_is_named_once() {
        let twice = several(&["h100", "h200", "0000:03:00.0"]).unwrap_err();
        assert_eq!(
            twice,
            "\"h100\" and \"0000:03:00.0\" are the same GPU, NVIDIA H100: name each GPU of a VM once"
        );
        assert!(several(&["h100", "radeon"]).unwrap_err().starts_with("no GPU matches \"radeon\""));
        assert_eq!(several(&["h100", "old"]).unwrap_err(), "Old GPU cannot be used: no Vulkan 1.3");
    }

    #[test]
    fn spare_gpus_come_last_and_are_like_one_that_guests_see() {
        let mut gpus = gpus();
        gpus[3].likeness.parts[1] = 7;
        let with = |gpu: &[&str], spare: &[&str]| {
            let selected = select(&gpus, &with_gpus(gpu, spare)).map_err(|error| error.to_string())?;
            let chosen = selected.gpus.iter().map(|(_, choice)| choice.uuid[0]).collect::<Vec<_>>();
            Ok::<_, String>((chosen, selected.seen))
        };
        assert_eq!(with(&[], &["llvmpipe"]), Ok((vec![3, 1], 1)));
        assert_eq!(with(&["h100", "h200"], &["llvmpipe"]), Ok((vec![4, 3, 1], 2)));
        let unlike = "spare GPU NVIDIA H100 cannot take programs over from NVIDIA H200: its limits differ; choose one of the same model for --spare-gpu";
        assert_eq!(with(&["h200"], &["h100"]), Err(unlike.to_owned()));
        let twice = "\"the default\" and \"h200\" are the same GPU, NVIDIA H200: name each GPU of a VM once";
        assert_eq!(with(&[], &["h200"]), Err(twice.to_owned()));
    }

    #[test]
    fn mappable_memory_is_made_of_the_same_on_all() {
        let (files, mut both, mut bufs) = (gpus().remove(3), gpus().remove(2), gpus().remove(0));
        both.dma_buf = Ok(TRIAL);
        (bufs.memfd, bufs.dma_buf) = (Err("no memfd".into()), Ok(TRIAL));
        let used = |gpus: &[&GpuInfo], memory| {
            let used = choices(gpus, memory).map_err(|error| error.to_string())?;
            Ok::<_, String>(used.iter().map(|(_, choice)| choice.memory).collect::<Vec<_>>())
        };
        assert_eq!(used(&[&files, &both], None).unwrap(), [MemoryBackEnd::Memfd; 2]);
        assert_eq!(used(&[&both, &bufs], None).unwrap(), [MemoryBackEnd::DmaBuf; 2]);
        let apart = used(&[&files, &bufs], None).unwrap_err();
        assert!(
            apart.contains("NVIDIA H100 with memfd, llvmpipe (LLVM 19) with dma-buf; choose others"),
            "{apart}"
        );
        let demanded = used(&[&files, &bufs], Some(MemoryBackEnd::Memfd)).unwrap_err();
        assert_eq!(demanded, "llvmpipe (LLVM 19) cannot be used: no memfd");
    }

    #[test]
    fn the_sandbox_is_that_of_the_drivers_in_use() {
        let family_with = |nvidia: &str, selections: &[&str]| {
            let mut gpus = gpus();
            gpus[2].driver = nvidia.into();
            gpus[3].driver = nvidia.into();
            family(&select(&gpus, &with_gpus(selections, &[])).unwrap().gpus)
        };
        assert_eq!(family_with("NVIDIA 580", &["h100", "h200"]), DriverFamily::Nvidia);
        assert_eq!(family_with("radv", &["h100"]), DriverFamily::Mesa);
        assert_eq!(family_with("NVIDIA 580", &["h100", "llvmpipe"]), DriverFamily::Any);
    }
}
