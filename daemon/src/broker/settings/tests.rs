//! Tests of configuration files: good ones, and each kind of mistake.

use super::*;
use crate::broker::reload::plan::{Action, plan};
use crate::options::MapDeviceMemory;
use crate::sandbox::GroupLimits;
use config::{HangLimits, Queues};

fn parse(text: &str) -> Result<Settings, Problems> {
    Settings::parse(text, LevelFilter::Info)
}

/// Returns the only thing that is wrong with a file, without its line.
fn mistake(text: &str) -> String {
    let said = parse(text).expect_err(text).to_string();
    assert!(!said.contains('\n'), "{text}\n{said}");
    match said.strip_prefix("line ").and_then(|rest| rest.split_once(": ")) {
        Some((_, what)) => what.to_owned(),
        None => said,
    }
}

#[test]
fn a_small_file_has_defaults() {
    let settings = parse("[vm.a]\nsocket-path = \"/run/a\"").unwrap();
    assert_eq!((settings.policy, settings.anticipation), (Policy::BestEffort, None));
    assert_eq!(settings.hardware_slices, HardwareSlices::Driver);
    assert_eq!((&settings.metrics, &settings.log_grants), (&None, &None));
    let [vm] = settings.vms.as_slice() else { panic!("{:?}", settings.vms) };
    assert_eq!(
        (vm.name.as_str(), vm.share),
        ("a", Share { weight: 100, class: Class::Normal, ceiling: None })
    );
    assert_eq!(vm.written, ["log-level=info", "socket-path=/run/a"]);
    let options = VmOptions { socket_path: Some("/run/a".into()), ..VmOptions::default() };
    assert_eq!((&vm.options, &settings.options(vm)), (&options, &options));
    assert_eq!((vm.contexts(), vm.contended(false)), (256, Duration::from_secs(10)));
    assert_eq!(vm.contended(true), HangLimits::software().max_submit_time);
}

#[test]
fn a_file_may_have_no_vm_yet() {
    for text in ["", "[vm]", "[defaults]\nmovable = true", "device-memory = \"1GiB\""] {
        assert!(parse(text).unwrap().vms.is_empty(), "{text}");
    }
}

#[test]
fn a_whole_file_says_everything() {
    let settings = parse(
        r#"
        policy = "fixed"
        anticipation = "1.5%"
        hardware-slices = "short"
        control-socket = "/run/control"
        control-socket-group = "7"
        metrics = "127.0.0.1:9400"
        log-grants = "/tmp/grants"
        device-memory = "10GiB"
        host-memory = 4096
        gpu-memory = "90%"
        memory-wait = "5s"
        [defaults]
        class = "latency"
        gpu = "NVIDIA"
        movable = true
        max-contexts = 3
        [vm.a]
        socket-path = "/run/a"
        weight = 300
        reserved-memory = "1GiB"
        ceiling = "25%"
        device-memory = "4GiB"
        host-memory = 4096
        scanouts = 1
        [vm.b-2]
        socket-path = "b"
        class = "background"
        movable = false
        gpu = "AMD"
        host-memory = 0
        map-device-memory = "auto"
        queues = "all"
        "#,
    )
    .unwrap();
    assert_eq!((settings.policy, settings.anticipation), (Policy::Fixed, Some(0.015)));
    assert_eq!(settings.hardware_slices, HardwareSlices::Short);
    assert_eq!(settings.control_socket, Path::new("/run/control"));
    assert_eq!(settings.control_socket_group, Some(7));
    assert_eq!(settings.metrics, Some(MetricsAddress::Loopback("127.0.0.1:9400".parse().unwrap())));
    let [a, b] = settings.vms.as_slice() else { panic!("{:?}", settings.vms) };
    assert_eq!(a.share, Share { weight: 300, class: Class::Latency, ceiling: Some(0.25) });
    assert_eq!(b.share, Share { weight: 100, class: Class::Background, ceiling: None });
    assert_eq!((a.contexts(), b.contexts()), (3, 3));
    let room = RoomSettings { gpu_memory: Some(Amount::Part(9000)), memory_wait: Duration::from_secs(5) };
    assert_eq!((settings.room, a.reserved_memory, b.reserved_memory), (room, 1 << 30, 0));
    let VmOptions { gpu, movable, queues, quotas, .. } = &b.options;
    assert_eq!((gpu.as_slice(), *movable, *queues), (["AMD".to_owned()].as_slice(), false, Queues::All));
    assert_eq!((quotas.host_memory, b.socket_path()), (Some(0), std::path::absolute("b").unwrap()));
    assert!(a.options.movable && a.options.gpu == ["NVIDIA"] && a.options.scanouts == 1);
    let device_memory = [4 << 30, 6 << 30].map(|bytes| Some(Amount::Bytes(bytes)));
    assert_eq!([a, b].map(|vm| vm.options.quotas.device_memory), device_memory);
    assert_eq!((a.parts.len(), &b.parts[..]), (0, &[format!("device-memory={}", 6u64 << 30)][..]));
    // A program that maps the GPU's memory cannot be swapped out.
    let maps = [a, b].map(|vm| settings.options(vm).map_device_memory);
    assert_eq!(maps, [Some(MapDeviceMemory::Never), Some(MapDeviceMemory::Auto)]);
    let a = [
        "device-memory=4GiB",
        "gpu=NVIDIA",
        "host-memory=4096",
        "log-level=info",
        "max-contexts=3",
        "movable",
        "scanouts=1",
        "map-device-memory=never",
    ];
    assert_eq!(settings.told(&settings.vms[0]), a);
    let [_, b] = settings.vms.as_slice() else { panic!("{:?}", settings.vms) };
    assert_eq!(&b.clone().read_anew(), b, "another program reads the same");
}

