//! Tests of the counted memory of drivers: shares, holders, and the memory that is left when a worker has ended.

use super::*;
use config::{Heap, MemoryCount, PerHeap, Wanted};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Two contexts, 64 MiB of each kind of memory, and at most 40 MiB of the host's memory for each context.
fn rig() -> Rig {
    let limits = DeviceLimits {
        device_memory: 64 * MIB,
        host_memory: 64 * MIB,
        memory_pieces: 100,
        live_maps: 16,
        vm_rings: 16,
        ..DeviceLimits::default()
    };
    let context_limits = ContextLimits { host_memory: 40 * MIB, ..ContextLimits::default() };
    let options =
        DeviceOptions { num_scanouts: 1, window_size: WINDOW, capset: vec![7; 160], limits, context_limits };
    let mut rig = Rig { device: Device::new(options), world: World::default(), tickets: 0 };
    assert_eq!((rig.call(1, venus()), rig.call(2, venus())), (OK, OK));
    rig.asked();
    rig
}

impl Rig {
    fn want(&mut self, ctx_id: u32, wanted: Wanted) -> Asked {
        self.device.memory_wanted(ContextId(ctx_id), 9, wanted, &mut self.world);
        let mut asked = self.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.remove(0)
    }

    /// Makes a memory file for a context. Returns its number.
    fn pages(&mut self, ctx_id: u32, bytes: u64) -> u64 {
        match self.want(ctx_id, Wanted::Pages(bytes)) {
            Asked::Make(found, 9, memory, size) if (found, size) == (ctx_id, bytes) => memory,
            other => panic!("{other:?}"),
        }
    }

    fn give_back(&mut self, ctx_id: u32, memory: u64) -> Vec<Asked> {
        self.device.memory_returned(ContextId(ctx_id), MemoryId(memory), &mut self.world);
        self.asked()
    }

    /// Makes a blob of a context that shows a piece of its memory.
    fn show(&mut self, ctx_id: u32, resource_id: u32, memory: u64) {
        self.start(header(ctx_id, None), blob(resource_id, 77, 4096));
        let (resource, memory) = (ResourceId(resource_id), Some(MemoryId(memory)));
        self.device.blob_exported(resource, MapCache::Cached, memory, false, &mut self.world);
        self.asked();
    }

    fn host_memory(&self) -> u64 {
        self.device.memory_used().1 / MIB
    }
}

fn credit(least: u64, bytes: u64) -> Wanted {
    Wanted::Credit { heap: Heap::Device, least: least * MIB, bytes: bytes * MIB }
}

#[test]
fn one_context_leaves_the_other_its_share() {
    let mut rig = rig();
    assert_eq!(rig.want(1, credit(1, 64)), Asked::Grant(1, 9, None, MIB));
    assert_eq!(rig.want(1, credit(48, 55)), Asked::Grant(1, 9, None, 55 * MIB));
    assert_eq!(rig.want(1, credit(1, 1)), Asked::RefuseMemory(1, 9, "device-memory"));
    assert_eq!(rig.want(2, credit(7, 8)), Asked::Grant(2, 9, None, 7 * MIB));
    assert_eq!(rig.device.memory_used(), (63 * MIB, 0));
    rig.device.credit_returned(ContextId(1), Heap::Device, 50 * MIB, &mut rig.world);
    assert_eq!(rig.want(2, credit(40, 40)), Asked::Grant(2, 9, None, 40 * MIB));
}

#[test]
fn a_budget_is_what_a_context_holds_and_what_it_would_be_granted() {
    let mut rig = rig();
    rig.want(1, credit(8, 8));
    rig.pages(1, 30 * MIB);
    rig.pages(2, 16 * MIB);
    let budget = |rig: &mut Rig, ctx_id| {
        rig.device.budget_wanted(ContextId(ctx_id), 4, &mut rig.world);
        match rig.asked()[..] {
            [Asked::Budget(found, 4, memory)] if found == ctx_id => memory,
            ref other => panic!("{other:?}"),
        }
    };
    let PerHeap { device, host } = budget(&mut rig, 1);
    assert_eq!(host, MemoryCount { held: 30 * MIB, room: 10 * MIB });
    assert_eq!((device.held, device.room / MIB), (8 * MIB, 48));
    let other = budget(&mut rig, 2);
    assert_eq!((other.device.held, other.host.held), (0, 16 * MIB));
    // All of it, and no byte more.
    let all = |bytes| Wanted::Credit { heap: Heap::Device, least: bytes, bytes };
    assert_eq!(rig.want(1, all(device.room + 1)), Asked::RefuseMemory(1, 9, "device-memory"));
    assert_eq!(rig.want(1, all(device.room)), Asked::Grant(1, 9, None, device.room));
    assert_eq!(budget(&mut rig, 1).device, MemoryCount { held: 8 * MIB + device.room, room: 0 });
}

