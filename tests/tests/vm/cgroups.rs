//! Limits of a VM's processes, on a kernel with all control groups: here the guest is the host, and the tests of `cgroups` run in it.

use anyhow::{Context, Result, ensure};
use tests::daemon_process::{daemon_executable, integration_test};
use tests::packages::Suite;
use tests::vm::{Guest, LAVAPIPE, Options, Outcome, Script, Vm};

#[test]
#[ignore = "boots a machine that is a host with all control groups"]
fn what_one_vm_takes_is_taken_from_no_other() -> Result<()> {
    let guest = Guest::build(Suite::Testing)?;
    let mut script = Script::new(&format!(
        "export VK_DRIVER_FILES={LAVAPIPE} VK_LOADER_LAYERS_DISABLE='~implicit~'
         export VHOST_USER_VULKAN_DAEMON=/vhost-user-vulkan VHOST_USER_VULKAN_GPU=
         mkdir -p /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit 1
         cat /sys/fs/cgroup/cgroup.controllers
         /behaviour cgroups:: --test-threads=1 --nocapture || exit 2
        "
    ));
    for (name, file) in
        [("vhost-user-vulkan", daemon_executable()?), ("behaviour", integration_test("behaviour")?)]
    {
        script = script.with_file(name, std::fs::read(&file).with_context(|| file.display().to_string())?);
    }
    script = script.with_software_driver(&guest)?;
    let options = Options { memory_mib: 3072, ..Options::default() };
    let Outcome { status, output, console } = Vm::run(&guest, &script, &options)?;
    ensure!(status == 0, "status {status}\n{output}\n{console}");
    println!("{output}");
    ensure!(!output.contains("skipped"), "a test was skipped where none may be\n{output}");
    Ok(())
}