#[test]
fn what_one_vm_can_have_can_be_written_in_a_file() {
    let vm = "[vm.a]\nsocket-path = \"/run/a\"\n";
    let all = r#"
        gpu = ["01:00.0", "NVIDIA H200"]
        queues = "all"
        socket-mode = "0666"
        socket-group = "0"
        window-size = "16GiB"
        memory = "memfd"
        map-device-memory = "never"
        max-submit-time = "20s"
        max-submit-time-contended = 5
        spare-gpu = "02:00.0"
        movable = true
        swap-after = "60s"
        strikes = 2
        strike-hold = "1min"
        frontend-timeout = "20s"
        driver-timeout = "7min"
        zero-memory = "off"
        zero-workgroup-memory = "on"
        robustness = "guest"
        device-memory = "4GiB"
        context-device-memory = "12.5%"
        host-memory = "1GiB"
        context-host-memory = "1GiB"
        ring-memory = "1GiB"
        shader-memory = "1GiB"
        max-contexts = 7
        max-rings = 7
        max-vm-rings = 7
        worker-memory = "1GiB"
        max-tasks = 7
        max-objects = 7
        max-shader-cost = 7
        max-pipeline-time = "7min"
        max-worker-data = "6GiB"
        max-resources = 7
        max-maps = 7
        max-log-lines = 7
        scanouts = 0
        state-dir = "/tmp"
        log-level = "debug"
        sandbox = "degraded"
        seccomp = "log"
    "#;
    let settings = parse(&format!("{vm}{all}")).unwrap();
    let vm = &settings.vms[0];
    assert_eq!((vm.contexts(), vm.contended(true)), (7, Duration::from_secs(5)));
    let VmOptions { gpu, quotas, hangs, .. } = &vm.options;
    assert_eq!((quotas.device_memory, hangs.strikes), (Some(Amount::Bytes(4 << 30)), Some(2)));
    assert_eq!(*gpu, ["01:00.0", "NVIDIA H200"]);
    // A new option of the command line is a key at once; its author decides here whether it makes sense.
    let keys = all.lines().filter(|line| line.contains('=')).count();
    assert_eq!(vm.written.len(), keys + 2, "{:?}", vm.written);
    let unknown = mistake("[vm.a]\nsocket-path = \"/run/a\"\nnone = 1");
    // The path of the socket, ceiling, class, reserved-memory and weight are keys as well; the last is followed by no comma.
    assert_eq!(unknown.matches(", ").count(), keys + 4, "{unknown}");
}

#[test]
fn values_in_a_file_have_the_bounds_of_the_command_line() {
    for (line, error) in [
        ("strikes = 0", "[vm.a] strikes: \"0\" is not allowed: 0 is not in 1.."),
        ("max-submit-time = \"2h\"", "[vm.a] max-submit-time: \"2h\" is not allowed: unknown unit \"h\""),
        ("queues = \"some\"", "[vm.a] queues: \"some\" is none of \"compute\", \"nominal\", \"all\""),
        ("window-size = \"3GiB\"", "[vm.a] window-size: \"3GiB\" is not allowed: not a power of two"),
        ("exit-on-disconnect = true", "[vm.a] exit-on-disconnect: unknown"),
        ("list-gpus = true", "[vm.a] list-gpus: unknown"),
        ("config = \"x\"", "[vm.a] config: unknown"),
        ("restart-every = 5", "[vm.a] restart-every: unknown"),
        ("waiting-without = \"spin\"", "[vm.a] waiting-without: unknown"),
    ] {
        let said = mistake(&format!("[vm.a]\nsocket-path = \"/run/a\"\n{line}"));
        assert!(said.starts_with(error), "{said}");
    }
}

