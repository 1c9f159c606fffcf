//! The patches of `guest-driver-patches` as programs see them: the extensions that they find, and the errors that they get.

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tests::clients::Setup;
use tests::daemon::{Daemon, WITHOUT_CHECKPOINTS, cpu_time, eventually};
use tests::daemon_process::build_example;
use tests::packages::{ClientRoot, Device, HostVulkan, PackageRoot, Suite};
use tests::program::{Background, LIMIT, Program, succeed};

/// Extensions that the patched driver passes on and Debian's does not, of those that a software driver has.
const EXTENSIONS: &[&str] = &[
    "VK_EXT_pipeline_robustness",
    "VK_EXT_shader_atomic_float",
    "VK_EXT_shader_atomic_float2",
    "VK_EXT_shader_image_atomic_int64",
    "VK_EXT_shader_replicated_composites",
    "VK_KHR_compute_shader_derivatives",
    "VK_KHR_cooperative_matrix",
    "VK_KHR_shader_expect_assume",
    "VK_KHR_shader_float_controls2",
    "VK_KHR_shader_maximal_reconvergence",
    "VK_KHR_shader_quad_control",
    "VK_KHR_shader_relaxed_extended_instruction",
    "VK_KHR_shader_subgroup_rotate",
    "VK_KHR_workgroup_memory_explicit_layout",
];

/// Processor time of a worker that shows that a program has begun to submit.
const AT_WORK: Duration = Duration::from_millis(50);

/// Returns those of [`EXTENSIONS`] that a program finds, and the lines that it prints about cooperative matrices.
fn found(client: &ClientRoot, device: Device<'_>) -> Result<(Vec<&'static str>, Vec<String>)> {
    let output = Program::start(client.command("vulkaninfo", device)?)?.wait(LIMIT)?;
    ensure!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let has = |name: &&&str| text.split_whitespace().any(|word| word == **name);
    let matrices = text.lines().map(str::trim).filter(|line| line.starts_with("cooperativeMatrix"));
    Ok((EXTENSIONS.iter().filter(has).copied().collect(), matrices.map(str::to_owned).collect()))
}

#[test]
fn extensions_of_the_host_reach_a_program_and_say_what_they_say_there() -> Result<()> {
    let (patched, stock) = (ClientRoot::patched()?, ClientRoot::open(Suite::Trixie)?);
    let (on_host, of_matrices) = found(&patched, Device::Native)?;
    ensure!(on_host.len() == EXTENSIONS.len() && !of_matrices.is_empty(), "natively {on_host:?}");
    let setup = Setup::start()?;
    assert_eq!(found(&patched, Device::Venus(setup.socket()))?, (on_host, of_matrices));
    assert_eq!(found(&stock, Device::Venus(setup.socket()))?.0, <[&str; 0]>::default());
    Ok(())
}

/// A host that names no extensions of its protocol, such as the first versions of virglrenderer, has none of the later extensions.
#[test]
fn a_host_that_names_no_extensions_is_taken_for_one_that_knows_none_of_them() -> Result<()> {
    let patched = ClientRoot::patched()?;
    let of_upstream = |mut capset: Vec<u8>| {
        capset.truncate(160);
        // Bit 0 of the mask marks it as valid.
        capset[20..20 + 128].fill(0);
        capset
    };
    let setup = Setup::with_capset(Daemon::start()?, of_upstream)?;
    assert_eq!(found(&patched, Device::Venus(setup.socket()))?.0, <[&str; 0]>::default());
    // A host without our words behind the mask still has the extensions that the mask names.
    let setup = Setup::with_capset(Daemon::start()?, |mut capset| {
        capset.truncate(160);
        capset
    })?;
    assert_eq!(found(&patched, Device::Venus(setup.socket()))?.0, EXTENSIONS);
    Ok(())
}

/// Returns the lines that a program prints about small floats: extensions, and members of their structs.
fn small_floats(client: &ClientRoot, setup: &Setup) -> Result<Vec<String>> {
    // Debian 13's own program knows neither extension's struct.
    let program = PackageRoot::with(Suite::Testing, &["vulkan-tools"])?.program("vulkaninfo");
    let output = Program::start(client.own(&program, Device::Venus(setup.socket()))?)?.wait(LIMIT)?;
    ensure!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(text.lines().filter(|line| line.contains("bfloat16") || line.contains("float8")).map(words).collect())
}

#[test]
fn small_floats_of_the_host_reach_a_program_with_their_features() -> Result<()> {
    let layer = build_example("small_floats_layer")?.with_file_name("libsmall_floats_layer.so");
    let vulkan = HostVulkan::small_floats(&layer)?;
    let setup = Setup::on(Daemon::start_on(&vulkan, &[])?)?;
    let expected = [
        "vk_ext_shader_float8 : extension revision 1",
        "vk_khr_shader_bfloat16 : extension revision 1",
        "vkphysicaldeviceshaderbfloat16featureskhr:",
        "shaderbfloat16type = true",
        "shaderbfloat16dotproduct = false",
        "shaderbfloat16cooperativematrix = true",
        "vkphysicaldeviceshaderfloat8featuresext:",
        "shaderfloat8 = false",
        "shaderfloat8cooperativematrix = true",
    ];
    assert_eq!(small_floats(&ClientRoot::patched()?, &setup)?, expected);
    assert_eq!(small_floats(&ClientRoot::open(Suite::Trixie)?, &setup)?, <[&str; 0]>::default());
    Ok(())
}

