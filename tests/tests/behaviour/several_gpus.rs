//! Several GPUs for one VM: its guest sees each, computes on each, and each has a scheduler of its own.
//!
//! The GPUs are lavapipe and a copy of it with another UUID; with `VHOST_USER_VULKAN_GPU` the first two of the machine.

use anyhow::{Context, Result, anyhow, ensure};
use protocol::cursor::{Arena, Reader};
use protocol::venus::generated as venus;
use protocol::venus::generated::{ChainStruct, VkResult};
use protocol::virtio_gpu::Command as Request;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tests::bridge::Bridge;
use tests::broker::Broker;
use tests::daemon::{Daemon, eventually, two_gpus};
use tests::daemon_process::daemon_executable;
use tests::frontend::{Options, Session};
use tests::guest::device::{Device, Source, ensure_filled};
use tests::guest::ring::{REPLY, Ring};
use tests::guest::{Gpu, PATIENCE};
use tests::packages::{self, ClientRoot, HostVulkan, Suite};
use tests::port::free_port;
use tests::program::{LIMIT, Program, succeed};
use vm_memory::{Bytes, VolatileMemory};

const SIZE: u64 = 64 * 1024;

/// Two GPUs, or `None` on a machine that does not have two.
fn gpus() -> Result<Option<(HostVulkan, [String; 2])>> {
    let two = two_gpus()?;
    if two.is_none() {
        println!("skipped: this machine has no two GPUs");
    }
    Ok(two)
}

/// A UUID as the daemon lists it, in bytes.
fn bytes_of(uuid: &str) -> Result<Vec<u8>> {
    let digits = uuid.replace('-', "");
    let byte = |at: usize| Ok(u8::from_str_radix(digits.get(at..at + 2).context("a short UUID")?, 16)?);
    (0..16).map(|at| byte(2 * at)).collect()
}

/// `vkEnumeratePhysicalDevices` with room for these: the result, and the number of GPUs that exist or were bound.
fn enumerate(ring: &mut Ring, ids: Option<&[venus::PhysicalDevice]>) -> Result<(VkResult, u32)> {
    let instance = venus::Instance(1);
    let room = ids.map_or(0, |ids| ids.len() as u32);
    let reply = ring.query(|w| {
        let p_physical_device_count = Some(&room);
        venus::EnumeratePhysicalDevices { instance, p_physical_device_count, p_physical_devices: ids }
            .encode(REPLY, w);
    })?;
    let arena = Arena::new(1 << 16);
    let reply = venus::EnumeratePhysicalDevicesReply::decode(&mut Reader::new(&reply, &arena))?;
    Ok((reply.result, *reply.p_physical_device_count.context("a count")?))
}

/// The UUID that the guest sees.
fn uuid(ring: &mut Ring, physical_device: venus::PhysicalDevice) -> Result<Vec<u8>> {
    let id = venus::PhysicalDeviceIDProperties::default();
    let chain = [ChainStruct::PhysicalDeviceIDProperties(&id)];
    let partial = venus::PhysicalDeviceProperties2 { p_next: &chain, ..Default::default() };
    let reply = ring.query(|w| {
        venus::GetPhysicalDeviceProperties2 { physical_device, p_properties: Some(&partial) }
            .encode(REPLY, w);
    })?;
    let arena = Arena::new(1 << 16);
    let reply = venus::GetPhysicalDeviceProperties2Reply::decode(&mut Reader::new(&reply, &arena))?;
    match reply.p_properties.context("properties")?.p_next {
        [ChainStruct::PhysicalDeviceIDProperties(id)] => Ok(id.device_uuid.to_vec()),
        other => Err(anyhow!("the chain came back as {other:?}")),
    }
}

#[test]
fn a_guest_enumerates_its_gpus_in_the_order_they_were_named_in() -> Result<()> {
    let Some((vulkan, [first, second])) = gpus()? else { return Ok(()) };
    for named in [[first.clone(), second.clone()], [second, first]] {
        let daemon = Daemon::start_on_two(&vulkan, &named)?;
        let guest = Arc::new(daemon.guest()?);
        // The device has bound the first GPU by an enumeration with room for one only.
        let mut device = Device::create(&guest, "device")?;
        let ids = [device.physical, venus::PhysicalDevice(900), venus::PhysicalDevice(901)];
        let ring = &mut device.ring;
        assert_eq!(enumerate(ring, None)?, (VkResult::SUCCESS, 2));
        assert_eq!(enumerate(ring, Some(&ids[..1]))?, (VkResult::INCOMPLETE, 1));
        assert_eq!(enumerate(ring, Some(&ids))?, (VkResult::SUCCESS, 2), "there is room for more");
        assert_eq!(enumerate(ring, Some(&ids[..2]))?, (VkResult::SUCCESS, 2), "once more");
        let seen = [uuid(ring, ids[0])?, uuid(ring, ids[1])?];
        assert_eq!(seen, [bytes_of(&named[0])?, bytes_of(&named[1])?]);
        let groups = groups(ring)?;
        assert_eq!(groups, [(1, ids[0]), (1, ids[1])], "each is a group of its own");
    }
    Ok(())
}

