//! Tests of `docs/many-hosts.md` and `daemon/packaging/kubevirt` for a cluster: Kubernetes takes the manifests, KubeVirt's hook makes the same
//! additions as `recipe`, slots are for its pods, and a node reports its free resources.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tests::booted::{Booted, Network};
use tests::broker::{Broker, refused, vhost_user_vulkan};
use tests::daemon_process::daemon_executable;
use tests::package::by_hand;
use tests::packages::{Installed, Python, Wheels};
use tests::program::{LIMIT, succeed};
use tests::sources::repository;
use tests::vm::kubevirt::{DOMAIN, HOOK, hooked};

/// The socket's path in a pod.
const SOCKET: &str = "/run/vhost-user-vulkan/gpu.sock";

/// A validator with the schemas that Kubernetes publishes.
const VALIDATOR: Wheels = Wheels {
    name: "kubernetes-validate-1",
    requirements: "\
attrs==26.1.0 --hash=sha256:c647aa4a12dfbad9333ca4e71fe62ddc36f4e63b2d260a37a8b83d2f043ac309
importlib-resources==7.1.0 --hash=sha256:1bd7b48b4088eddb2cd16382150bb515af0bd2c70128194392725f82ad2c96a1
jsonschema==4.26.0 --hash=sha256:d489f15263b8d200f8387e64b4c3a75f06629559fb73deb8fdfb525f2dab50ce
jsonschema-specifications==2025.9.1 --hash=sha256:98802fee3a11ee76ecaca44429fda8a41bff98b00a0f2838151b113f210cc6fe
kubernetes-validate==1.37.0 --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9
packaging==26.4 --hash=sha256:81383611a09c1bc0b08b76e0fd5829d7c6824c65b27a6aee339da133f4233ea2
PyYAML==6.0.4 --hash=sha256:622aa875fa6533f25fedcffe23079357d65a690d462200afed5d8e9d0e01ebee
referencing==0.37.0 --hash=sha256:381329a9f99628c9069361716891d34ad94af76e461dcb0335825aecc7692231
rpds-py==2026.9.1 --hash=sha256:136a1c3fe4402b7008bc81cb62ee538481795b61a7e83df88dff3b3f02b726ff
typing-extensions==4.16.0 --hash=sha256:481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8
",
};

fn manifest(name: &str) -> Result<String> {
    fs::read_to_string(path(name)).with_context(|| name.to_owned())
}

fn path(name: &str) -> PathBuf {
    repository().join("daemon/packaging/kubevirt").join(name)
}

/// Checks a manifest against the schema of its kind, which allows no unknown keys.
fn validate(text: &str) -> Result<String> {
    let python = Python::with(&VALIDATOR)?;
    let file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    fs::write(file.path(), text)?;
    let mut command = Command::new(python.executable());
    python.prepare(&mut command);
    command.args(["-m", "kubernetes_validate", "--strict"]).arg(file.path());
    succeed(command, LIMIT)
}

#[test]
fn kubernetes_takes_the_manifests_of_its_own_kinds() -> Result<()> {
    for name in ["device-plugin.yaml", "hook.yaml"] {
        validate(&manifest(name)?)?;
    }
    let wrong = manifest("device-plugin.yaml")?.replace("nodeSelector", "nodeSelektor");
    ensure!(validate(&wrong).is_err(), "anything is taken");
    Ok(())
}

#[test]
fn the_manifests_name_the_same_things() -> Result<()> {
    let (plugin, machine) = (manifest("device-plugin.yaml")?, manifest("machine.yaml")?);
    ensure!(plugin.contains(&format!("mountPath: {SOCKET}\n")));
    ensure!(HOOK.contains(&format!("SOCKET = \"{SOCKET}\"\n")));
    ensure!(plugin.contains("name: vulkan\n") && machine.contains("squat.ai/vulkan: \"1\"\n"));
    let (_, annotation) = machine.split_once("hookSidecars: >-\n").context("no annotation")?;
    let (annotation, _) = annotation.split_once("spec:").context("nothing follows the annotation")?;
    let hooks: serde_json::Value = serde_json::from_str(annotation)?;
    let map = &hooks[0]["configMap"];
    ensure!(map["key"] == "onDefineDomain" && map["hookPath"] == "/usr/bin/onDefineDomain", "{map}");
    ensure!(HOOK.contains(&format!("\n  name: {}\n", map["name"].as_str().unwrap_or_default())), "{map}");
    // The slots have the names that the plugin looks for, and the broker takes the file.
    let slots = manifest("slots.toml")?;
    let paths: Vec<_> = slots.lines().filter_map(|line| line.strip_prefix("socket-path = ")).collect();
    let is_found =
        |path: &&str| path.starts_with("\"/run/vhost-user-vulkan/slot-") && path.ends_with(".sock\"");
    ensure!(
        !paths.is_empty() && paths.iter().all(is_found) && plugin.contains("/slot-*.sock\n"),
        "{paths:?}"
    );
    let mut check = vhost_user_vulkan()?;
    check.arg("--config").arg(path("slots.toml")).arg("--check-config");
    succeed(check, LIMIT)?;
    let wrong = tempfile::NamedTempFile::new()?;
    fs::write(wrong.path(), slots.replace("device-memory", "device-memori"))?;
    refused(&["--check-config"], wrong.path()).map(drop)
}

