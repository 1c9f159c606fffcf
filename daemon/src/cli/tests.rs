//! The command line, and the file of several VMs that is read with it.

use super::values::*;
use super::*;
use config::{Amount, HangLimits, size, time};
use daemon::broker::{Settings, VmsFile};
use outside::Access;
use std::time::Duration;

/// Returns the settings that `--config` reads from a file of this text, or the error, without the file's path and the line.
fn settings(text: &str) -> Result<Settings, String> {
    use std::io::Write;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    VmsFile::new(file.path().to_owned(), Serve::command(), "warn".into()).read().map_err(|error| {
        let said = error.to_string();
        said.trim_start_matches(&format!("{}: line ", file.path().display()))
            .trim_start_matches(char::is_numeric)
            .to_owned()
    })
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
    let settings = settings(&format!("{vm}{all}")).unwrap();
    let vm = &settings.vms[0];
    assert_eq!((vm.contexts, vm.contended(true)), (7, Duration::from_secs(5)));
    let cli = Serve::command().no_binary_name(true).get_matches_from(&vm.arguments);
    let serve = Serve::from_arg_matches(&cli).unwrap();
    assert_eq!((serve.quotas.device_memory, serve.hangs.strikes), (Some(Amount::Bytes(4 << 30)), Some(2)));
    assert_eq!(serve.gpu, ["01:00.0", "NVIDIA H200"]);
    // A new option of the command line is a key at once; its author decides here whether it makes sense.
    let keys = all.lines().filter(|line| line.contains('=')).count();
    assert_eq!(vm.arguments.len(), keys + 2, "{:?}", vm.arguments);
    let unknown = super::tests::settings("[vm.a]\nsocket-path = \"/run/a\"\nnone = 1").unwrap_err();
    // The path of the socket, ceiling, class, reserved-memory and weight are keys as well; the last is followed by no comma.
    assert_eq!(unknown.matches(", ").count(), keys + 4, "{unknown}");
}

#[test]
fn values_in_a_file_have_the_bounds_of_the_command_line() {
    for (line, error) in [
        ("strikes = 0", ": [vm.a] strikes: \"0\" is not allowed: 0 is not in 1.."),
        ("max-submit-time = \"2h\"", ": [vm.a] max-submit-time: \"2h\" is not allowed: unknown unit \"h\""),
        ("queues = \"some\"", ": [vm.a] queues: \"some\" is none of \"compute\", \"nominal\", \"all\""),
        ("window-size = \"3GiB\"", ": [vm.a] window-size: \"3GiB\" is not allowed: not a power of two"),
        ("exit-on-disconnect = true", ": [vm.a] exit-on-disconnect: unknown"),
        ("list-gpus = true", ": [vm.a] list-gpus: unknown"),
        ("config = \"x\"", ": [vm.a] config: unknown"),
        ("under-broker = true", ": [vm.a] under-broker: unknown"),
    ] {
        let said = settings(&format!("[vm.a]\nsocket-path = \"/run/a\"\n{line}")).unwrap_err();
        assert!(said.starts_with(error), "{said}");
    }
}

/// A software driver keeps no program waiting, since the host's kernel divides the processors; and honest submissions take minutes.
#[test]
fn limits_on_time_that_are_not_given_depend_on_the_gpus_and_given_ones_do_not() {
    let limits = |words: &[&str], software| {
        let matches = Serve::command().no_binary_name(true).get_matches_from(words);
        let HangLimits { max_submit_time, max_submit_time_contended, strikes, .. } =
            Serve::from_arg_matches(&matches).unwrap().hangs.limits(software);
        (max_submit_time.as_secs(), max_submit_time_contended.as_secs(), strikes)
    };
    assert_eq!(limits(&[], false), (30, 10, Some(3)));
    assert_eq!(limits(&[], true), (1800, 1800, None));
    assert_eq!(limits(&["--max-submit-time=5s"], false), (5, 5, Some(3)));
    assert_eq!(limits(&["--max-submit-time=60min"], true), (3600, 3600, None));
    let all = ["--max-submit-time=9s", "--max-submit-time-contended=2s", "--strikes=7"];
    assert_eq!(limits(&all, false), (9, 2, Some(7)));
    assert_eq!(limits(&all, true), (9, 2, Some(7)));
}

