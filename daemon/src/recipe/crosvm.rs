//! crosvm's option. crosvm always shares the guest's memory.

use super::{Unfit, word};
use std::path::Path;

/// Returns the arguments for `crosvm run`, separated by a space: none needs to be quoted.
///
/// # Errors
///
/// The path would have to be quoted.
pub fn crosvm(socket: &Path) -> Result<String, Unfit> {
    Ok(format!("--vhost-user gpu,socket={}", word(socket)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_option() {
        assert_eq!(crosvm(Path::new("/run/a.sock")).unwrap(), "--vhost-user gpu,socket=/run/a.sock");
    }
}
