//! Tests of contents on the null driver, whose memory has contents here.

use super::*;
use crate::Renderer;
use crate::context::allowance::Piece;
use crate::fuzzing::comparable;
use crate::null::world_for_tests::{DEVICE, PAGES, PRIVATE, SIZE, World};
use crate::null::{self, NoResources};
use crate::snapshot::{Carry, Prelude};
use protocol::venus::generated::Command;
use shm::Mapping;

const PAGE: u64 = 4096;
const OTHER_DEVICE: venus::Device = venus::Device(90);

/// A memory file of so many bytes, and its mapping.
fn file(bytes: u64) -> (Arc<MemoryFile>, Mapping) {
    let file = Arc::new(MemoryFile::new(shm::create("test", bytes).unwrap(), Piece::uncounted()));
    let mapping = Mapping::new(file.as_ref(), bytes).unwrap();
    (file, mapping)
}

fn allocate(world: &World, device: venus::Device, id: u64, allocation_size: u64, ty: u32) {
    let info = venus::MemoryAllocateInfo { p_next: &[], allocation_size, memory_type_index: ty };
    let (memory, p_allocate_info) = (venus::DeviceMemory(id), Some(&info));
    world.execute(&Command::AllocateMemory(venus::AllocateMemory {
        device,
        p_allocate_info,
        p_memory: Some(&memory),
    }));
}

fn raw(renderer: &Renderer, id: u64) -> u64 {
    renderer.context().objects.read().get(venus::DeviceMemory(id)).unwrap().raw
}

/// Two devices with private memory of 1, 16 and 2 pages, among memory that is made of pages.
fn world() -> World {
    let world = World::with_own_queue();
    world.create_device(OTHER_DEVICE);
    // A size that is no multiple of a page.
    allocate(&world, DEVICE, 12, PAGE - 100, PRIVATE);
    allocate(&world, DEVICE, 11, SIZE, PAGES);
    allocate(&world, OTHER_DEVICE, 13, SIZE, PRIVATE);
    allocate(&world, DEVICE, 14, 2 * PAGE, PRIVATE);
    world
}

const ALL: [(u64, u64); 3] = [(12, PAGE), (13, SIZE), (14, 2 * PAGE)];

/// Returns the allocations that the steps make for contents that come later.
fn filled(steps: &[Step]) -> Vec<u64> {
    let filled = |step: &Step| if let Step::Filled { id } = step { Some(*id) } else { None };
    steps.iter().filter_map(filled).collect()
}

/// A context with the memory of [`world`], which has been made ahead of the snapshot, and the prelude.
fn made_ahead(world: &World) -> (Renderer, Prelude) {
    let save = |so_far: &Prelude, memory| world.renderer.save_prelude(so_far, memory).unwrap();
    let (first, prelude) = save(&Prelude::default(), None);
    let (second, prelude) = save(&prelude, Some(Carry::Copied));
    assert_eq!((filled(&first.steps), filled(&second.steps)), (vec![], vec![12, 13, 14]));
    let next = null::renderer_that_clears(null::LIMITS);
    next.rebuild_ahead(&first.steps, &[]).unwrap();
    next.rebuild_ahead(&second.steps, &[]).unwrap();
    (next, prelude)
}

#[test]
fn memory_is_made_ahead_and_its_contents_come_when_the_predecessor_rests() {
    let world = world();
    let (next, prelude) = made_ahead(&world);
    let made = raw(&next, 13);
    // Freed meanwhile: the id of one is that of memory without contents now, of the other that of new memory.
    world.free(12);
    allocate(&world, DEVICE, 12, PAGE, PAGES);
    world.free(14);
    allocate(&world, OTHER_DEVICE, 14, SIZE, PRIVATE);
    let rest = world.renderer.save(&prelude, Carry::Copied).unwrap();
    assert_eq!(filled(&rest.steps), [14]);
    assert_eq!(Step::contents(&rest.steps), Some(&[(13, SIZE), (14, SIZE)][..]));
    next.rebuild(&comparable(&rest.steps), &rest.files_here()).unwrap();
    assert_eq!(raw(&next, 13), made);
    assert_eq!(next.contents(&rest.steps).unwrap().unwrap().bytes(), 2 * SIZE);
    let again = next.save(&Prelude::default(), Carry::Copied).unwrap();
    assert_eq!(Step::contents(&again.steps), Step::contents(&rest.steps));
}

#[test]
fn memory_that_was_made_ahead_is_not_seen_without_its_contents() {
    let world = world();
    let (next, prelude) = made_ahead(&world);
    let mut rest = world.renderer.save(&prelude, Carry::Copied).unwrap();
    rest.steps.retain(|step| !matches!(step, Step::Contents(_)));
    assert!(next.rebuild(&comparable(&rest.steps), &rest.files_here()).is_err());
}

