//! The build of the program that runs.

use std::sync::LazyLock;

/// The version. If the build was told the commit (`VHOST_USER_VULKAN_COMMIT`), as for packages, the commit follows in brackets.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    option_env!("VHOST_USER_VULKAN_COMMIT")
        .map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
});
