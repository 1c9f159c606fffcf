//! Devices from files that anyone can have written.

use super::super::samples::{self, CONTEXT, EXPORTED, SHMEM, SIZE};
use super::*;
use config::DeviceLimits;
use protocol::virtio_gpu::MapCache;

const WORKER: Owner = Owner(samples::WORKER);

fn device(limits: DeviceLimits) -> Device<u32> {
    samples::new(limits)
}

fn passed() -> PassedDevice<u32> {
    samples::saved(&7)
}

#[test]
fn a_device_as_it_was_written_down_is_gone_on_with() {
    let mut new = device(DeviceLimits::default());
    assert!(new.is_as_after_power_on());
    let passed = passed();
    new.check(&passed).unwrap();
    new.resume(passed.clone(), |ticket| ticket).unwrap();
    assert!(!new.is_as_after_power_on());
    assert_eq!(new.pass_on(|ticket| Some(*ticket)).unwrap().for_a_file().pieces, passed.pieces);
    assert_eq!(new.mapped(), [(EXPORTED, 4096, SIZE)]);
    assert_eq!(passed.alive().collect::<Vec<_>>(), [(CONTEXT, WORKER.0)]);
}

#[test]
fn each_contradiction_is_found() {
    type Change = fn(&mut PassedDevice<u32>);
    let changes: [(&str, Change); 17] = [
        ("owners without end", |it| it.next_owner = u64::MAX),
        ("pieces without end", |it| it.next_piece = u64::MAX),
        ("a worker that is dying", |it| it.dying.push((WORKER, 1))),
        ("a driver of a context", |it| it.contexts[0].drivers.push(WORKER)),
        ("an owner twice", |it| {
            let mut other = it.contexts[0].clone();
            other.id = ContextId(6);
            it.contexts.push(other);
        }),
        ("a ring index that no ring has", |it| it.contexts[0].timelines[0].0 = RingIdx(RingIdx::COUNT)),
        ("a resource that is attached and not there", |it| it.contexts[0].attached.push(ResourceId(99))),
        ("a resource that is shown and not there", |it| it.shown[0] = Some(ResourceId(99))),
        ("memory that is lent", |it| blob(it).state = PassedBlobState::Lent(MapCache::Cached, CONTEXT)),
        ("memory of a context that is not there", |it| {
            blob(it).state = PassedBlobState::Exported(MapCache::Cached, Some(ContextId(99)));
        }),
        ("a blob of no piece", |it| blob(it).memory = Some(MemoryId(99))),
        ("a piece smaller than its blob", |it| it.pieces[0].1.bytes = SIZE - 1),
        ("a piece without a holder", |it| it.pieces[0].1.holders = 0),
        ("a piece with more holders", |it| it.pieces[0].1.holders += 1),
        ("a piece twice", |it| it.pieces.push(it.pieces[0].clone())),
        ("holdings of no worker", |it| it.holdings[0].0 = Owner(0)),
        ("credit beyond all numbers", |it| {
            it.holdings[0].1.credit = PerHeap { device: u64::MAX, host: u64::MAX };
        }),
    ];
    let device = device(DeviceLimits::default());
    for (what, change) in changes {
        let mut passed = passed();
        change(&mut passed);
        assert!(device.check(&passed).is_err(), "{what}");
    }
}

/// The blob of exported memory.
fn blob(passed: &mut PassedDevice<u32>) -> &mut super::super::PassedBlob {
    let exported = passed.resources.iter_mut().find(|resource| resource.id == EXPORTED).unwrap();
    exported.blob.as_mut().unwrap()
}

#[test]
fn a_limit_that_is_lower_now_is_named() {
    for (limits, name) in [
        (DeviceLimits { shmem_total_bytes: SIZE - 1, ..DeviceLimits::default() }, "ring-memory"),
        (DeviceLimits { contexts: 0, ..DeviceLimits::default() }, "max-contexts"),
        (DeviceLimits { memory_pieces: 0, ..DeviceLimits::default() }, "memory_pieces"),
        (DeviceLimits { host_memory: SIZE - 1, ..DeviceLimits::default() }, "host-memory"),
        (DeviceLimits { device_memory: 4095, ..DeviceLimits::default() }, "device-memory"),
        (DeviceLimits { vm_rings: 0, ..DeviceLimits::default() }, "max-vm-rings"),
    ] {
        let why = device(limits).check(&passed()).unwrap_err();
        assert_eq!(why, format!("limit {name} is lower than when the state was saved"));
    }
}

#[test]
fn memory_files_are_as_large_as_what_they_show_and_each_has_one_use() {
    let passed = passed();
    let piece = Some(passed.pieces[0].0);
    let check = |files: &[(u64, Option<MemoryId>, &[ResourceId])]| passed.check_files(files.iter().copied());
    check(&[(SIZE, piece, &[EXPORTED]), (SIZE, None, &[SHMEM])]).unwrap();
    check(&[(SIZE, piece, &[])]).unwrap();
    for wrong in [
        &[(SIZE - 1, piece, &[EXPORTED][..])][..],
        &[(SIZE + 1, piece, &[EXPORTED])],
        &[(1 << 60, piece, &[])],
        &[(u64::MAX, None, &[SHMEM])],
        &[(SIZE, None, &[EXPORTED])],
        &[(SIZE, piece, &[SHMEM])],
        &[(SIZE, None, &[ResourceId(99)])],
        &[(SIZE, Some(MemoryId(99)), &[])],
        &[(SIZE, piece, &[]), (SIZE, piece, &[])],
        &[(SIZE, None, &[SHMEM, SHMEM])],
        &[(4096, None, &[])],
    ] {
        assert!(check(wrong).is_err(), "{wrong:?}");
    }
}