#[test]
fn a_context_has_a_limit_of_its_own() {
    let mut rig = rig();
    rig.pages(1, 40 * MIB);
    assert_eq!(rig.want(1, Wanted::Pages(4096)), Asked::RefuseMemory(1, 9, "context-host-memory"));
    assert_eq!(rig.want(2, Wanted::Pages(u64::MAX)), Asked::RefuseMemory(2, 9, "host-memory"));
    rig.pages(2, 20 * MIB);
    // A request of less than a page takes a page.
    assert!(matches!(rig.want(2, Wanted::Pages(1)), Asked::Make(2, 9, _, 1)));
    assert_eq!(rig.device.memory_used(), (0, 60 * MIB + 4096));
}

#[test]
fn small_pieces_are_counted_too() {
    let mut rig = rig();
    let first = (0..88).map(|_| rig.pages(1, 4096)).last().unwrap();
    assert_eq!(rig.want(1, Wanted::Pages(4096)), Asked::RefuseMemory(1, 9, "memory_pieces"));
    rig.pages(2, 4096);
    assert_eq!(rig.give_back(1, first), [Asked::Forget(first)]);
    rig.pages(2, 4096);
}

#[test]
fn memory_counts_until_its_worker_and_its_blobs_have_let_go() {
    let mut rig = rig();
    let memory = rig.pages(1, 8 * MIB);
    assert_eq!(rig.device.held_piece(ContextId(1), MemoryId(memory)), Some(8 * MIB));
    assert_eq!(rig.device.held_piece(ContextId(2), MemoryId(memory)), None);
    rig.show(1, 5, memory);
    assert_eq!(rig.give_back(1, memory), []);
    assert_eq!(rig.device.held_piece(ContextId(1), MemoryId(memory)), None);
    assert_eq!((rig.give_back(1, memory), rig.host_memory()), (vec![], 8));
    assert_eq!(rig.call(0, unref(5)), OK);
    assert!(rig.asked().contains(&Asked::Forget(memory)));
    assert_eq!(rig.host_memory(), 0);
    // The other way round.
    let memory = rig.pages(1, 8 * MIB);
    rig.show(1, 5, memory);
    assert_eq!((rig.call(0, unref(5)), rig.host_memory()), (OK, 8));
    rig.asked();
    assert_eq!((rig.give_back(1, memory), rig.host_memory()), (vec![Asked::Forget(memory)], 0));
}

#[test]
fn a_context_that_hoards_what_others_made_pays_for_it() {
    let mut rig = rig();
    let memory = rig.pages(1, 30 * MIB);
    rig.show(1, 5, memory);
    assert_eq!(rig.call(2, attach(5)), OK);
    assert_eq!(rig.call(0, unref(5)), OK);
    rig.asked();
    assert_eq!((rig.give_back(1, memory), rig.host_memory()), (vec![], 30));
    // The first context has its whole share of the rest again; the second context has not.
    assert_eq!(rig.want(2, Wanted::Pages(11 * MIB)), Asked::RefuseMemory(2, 9, "context-host-memory"));
    let again = rig.pages(1, 29 * MIB);
    assert_eq!((rig.give_back(2, memory), rig.host_memory()), (vec![Asked::Forget(memory)], 29));
    rig.give_back(1, again);
}

#[test]
fn a_worker_holds_its_memory_until_its_process_has_ended() {
    let mut rig = rig();
    let (private, shown) = (rig.pages(1, 8 * MIB), rig.pages(1, 8 * MIB));
    rig.want(1, credit(16, 16));
    rig.show(1, 5, shown);
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    assert_eq!(rig.device.memory_used(), (16 * MIB, 16 * MIB));
    rig.asked();
    // Contexts are numbered from 1 in the order of their creation.
    rig.device.worker_ended(1, &mut rig.world);
    assert_eq!(rig.asked(), [Asked::Forget(private)]);
    assert_eq!(rig.device.memory_used(), (0, 8 * MIB));
    // A later context with the same id owes nothing.
    assert_eq!(rig.call(1, venus()), OK);
    rig.asked();
    rig.pages(1, 40 * MIB);
    assert_eq!(rig.call(0, unref(5)), OK);
    assert_eq!(rig.host_memory(), 40);
    rig.device.reset(MapsAtReset::Unmap, &mut rig.world);
    assert_eq!(rig.device.memory_used(), (0, 0));
}

