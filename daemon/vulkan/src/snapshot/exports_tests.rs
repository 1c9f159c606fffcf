//! Tests of memory that only the driver uses and that a successor takes as it is, on the null driver.

use super::step::Step;
use super::{Carry, Prelude, Saved, SavedFile};
use crate::Renderer;
use crate::backing::memory::{Exported, Made, Memory};
use crate::context::allowance::{MemoryFile, Piece};
use crate::context::error::ContextLost;
use crate::fuzzing::comparable;
use crate::null;
use crate::null::world_for_tests::{DEVICE, PAGES, PRIVATE, SIZE, World};
use config::MemoryName;
use protocol::venus::generated::{self as venus, ChainStruct, Command};
use shm::Mapping;
use std::sync::Arc;

const ADDRESSED: venus::MemoryAllocateFlagsInfo<'_> = venus::MemoryAllocateFlagsInfo {
    p_next: &[],
    flags: venus::MemoryAllocateFlags::DEVICE_ADDRESS,
    device_mask: 0,
};

fn raw(renderer: &Renderer, id: u64) -> u64 {
    renderer.context().objects.read().get(venus::DeviceMemory(id)).unwrap().raw
}

fn is_exported(memory: &Memory) -> bool {
    matches!(memory.made, Made::Private { exported: Some(Exported::ByDriver), .. })
}

/// A context with private memory of two sizes, one of them bound to a buffer, among memory that is made of pages.
fn world() -> World {
    let world = World::that_exports();
    assert!(is_exported(&world.allocate_of(10, &[], SIZE, PRIVATE)));
    drop(world.allocate_of(11, &[], SIZE, PAGES));
    assert!(is_exported(&world.allocate_of(12, &[], 4096 - 100, PRIVATE)));
    for (buffer, memory) in [(20, 10), (21, 11)] {
        world.buffer(buffer);
        world.bind(buffer, memory);
    }
    world
}

/// Has the device write into all private memory.
fn fill_all(renderer: &Renderer) {
    let saved = renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let mut contents = renderer.contents(&saved.steps).unwrap().unwrap();
    let bytes = contents.bytes();
    let file = Arc::new(MemoryFile::new(shm::create("test", bytes).unwrap(), Piece::uncounted()));
    let all: Vec<u8> = (0..bytes).map(|at| (at / 4096 + at) as u8 | 1).collect();
    Mapping::new(file.as_ref(), bytes).unwrap().copy_in(0, &all).unwrap();
    contents.stage(&file, bytes).unwrap();
    contents.write(0..bytes, 0).unwrap();
    contents.finish().unwrap();
}

/// Has the device write into all private memory, and returns the contents of each allocation.
fn fill(renderer: &Renderer) -> [Vec<u8>; 2] {
    fill_all(renderer);
    seen(renderer)
}

fn seen(renderer: &Renderer) -> [Vec<u8>; 2] {
    [(10, SIZE), (12, 4096)].map(|(id, size)| null::contents(raw(renderer, id), 0, size))
}

fn successor(saved: &Saved, change: impl FnOnce(&mut Vec<Step>)) -> Result<Renderer, ContextLost> {
    let mut steps = comparable(&saved.steps);
    change(&mut steps);
    let renderer = null::renderer_that_exports(null::LIMITS);
    let rebuilt = renderer.rebuild(&steps, &null::files_of(saved));
    if rebuilt.is_err() {
        renderer.destroy_objects();
    }
    rebuilt.map(|()| renderer)
}

#[test]
fn successors_have_the_memory_itself_one_after_the_other() {
    let world = world();
    let before = fill(&world.renderer);
    assert!(before.iter().flatten().any(|byte| *byte > 1));
    let mut saved = world.renderer.save(&Prelude::default(), Carry::HandedOver).unwrap();
    let fills = null::fills();
    for generation in 1..4 {
        let exported: Vec<_> =
            saved.steps.iter().filter(|step| matches!(step, Step::Exported { .. })).collect();
        assert_eq!(exported, [&Step::Exported { id: 10, file: 0 }, &Step::Exported { id: 12, file: 2 }]);
        let names: Vec<_> = saved.files.iter().map(SavedFile::name).collect();
        assert!(names[0] == MemoryName::Unnamed && names[2] == MemoryName::Unnamed, "{names:?}");
        let of_contents = |step: &Step| matches!(step, Step::Contents(_) | Step::Filled { .. });
        assert!(!saved.steps.iter().any(of_contents));
        let next = successor(&saved, |_| ()).unwrap();
        assert!(next.is_at_home());
        assert_eq!((seen(&next), null::imports(), null::fills()), (before.clone(), 2 * generation, fills));
        let steps = saved.steps;
        saved = next.save(&Prelude::default(), Carry::HandedOver).unwrap();
        assert_eq!(comparable(&saved.steps), comparable(&steps));
    }
}

