//! `recipe`: finds the socket of a VM, and prints the settings for its VMM.

use super::control::Control;
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use config::size;
use daemon::broker::{self, ClientError, VmsFile};
use daemon::recipe;
use log::LevelFilter;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The configuration file of packages.
const CONFIG: &str = "/etc/vhost-user-vulkan/vms.toml";

/// The program that runs the VM.
#[derive(Debug, Subcommand)]
pub(crate) enum Recipe {
    /// Print QEMU's arguments on one line
    ///
    /// qemu-system-x86_64 $(vhost-user-vulkan recipe qemu --vm NAME) ...
    Qemu {
        #[command(flatten)]
        source: Source,
        /// Memory of the VM
        #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = size)]
        memory: u64,
        #[command(flatten)]
        firmware: Firmware,
    },
    /// Print the parts of a libvirt domain for `virsh edit`
    ///
    /// Standard error gets the rules that AppArmor or SELinux need, and with --domain the needs of other devices of the domain
    Libvirt {
        #[command(flatten)]
        source: Source,
        /// Print this domain with the device added, for `virsh define`
        ///
        /// FILE is what `virsh dumpxml --inactive` prints; - is standard input
        #[arg(long, value_name = "FILE")]
        domain: Option<PathBuf>,
        #[command(flatten)]
        firmware: Firmware,
    },
    /// Print crosvm's option
    Crosvm {
        #[command(flatten)]
        source: Source,
    },
}

/// The options for a VM's firmware.
#[derive(Debug, Args)]
pub(crate) struct Firmware {
    /// The VM's --window-size, of 128GiB or more
    ///
    /// OVMF on a machine with few address bits finds no place for it without being told
    #[arg(long, value_name = "SIZE", default_value = "0", hide_default_value = true, value_parser = size)]
    window_size: u64,
}

/// The VM whose socket is meant.
#[derive(Debug, Args)]
pub(crate) struct Source {
    #[command(flatten)]
    named: Named,
    /// Configuration file that is read if no broker answers
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    #[command(flatten)]
    control: Control,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Named {
    /// The VM's name, for a running broker or its file
    #[arg(long, value_name = "NAME")]
    vm: Option<String>,
    /// The socket of a daemon of one VM
    #[arg(long, value_name = "PATH")]
    socket_path: Option<PathBuf>,
}

impl Recipe {
    /// Prints the text: the part to paste on standard output, and advice for people on standard error.
    ///
    /// # Errors
    ///
    /// The VM is not known, or its socket or domain cannot be used.
    pub(crate) fn print(self) -> anyhow::Result<ExitCode> {
        let text = match self {
            Self::Qemu { source, memory, firmware } => {
                format!("{}\n", recipe::qemu(&source.socket()?, memory, firmware.window_size)?)
            }
            Self::Crosvm { source } => format!("{}\n", recipe::crosvm(&source.socket()?)?),
            Self::Libvirt { source, domain, firmware: Firmware { window_size } } => {
                let socket = source.socket()?;
                let recipe::Given { domain, advice } = match domain {
                    Some(file) => with_gpu(&file, &socket, window_size)?,
                    None => {
                        recipe::Given { domain: recipe::libvirt(&socket, window_size)?, advice: Vec::new() }
                    }
                };
                advice.iter().for_each(|advice| outside::tell(&format!("vhost-user-vulkan: {advice}\n")));
                outside::tell(&recipe::confinement(&socket)?);
                domain
            }
        };
        outside::print(&text).context("cannot write")?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Source {
    fn socket(self) -> anyhow::Result<PathBuf> {
        let Self { named: Named { vm, socket_path }, config, control } = self;
        let name = match (socket_path, vm) {
            (Some(path), _) => return Ok(std::path::absolute(path)?),
            (None, Some(name)) => name,
            (None, None) => bail!("one of --vm and --socket-path is needed"),
        };
        let control = control.path_of_broker();
        let sockets = match broker::status(&control) {
            Ok(status) => status.vms.into_iter().map(|vm| (vm.name, vm.socket_path.into())).collect(),
            Err(ClientError::Socket(path, why)) => {
                let (path, file) = (path.display(), config.display());
                outside::tell(&format!(
                    "vhost-user-vulkan: no broker answers at {path} ({why}): this is what {file} says\n"
                ));
                sockets_in(config)?
            }
            Err(error) => return Err(error.into()),
        };
        find(sockets, &name)
    }
}

/// The most bytes of a domain; a domain has some thousand bytes.
const DOMAIN_BYTES: u64 = 16 << 20;

/// Returns the domain in a file, with the device at `socket` added.
fn with_gpu(file: &Path, socket: &Path, window: u64) -> anyhow::Result<recipe::Given> {
    let file = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
    let named = || file.display().to_string();
    let mut domain = String::new();
    let read = File::open(file).and_then(|file| file.take(DOMAIN_BYTES + 1).read_to_string(&mut domain));
    read.with_context(named)?;
    if domain.len() as u64 > DOMAIN_BYTES {
        bail!(
            "{}: has more than {DOMAIN_BYTES} bytes, so it is no domain; name what `virsh dumpxml` prints",
            named()
        );
    }
    recipe::with_gpu(&domain, socket, window).with_context(named)
}

/// A VM's name and its socket.
type Socket = (String, PathBuf);

fn sockets_in(config: PathBuf) -> anyhow::Result<Vec<Socket>> {
    let settings = VmsFile::new(config, LevelFilter::Info).read()?;
    Ok(settings.vms.into_iter().map(|vm| (vm.name.clone(), vm.socket_path())).collect())
}

fn find(sockets: Vec<Socket>, vm: &str) -> anyhow::Result<PathBuf> {
    let names = sockets.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let found = sockets.into_iter().find(|(name, _)| name == vm);
    found.map(|(_, path)| path).with_context(|| format!("{vm}: no such VM; there are {names}"))
}
