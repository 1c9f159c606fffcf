//! The messages between the device process and its launcher. Both are trusted: neither reads guest bytes for the other.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// The purpose of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChildRole {
    /// The child serves one context.
    Worker,
    /// The child looks for GPUs.
    Probe,
}

/// The host driver that a child is to load, which decides the files that the child can see and the system calls that it may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum DriverFamily {
    /// Any driver of the host: for the probe, and for workers whose GPUs have drivers of several families.
    Any,
    /// The driver that runs on the processor (lavapipe).
    Software,
    /// Mesa's drivers of real GPUs, through render nodes.
    Mesa,
    /// NVIDIA's own driver.
    Nvidia,
}

/// Device process to launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToLauncher {
    /// The child that is started next prints to this socket. Descriptor: the socket, which becomes the child's standard output and error.
    Output,
    /// Start a child. Descriptor: the socket that becomes its channel. Always answered by one [`FromLauncher::Ended`].
    Start {
        /// The child's number, chosen by the device process; no two live children have the same number.
        child: u32,
        /// The child's role.
        role: ChildRole,
        /// The driver that the child is to load.
        family: DriverFamily,
    },
    /// Kill a child, if it still runs, and all processes that it started.
    Kill {
        /// The child's number, as given at its start.
        child: u32,
    },
    /// From now on this process may have the kept memory mapped. Descriptor: the process (`pidfd`); none if it is not known.
    Frontend,
    /// Keep a descriptor, as one of a set. Descriptor: the one to keep. The launcher keeps it until it is told to let go, or, if the device
    /// process is gone, for as long as the frontend's process lives.
    Keep {
        /// The set.
        set: u64,
    },
    /// Close the descriptors of a set. Answered by [`FromLauncher::Released`].
    LetGo {
        /// The set.
        set: u64,
    },
    /// Keep the descriptors of a set until the frontend's process has ended. Answered by [`FromLauncher::Released`].
    KeepOn {
        /// The set.
        set: u64,
    },
    /// The daemon is set up, with drivers of this family. From now on, report once each that the files of these drivers, or the VM's socket file of
    /// [`Self::RemoveAtEnd`], have changed since the launcher started.
    Watch {
        /// The family of the drivers.
        family: DriverFamily,
    },
    /// Remove these socket files when the device process is gone, if they are still the same. Sent once, before the device process serves a guest.
    RemoveAtEnd {
        /// The absolute path of the VM's socket, and the device and inode of its file, if a device process has made it.
        socket: Option<(PathBuf, (u64, u64))>,
        /// The absolute paths of other sockets.
        others: Vec<PathBuf>,
    },
    /// Another device process has taken these files over: remove none of them.
    LeaveAtEnd,
}

/// Launcher to device process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromLauncher {
    /// The first message: the parts of the sandbox that this system does not offer, in words; none if the sandbox is complete.
    Ready {
        /// One entry for each part.
        lacks: Vec<String>,
    },
    /// The launcher has carried out its order about a set: the device process may close its own descriptors.
    Released {
        /// The set.
        set: u64,
    },
    /// A file has been replaced or changed.
    Replaced(Replaced),
    /// A child is gone.
    Ended {
        /// The child's number, as given at its start.
        child: u32,
        /// The child's status as `wait` tells it, or the reason why it was not started.
        status: Result<i32, String>,
        /// The child was killed because the workers' control group has no memory left.
        out_of_memory: bool,
    },
}

/// A file that a device process depends on, and that was replaced or is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replaced {
    /// A manifest or a library of the GPU's driver: processes that start now load another driver than those that run.
    Driver(PathBuf),
    /// The socket file: no frontend can connect any more.
    Socket(PathBuf),
    /// This program: running processes, and those that they start, go on with the old program.
    Program(PathBuf),
}

impl Replaced {
    /// Returns whether the file is this program, which is the same for all VMs.
    #[must_use]
    pub fn is_program(&self) -> bool {
        matches!(self, Self::Program(_))
    }

    /// Returns the same kind of file, with its path changed by `change`.
    #[must_use]
    pub fn map_path(self, change: impl FnOnce(PathBuf) -> PathBuf) -> Self {
        match self {
            Self::Driver(path) => Self::Driver(change(path)),
            Self::Socket(path) => Self::Socket(change(path)),
            Self::Program(path) => Self::Program(change(path)),
        }
    }
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(path) => write!(f, "the GPU's driver was replaced ({})", path.display()),
            Self::Socket(path) => write!(f, "the socket file {} was removed", path.display()),
            Self::Program(path) => write!(f, "the program was replaced ({})", path.display()),
        }
    }
}