/// A VM that may have 256 MiB; one program gets seven eighths of that.
fn small() -> Result<Setup> {
    Setup::on(Daemon::start_with(&["--host-memory", "256MiB", "--device-memory", "256MiB"])?)
}

/// Runs one of this repository's programs to its end, demands success, and returns its output.
fn said_by(program: &str, arguments: &[&str], setup: &Setup) -> Result<String> {
    let mut command = ClientRoot::patched()?.own(Path::new(program), Device::Venus(setup.socket()))?;
    command.args(arguments);
    let said = succeed(command, LIMIT)?;
    setup.settle()?;
    Ok(said)
}

/// Returns the output of a program that makes `count` allocations of a MiB, which it does not map: "allocations", or "freed" if it frees them.
fn allocating(kind: &str, count: &str, setup: &Setup) -> Result<String> {
    said_by(env!("CARGO_BIN_EXE_hog"), &[kind, count], setup)
}

#[test]
fn an_allocation_beyond_the_quota_fails_itself() -> Result<()> {
    let text = allocating("allocations", "1000", &small()?)?;
    ensure!(text.contains("of allocations: ERROR_OUT_OF_DEVICE_MEMORY"), "{text}");
    Ok(())
}

/// Debian's driver ends the program with SIGSEGV.
#[test]
fn a_thread_may_end_after_the_driver_was_unloaded() -> Result<()> {
    said_by(env!("CARGO_BIN_EXE_unloaded_driver"), &[], &Setup::start()?).map(drop)
}

/// The driver keeps an empty block for the next small allocation, but not when another allocation would fail.
#[test]
fn small_allocations_share_memory_and_keep_none_that_others_need() -> Result<()> {
    said_by(env!("CARGO_BIN_EXE_small_memory"), &["4096", "limited"], &small()?).map(drop)
}

/// After a program has taken all memory, the reported use is all of the budget. Freed memory is kept for the program's next allocations for a while,
/// and does not count as used. llvmpipe itself reports the use of the whole machine.
#[test]
fn a_budget_is_that_of_the_context() -> Result<()> {
    let setup = small()?;
    let used_after = |kind: &str, count: &str| -> Result<String> {
        let text = allocating(kind, count, &setup)?;
        Ok(text.lines().find(|line| line.starts_with("uses ")).context(text.clone())?.to_owned())
    };
    assert_eq!(used_after("allocations", "0")?, "uses 0 of 224 MiB");
    assert_eq!(used_after("allocations", "100")?, "uses 100 of 224 MiB");
    assert_eq!(used_after("allocations", "1000")?, "uses 224 of 224 MiB");
    assert_eq!(used_after("freed", "100")?, "uses 0 of 224 MiB");
    Ok(())
}

/// Debian's driver ends the program with SIGABRT.
#[test]
fn a_program_whose_worker_is_killed_hears_of_a_lost_device() -> Result<()> {
    let patched = ClientRoot::patched()?;
    for measure in ["empty 600000\n", "timeline 600000\n", "submissions 64 600000\n"] {
        // With checkpoints, the program would get another worker between two submissions.
        let setup = Setup::on(Daemon::start_with(&WITHOUT_CHECKPOINTS)?)?;
        let mut command =
            patched.own(Path::new(env!("CARGO_BIN_EXE_gauge")), Device::Venus(setup.socket()))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut program = command.spawn()?;
        let (mut stdin, stdout) =
            (program.stdin.take().context("piped")?, program.stdout.take().context("piped")?);
        // The program's line about its device, and the answer to a short measure: the program has made all objects that it needs.
        let mut answers = BufReader::new(stdout);
        stdin.write_all(b"empty 1\n")?;
        (0..2).try_for_each(|_| answers.read_line(&mut String::new()).map(drop))?;
        let workers = setup.daemon().workers();
        ensure!(workers.len() == 1, "{workers:?}");
        let so_far = cpu_time(workers[0])?;
        stdin.write_all(measure.as_bytes())?;
        let is_at_work = || cpu_time(workers[0]).is_ok_and(|now| now > so_far + AT_WORK);
        ensure!(eventually(LIMIT, is_at_work), "the worker has nothing to do");
        kill_process(workers[0], Signal::KILL)?;
        let mut said = String::new();
        program.stderr.take().context("piped")?.read_to_string(&mut said)?;
        let status = program.wait()?;
        ensure!(status.code() == Some(1) && status.signal().is_none(), "{measure}{status}\n{said}");
        ensure!(said.contains("logical device has been lost"), "{measure}{said}");
    }
    Ok(())
}

/// The program itself checks the result of each call.
#[test]
fn a_program_cleans_up_after_a_lost_device_and_computes_on_another() -> Result<()> {
    let setup = Setup::on(Daemon::start_with(&WITHOUT_CHECKPOINTS)?)?;
    let program = Path::new(env!("CARGO_BIN_EXE_lost_device"));
    let mut program = Background::start(ClientRoot::patched()?.own(program, Device::Venus(setup.socket()))?)?;
    let is_ready = eventually(LIMIT, || !program.is_running() || program.said().ends_with("ready\n"));
    let workers = setup.daemon().workers();
    ensure!(is_ready && workers.len() == 1, "{workers:?}: {}", program.errors());
    kill_process(workers[0], Signal::KILL)?;
    let status = program.wait(LIMIT)?;
    let (said, errors) = (program.said(), program.errors());
    ensure!(status.success() && said.ends_with("cleaned up\ncomputes again\n"), "{status}\n{said}{errors}");
    Ok(())
}