#[test]
fn a_movable_vm_has_no_memory_that_binds_programs_to_a_worker() {
    let file =
        |keys: &str| parse(&format!("[defaults]\n{keys}\n[vm.a]\nsocket-path = \"/run/a\"\nmovable = true"));
    for keys in ["", "memory = \"memfd\"", "memory = \"auto\"", "map-device-memory = \"never\""] {
        assert!(file(keys).is_ok(), "{keys}");
    }
    for (keys, option) in [
        ("memory = \"dma-buf\"", "--memory=dma-buf"),
        ("map-device-memory = \"auto\"", "--map-device-memory=auto"),
    ] {
        let said = file(keys).unwrap_err().to_string();
        assert!(said.contains(&format!("[vm.a] --movable cannot stand beside {option}, ")), "{said}");
        assert!(parse(&format!("[vm.a]\nsocket-path = \"/run/a\"\nmovable = false\n{keys}")).is_ok());
    }
}

#[test]
fn memory_that_no_vm_could_have_is_not_reserved() {
    let wrong = [
        ("gpu-memory = 0", "", "gpu-memory: no VM could hold GPU memory"),
        ("", "reserved-memory = 1", "[vm.a] reserved-memory: has no effect without gpu-memory"),
        ("gpu-memory = 5", "reserved-memory = 6", "[vm.a] reserved-memory: is more than gpu-memory"),
        (
            "gpu-memory = 9",
            "reserved-memory = 6\ndevice-memory = 5",
            "[vm.a] reserved-memory: is more than device-memory of the VM",
        ),
    ];
    for (top, own, error) in wrong {
        let said = mistake(&format!("{top}\n[vm.a]\nsocket-path = \"/run/a\"\n{own}"));
        assert!(said.starts_with(error), "{top} {own}\n{said}");
    }
}