#[test]
fn contents_of_several_devices_pass_through_slots_that_divide_no_allocation_evenly() {
    let world = world();
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let step = saved.steps.iter().find(|step| matches!(step, Step::Contents(_)));
    assert_eq!(step, Some(&Step::Contents(ALL.to_vec())));
    let second = null::renderer_that_clears(null::LIMITS);
    second.rebuild(&comparable(&saved.steps), &saved.files_here()).unwrap();

    let mut old = world.renderer.contents(&saved.steps).unwrap().unwrap();
    let mut new = second.contents(&saved.steps).unwrap().unwrap();
    let all = old.bytes();
    assert_eq!((all, new.bytes()), (SIZE + 3 * PAGE, all));
    let (whole, of_whole) = file(all);
    let bytes: Vec<u8> = (0..all).map(|at| (at / PAGE + at) as u8 | 1).collect();
    of_whole.copy_in(0, &bytes).unwrap();
    old.stage(&whole, all).unwrap();
    old.write(0..all, 0).unwrap();
    old.finish().unwrap();
    let mut begin = 0;
    for (id, size) in ALL {
        let part = &bytes[begin as usize..(begin + size) as usize];
        assert!(null::contents(raw(&world.renderer, id), 0, size) == part, "memory {id}");
        begin += size;
    }

    let (slots, _) = file(6 * PAGE);
    old.stage(&slots, 6 * PAGE).unwrap();
    new.stage(&slots, 6 * PAGE).unwrap();
    let slot = 3 * PAGE;
    let (mut ahead, mut ahead_at) = (0..0, 0);
    for start in (0..all).step_by(slot as usize) {
        let (part, at) = (start..all.min(start + slot), start / slot % 2 * slot);
        old.read(part.clone(), at).unwrap();
        // Old and new context each have up to two copies at a time.
        if start > 0 {
            old.finish().unwrap();
            new.write(ahead, ahead_at).unwrap();
            new.finish().unwrap();
        }
        (ahead, ahead_at) = (part, at);
    }
    old.finish().unwrap();
    new.write(ahead, ahead_at).unwrap();
    // The drop waits for the last copy.
    drop(new);
    let mut begin = 0;
    for (id, size) in ALL {
        let part = &bytes[begin as usize..(begin + size) as usize];
        assert!(null::contents(raw(&second, id), 0, size) == part, "memory {id}");
        begin += size;
    }
}

#[test]
fn memory_whose_contents_come_is_not_cleared_and_does_not_stay_without_them() {
    let world = world();
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let filled: Vec<_> = saved.steps.iter().filter(|step| matches!(step, Step::Filled { .. })).collect();
    assert_eq!(filled, [&Step::Filled { id: 12 }, &Step::Filled { id: 13 }, &Step::Filled { id: 14 }]);
    let rebuilt = |change: &dyn Fn(&mut Vec<Step>)| {
        let mut steps = comparable(&saved.steps);
        change(&mut steps);
        let second = null::renderer_that_clears(null::LIMITS);
        let before = null::fills();
        let rebuilt = second.rebuild(&steps, &saved.files_here());
        second.destroy_objects();
        (null::fills() - before, rebuilt.is_ok())
    };
    assert_eq!(rebuilt(&|_| ()), (0, true));
    assert_eq!(rebuilt(&|steps| steps.retain(|step| !matches!(step, Step::Filled { .. }))), (3, true));
    // A snapshot of another context.
    assert_eq!(rebuilt(&|steps| steps.retain(|step| !matches!(step, Step::Contents(_)))), (0, false));
    assert!(!rebuilt(&|steps| steps.insert(0, Step::Filled { id: 4711 })).1);
    let all_but_one = |steps: &mut Vec<Step>| {
        for step in steps {
            if let Step::Contents(all) = step {
                all.remove(0);
            }
        }
    };
    assert!(!rebuilt(&all_but_one).1);
}

#[test]
fn contents_stay_inside_their_file_and_need_one() {
    let world = world();
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let mut contents = world.renderer.contents(&saved.steps).unwrap().unwrap();
    assert!(contents.read(0..PAGE, 0).is_err(), "there are no pages");
    let (small, _) = file(2 * PAGE);
    assert!(contents.stage(&small, 3 * PAGE).is_err());
    contents.stage(&small, 2 * PAGE).unwrap();
    contents.read(0..2 * PAGE, 0).unwrap();
    for (bytes, at) in
        [(0..3 * PAGE, 0), (0..2 * PAGE, PAGE), (0..PAGE, u64::MAX), (0..PAGE, u64::MAX - PAGE + 1)]
    {
        assert!(contents.read(bytes.clone(), at).is_err(), "{bytes:?} at {at}");
        assert!(contents.write(bytes.clone(), at).is_err(), "{bytes:?} at {at}");
    }
}

#[test]
fn contents_of_memory_that_is_not_there_are_refused() {
    let world = world();
    let context = world.renderer.context();
    assert!(compare(context, &ALL).is_ok() && compare(context, &[]).is_ok());
    for wrong in [
        vec![(11, SIZE)],
        vec![(15, PAGE)],
        vec![(DEVICE.0, PAGE)],
        vec![(12, 2 * PAGE)],
        vec![(12, 0)],
        vec![(12, PAGE), (12, PAGE)],
        vec![(13, SIZE), (12, PAGE)],
    ] {
        assert!(compare(context, &wrong).is_err(), "{wrong:?}");
        assert!(world.renderer.contents(&[Step::Contents(wrong)]).is_err());
    }
    assert!(world.renderer.contents(&[]).unwrap().is_none());
}

#[test]
fn memory_that_cannot_be_copied_is_known_before() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PRIVATE));
    assert!(world.renderer.save(&Prelude::default(), Carry::Copied).unwrap_err().reason.contains("queue"));
    drop(world);
    let world = World::with_own_queue();
    drop(world.allocate_of(10, &[], SIZE, PRIVATE));
    // Whether the device can copy matters for the successor, too.
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let second = null::renderer(Arc::new(NoResources));
    second.rebuild(&comparable(&saved.steps), &saved.files_here()).unwrap();
    let mut contents = second.contents(&saved.steps).unwrap().unwrap();
    let (pages, _) = file(SIZE);
    contents.stage(&pages, SIZE).unwrap();
    assert!(contents.write(0..SIZE, 0).unwrap_err().to_string().contains("does not copy"));
}