#[test]
fn the_next_program_waits_for_the_memory_of_one_that_has_ended() {
    let mut rig = rig();
    rig.want(1, credit(56, 56));
    rig.pages(1, 40 * MIB);
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    assert_eq!(rig.call(1, venus()), OK);
    rig.asked();
    let mut ask = |request, wanted| {
        rig.device.memory_wanted(ContextId(1), request, wanted, &mut rig.world);
        rig.asked()
    };
    assert_eq!(ask(1, credit(40, 60)), []);
    assert_eq!(ask(2, Wanted::Pages(40 * MIB)), []);
    // Requests that fit are granted first; a request that would not fit even later is refused now.
    assert_eq!(ask(3, credit(1, 1)), [Asked::Grant(1, 3, None, MIB)]);
    assert_eq!(ask(4, credit(57, 57)), [Asked::RefuseMemory(1, 4, "device-memory")]);
    assert_eq!(ask(5, Wanted::Pages(41 * MIB)), [Asked::RefuseMemory(1, 5, "host-memory")]);
    rig.device.worker_ended(1, &mut rig.world);
    let asked = rig.asked();
    assert!(matches!(asked[0], Asked::Forget(_)), "{asked:?}");
    assert_eq!(asked[1], Asked::Grant(1, 1, None, 40 * MIB));
    assert!(matches!(asked[2], Asked::Make(1, 2, _, size) if size == 40 * MIB), "{asked:?}");
    assert_eq!(asked.len(), 3);
}

#[test]
fn who_waits_for_memory_and_ends_is_not_answered() {
    let mut rig = rig();
    rig.want(1, credit(56, 56));
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    for is_lost in [true, false] {
        rig.device.memory_wanted(ContextId(2), 1, credit(50, 50), &mut rig.world);
        if is_lost {
            rig.device.context_lost(ContextId(2), &mut rig.world);
        }
        assert_eq!((rig.call(2, Command::CtxDestroy), rig.call(2, venus())), (OK, OK));
    }
    rig.asked();
    rig.device.worker_ended(1, &mut rig.world);
    assert_eq!(rig.asked(), []);
    // No worker is ending any more.
    rig.want(1, credit(1, 1));
}

#[test]
fn a_worker_that_only_asks_is_refused_at_some_point() {
    let mut rig = rig();
    rig.want(1, credit(56, 56));
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    rig.asked();
    for _ in 0..1000 {
        rig.device.memory_wanted(ContextId(2), 1, credit(50, 50), &mut rig.world);
    }
    let refused = rig.asked().len();
    assert!((800..1000).contains(&refused), "{refused}");
}

#[test]
fn a_host_without_memory_refuses_and_counts_nothing() {
    let mut rig = rig();
    rig.world.fails = true;
    rig.device.memory_wanted(ContextId(1), 9, Wanted::Pages(4096), &mut rig.world);
    let asked = rig.asked();
    assert!(
        matches!(asked[..], [Asked::Make(..), Asked::Forget(_), Asked::RefuseMemory(1, 9, _)]),
        "{asked:?}"
    );
    assert_eq!(rig.device.memory_used(), (0, 0));
}

#[test]
fn one_program_leaves_maps_and_contexts_to_others() {
    let mut rig = rig();
    let maps = |rig: &mut Rig, ctx_id: u32, first: u32| {
        let mut count = 0;
        for id in first..first + 20 {
            assert_eq!(rig.call(ctx_id, blob(id, 0, 4096)), OK);
            count += u32::from(matches!(rig.call(0, map(id, u64::from(id) * 4096)), Response::OkMapInfo(_)));
        }
        count
    };
    assert_eq!(maps(&mut rig, 1, 10), 14);
    assert_eq!(maps(&mut rig, 2, 40), 2);
    assert_eq!(rig.world.refused[0], "max-maps");
    let named = |rig: &mut Rig, from: u32, name: &'static [u8]| {
        let create = Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: name };
        (from..).take_while(|ctx_id| rig.call(*ctx_id, create) == OK).count()
    };
    // Two contexts exist already.
    assert_eq!(named(&mut rig, 10, b"app"), 222);
    assert_eq!(named(&mut rig, 1000, b"other"), 28);
    assert_eq!(rig.world.refused.last(), Some(&"max-contexts"));
}