#[test]
fn each_mistake_is_named_with_its_place_and_what_is_allowed() {
    let vm = "[vm.a]\nsocket-path = \"/run/a\"\n";
    let wrong = [
        ("vm = 3", "vm: write a table [vm.NAME] for each VM"),
        ("[vm]\na = 3", "[vm] a: 3 is not a table"),
        ("[vm.a]", "[vm.a] socket-path: is needed"),
        (
            "[vm.\"a/b\"]\nsocket-path = \"b\"",
            "[vm] a/b: a name has up to 63 bytes, no / and no invisible characters, begins with no -, . or space",
        ),
        (
            "[vm.a.b]\nsocket-path = \"b\"\n[vm.a]\nsocket-path = \"a\"",
            "[vm.a] b: is a table, and no key has one; quote",
        ),
        (
            "colour = 3",
            "colour: unknown; allowed are anticipation, cgroup, control-socket, control-socket-group, defaults",
        ),
        ("policy = \"fair\"", "policy: \"fair\" is none of \"best-effort\", \"equal\", \"fixed\""),
        ("policy = 3", "policy: 3 is not a string"),
        ("hardware-slices = \"on\"", "hardware-slices: \"on\" is not \"driver\" or \"short\""),
        ("polcy = \"equal\"", "polcy: unknown (did you mean policy?)"),
        ("control-socket-group = 7", "control-socket-group: 7 is not a string"),
        (
            "control-socket-group = \"no such group\"",
            "control-socket-group: \"no such group\": no group of /etc/group, and no number; make it",
        ),
        ("[defaults]\nwieght = 3", "[defaults] wieght: unknown (did you mean weight?)"),
        ("+gup = \"x\"", "[vm.a] gup: unknown (did you mean gpu?)"),
        ("+device_memory = 3", "[vm.a] device_memory: unknown (did you mean device-memory?)"),
        ("+maxcontexts = 3", "[vm.a] maxcontexts: unknown (did you mean max-contexts?)"),
        ("anticipation = \"9%\"", "anticipation: \"9%\" is not a percentage from \"0%\" to \"8%\""),
        ("control-socket = \"\"", "control-socket: an empty path"),
        ("metrics = \"0.0.0.0:1\"", "metrics: \"0.0.0.0:1\" is not of this machine only: use 127.0.0.1:PORT"),
        ("metrics = \"9400\"", "metrics: \"9400\" is neither 127.0.0.1:PORT, [::1]:PORT nor a path"),
        ("memory-wait = \"11min\"", "memory-wait: \"11min\" is more than 10min"),
        (
            "gpu-memory = true",
            "gpu-memory: true is no size: write a whole number of bytes, or a string with KiB, MiB or GiB",
        ),
        (
            "host-memory = \"3 apples\"",
            "host-memory: \"3 apples\" is no size: unknown unit \" apples\" (use KiB, MiB or GiB)",
        ),
        ("control-socket = \"/run/a\"", "control-socket: /run/a is socket-path of [vm.a] as well"),
        ("defaults = 1", "defaults: 1 is not a table"),
        ("[defaults]\nsocket-path = \"x\"", "[defaults] socket-path: belongs to one VM"),
        ("[defaults]\nweight = 0", "[defaults] weight: 0 is not a whole number from 1 to 10000"),
        ("+weight = \"much\"", "[vm.a] weight: \"much\" is not a whole number from 1 to 10000"),
        ("+class = \"fast\"", "[vm.a] class: \"fast\" is none of \"normal\", \"latency\", \"background\""),
        ("+ceiling = \"0%\"", "[vm.a] ceiling: \"0%\" is not a percentage from \"1%\" to \"100%\""),
        ("+ceiling = 25", "[vm.a] ceiling: 25 is not a percentage from \"1%\" to \"100%\""),
        ("+gpu = 3", "[vm.a] gpu: 3 is not a string or a list of strings"),
        ("+gpu = [\"x\", 3]", "[vm.a] gpu: 3 is not a string or a list of strings"),
        ("+gpu = [[\"x\"]]", "[vm.a] gpu: a list is not a string or a list of strings"),
        ("+gpu = []", "[vm.a] gpu: an empty list: name one, or leave the key out"),
        ("+gpu = [\"x\", \"y\", \"x\"]", "[vm.a] gpu: \"x\" is there twice"),
        (
            "+gpu = [\"1\",\"2\",\"3\",\"4\"]\nspare-gpu = [\"5\",\"6\",\"7\",\"8\",\"9\"]",
            "[vm.a] 9 GPUs for one VM are more than 8",
        ),
        ("+gpu = [\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"]", "[vm.a] gpu: 9 are more than 8"),
        ("[defaults]\ngpu = []", "[defaults] gpu: an empty list"),
        ("+queues = [\"all\"]", "[vm.a] queues: a list is not a string"),
        ("+movable = \"yes\"", "[vm.a] movable: \"yes\" is not true or false"),
        ("+scanouts = \"1\"", "[vm.a] scanouts: \"1\" is not a whole number, 0 or more"),
        ("+scanouts = -1", "[vm.a] scanouts: -1 is not a whole number, 0 or more"),
        ("+scanouts = 2", "[vm.a] scanouts: \"2\" is not allowed: 2 is not in 0..=1"),
        ("+queues = \"loud\"", "[vm.a] queues: \"loud\" is none of \"compute\", \"nominal\", \"all\""),
        ("+device-memory = \"3 apples\"", "[vm.a] device-memory: \"3 apples\" is not allowed: unknown unit"),
        ("+device-memory = [1]", "[vm.a] device-memory: a list is not a whole number, or a string with"),
        (
            "+fd = 3",
            "[vm.a] fd: unknown; allowed are ceiling, class, context-device-memory, context-host-memory, device-memory",
        ),
        ("+exe = \"/bin/sh\"", "[vm.a] exe: unknown; allowed are"),
        (
            "+[vm.b]\nsocket-path = \"/run/./a\"",
            "[vm.b] socket-path: /run/./a is socket-path of [vm.a] as well",
        ),
        ("\"a\\nb\" = 3", "a b: unknown; allowed are"),
        (
            "control-socket = \"/x\\ny\"\n[vm.b]\nsocket-path = \"/x\\ny\"",
            "control-socket: /x y is socket-path of [vm.b] as well",
        ),
        ("log-grants = \"/x\\u0000\"", "log-grants: a path with a zero byte"),
        ("metrics = \"/x\\u0000\"", "metrics: a path with a zero byte"),
        ("+state-dir = \"/x\\u0000\"", "[vm.a] state-dir: \"/x\\u0000\" is not text without a zero byte"),
        ("+state-dir = \"/run/a\"", "[vm.a] state-dir: /run/a is socket-path of [vm.a] as well"),
    ];
    for (text, error) in wrong {
        let text = match text.strip_prefix('+') {
            Some(more) => format!("{vm}{more}"),
            None if text.starts_with("[vm") || text.starts_with("vm") || text.is_empty() => text.to_owned(),
            None => format!("{text}\n{vm}"),
        };
        let said = mistake(&text);
        assert!(said.starts_with(error), "{text}\n{said}");
    }
}