#[test]
fn the_hook_adds_what_the_recipe_adds() -> Result<()> {
    let memory = |backing: &str| DOMAIN.replace("\t<os>", &format!("\t{backing}\n\t<os>"));
    let more = "<qemu:commandline><qemu:arg value='-s'/></qemu:commandline>";
    let domains = [
        DOMAIN.to_owned(),
        DOMAIN.replace(" xmlns:qemu=\"http://libvirt.org/schemas/domain/qemu/1.0\"", ""),
        memory("<memoryBacking><hugepages></hugepages><source type=\"memfd\"></source></memoryBacking>"),
        memory(
            "<memoryBacking><access mode=\"private\"></access><nosharepages></nosharepages></memoryBacking>",
        ),
        memory(
            "<memoryBacking><source type=\"file\"></source><access mode=\"shared\"></access></memoryBacking>",
        ),
        DOMAIN.replace("</domain>", &format!("{more}</domain>")),
    ];
    for domain in domains {
        let (hook, recipe) = (hooked(&domain)?, recipe(&domain)?);
        assert_eq!(canonical(&hook)?, canonical(&recipe)?);
        assert_ne!(canonical(&hook)?, canonical(&domain)?);
        assert_eq!(canonical(&hooked(&hook)?)?, canonical(&hook)?, "it is added twice");
    }
    Ok(())
}

fn recipe(domain: &str) -> Result<String> {
    let mut command = vhost_user_vulkan()?;
    command.args(["recipe", "libvirt", "--socket-path", SOCKET, "--domain", "-"]);
    fed(command, domain)
}

/// An XML document in its canonical form, without the space between elements.
fn canonical(document: &str) -> Result<String> {
    let mut command = Command::new("python3");
    let program = "import sys, xml.etree.ElementTree as xml\n\
                   print(xml.canonicalize(sys.stdin.read(), strip_text=True, rewrite_prefixes=True))";
    command.args(["-c", program]);
    fed(command, document)
}

fn fed(mut command: Command, input: &str) -> Result<String> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("standard input is piped")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn a_node_tells_what_it_has_free() -> Result<()> {
    let keys = "device-memory = \"64MiB\"\nweight = 300\n";
    let broker = Broker::start("", &[("slot-1", keys), ("slot-2", keys)])?;
    let status = broker.status()?;
    let gpu = &status["gpus"][0];
    let number = |key: &str| gpu[key].as_u64().with_context(|| format!("{key} in {gpu}"));
    assert_eq!((number("device_memory_promised")?, number("weights")?), (128 << 20, 600));
    assert_eq!(number("device_memory")?, number("device_memory_free")? + (128 << 20));
    assert_eq!((gpu["vms"]["waiting"].as_u64(), gpu["vms"]["connected"].as_u64()), (Some(2), Some(0)));

    let programs = tempfile::tempdir()?;
    std::os::unix::fs::symlink(daemon_executable()?, programs.path().join("vhost-user-vulkan"))?;
    let mut script = Command::new(path("node-features"));
    script.arg("--control-socket").arg(broker.path("control"));
    script.env("PATH", format!("{}:/usr/bin:/bin", programs.path().display()));
    let lines = succeed(script, LIMIT)?;
    let mib = |key: &str| Ok::<_, anyhow::Error>(number(key)? >> 20);
    let expected = [
        "vulkan.slots=2".to_owned(),
        "vulkan.slots-free=2".to_owned(),
        format!("vulkan.gpu-0.device-memory-mib={}", mib("device_memory")?),
        format!("vulkan.gpu-0.device-memory-free-mib={}", mib("device_memory_free")?),
        "vulkan.gpu-0.weights=600".to_owned(),
    ];
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    Ok(())
}

/// Makes the slots as the page says.
const SLOTS: &str = r"
cd /mnt/packaging
install -D -m 644 -t /etc/systemd/system/vhost-user-vulkan.service.d kubevirt/slots.conf
install -D -m 644 kubevirt/slots.sysusers /etc/sysusers.d/vhost-user-vulkan-slots.conf
install -D -m 644 kubevirt/slots.toml /etc/vhost-user-vulkan/vms.toml
systemd-sysusers
systemctl daemon-reload
systemctl start vhost-user-vulkan
";

#[test]
#[ignore = "installs a whole system: a host of virtual machines"]
fn slots_are_for_the_user_of_kubevirts_pods() -> Result<()> {
    if let Some(why) = Booted::obstacle() {
        println!("skipped: {why}");
        return Ok(());
    }
    let shown = tempfile::tempdir()?;
    by_hand::lay_out(shown.path())?;
    let Some(system) = Booted::boot(&Installed::vm_host()?, shown.path(), Network::None)? else {
        return Ok(());
    };
    system.run(by_hand::INSTALL)?;
    system.run(SLOTS).with_context(|| system.run("journalctl -n 40 --no-pager").unwrap_or_default())?;
    let sockets = system.run("cd /run/vhost-user-vulkan; stat -c '%n %g %a' slot-*.sock")?;
    assert_eq!(sockets, "slot-1.sock 107 660\nslot-2.sock 107 660\n");
    Ok(())
}
