//! Tests on the null driver of the data of pipeline caches: which caches of a successor begin with data, and that data never does harm.

use super::prelude_tests::{ahead_of, pipelines, pipelines_with};
use super::step::{CacheData, Step};
use super::tests::{pipeline_layout, set_layout};
use super::{Carry, Prelude};
use crate::Renderer;
use crate::commands::pipeline_cache::seal::{opened, sealed};
use crate::logical::device::Device;
use crate::logical::pipeline_caches::CACHE_DATA_MAX;
use crate::null::world_for_tests::{DEVICE, World};
use crate::null::{self, EMPTY, NoResources, REFUSED, data_of, used};
use ash::vk;
use protocol::venus::generated::{self as venus, ChainStruct, Command};
use std::sync::Arc;

/// A context with a layout for pipelines.
fn world() -> World {
    let world = World::reliable();
    set_layout(&world, 30);
    pipeline_layout(&world, 31, 30);
    world
}

/// Creates a cache of the guest's.
fn cache(world: &World, id: u64) {
    let (info, id) = (venus::PipelineCacheCreateInfo::default(), venus::PipelineCache(id));
    world.execute(&Command::CreatePipelineCache(venus::CreatePipelineCache {
        device: DEVICE,
        p_create_info: Some(&info),
        p_pipeline_cache: Some(&id),
    }));
}

fn raw(renderer: &Renderer, id: u64) -> u64 {
    renderer.context().objects.read().get(venus::PipelineCache(id)).unwrap().raw
}

fn device(renderer: &Renderer) -> Arc<Device> {
    renderer.context().objects.read().get(DEVICE).unwrap().get_shared::<venus::Device>().unwrap()
}

/// Returns the data that steps bring along, each with its id.
fn data(renderer: &Renderer, steps: impl IntoIterator<Item = Step>) -> Vec<(u64, Vec<u8>)> {
    let (key, of) = (&renderer.context().env.cache_key, device(renderer));
    let opened = |step: Step| match step {
        Step::CacheData(CacheData { id, sealed }) => {
            Some((id, opened(key, &of.physical.cache_origin, &sealed)?.to_vec()))
        }
        _ => None,
    };
    steps.into_iter().filter_map(opened).collect()
}

/// Returns the new data of caches.
fn new(renderer: &Renderer) -> Option<Vec<(u64, Vec<u8>)>> {
    Some(data(renderer, renderer.save_cache_data()?.into_iter().map(Step::CacheData)))
}

/// Writes a context down with this data in place of each cache's own, changed by `change`, and builds the context up elsewhere.
fn handed_over(world: &World, with: &[&[u8]], change: impl Fn(&mut Vec<u8>)) -> Renderer {
    let mut saved = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    replace(world, &mut saved.steps, with, change);
    let successor = null::renderer(Arc::new(NoResources));
    successor.rebuild(&saved.steps, &saved.files_here()).unwrap();
    successor
}

/// Replaces the data of each cache by `with`, changed by `change`.
fn replace(world: &World, steps: &mut [Step], with: &[&[u8]], change: impl Fn(&mut Vec<u8>)) {
    let mut with = with.iter();
    for step in steps {
        if let Step::CacheData(CacheData { sealed: bytes, .. }) = step {
            let data = with.next().unwrap().to_vec();
            let origin = device(&world.renderer).physical.cache_origin;
            *bytes = sealed(&world.renderer.context().env.cache_key, &origin, data);
            change(bytes);
        }
    }
    assert!(with.next().is_none());
}

#[test]
fn a_successor_begins_each_cache_with_what_it_had() {
    let world = world();
    cache(&world, 60);
    pipelines(&world, [40, 41], 31);
    assert_ne!(used(), 0, "the guest has named none, so it was ours");
    let successor = handed_over(&world, &[b"ours", b"guest's"], |_| ());
    assert_eq!(data_of(used()), b"ours", "the pipelines were made with it");
    assert_eq!(data_of(raw(&successor, 60)), b"guest's");
    assert_eq!(new(&successor).unwrap(), [(DEVICE.0, b"ours".to_vec()), (60, b"guest's".to_vec())]);
}