/// Groups of physical devices: how many are in each, and the first.
fn groups(ring: &mut Ring) -> Result<Vec<(u32, venus::PhysicalDevice)>> {
    let room = [venus::PhysicalDeviceGroupProperties::default(); 4];
    let reply = ring.query(|w| {
        venus::EnumeratePhysicalDeviceGroups {
            instance: venus::Instance(1),
            p_physical_device_group_count: Some(&(room.len() as u32)),
            p_physical_device_group_properties: Some(&room),
        }
        .encode(REPLY, w);
    })?;
    let arena = Arena::new(1 << 16);
    let reply = venus::EnumeratePhysicalDeviceGroupsReply::decode(&mut Reader::new(&reply, &arena))?;
    let groups = reply.p_physical_device_group_properties.context("groups")?;
    Ok(groups.iter().map(|group| (group.physical_device_count, group.physical_devices[0])).collect())
}

#[test]
fn devices_of_two_gpus_compute_and_share_memory() -> Result<()> {
    let Some((vulkan, named)) = gpus()? else { return Ok(()) };
    let daemon = Daemon::start_on_two(&vulkan, &named)?;
    let guest = Arc::new(daemon.guest()?);
    let (mut first, mut second) =
        (Device::create_on(&guest, "first", 0, &[])?, Device::create_on(&guest, "second", 1, &[])?);
    let memory = first.allocate(SIZE, Source::Exportable)?.map_err(|result| anyhow!("{result:?}"))?;
    let blob = first.blob(memory, SIZE)?;
    let mapped = blob.mapping.as_ref().context("a mapping")?.1.map()?;
    let read = || -> Result<Vec<u8>> {
        let mut bytes = vec![0; SIZE as usize];
        mapped.as_volatile_slice().read_slice(&mut bytes, 0)?;
        Ok(bytes)
    };
    first.fill(memory, SIZE, 0x1111_2222)?;
    ensure_filled(&read()?, 0x1111_2222)?;
    let attach = Request::CtxAttachResource { resource_id: blob.resource_id };
    guest.call(&attach, Some(second.context)).map(drop)?;
    let imported = second.allocate(SIZE, Source::Resource(blob.resource_id.0))?;
    let imported = imported.map_err(|result| anyhow!("{result:?}"))?;
    second.fill(imported, SIZE, 0x3333_4444)?;
    ensure_filled(&read()?, 0x3333_4444).context("written by the other GPU")
}

/// A program that computes on all its physical devices at once, and checks each result.
fn computing(socket: &Path, rounds: &str) -> Result<Command> {
    let executable = Path::new(env!("CARGO_BIN_EXE_many_threads"));
    let mut command = ClientRoot::open(Suite::Testing)?.own(executable, packages::Device::Venus(socket))?;
    command.args(["--instances", "1", "--devices", "2", "--all-gpus", "--lanes", "1"]);
    command.args(["--words", "4096", "--steps", "5000", "--rounds", rounds]);
    Ok(command)
}