#[test]
fn a_successor_has_memory_before_its_predecessor_rests() {
    let world = world();
    drop(world.allocate_of(13, &[ChainStruct::MemoryAllocateFlagsInfo(&ADDRESSED)], SIZE, PRIVATE));
    drop(world.allocate_of(14, &[], SIZE, PRIVATE));
    let save = |so_far: &Prelude, memory| world.renderer.save_prelude(so_far, memory).unwrap();
    // The first part has no memory: it is not known yet whether the driver is the same.
    let (first, prelude) = save(&Prelude::default(), None);
    assert!(first.files.is_empty());
    let (second, prelude) = save(&prelude, Some(Carry::HandedOver));
    let ids = |saved: &Saved| saved.steps.iter().filter_map(Step::handed_over).collect::<Vec<_>>();
    assert_eq!((ids(&second), second.files.len()), (vec![10, 12, 14], 3));
    let (third, prelude) = save(&prelude, Some(Carry::HandedOver));
    assert!(third.steps.is_empty() && third.files.is_empty(), "{:?}", third.steps);
    let successor = null::renderer_that_exports(null::LIMITS);
    successor.rebuild_ahead(&first.steps, &[]).unwrap();
    successor.rebuild_ahead(&second.steps, &second.files_here()).unwrap();
    assert!(successor.is_at_home());
    let imports = null::imports();
    // Memory that is freed meanwhile is freed in the successor, too, and other memory may have its id. The successor sees later writes.
    world.free(14);
    // The pool keeps the driver's memory, and gives it out again.
    drop(world.allocate_of(14, &[], SIZE, PRIVATE));
    fill_all(&world.renderer);
    let rest = world.renderer.save(&prelude, Carry::HandedOver).unwrap();
    assert_eq!(ids(&rest), [14]);
    assert_eq!(Step::contents(&rest.steps), Some(&[(13, SIZE)][..]), "the others are there");
    successor.rebuild(&comparable(&rest.steps), &null::files_of(&rest)).unwrap();
    assert_eq!(null::imports(), imports, "what was freed is imported no more: it is the other's memory");
    assert_eq!(seen(&successor), seen(&world.renderer));
    let whole = |renderer: &Renderer| {
        let saved = renderer.save(&Prelude::default(), Carry::HandedOver).unwrap();
        // The steps have another order.
        let of_all = |step: &Step| matches!(step, Step::Objects(_) | Step::Addresses(_) | Step::Contents(_));
        (ids(&saved), comparable(&saved.steps).into_iter().filter(of_all).collect::<Vec<_>>())
    };
    assert_eq!(whole(&successor), whole(&world.renderer));
}

#[test]
fn memory_for_one_image_is_made_behind_the_image() {
    let world = world();
    world.image(30, venus::Format::R8_UNORM, venus::ImageCreateFlags(0));
    let one = venus::MemoryDedicatedAllocateInfo { image: venus::Image(30), ..Default::default() };
    drop(world.allocate_of(13, &[ChainStruct::MemoryDedicatedAllocateInfo(&one)], SIZE, PRIVATE));
    let (first, prelude) = world.renderer.save_prelude(&Prelude::default(), None).unwrap();
    let (second, prelude) = world.renderer.save_prelude(&prelude, Some(Carry::HandedOver)).unwrap();
    let ids: Vec<_> = second.steps.iter().filter_map(Step::handed_over).collect();
    assert_eq!(ids, [10, 12]);
    let next = null::renderer_that_exports(null::LIMITS);
    next.rebuild_ahead(&first.steps, &[]).unwrap();
    next.rebuild_ahead(&second.steps, &second.files_here()).unwrap();
    let rest = world.renderer.save(&prelude, Carry::HandedOver).unwrap();
    next.rebuild(&comparable(&rest.steps), &null::files_of(&rest)).unwrap();
}