#[test]
fn data_that_is_not_what_left_the_driver_is_not_used_and_prevents_nothing() {
    let world = world();
    cache(&world, 60);
    pipelines(&world, [40, 41], 31);
    let changes: [fn(&mut Vec<u8>); 3] = [|bytes| bytes[0] ^= 1, |bytes| bytes.truncate(5), Vec::clear];
    for change in changes {
        let successor = handed_over(&world, &[b"ours", b"guest's"], change);
        assert_eq!(data_of(used()), EMPTY);
        assert_eq!(data_of(raw(&successor, 60)), EMPTY);
        successor.destroy_objects();
    }
}

#[test]
fn a_driver_that_refuses_the_data_begins_an_empty_cache() {
    let world = world();
    pipelines(&world, [40, 41], 31);
    handed_over(&world, &[REFUSED], |_| ());
    assert_ne!(used(), 0);
    assert_eq!(data_of(used()), EMPTY);
}

#[test]
fn pipelines_of_the_guests_cache_are_made_with_that() {
    let world = world();
    cache(&world, 60);
    pipelines_with(&world, [40, 41], 31, (60, &[]));
    assert_eq!(used(), raw(&world.renderer, 60));
    let successor = handed_over(&world, &[b"guest's"], |_| ());
    assert_eq!((used(), data_of(used())), (raw(&successor, 60), b"guest's".to_vec()));
}

#[test]
fn caches_are_left_behind_that_are_too_large_for_all_together() {
    let world = world();
    cache(&world, 60);
    cache(&world, 61);
    pipelines(&world, [40, 41], 31);
    let large = vec![7; CACHE_DATA_MAX - 1000];
    let successor = handed_over(&world, &[b"ours", &large, b"other"], |_| ());
    let sizes = |all: Vec<(u64, Vec<u8>)>| all.iter().map(|(_, data)| data.len()).sum::<usize>();
    assert_eq!(sizes(new(&successor).unwrap()), large.len() + 9);
    let successor = handed_over(&world, &[&large, &large, &large], |_| ());
    assert_eq!(sizes(new(&successor).unwrap()), large.len(), "ours before those of the guest's");
    // A cache with so much data is not filled further.
    for _ in 0..200 {
        device(&successor).pipeline_caches.note_made(&device(&successor).ash);
    }
    assert_ne!(
        device(&successor).pipeline_caches.ours.cache(&device(&successor).ash),
        vk::PipelineCache::null()
    );
    let successor = handed_over(&world, &[&[7; CACHE_DATA_MAX + 1], b"", b""], |_| ());
    (0..200).for_each(|_| device(&successor).pipeline_caches.note_made(&device(&successor).ash));
    assert_eq!(
        device(&successor).pipeline_caches.ours.cache(&device(&successor).ash),
        vk::PipelineCache::null()
    );
}

#[test]
fn there_is_something_new_once_after_pipelines_were_made() {
    let world = world();
    assert!(new(&world.renderer).is_none(), "nothing was compiled");
    pipelines(&world, [40, 41], 31);
    assert_eq!(new(&world.renderer).unwrap(), [(DEVICE.0, EMPTY.to_vec())]);
    assert!(new(&world.renderer).is_none());
    pipelines(&world, [42, 43], 31);
    assert!(new(&world.renderer).is_some());
    cache(&world, 60);
    assert_eq!(new(&world.renderer).unwrap().len(), 2, "a cache of the guest's may begin with something");
}

#[test]
fn a_prelude_brings_it_along_with_its_device_and_a_checkpoint_does_not() {
    let world = world();
    pipelines(&world, [40, 41], 31);
    let (ahead, prelude) = ahead_of(&world, &Prelude::default());
    assert_eq!(data(&world.renderer, ahead).len(), 1);
    let (more, prelude) = ahead_of(&world, &prelude);
    let rest = world.renderer.save(&prelude, Carry::Copied).unwrap();
    let checkpoint = world.renderer.save(&Prelude::default(), Carry::Deposited).unwrap();
    for steps in [&more, &rest.steps, &checkpoint.steps] {
        assert!(!steps.iter().any(|step| matches!(step, Step::CacheData(_))));
    }
}