impl Rig {
    /// Has a context lend memory of its driver as a blob that is mapped at `offset`. Returns the piece's number.
    fn lend(&mut self, ctx_id: u32, resource_id: u32, offset: u64) -> u64 {
        let wanted = Wanted::Piece { heap: Heap::Device, bytes: 4096 };
        let Asked::Grant(_, _, Some(memory), _) = self.want(ctx_id, wanted) else { panic!("no memory") };
        self.start(header(ctx_id, None), blob(resource_id, 77, 4096));
        let resource = ResourceId(resource_id);
        let piece = Some(MemoryId(memory));
        self.device.blob_exported(resource, MapCache::WriteCombined, piece, true, &mut self.world);
        self.call(0, Command::ResourceMapBlob { resource_id: resource, offset });
        self.asked();
        memory
    }
}

#[test]
fn lent_memory_may_be_freed_when_its_blob_is_unmapped_and_gone() {
    let mut rig = rig();
    let memory = rig.lend(1, 5, 0x1000);
    let resource_id = ResourceId(5);
    rig.call(2, Command::CtxAttachResource { resource_id });
    // The blob shows no memory that could be imported.
    let shown = Shown::DeviceMemory { mappable: true, memory: None };
    assert_eq!(rig.asked(), [Asked::Attach(2, 5, 4096, shown)]);
    assert_eq!(rig.give_back(1, memory), [], "the blob holds it");
    assert_eq!(rig.call(0, Command::ResourceUnref { resource_id }), OK);
    let asked = rig.asked();
    let at = |wanted: Asked| asked.iter().position(|asked| *asked == wanted).unwrap();
    let (unmapped, told) = (at(Asked::Unmap(5, 0x1000, 4096)), at(Asked::BlobGone(1, memory)));
    assert!(unmapped < at(Asked::Drop(5)) && at(Asked::Drop(5)) < told, "{asked:?}");
    assert_eq!(rig.device.memory_used(), (0, 0));
}

#[test]
fn what_a_lost_context_lent_is_unmapped_at_once_and_its_guest_need_not_know() {
    let mut rig = rig();
    let (memory, resource_id) = (rig.lend(1, 5, 0x1000), ResourceId(5));
    rig.device.context_lost(ContextId(1), &mut rig.world);
    let revoked = [Asked::Unmap(5, 0x1000, 4096), Asked::Revoke(5), Asked::BlobGone(1, memory)];
    assert_eq!(rig.asked(), revoked);
    assert_eq!(rig.device.live_maps(), 0);
    let map = Command::ResourceMapBlob { resource_id, offset: 0x1000 };
    assert_eq!(rig.call(0, map), Response::Err(ResponseType::ERR_UNSPEC));
    let unmap = || Command::ResourceUnmapBlob { resource_id };
    assert_eq!(rig.call(0, unmap()), OK);
    assert_eq!(rig.call(0, unmap()), Response::Err(ResponseType::ERR_INVALID_PARAMETER));
    assert_eq!(rig.call(0, Command::ResourceUnref { resource_id }), OK);
    let asked = rig.asked();
    assert!(asked.contains(&Asked::Drop(5)) && !asked.contains(&Asked::BlobGone(1, memory)), "{asked:?}");
}

#[test]
fn a_context_that_is_destroyed_has_what_it_lent_unmapped_before_its_worker_ends() {
    let mut rig = rig();
    let memory = rig.lend(1, 5, 0x1000);
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    let asked = rig.asked();
    let unmapped = [Asked::Unmap(5, 0x1000, 4096), Asked::Revoke(5), Asked::BlobGone(1, memory)];
    assert_eq!(asked[..4], [&unmapped[..], &[Asked::End(1)]].concat());
}

#[test]
fn what_may_still_be_mapped_is_never_given_back() {
    for unref in [true, false] {
        let mut rig = rig();
        let (memory, resource_id) = (rig.lend(1, 5, 0x1000), ResourceId(5));
        rig.world.fails = true;
        if unref {
            assert_ne!(rig.call(0, Command::ResourceUnref { resource_id }), OK);
        } else {
            rig.device.context_lost(ContextId(1), &mut rig.world);
        }
        let asked = rig.asked();
        assert!(asked.contains(&Asked::Unmap(5, 0x1000, 4096)), "{asked:?}");
        assert!(!asked.contains(&Asked::BlobGone(1, memory)), "{asked:?}");
    }
}

