//! Recipes: the text that gives a VM its GPU when an operator pastes it into the VM's definition: QEMU's arguments (`qemu`), libvirt's XML
//! (`libvirt`, and `domain` for a whole definition, with advice about its other devices from `neighbours`), crosvm's option (`crosvm`). This module
//! knows no files and no broker: it makes a text from a socket's path and a size.

mod crosvm;
mod domain;
mod libvirt;
mod neighbours;
mod qemu;

pub use crosvm::crosvm;
pub use domain::{DomainError, Given, with_gpu};
pub use libvirt::{confinement, libvirt};
pub use qemu::{OVMF_LARGE, qemu};

use std::path::Path;

/// The ids of the character device, the device, its port and the memory in QEMU. Operators name the first three when they plug the device again.
const CHARDEV: &str = "vhost-user-vulkan";
const DEVICE_ID: &str = "vhost-user-vulkan";
const PORT_ID: &str = "vhost-user-vulkan-port";
const MEMORY: &str = "vhost-user-vulkan-memory";

/// The reason why no text can be given for a socket's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The path has a character to which a shell, or the program that reads the text, gives another meaning.
    #[error("{0}: give the VM a socket-path of letters, digits and /._-:@+= only")]
    Character(&'static str),
    /// The path is not absolute, so its meaning depends on the folder in which a program is started.
    #[error("the socket's path is relative: give the VM one that begins with /")]
    Relative,
}

/// Returns the path as a word that neither a shell nor a list of options splits.
fn word(path: &Path) -> Result<&str, Unfit> {
    let text = path.to_str().ok_or(Unfit::Character("the socket's path is not UTF-8"))?;
    let plain = |c: char| c.is_alphanumeric() || "/._-:@+=".contains(c);
    match text.chars().all(plain) {
        _ if !path.is_absolute() => Err(Unfit::Relative),
        true => Ok(text),
        false => Err(Unfit::Character("the socket's path has a character that would have to be quoted")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_would_be_taken_apart_are_refused_with_the_remedy() {
        assert_eq!(
            word(Path::new("/run/vhost-user-vulkan/web-1.sock")),
            Ok("/run/vhost-user-vulkan/web-1.sock")
        );
        assert_eq!(word(Path::new("gpu.sock")), Err(Unfit::Relative));
        for wrong in ["/run/my gpu", "/run/a,b", "/run/$HOME", "/run/*", "/run/a'b", "/run/a\nb", "/run/<a>"]
        {
            let error = word(Path::new(wrong)).unwrap_err().to_string();
            assert!(
                error.ends_with("give the VM a socket-path of letters, digits and /._-:@+= only"),
                "{error}"
            );
        }
    }
}
