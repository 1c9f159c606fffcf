//! The names in a package: its own, and those of the programs that it is made for.

/// The package's name, and the program's.
pub const NAME: &str = "vhost-user-vulkan";

/// An architecture that the package is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// x86-64 with the GNU C library.
    Amd64,
    /// 64-bit Arm with the GNU C library.
    Arm64,
}

impl Architecture {
    /// Returns the architecture of this machine, if it is one of these.
    #[must_use]
    pub fn own() -> Option<Self> {
        [Self::Amd64, Self::Arm64].into_iter().find(|it| it.triple().starts_with(std::env::consts::ARCH))
    }

    /// Returns its name in Debian.
    #[must_use]
    pub fn debian(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the name of its compilation target.
    #[must_use]
    pub fn triple(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}