#[test]
fn what_was_compiled_behind_a_prelude_is_not_compiled_again_either() {
    let world = world();
    cache(&world, 60);
    pipelines(&world, [40, 41], 31);
    let (mut first, prelude) = ahead_of(&world, &Prelude::default());
    replace(&world, &mut first, &[b"ours", b"guest's"], |_| ());
    pipelines(&world, [42, 43], 31);
    let (mut second, prelude) = ahead_of(&world, &prelude);
    replace(&world, &mut second, &[b", more", b", more"], |_| ());
    pipelines_with(&world, [44, 45], 31, (60, &[]));
    let mut rest = world.renderer.save(&prelude, Carry::Copied).unwrap();
    replace(&world, &mut rest.steps, &[b", most", b", most"], |_| ());
    let successor = null::renderer(Arc::new(NoResources));
    successor.rebuild_ahead(&first, &[]).unwrap();
    assert_eq!(data_of(used()), b"ours");
    successor.rebuild_ahead(&second, &[]).unwrap();
    assert_eq!(data_of(used()), b"ours, more");
    successor.rebuild(&rest.steps, &rest.files_here()).unwrap();
    assert_eq!((used(), data_of(used())), (raw(&successor, 60), b"guest's, more, most".to_vec()));
    // Data that differs from what the driver gave is left out.
    replace(&world, &mut second, &[b", more", b", more"], |bytes| bytes[0] ^= 1);
    let successor = null::renderer(Arc::new(NoResources));
    successor.rebuild_ahead(&first, &[]).unwrap();
    successor.rebuild_ahead(&second, &[]).unwrap();
    assert_eq!(data_of(used()), b"ours");
}

#[test]
fn data_that_a_successor_has_is_not_sent_again() {
    let world = world();
    // A part of another layout had the second layout's id before, so no part of the prelude makes this layout, nor a pipeline with it.
    set_layout(&world, 33);
    pipeline_layout(&world, 34, 33);
    super::tests::destroy_set_layout(&world, 33);
    set_layout(&world, 35);
    pipeline_layout(&world, 33, 35);
    pipelines(&world, [40, 41], 33);
    let (first, prelude) = ahead_of(&world, &Prelude::default());
    assert_eq!(data(&world.renderer, first).len(), 1);
    let (second, prelude) = ahead_of(&world, &prelude);
    let rest = world.renderer.save(&prelude, Carry::Copied).unwrap();
    assert!(rest.steps.len() > 1 && data(&world.renderer, second).is_empty());
    assert!(data(&world.renderer, rest.steps).is_empty());
}

#[test]
fn a_cache_with_the_id_of_another_gets_its_own_data() {
    let world = world();
    cache(&world, 60);
    let (mut first, prelude) = ahead_of(&world, &Prelude::default());
    replace(&world, &mut first, &[b"guest's"], |_| ());
    let destroy = venus::DestroyPipelineCache { device: DEVICE, pipeline_cache: venus::PipelineCache(60) };
    world.execute(&Command::DestroyPipelineCache(destroy));
    cache(&world, 60);
    let mut rest = world.renderer.save(&prelude, Carry::Copied).unwrap();
    replace(&world, &mut rest.steps, &[b"another's"], |_| ());
    let successor = null::renderer(Arc::new(NoResources));
    successor.rebuild_ahead(&first, &[]).unwrap();
    successor.rebuild(&rest.steps, &rest.files_here()).unwrap();
    assert_eq!(data_of(raw(&successor, 60)), b"another's");
    successor.destroy_objects();
}

#[test]
fn a_guest_that_asks_what_its_cache_had_is_not_told_of_ours() {
    let world = world();
    let feedback = venus::PipelineCreationFeedbackCreateInfo::default();
    let chain = [ChainStruct::PipelineCreationFeedbackCreateInfo(&feedback)];
    pipelines_with(&world, [40, 41], 31, (0, &chain));
    assert_eq!(used(), 0);
}