#[test]
fn what_could_not_be_unmapped_takes_nothing_from_who_gets_its_id_later() {
    let mut rig = rig();
    rig.lend(1, 5, 0x1000);
    rig.world.fails = true;
    assert_ne!(rig.call(0, unref(5)), OK);
    rig.world.fails = false;
    rig.asked();
    let memory = rig.pages(2, 4096);
    rig.show(2, 5, memory);
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    let asked = rig.asked();
    assert!(!asked.contains(&Asked::Revoke(5)), "{asked:?}");
}

#[test]
fn a_worker_hears_when_what_it_showed_of_its_own_is_gone_unless_others_had_it() {
    let mut rig = rig();
    let resource_id = ResourceId(5);
    let memory = rig.pages(1, 4096);
    rig.show(1, 5, memory);
    rig.call(0, map(5, 0x1000));
    rig.asked();
    assert_eq!(rig.call(0, unref(5)), OK);
    let asked = rig.asked();
    let at = |wanted: Asked| asked.iter().position(|asked| *asked == wanted).unwrap();
    assert!(at(Asked::Unmap(5, 0x1000, 4096)) < at(Asked::BlobGone(1, memory)), "{asked:?}");
    let told = |rig: &mut Rig, memory| {
        rig.call(0, unref(5));
        rig.asked().contains(&Asked::BlobGone(1, memory))
    };
    // Another worker was given the piece, though it does not hold it any more.
    rig.show(1, 5, memory);
    rig.call(2, Command::CtxAttachResource { resource_id });
    rig.give_back(2, memory);
    assert!(!told(&mut rig, memory));
    // The worker does not hold the piece any more.
    let memory = rig.pages(1, 4096);
    rig.show(1, 5, memory);
    rig.give_back(1, memory);
    assert!(!told(&mut rig, memory));
    // The blob may still be mapped.
    let memory = rig.pages(1, 4096);
    rig.show(1, 5, memory);
    rig.call(0, map(5, 0x1000));
    rig.world.fails = true;
    assert!(!told(&mut rig, memory));
}

#[test]
fn rings_count_until_they_end_or_their_worker_does() {
    let mut rig = rig();
    let begin = |rig: &mut Rig, ctx_id| {
        (0..).take_while(|_: &u32| rig.device.ring_begins(ContextId(ctx_id)).is_ok()).count()
    };
    assert_eq!(begin(&mut rig, 1), 14);
    assert_eq!(rig.device.ring_begins(ContextId(1)), Err("max-vm-rings"));
    assert_eq!(begin(&mut rig, 2), 2);
    // A worker that reports more ends than it has rings gives nothing more back.
    (0..100).for_each(|_| rig.device.ring_ends(ContextId(2)));
    assert_eq!(begin(&mut rig, 2), 2);
    // The rings of a worker that is ending hinder no other worker.
    assert_eq!((rig.call(1, Command::CtxDestroy), rig.call(1, venus())), (OK, OK));
    assert_eq!(begin(&mut rig, 1), 13);
    rig.device.worker_ended(1, &mut rig.world);
    assert_eq!(begin(&mut rig, 1), 0);
}

impl Rig {
    /// Shows a successor the resources of context 1. Returns the calls that did so.
    fn succeed(&mut self) -> Vec<Asked> {
        let number = self.device.successor_number();
        self.device.show_to_successor(ContextId(1), number, &mut self.world);
        self.asked()
    }

    fn hand_over(&mut self, pieces: &[u64]) -> Vec<Asked> {
        let pieces: Vec<_> = pieces.iter().copied().map(MemoryId).collect();
        self.device.takes_over(ContextId(1), &pieces);
        self.device.takes_credit_over(ContextId(1), PerHeap { device: 8 * MIB, host: u64::MAX });
        self.device.handed_over(ContextId(1), &mut self.world);
        self.asked()
    }
}

#[test]
fn a_context_that_is_handed_over_holds_what_its_successor_takes_and_was_shown() {
    let mut rig = rig();
    let (shown, taken, left) = (rig.pages(1, MIB), rig.pages(1, 2 * MIB), rig.pages(1, 4 * MIB));
    rig.want(1, credit(8, 8));
    rig.show(1, 5, shown);
    let mirrored = rig.succeed();
    assert!(matches!(mirrored[..], [Asked::Mirror(1, 5, 4096, _)]), "{mirrored:?}");
    assert_eq!(rig.host_memory(), 7);
    // The successor names a piece twice that the worker held once, and a piece that the worker never held.
    assert_eq!(rig.hand_over(&[taken, taken, 77]), [Asked::Forget(left)]);
    assert_eq!((rig.host_memory(), rig.device.memory_used().0), (3, 8 * MIB));
    assert_eq!(rig.give_back(1, taken), [Asked::Forget(taken)]);
    assert_eq!(rig.give_back(1, taken), []);
    // The successor keeps the piece that it was shown.
    rig.call(1, Command::ResourceUnref { resource_id: ResourceId(5) });
    let asked = rig.asked();
    assert!(asked.contains(&Asked::BlobGone(1, shown)), "{asked:?}");
    assert_eq!(rig.give_back(1, shown), [Asked::Forget(shown)]);
    assert_eq!((rig.host_memory(), rig.device.memory_used().0), (0, 8 * MIB));
}