#[test]
fn all_mistakes_are_told_with_their_lines_in_the_order_of_the_file() {
    let text = "\
policy = \"fair\"
colour = 3
[vm.\"a.b\"]
weight = 0
gup = \"x\"
[vm.a]
socket-path = \"/run/a\"
[vm.c]
socket-path = \"/run/../run/a\"
queues = 3
[defaults]
scanouts = 7";
    let said = parse(text).unwrap_err().to_string();
    let lines: Vec<_> =
        said.lines().map(|line| line.split_inclusive(": ").take(2).collect::<String>()).collect();
    let expected = [
        "8 mistakes:",
        "  line 1: policy: ",
        "  line 2: colour: ",
        "  line 3: [vm.\"a.b\"] socket-path: ",
        "  line 4: [vm.\"a.b\"] weight: ",
        "  line 5: [vm.\"a.b\"] gup: ",
        "  line 9: [vm.c] socket-path: ",
        "  line 10: [vm.c] queues: ",
        "  line 12: [defaults] scanouts: ",
    ];
    assert_eq!(lines, expected, "{said}");
}

#[test]
fn mistakes_of_syntax_come_first_with_their_lines_and_too_many_are_counted() {
    let said = parse("policy = \"fair\"\nx = = 3\n[vm.a\n").unwrap_err().to_string();
    assert!(said.starts_with("2 mistakes:\n  line 2: ") && said.contains("\n  line 3: "), "{said}");
    assert!(parse("[vm.a]\nx = = 3").unwrap_err().to_string().starts_with("line 2: "));
    let many: String = (0..50).map(|n| format!("x{n} = 1\n")).collect();
    let said = parse(&many).unwrap_err().to_string();
    assert_eq!((said.lines().count(), said.lines().last()), (22, Some("  and 30 more")), "{said}");
}

#[test]
fn a_vm_may_be_called_as_in_libvirt() {
    let file = |name: &str| format!("[vm.{}]\nsocket-path = \"a\"", serde_json::to_string(name).unwrap());
    for name in ["Web01", "a_b", "a.b", "Windows 10", "größe", "a+b@c:d", "x".repeat(63).as_str()] {
        assert_eq!(parse(&file(name)).unwrap().vms[0].name, name);
    }
    for name in ["", ".", "..", ".a", "-a", " a", "a ", "a/b", "a\nb", "a\u{202e}b", "x".repeat(64).as_str()]
    {
        assert!(mistake(&file(name)).contains(NO_NAME), "{name:?}");
    }
}

#[test]
fn a_part_of_the_gpus_memory_is_one_for_the_vm_and_for_all_vms() {
    let vms = "[vm.a]\nsocket-path = \"a\"\ndevice-memory = \"50%\"\n[vm.b]\nsocket-path = \"b\"";
    let settings = parse(&format!("device-memory = \"80%\"\n{vms}")).unwrap();
    let parts: Vec<_> = settings.vms.iter().map(|vm| vm.options.quotas.device_memory).collect();
    assert_eq!(parts, [Some(Amount::Part(5000)), Some(Amount::Part(3000))]);
    assert_eq!(settings.vms[1].parts, ["device-memory=30%"]);
    for (text, error) in [
        (format!("device-memory = \"40%\"\n{vms}"), "[vm.a] device-memory: 50% of this VM is more than"),
        (format!("device-memory = \"4GiB\"\n{vms}"), "[vm.a] device-memory: 50% cannot be compared with"),
        (format!("device-memory = \"0%\"\n{vms}"), "device-memory: \"0%\" is no size: not a percentage"),
        (format!("host-memory = \"50%\"\n{vms}"), "host-memory: \"50%\" is no size: unknown unit \"%\""),
    ] {
        let said = parse(&text).unwrap_err().to_string();
        assert!(said.contains(error), "{said}");
    }
}

#[test]
fn gpus_are_one_or_a_list_and_a_vm_s_own_replace_those_of_all() {
    let text = "[defaults]\ngpu = [\"x\", \"y\"]\n[vm.a]\nsocket-path = \"a\"\n[vm.b]\nsocket-path = \"b\"\ngpu = \"z\"";
    let settings = parse(text).unwrap();
    let [a, b] = settings.vms.as_slice() else { panic!("{:?}", settings.vms) };
    assert_eq!((a.options.gpu.concat(), b.options.gpu.concat()), ("xy".into(), "z".into()));
}

#[test]
fn equal_shares_have_no_weights() {
    let text = "policy = \"equal\"\n[vm.a]\nsocket-path = \"/run/a\"\nweight = 100";
    assert_eq!(mistake(text), format!("[vm.a] weight: {}", share::EQUAL));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let file = VmsFile::new("/nowhere/vms.toml".into(), LevelFilter::Info);
    let error = file.read().unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/vms.toml: No such file"), "{error}");
}

#[test]
fn vms_whose_paths_lead_to_the_same_socket_or_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::create_dir_all(path("real/sub")).unwrap();
    std::os::unix::fs::symlink("real", path("link")).unwrap();
    let refused = |b: &str, top: &str| {
        let text = format!(
            "{top}[vm.a]\nsocket-path = {:?}\nstate-dir = {:?}\n[vm.b]\n{b}",
            path("real/socket"),
            path("real/sub")
        );
        parse(&text).err().map(|_| mistake(&text))
    };
    for other in [path("link/socket"), path("real/sub/../socket"), path("none/../real/socket")] {
        let expected = Some(format!("[vm.b] socket-path: {other} is socket-path of [vm.a] as well"));
        assert_eq!(refused(&format!("socket-path = {other:?}"), ""), expected);
        let top = format!("control-socket = {other:?}\n");
        let expected = Some(format!("control-socket: {other} is socket-path of [vm.a] as well"));
        assert_eq!(refused(&format!("socket-path = {:?}", path("b")), &top), expected);
    }
    let state = path("link/sub");
    let b = format!("socket-path = {:?}\nstate-dir = {state:?}", path("b"));
    assert_eq!(refused(&b, ""), Some(format!("[vm.b] state-dir: {state} is state-dir of [vm.a] as well")));
    // The path that is shown of a VM is the one in the file.
    let text = format!("[vm.a]\nsocket-path = {:?}", path("link/socket"));
    assert_eq!(parse(&text).unwrap().vms[0].socket_path(), std::path::Path::new(&path("link/socket")));
    assert_eq!(refused(&format!("socket-path = {:?}", path("link/other")), ""), None);
}