#[test]
fn unmodified_programs_list_both_and_compute_on_both() -> Result<()> {
    let Some((vulkan, named)) = gpus()? else { return Ok(()) };
    let daemon = Daemon::start_on_two(&vulkan, &named)?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("vtest");
    let guest = Gpu::new(Session::connect(&daemon.socket(), Options::default())?);
    let _bridge = Bridge::listen(&path, guest)?;
    for suite in [Suite::Trixie, Suite::Testing, Suite::Unstable] {
        let mut vulkaninfo = ClientRoot::open(suite)?.through_vtest("vulkaninfo", &path)?;
        vulkaninfo.arg("--summary");
        let summary = succeed(vulkaninfo, LIMIT)?;
        let lines = |key: &str| {
            let found = summary.lines().filter(|line| line.trim_start().starts_with(key));
            found.map(|line| line.rsplit(" = ").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        // Not the UUIDs: those that Mesa shows are the same for all GPUs of a model.
        let names = lines("deviceName");
        let are_venus = names.iter().all(|name| name.starts_with("Virtio-GPU Venus ("));
        ensure!(names.len() == 2 && are_venus, "{suite:?}: {summary}");
    }
    println!("{}", succeed(computing(&path, "20")?, LIMIT)?);
    Ok(())
}

#[test]
fn each_gpu_has_its_scheduler_and_a_vm_of_both_is_accounted_for_on_both() -> Result<()> {
    let Some((vulkan, [first, second])) = gpus()? else { return Ok(()) };
    let port = free_port()?;
    let top = format!("metrics = \"127.0.0.1:{port}\"");
    let both = format!("gpu = [{first:?}, {second:?}]");
    let one = format!("gpu = {second:?}");
    let broker = Broker::start_on(&vulkan, &top, &both, &[("both", ""), ("one", &one)])?;
    let (_both, both) = broker.bridge("both")?;
    let (_one, one) = broker.bridge("one")?;
    let victim = Program::start(computing(&both, "100000000")?)?;
    let context = || broker.vm("both").map(|vm| vm["contexts"][0]["context"].clone());
    ensure!(eventually(PATIENCE, || context().is_ok_and(|number| number.is_u64())), "{}", broker.log());
    println!("{}", succeed(computing(&one, "10")?, LIMIT)?);
    let used = |vm: &Value| -> Vec<f64> {
        let gpus = vm["gpus"].as_array().into_iter().flatten();
        gpus.filter_map(|gpu| gpu["gpu_seconds"].as_f64()).collect()
    };
    let on_both =
        || broker.vm("both").is_ok_and(|vm| used(&vm).iter().filter(|used| **used > 0.0).count() == 2);
    ensure!(eventually(PATIENCE, on_both), "not both are used: {}", broker.vm("both")?);
    println!("{}", broker.say(&["status"])?);
    broker.say(&["set", "both", "class=background"])?;
    broker.say(&["kill", &format!("both/{}", context()?)])?;
    ensure!(!victim.wait(LIMIT).context("the victim noticed nothing")?.status.success());
    let is_over = || broker.vm("both").is_ok_and(|vm| vm["contexts"] == json!([]));
    ensure!(eventually(PATIENCE, is_over), "{}", broker.vm("both")?);
    let vm = broker.vm("both")?;
    assert_eq!((&vm["kills"]["operator"], &vm["class"]), (&json!(1), &json!("background")), "{vm}");
    let uuids = |vm: &Value| -> Vec<Value> {
        vm["gpus"].as_array().into_iter().flatten().map(|gpu| gpu["uuid"].clone()).collect()
    };
    let (first, second) = (json!(first.replace('-', "")), json!(second.replace('-', "")));
    assert_eq!(uuids(&vm), [first.clone(), second.clone()]);
    assert_eq!(uuids(&broker.vm("one")?), std::slice::from_ref(&second));
    let sum: f64 = used(&vm).iter().sum();
    ensure!((sum - vm["used"]["gpu_seconds"].as_f64().unwrap_or_default()).abs() < 1e-6, "{vm}");
    let text = broker.metrics(port)?;
    for uuid in [first, second] {
        let labels = format!("gpu_seconds_total{{vm=\"both\",gpu={uuid},queue=\"compute\"}} ");
        ensure!(text.contains(&labels), "{labels} is not in\n{text}");
    }
    println!("{}", succeed(computing(&both, "3")?, LIMIT)?);
    Ok(())
}

#[test]
fn gpus_that_one_vm_cannot_have_are_refused_with_what_to_do() -> Result<()> {
    let Some((vulkan, [first, second])) = gpus()? else { return Ok(()) };
    let refused = |status: i32, arguments: &[&str]| -> Result<String> {
        let mut command = vulkan.command(&daemon_executable()?)?;
        let output = command.args(["--socket-path", "/nowhere/socket"]).args(arguments).output()?;
        ensure!(output.status.code() == Some(status), "{}", output.status);
        Ok(String::from_utf8(output.stderr)?)
    };
    let undashed = first.replace('-', "");
    let twice = refused(1, &["--gpu", &first, "--gpu", &second, "--gpu", &undashed])?;
    ensure!(twice.contains(&format!("\"{first}\" and \"{undashed}\" are the same GPU")), "{twice}");
    ensure!(twice.contains("name each GPU of a VM once"), "{twice}");
    // The command line is wrong, whatever GPUs the machine has.
    let many = refused(2, &["--gpu", &first].repeat(9))?;
    ensure!(many.contains("9 GPUs for one VM are more than 8: name fewer of them"), "{many}");
    let unknown = refused(1, &["--gpu", &first, "--gpu", "no such gpu"])?;
    ensure!(unknown.contains("no GPU matches \"no such gpu\" (remedy: "), "{unknown}");
    ensure!(unknown.contains("; there are:\n") && unknown.contains(&first), "{unknown}");
    Ok(())
}