#[test]
fn a_hand_over_that_is_called_off_changes_no_account() {
    let mut rig = rig();
    let shown = rig.pages(1, MIB);
    rig.show(1, 5, shown);
    let number = rig.device.successor_number();
    rig.device.show_to_successor(ContextId(1), number, &mut rig.world);
    rig.device.context_rests(ContextId(1));
    rig.device.hand_over_ends(ContextId(1), &mut rig.world);
    rig.asked();
    rig.call(1, Command::ResourceUnref { resource_id: ResourceId(5) });
    rig.asked();
    assert_eq!(rig.give_back(1, shown), []);
    assert_eq!(rig.host_memory(), 1, "the successor may have it mapped");
    rig.device.worker_ended(number, &mut rig.world);
    assert_eq!((rig.asked(), rig.host_memory()), (vec![Asked::Forget(shown)], 0));
}

#[test]
fn what_a_successor_gives_back_counts_only_if_it_becomes_the_worker() {
    for succeeds in [true, false] {
        let mut rig = rig();
        let (shown, taken) = (rig.pages(1, MIB), rig.pages(1, 2 * MIB));
        rig.want(1, credit(8, 8));
        rig.show(1, 5, shown);
        rig.succeed();
        let returned = |rig: &mut Rig, memory| {
            rig.device.returned_by_successor(ContextId(1), MemoryId(memory), &mut rig.world);
            rig.asked()
        };
        // Once what it was shown, and then what is its predecessor's; what it has not taken over yet it has not.
        for memory in [shown, shown, taken] {
            assert_eq!(returned(&mut rig, memory), []);
        }
        let (taken_id, one_id) = (MemoryId(taken), ContextId(1));
        rig.device.takes_over(one_id, &[taken_id]);
        rig.device.takes_credit_over(one_id, PerHeap { device: 7 * MIB, host: MIB });
        for _ in 0..2 {
            assert_eq!(returned(&mut rig, taken), []);
            rig.device.credit_returned_by_successor(one_id, Heap::Device, 2 * MIB);
        }
        assert_eq!((rig.host_memory(), rig.device.memory_used().0), (3, 8 * MIB));
        if succeeds {
            rig.device.handed_over(one_id, &mut rig.world);
            assert_eq!(rig.asked(), [Asked::Forget(taken)]);
            // The piece that the blob shows stays.
            assert_eq!((rig.host_memory(), rig.device.memory_used().0), (1, 3 * MIB));
            rig.device.worker_ended(1, &mut rig.world);
            assert_eq!(rig.device.memory_used().0, 0);
        } else {
            rig.device.hand_over_ends(one_id, &mut rig.world);
            assert_eq!((rig.host_memory(), rig.device.memory_used().0), (3, 8 * MIB));
            assert_eq!(rig.give_back(1, taken), [Asked::Forget(taken)]);
            assert_eq!(rig.give_back(1, shown), []);
            rig.device.credit_returned(one_id, Heap::Device, 8 * MIB, &mut rig.world);
            assert_eq!((rig.host_memory(), rig.device.memory_used().0), (1, 0));
        }
    }
}

#[test]
fn credit_that_a_worker_was_granted_behind_its_back_is_nobodys_once_it_has_handed_over() {
    let mut rig = rig();
    rig.want(1, credit(8, 8));
    rig.succeed();
    // The answer is on its way when the worker says that it has handed over.
    rig.want(1, credit(16, 16));
    let late = rig.pages(1, MIB);
    rig.device.context_rests(ContextId(1));
    assert_eq!((rig.hand_over(&[]), rig.device.memory_used()), (vec![Asked::Forget(late)], (8 * MIB, 0)));
}