#[test]
fn gpu_memory_that_does_not_hold_yet_changes_nothing_for_vms() {
    let file = "[vm.a]\nsocket-path = \"/a\"";
    let (before, after) = (parse(file).unwrap(), parse(&format!("gpu-memory = \"90%\"\n{file}")).unwrap());
    assert_eq!(plan(&before, &after), [Action::NextBroker("gpu-memory")]);
    let group = VmGroup { path: "/group".into(), part: GroupLimits::default() };
    let [now, then] = [&before, &after].map(|all| all.start(&after.vms[0], Some(group.clone()), false));
    assert!(!now.awaits_room && now.options == after.vms[0].options && now.group == Some(group));
    let options = VmOptions { map_device_memory: Some(MapDeviceMemory::Never), ..now.options.clone() };
    assert_eq!(then, Start { options, awaits_room: true, ..now }, "that only one that is started then has");
}

#[test]
fn another_program_reads_what_is_written_with_its_own_defaults_and_bounds() {
    let settings = parse("[vm.a]\nsocket-path = \"/run/a\"\nqueues = \"all\"").unwrap();
    let passed = serde_json::to_value(&settings.vms[0]).unwrap();
    assert!(passed.get("options").is_none(), "{passed}");
    let read = |written: &[&str]| {
        let mut passed = passed.clone();
        passed["written"] = serde_json::json!(written);
        serde_json::from_value::<VmSettings>(passed).unwrap()
    };
    assert_eq!(read(&["log-level=info", "queues=all", "socket-path=/run/a"]), settings.vms[0]);
    assert_eq!(read(&["socket-path=/run/a"]).options.queues, Queues::default());
    // An option that cannot be read costs neither the VM nor its other options.
    let options = read(&["scanouts=7", "queues=all", "of-later=7", "help"]).options;
    assert_eq!((options.scanouts, options.queues), (1, Queues::All));
    assert_eq!(read(&["movable", "memory=dma-buf"]).options, VmOptions::default());
}
