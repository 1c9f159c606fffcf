//! Memory that the null driver maps: lent as a blob, freed by the guest meanwhile.

use crate::backing::memory::Made;
use crate::null;
use crate::null::world_for_tests::{DEVICE, SIZE, World};
use protocol::venus::generated as venus;
use rustix::fs::makedev;
use venus::{ChainStruct, Command};

#[test]
fn what_the_driver_maps_is_lent_with_what_keeps_it_alive() {
    let world = World::new();
    assert!(matches!(world.allocate(10, &[]).made, Made::DriverMapped(_)));
    let (exported, memory) = world.lend(10);
    let device = shm::device_node(exported.file.as_deref().unwrap());
    assert_eq!((device, exported.cached), (Some(makedev(1, 5)), false));
    assert!(!exported.lent.unwrap().is_empty());
    // The descriptors are handed out once for each device.
    let (again, same) = world.lend(10);
    assert!(again.lent.unwrap().is_empty() && same == memory);
    // A blob that is not mapped needs no file and no descriptor.
    let opaque = world.renderer.export(10, SIZE, false).unwrap();
    assert!(opaque.file.is_none() && opaque.lent.is_none());
}

#[test]
fn lent_memory_and_its_device_stay_until_the_last_blob_is_gone() {
    let world = World::new();
    drop(world.allocate(10, &[]));
    let (first, memory) = world.lend(10);
    let (second, _) = world.lend(10);
    drop((first, second));
    let alive = null::live();
    world.free(10);
    world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
    assert!(world.renderer.is_lending());
    assert_eq!(null::live(), alive, "memory or device is gone");
    world.renderer.blob_gone(memory);
    assert_eq!(null::live(), alive);
    world.renderer.blob_gone(memory);
    assert!(!world.renderer.is_lending());
    assert_eq!(null::live(), alive - 2);
}

#[test]
fn memory_that_was_given_back_is_freed_when_the_guest_says_so() {
    let world = World::new();
    drop(world.allocate(10, &[]));
    let (_, memory) = world.lend(10);
    world.renderer.blob_gone(memory);
    let alive = null::live();
    world.free(10);
    // Not at once: the guest may want it again.
    assert_eq!(null::live(), alive);
    assert!(world.renderer.context().pool.flush());
    assert_eq!(null::live(), alive - 1);
}

#[test]
fn what_others_may_import_is_made_of_pages() {
    let world = World::new();
    let handle_types = venus::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;
    let export = venus::ExportMemoryAllocateInfo { handle_types, ..Default::default() };
    let memory = world.allocate(10, &[ChainStruct::ExportMemoryAllocateInfo(&export)]);
    assert!(matches!(memory.made, Made::Pages(..)));
    assert!(world.renderer.export(10, SIZE, true).unwrap().lent.is_none());
}

#[test]
fn of_two_buffers_the_one_stays_that_fits_its_memory() {
    let world = World::with_luck(8);
    let handle_types = venus::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT;
    let export = venus::ExportMemoryAllocateInfo { handle_types, ..Default::default() };
    drop((world.allocate(10, &[]), world.allocate(11, &[ChainStruct::ExportMemoryAllocateInfo(&export)])));
    let alive = null::live();
    let (own, imported) = (world.buffer(20), world.buffer(21));
    assert_eq!(null::live(), alive + 4);
    assert_eq!(world.bind(20, 10), own, "the driver's own memory");
    assert_ne!(world.bind(21, 11), imported, "pages");
    assert_eq!(null::live(), alive + 2);
    // A buffer that was never bound is destroyed together with its twin.
    world.buffer(22);
    for id in [20, 21, 22] {
        let destroy = venus::DestroyBuffer { device: DEVICE, buffer: venus::Buffer(id) };
        world.execute(&Command::DestroyBuffer(destroy));
    }
    assert_eq!(null::live(), alive);
}
