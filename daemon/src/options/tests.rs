//! Tests of the values of options, of their defaults, and of the settings that follow from them.

use super::*;
use config::{HangLimits, size};

fn read(words: &[&str]) -> VmOptions {
    VmOptions::of_words(words).unwrap()
}

/// A software driver keeps no program waiting, since the host's kernel divides the processors; and honest submissions take minutes.
#[test]
fn limits_on_time_that_are_not_given_depend_on_the_gpus_and_given_ones_do_not() {
    let limits = |words: &[&str], software| {
        let HangLimits { max_submit_time, max_submit_time_contended, strikes, .. } =
            read(words).hangs.limits(software);
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
        let quotas = read(words).quotas;
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
    let movable = read(&["--movable"]);
    assert!(movable.protection().movable && !movable.maps_device_memory());
    let usual = read(&[]);
    assert!(!usual.protection().movable && usual.maps_device_memory());
}

#[test]
fn a_vm_has_eight_gpus_at_most_with_its_spare_ones() {
    let gpus = |gpus, spares| {
        let options = [vec!["--gpu=a"; gpus], vec!["--spare-gpu=b"; spares]].concat();
        read(&options).check()
    };
    for (seen, spares) in [(0, 0), (8, 0), (0, 7), (3, 5)] {
        assert_eq!(gpus(seen, spares), Ok(()), "{seen} and {spares}");
    }
    let many = Err("9 GPUs for one VM are more than 8: name fewer of them".to_owned());
    for (seen, spares) in [(9, 0), (0, 8), (1, 8)] {
        assert_eq!(gpus(seen, spares), many, "{seen} and {spares}");
    }
}

#[test]
fn sockets_are_for_one_user_unless_it_is_said_otherwise() {
    let access = |words: &[&str]| Ok::<_, clap::Error>(VmOptions::of_words(words)?.socket_access());
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