#[test]
fn percentages_are_of_the_memory_of_the_vms_gpus() {
    let bound = |words: &[&str]| {
        let matches = Serve::command().no_binary_name(true).get_matches_from(words);
        let quotas = Serve::from_arg_matches(&matches).unwrap().quotas;
        let (mut vm, mut context) = quotas.limits();
        let told = quotas.bound_device_memory(80 << 30, &mut vm, &mut context);
        (told, vm.device_memory, context.device_memory)
    };
    assert_eq!(bound(&[]), (None, u64::MAX, u64::MAX));
    let both = ["--device-memory=50%", "--context-device-memory=12.5%"];
    assert_eq!(bound(&both), (Some(40 << 30), 40 << 30, 10 << 30));
    assert_eq!(bound(&["--device-memory=4GiB"]), (Some(4 << 30), 4 << 30, u64::MAX));
}

#[test]
fn guests_of_a_movable_vm_map_memory_files_and_nothing_else() {
    let serve = |words: &[&str]| {
        let matches = Serve::command().no_binary_name(true).get_matches_from(words);
        Serve::from_arg_matches(&matches).unwrap()
    };
    let movable = serve(&["--movable"]);
    assert!(movable.protection().movable && !movable.maps_device_memory());
    let usual = serve(&[]);
    assert!(!usual.protection().movable && usual.maps_device_memory());
    let file = |keys: &str| {
        settings(&format!("[defaults]\n{keys}\n[vm.a]\nsocket-path = \"/run/a\"\nmovable = true"))
    };
    for keys in ["", "memory = \"memfd\"", "memory = \"auto\"", "map-device-memory = \"never\""] {
        assert!(file(keys).is_ok(), "{keys}");
    }
    for (keys, option) in [
        ("memory = \"dma-buf\"", "--memory=dma-buf"),
        ("map-device-memory = \"auto\"", "--map-device-memory=auto"),
    ] {
        let said = file(keys).unwrap_err();
        assert!(said.contains(&format!("[vm.a] --movable cannot stand beside {option}, ")), "{said}");
        let words = ["vhost-user-vulkan", "--movable", option];
        let error = Cli::of(&Cli::command().get_matches_from(words)).unwrap_err();
        assert!(error.to_string().contains("leave one of them out"), "{error}");
        assert!(settings(&format!("[vm.a]\nsocket-path = \"/run/a\"\nmovable = false\n{keys}")).is_ok());
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn sockets_are_for_one_user_unless_it_is_said_otherwise() {
    let access = |words: &[&str]| {
        let matches = Serve::command().no_binary_name(true).try_get_matches_from(words)?;
        Ok::<_, clap::Error>(Serve::from_arg_matches(&matches)?.socket_access())
    };
    assert_eq!(access(&[]).unwrap(), Access { mode: 0o600, group: None });
    assert_eq!(access(&["--socket-group=root"]).unwrap(), Access { mode: 0o660, group: Some(0) });
    let both = access(&["--socket-group=7", "--socket-mode=620"]).unwrap();
    assert_eq!(both, Access { mode: 0o620, group: Some(7) });
    for wrong in ["--socket-mode=8", "--socket-mode=1777", "--socket-mode=-1", "--socket-group=no one"] {
        assert!(access(&[wrong]).is_err(), "{wrong}");
    }
}

#[test]
fn times_have_units_and_bounds() {
    assert_eq!(time("30"), Ok(Duration::from_secs(30)));
    assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
    assert_eq!(time("5min"), Ok(Duration::from_secs(300)));
    for wrong in ["", "s", "-1s", "1.5s", "99ms", "61min", "5h", "4294967296s"] {
        assert!(time(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn sizes_have_units_and_bounds() {
    assert_eq!(size("0"), Ok(0));
    assert_eq!(size("3GiB"), Ok(3 << 30));
    assert_eq!(window_size("8GiB"), Ok(8 << 30));
    assert_eq!(window_size("512m"), Ok(512 << 20));
    assert_eq!(window_size("1048576"), Ok(1 << 20));
    for wrong in [
        "",
        "GiB",
        "-1",
        "1.5GiB",
        "3GiB",
        "512KiB",
        "512GiB",
        "8GB",
        "99999999999999999999",
        "18446744073709551615g",
    ] {
        assert!(window_size(wrong).is_err(), "{wrong}");
    }
}