#[test]
fn what_a_successor_cannot_have_itself_is_copied() {
    let world = world();
    drop(world.allocate_of(13, &[ChainStruct::MemoryAllocateFlagsInfo(&ADDRESSED)], SIZE, PRIVATE));
    let copied = |carry| {
        let saved = world.renderer.save(&Prelude::default(), carry).unwrap();
        Step::contents(&saved.steps).map(<[_]>::to_vec)
    };
    assert_eq!(copied(Carry::HandedOver), Some(vec![(13, SIZE)]));
    assert_eq!(copied(Carry::Copied), Some(vec![(10, SIZE), (12, 4096), (13, SIZE)]));
}

#[test]
fn memory_that_the_driver_does_not_export_after_all_is_copied() {
    let world = world();
    null::refuse_exports(true);
    let saved = world.renderer.save(&Prelude::default(), Carry::HandedOver).unwrap();
    assert_eq!(Step::contents(&saved.steps), Some(&[(10, SIZE), (12, 4096)][..]));
    assert!(!saved.steps.iter().any(|step| step.handed_over().is_some()));
    drop(successor(&saved, |_| ()).unwrap());
    assert_eq!(null::imports(), 0);
}

#[test]
fn memory_is_given_to_the_same_driver_on_the_same_gpu_only() {
    let world = world();
    let saved = world.renderer.save(&Prelude::default(), Carry::HandedOver).unwrap();
    for other in [0, 1] {
        let change = |steps: &mut Vec<Step>| {
            for step in steps {
                let Step::Gpus(gpus) = step else { continue };
                let identity = &mut gpus[0].2;
                let uuid = if other == 0 { &mut identity.driver } else { &mut identity.device };
                uuid[3] ^= 1;
            }
        };
        let lost = successor(&saved, change).err().expect("it is refused");
        assert!(lost.to_string().contains("another one than before"), "{lost}");
        let copied = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
        assert!(!successor(&copied, change).unwrap().is_at_home());
    }
}

#[test]
fn nothing_is_given_away_that_an_image_or_a_hostile_snapshot_must_not_have() {
    let world = world();
    let saved = world.renderer.save(&Prelude::default(), Carry::HandedOver).unwrap();
    let exported = |id, file| move |steps: &mut Vec<Step>| steps.insert(1, Step::Exported { id, file });
    assert!(successor(&saved, exported(10, 0)).is_err(), "twice");
    assert!(successor(&saved, exported(99, 0)).is_err(), "of nothing");
    assert!(successor(&saved, |steps| steps.insert(0, Step::Exported { id: 99, file: 0 })).is_err());
    let rename = |wanted: u64, other: u64, index: u32| {
        move |steps: &mut Vec<Step>| {
            for step in steps {
                if let Step::Exported { id, file } = step
                    && *id == wanted
                {
                    (*id, *file) = (other, index);
                }
            }
        }
    };
    assert!(successor(&saved, rename(10, 10, 77)).is_err(), "a file that is not there");
    assert!(successor(&saved, rename(10, 11, 0)).is_err(), "for memory that is made of pages");
    // The driver does not say that an image may be in such memory.
    world.image(30, venus::Format::R8_UNORM, venus::ImageCreateFlags(0));
    assert!(!is_exported(&world.allocate_of(14, &[], 3 * SIZE, PRIVATE)));
}

/// A context on a device whose addresses can be had again. Private memory 10 has an address, and so has buffer 20, which is bound to it; private memory
/// 12 has none.
fn addressed() -> World {
    let world = World::that_exports();
    world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
    let features =
        venus::PhysicalDeviceBufferDeviceAddressFeatures { buffer_device_address: 1, ..Default::default() };
    let features = [ChainStruct::PhysicalDeviceBufferDeviceAddressFeatures(&features)];
    world.create_device_with(DEVICE, &features);
    let memory = world.allocate_of(10, &[ChainStruct::MemoryAllocateFlagsInfo(&ADDRESSED)], SIZE, PRIVATE);
    assert!(is_exported(&memory));
    drop(world.allocate_of(12, &[], 4096, PRIVATE));
    let usage = venus::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
    let info = venus::BufferCreateInfo { size: 4096, usage, ..Default::default() };
    let (p_create_info, p_buffer) = (Some(&info), Some(&venus::Buffer(20)));
    world.execute(&Command::CreateBuffer(venus::CreateBuffer { device: DEVICE, p_create_info, p_buffer }));
    world.bind(20, 10);
    let info = venus::BufferDeviceAddressInfo { buffer: venus::Buffer(20), ..Default::default() };
    let ask = venus::GetBufferDeviceAddress { device: DEVICE, p_info: Some(&info) };
    world.execute(&Command::GetBufferDeviceAddress(ask));
    world
}