#[test]
fn what_cannot_be_handed_over_is_said() {
    let mut rig = rig();
    let obstacle = |rig: &Rig, ctx_id| rig.device.obstacle(ContextId(ctx_id));
    assert_eq!((obstacle(&rig, 1), obstacle(&rig, 9)), (None, Some(Obstacle::Unknown)));
    rig.start(header(1, None), blob(5, 77, 4096));
    rig.asked();
    assert_eq!((obstacle(&rig, 1), rig.device.is_exporting(ContextId(1))), (None, true));
    let memory = MemoryId(rig.pages(1, MIB));
    rig.device.blob_exported(ResourceId(5), MapCache::Cached, Some(memory), true, &mut rig.world);
    assert_eq!(obstacle(&rig, 1), Some(Obstacle::Lends));
    rig.device.context_lost(ContextId(1), &mut rig.world);
    assert_eq!(obstacle(&rig, 1), Some(Obstacle::Lost));
}

#[test]
fn what_comes_back_goes_to_what_waits_and_what_is_wanted_no_more_does_not_wait() {
    let mut rig = rig();
    rig.device.set_room(20 * MIB, &mut rig.world);
    let Asked::Grant(1, 9, Some(piece), _) =
        rig.want(1, Wanted::Piece { heap: Heap::Device, bytes: 10 * MIB })
    else {
        panic!("there is room")
    };
    assert_eq!(rig.want(1, credit(10, 10)), Asked::Grant(1, 9, None, 10 * MIB));
    let wait = |rig: &mut Rig, request| {
        rig.device.memory_wanted(ContextId(2), request, credit(10, 10), &mut rig.world);
        assert_eq!(rig.asked(), [Asked::Waits(2, request)]);
    };
    wait(&mut rig, 1);
    wait(&mut rig, 2);
    wait(&mut rig, 3);
    rig.device.memory_wanted_no_more(ContextId(2), 1, &mut rig.world);
    assert_eq!(rig.asked(), [Asked::RefuseMemory(2, 1, "")]);
    rig.device.memory_wanted_no_more(ContextId(2), 1, &mut rig.world);
    assert_eq!(rig.asked(), [], "it is answered once");
    let number = |rig: &Rig| rig.device.lacks(&[]).first().and_then(|lack| lack.request);
    assert_eq!(number(&rig), Some(2));
    rig.device.credit_returned(ContextId(1), Heap::Device, 10 * MIB, &mut rig.world);
    assert_eq!(rig.asked(), [Asked::Grant(2, 2, None, 10 * MIB)]);
    let asked = rig.give_back(1, piece);
    assert_eq!(asked, [Asked::Forget(piece), Asked::Grant(2, 3, None, 10 * MIB)]);
    assert_eq!(number(&rig), None);
}

#[test]
fn a_worker_is_told_once_that_its_request_waits_for_room_and_never_that_it_waits_for_workers() {
    let mut rig = rig();
    rig.device.set_room(60 * MIB, &mut rig.world);
    rig.want(1, credit(56, 56));
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    rig.asked();
    rig.device.memory_wanted(ContextId(2), 1, credit(50, 50), &mut rig.world);
    rig.device.set_room(40 * MIB, &mut rig.world);
    assert_eq!(rig.asked(), []);
    rig.device.worker_ended(1, &mut rig.world);
    assert_eq!(rig.asked(), [Asked::Waits(2, 1)]);
    rig.device.set_room(41 * MIB, &mut rig.world);
    assert_eq!(rig.asked(), []);
    rig.device.set_room(50 * MIB, &mut rig.world);
    assert_eq!(rig.asked(), [Asked::Grant(2, 1, None, 50 * MIB)]);
}

#[test]
fn what_waits_asks_again_only_when_something_has_come_back() {
    let mut rig = rig();
    let piece = rig.pages(1, 4096);
    rig.device.give_piece(ContextId(1), MemoryId(piece));
    rig.want(1, credit(1, 1));
    rig.device.set_room(5 * MIB, &mut rig.world);
    let wait = |rig: &mut Rig, request| {
        rig.device.room = 5 * MIB;
        rig.device.memory_wanted(ContextId(2), request, credit(10, 10), &mut rig.world);
        assert_eq!(rig.asked(), [Asked::Waits(2, request)]);
        // The context could have the memory if it asked.
        rig.device.room = 60 * MIB;
    };
    wait(&mut rig, 1);
    rig.device.credit_returned(ContextId(1), Heap::Device, 0, &mut rig.world);
    assert_eq!((rig.asked(), rig.give_back(1, piece)), (vec![], vec![]));
    let granted = |request| Asked::Grant(2, request, None, 10 * MIB);
    assert_eq!(rig.give_back(1, piece), [Asked::Forget(piece), granted(1)]);
    wait(&mut rig, 2);
    rig.device.credit_returned(ContextId(1), Heap::Device, 1, &mut rig.world);
    assert_eq!(rig.asked(), [granted(2)]);
}

