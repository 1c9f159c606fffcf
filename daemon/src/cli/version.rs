//! The build of the program that runs.

use std::sync::LazyLock;

/// The version, behind it in brackets the commit that the program was built from if the build was told it (`VHOST_USER_VULKAN_COMMIT`), as
/// packages are.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    option_env!("VHOST_USER_VULKAN_COMMIT")
        .map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
});