fn addresses(renderer: &Renderer) -> [u64; 2] {
    let objects = renderer.context().objects.read();
    let buffer = objects.get(venus::Buffer(20)).unwrap().raw;
    [objects.get(venus::DeviceMemory(10)).unwrap().raw, buffer].map(null::address)
}

#[test]
fn memory_with_an_address_is_made_anew_at_it_and_filled_out_of_what_it_was() {
    let world = addressed();
    fill_all(&world.renderer);
    let (before, at) = (seen(&world.renderer), addresses(&world.renderer));
    assert!(before.iter().flatten().any(|byte| *byte > 1) && at.iter().all(|address| *address != 0));
    for carry in [Carry::HandedOver, Carry::Deposited] {
        let mut saved = world.renderer.save(&Prelude::default(), carry).unwrap();
        let mut generations = Vec::new();
        for _ in 0..2 {
            let imports = null::imports();
            let next = successor(&saved, |_| ()).unwrap();
            assert_eq!((seen(&next), addresses(&next)), (before.clone(), at));
            assert!(next.context().given_up.finish());
            assert_eq!(null::imports() - imports, 1, "what was copied from is imported no more");
            saved = next.save(&Prelude::default(), carry).unwrap();
            assert_eq!(Step::contents(&saved.steps), None);
            generations.push(next);
        }
    }
}

#[test]
fn memory_with_an_address_is_made_ahead_and_filled_when_its_predecessor_rests() {
    for goes in ["nothing", "its memory", "its device"] {
        let world = addressed();
        null::have_to_spare(4 * SIZE);
        let save = |so_far: &Prelude, memory| world.renderer.save_prelude(so_far, memory).unwrap();
        let (first, prelude) = save(&Prelude::default(), None);
        let (second, prelude) = save(&prelude, Some(Carry::HandedOver));
        let imports = null::imports();
        let next = null::renderer_that_exports(null::LIMITS);
        next.rebuild_ahead(&first.steps, &[]).unwrap();
        next.rebuild_ahead(&comparable(&second.steps), &null::files_of(&second)).unwrap();
        assert_eq!(null::imports() - imports, 2, "one that it has, and one to copy from");
        // The predecessor goes on meanwhile.
        fill_all(&world.renderer);
        match goes {
            "its memory" => {
                world.free(10);
                // Other memory takes its place when it is free.
                let with_address = [ChainStruct::MemoryAllocateFlagsInfo(&ADDRESSED)];
                drop(world.allocate_of(15, &with_address, SIZE, PRIVATE));
            }
            "its device" => {
                world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
            }
            _ => {}
        }
        let rest = world.renderer.save(&prelude, Carry::HandedOver).unwrap();
        let new: Vec<_> = rest.steps.iter().filter_map(Step::handed_over).collect();
        assert_eq!(new, if goes == "its memory" { vec![15] } else { vec![] });
        next.rebuild(&comparable(&rest.steps), &null::files_of(&rest)).unwrap();
        next.context().given_up.finish();
        let left = if goes == "its device" { 0 } else { 1 };
        assert_eq!(null::imports() - imports, left, "what was copied from is imported no more");
        if goes == "nothing" {
            assert_eq!((seen(&next), addresses(&next)), (seen(&world.renderer), addresses(&world.renderer)));
        }
        next.destroy_objects();
        assert_eq!(null::imports(), imports);
    }
}

#[test]
fn memory_with_an_address_is_not_made_ahead_where_little_is_to_spare() {
    let world = addressed();
    for (spare, ahead) in [(0, vec![12]), (4 * SIZE - 1, vec![12]), (4 * SIZE, vec![10, 12])] {
        null::have_to_spare(spare);
        let (_, prelude) = world.renderer.save_prelude(&Prelude::default(), None).unwrap();
        let (second, _) = world.renderer.save_prelude(&prelude, Some(Carry::HandedOver)).unwrap();
        let ids: Vec<_> = second.steps.iter().filter_map(Step::handed_over).collect();
        assert_eq!(ids, ahead, "{spare} bytes");
    }
}