/// Returns the processor time of `times` rounds in which 100 requests of each context ask again, while `away` other contexts are swapped out.
/// Other work of the machine makes single measurements longer, never shorter.
fn cost_of_asking((contexts, away): (u32, u64), times: u32) -> Duration {
    let processor_time = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let cost = || {
        let mut rig = rig();
        (3..=contexts).for_each(|ctx_id| assert_eq!(rig.call(ctx_id, venus()), OK));
        rig.device.set_room(MIB, &mut rig.world);
        rig.device.away.extend((1000..1000 + away).map(crate::device::quota::Owner));
        for (ctx_id, request) in
            (1..=contexts).flat_map(|ctx_id| (0..100).map(move |request| (ctx_id, request)))
        {
            rig.device.memory_wanted(ContextId(ctx_id), request, credit(2, 2), &mut rig.world);
        }
        let begin = processor_time();
        (0..times).for_each(|_| {
            rig.device.ask_again(&mut rig.world);
            assert_eq!(rig.device.lacks(&[]).len(), 100 * contexts as usize);
        });
        processor_time() - begin
    };
    (0..7).map(|_| cost()).min().unwrap_or_default()
}

#[test]
fn one_that_waits_costs_as_much_as_ever_however_many_there_are() {
    let (few, many) = (cost_of_asking((8, 0), 64), cost_of_asking((64, 0), 8));
    let few = few.max(Duration::from_millis(1));
    assert!(many < 4 * few, "{many:?} for as many as take {few:?} in a table of an eighth");
}

#[test]
fn one_that_waits_costs_as_much_as_ever_however_many_are_swapped_out() {
    let (few, many) = (cost_of_asking((8, 8), 16), cost_of_asking((8, 1000), 16));
    let few = few.max(Duration::from_millis(1));
    assert!(many < 4 * few, "{many:?} where 1000 are swapped out, and {few:?} where 8 are");
}

#[test]
fn a_process_with_a_driver_holds_the_memory_of_its_context_until_it_ends() {
    let ends: [&dyn Fn(&mut Rig); 3] = [
        &|rig| assert_eq!(rig.call(1, Command::CtxDestroy), OK),
        &|rig| rig.device.context_lost(ContextId(1), &mut rig.world),
        &|rig| rig.device.reset(MapsAtReset::Forget, &mut rig.world),
    ];
    for ends in ends {
        let mut rig = rig();
        rig.device.set_room(20 * MIB, &mut rig.world);
        rig.want(1, credit(10, 10));
        let (worker, driver) = (rig.device.contexts[&ContextId(1)].owner().0, rig.device.successor_number());
        rig.device.driver_holds(ContextId(1), driver);
        // The successor of a swap-in holds pieces itself as soon as one is shown to it.
        rig.device.pieces.workers.entry(crate::device::quota::Owner(driver)).or_default();
        ends(&mut rig);
        assert_eq!(rig.device.present_memory(), 10 * MIB, "it counts once");
        rig.device.worker_ended(worker, &mut rig.world);
        assert_eq!(rig.device.present_memory(), 10 * MIB);
        rig.device.worker_ended(driver, &mut rig.world);
        assert_eq!(rig.device.present_memory(), 0);
    }
}

#[test]
fn what_a_context_that_is_swapped_out_leaves_is_on_no_gpu_and_what_a_reset_ends_is() {
    let mut rig = rig();
    rig.device.set_room(20 * MIB, &mut rig.world);
    rig.want(1, credit(10, 10));
    rig.want(2, credit(10, 10));
    assert_eq!(rig.device.present_memory(), 20 * MIB);
    rig.device.is_away(ContextId(1), true, &mut rig.world);
    assert_eq!(rig.device.present_memory(), 10 * MIB);
    let [away, present] = [1, 2].map(|ctx_id| rig.device.contexts[&ContextId(ctx_id)].owner().0);
    rig.call(1, Command::CtxDestroy);
    assert_eq!(rig.device.present_memory(), 10 * MIB, "its worker has not ended");
    rig.device.reset(MapsAtReset::Forget, &mut rig.world);
    assert_eq!((rig.device.present_memory(), rig.device.memory_used()), (10 * MIB, (0, 0)));
    rig.device.worker_ended(away, &mut rig.world);
    rig.device.worker_ended(present, &mut rig.world);
    assert_eq!(rig.device.present_memory(), 0);
}