#[test]
fn what_memory_was_filled_from_is_waited_for_where_memory_is_scarce_or_the_context_goes_on_elsewhere_or_ends()
{
    let mut world = addressed();
    fill_all(&world.renderer);
    let saved = world.renderer.save(&Prelude::default(), Carry::HandedOver).unwrap();
    let mut is_being_freed = |what: fn(&World)| {
        let before = std::mem::replace(&mut world.renderer, successor(&saved, |_| ()).unwrap());
        what(&world);
        let next = std::mem::replace(&mut world.renderer, before);
        next.context().given_up.finish()
    };
    assert!(is_being_freed(|_| ()), "nothing has waited for it");
    assert!(!is_being_freed(|next| {
        null::be_scarce(1);
        drop(next.allocate_of(13, &[], SIZE, PRIVATE));
    }));
    assert!(!is_being_freed(|next| {
        next.renderer.save(&Prelude::default(), Carry::HandedOver).unwrap();
    }));
    assert!(!is_being_freed(|next| {
        next.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
    }));
}

#[test]
fn memory_with_an_address_is_copied_by_way_of_the_host_if_a_successor_cannot_have_the_memory() {
    let world = addressed();
    let saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    assert_eq!(Step::contents(&saved.steps), Some(&[(10, SIZE), (12, 4096)][..]));
    assert!(successor(&saved, |_| ()).is_ok());
}

#[test]
fn a_descriptor_is_deposited_once_and_taken_back_when_its_memory_is_freed() {
    let world = world();
    let before = fill(&world.renderer);
    let save = || world.renderer.save(&Prelude::default(), Carry::Deposited).unwrap();
    let names = |saved: &Saved| saved.files.iter().map(SavedFile::name).collect::<Vec<_>>();
    let kept = null::deposits();
    world.renderer.deposit_all();
    assert_eq!(null::deposits(), kept + 2);
    let saved = save();
    assert_eq!(null::deposits(), kept + 2, "it was done ahead");
    let deposited = |name: &MemoryName| matches!(name, MemoryName::Deposit(_));
    assert_eq!(names(&saved).iter().filter(|name| deposited(name)).count(), 2);
    assert_eq!(names(&save()), names(&saved));
    let next = successor(&saved, |_| ()).unwrap();
    assert_eq!(seen(&next), before);
    // Imported memory is deposited again, for the next successor.
    let again = next.save(&Prelude::default(), Carry::Deposited).unwrap();
    assert!(names(&again).iter().filter(|name| deposited(name)).all(|name| !names(&saved).contains(name)));
    assert_eq!(seen(&successor(&again, |_| ()).unwrap()), before);
    world.free(12);
    world.renderer.context().pool.flush();
    assert_eq!(null::deposits(), kept + 3);
}

#[test]
fn an_allocation_waits_for_what_is_being_closed_where_the_driver_finds_no_memory_and_not_at_a_limit_of_ours()
{
    let world = world();
    let closings = null::closings();
    null::be_scarce(1);
    drop(world.allocate_of(13, &[], SIZE, PRIVATE));
    assert_eq!(null::closings(), closings + 1);
    let info =
        venus::MemoryAllocateInfo { p_next: &[], allocation_size: 2 << 30, memory_type_index: PRIVATE };
    let (p_allocate_info, p_memory) = (Some(&info), Some(&venus::DeviceMemory(14)));
    let allocate = venus::AllocateMemory { device: DEVICE, p_allocate_info, p_memory };
    world.execute(&Command::AllocateMemory(allocate));
    assert!(world.renderer.context().objects.shared(venus::DeviceMemory(14)).is_err());
    assert_eq!(null::closings(), closings + 1);
    // A successor that is being built up does not wait for descriptors to be closed: it is ended if the driver finds no memory for it.
    let saved = world.renderer.save(&Prelude::default(), Carry::HandedOver).unwrap();
    null::be_scarce(1);
    assert!(successor(&saved, |_| ()).is_err());
    assert_eq!(null::closings(), closings + 1);
}
