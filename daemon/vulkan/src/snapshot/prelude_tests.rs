//! Tests of preludes on the null driver: a context that is built up behind a prelude is the same as without one.

use super::step::Step;
use super::tests::{destroy_pipeline_layout, destroy_set_layout, is_there, pipeline_layout, set_layout};
use super::{Carry, Prelude};
use crate::Renderer;
use crate::fuzzing::comparable;
use crate::null::world_for_tests::{DEVICE, INSTANCE, PAGES, SIZE, World};
use crate::null::{self, NoResources};
use protocol::venus::chain::Chain;
use protocol::venus::generated::{self as venus, Command, ObjectType};
use std::sync::Arc;

/// Writes the next part of a prelude, without memory.
pub(super) fn ahead_of(world: &World, so_far: &Prelude) -> (Vec<Step>, Prelude) {
    let (saved, prelude) = world.renderer.save_prelude(so_far, None).unwrap();
    (saved.steps, prelude)
}

/// Builds up the rest of a context behind a prelude, which may change nothing but the order of commands.
pub(super) fn hand_over_behind(world: &World, ahead: &[Step], prelude: &Prelude) -> Renderer {
    let all = world.renderer.save(&Prelude::default(), Carry::Copied).unwrap();
    let rest = world.renderer.save(prelude, Carry::Copied).unwrap();
    let successor = null::renderer(Arc::new(NoResources));
    successor.rebuild_ahead(ahead, &[]).unwrap();
    successor.rebuild(&comparable(&rest.steps), &rest.files_here()).unwrap();
    let again = successor.save(&Prelude::default(), Carry::Copied).unwrap();
    assert_eq!(beside_commands(&again.steps), beside_commands(&all.steps));
    successor
}

fn beside_commands(steps: &[Step]) -> Vec<Step> {
    comparable(steps).into_iter().filter(|step| !matches!(step, Step::Commands(_))).collect()
}

fn command_bytes(steps: &[Step]) -> usize {
    let bytes = |step: &Step| if let Step::Commands(bytes) = step { bytes.len() } else { 0 };
    steps.iter().map(bytes).sum()
}

fn has_layout(renderer: &Renderer, id: u64) -> bool {
    is_there(renderer, id, ObjectType::PIPELINE_LAYOUT)
}

#[test]
fn what_is_in_the_prelude_is_not_in_the_snapshot() {
    let world = World::reliable();
    set_layout(&world, 30);
    for id in 0..100 {
        pipeline_layout(&world, 100 + id, 30);
    }
    let (ahead, prelude) = ahead_of(&world, &Prelude::default());
    world.buffer(20);
    let [all, rest] = [&Prelude::default(), &prelude]
        .map(|prelude| command_bytes(&world.renderer.save(prelude, Carry::Copied).unwrap().steps));
    assert_eq!(rest + command_bytes(&ahead), all);
    assert!(rest < all / 10, "{rest} of {all} bytes");
    assert!(
        ahead.iter().any(|step| matches!(step, Step::Gpus(_))),
        "GPUs are compared before any ring rests"
    );
    let successor = hand_over_behind(&world, &ahead, &prelude);
    assert!((100..200).all(|id| has_layout(&successor, id)));
}

#[test]
fn what_has_gone_since_the_prelude_goes_and_what_has_come_is_made() {
    let world = World::reliable();
    set_layout(&world, 30);
    pipeline_layout(&world, 31, 30);
    pipeline_layout(&world, 32, 30);
    let (ahead, prelude) = ahead_of(&world, &Prelude::default());
    destroy_pipeline_layout(&world, 32);
    // The new layout is made of an object that was in the prelude, and that is destroyed then.
    pipeline_layout(&world, 33, 30);
    destroy_set_layout(&world, 30);
    // The id of layout 32 is another object's by now.
    world.buffer(32);
    let successor = hand_over_behind(&world, &ahead, &prelude);
    assert!(has_layout(&successor, 31) && has_layout(&successor, 33) && !has_layout(&successor, 32));
    assert!(!is_there(&successor, 30, ObjectType::DESCRIPTOR_SET_LAYOUT));
}

#[test]
fn an_id_that_something_had_before_comes_later() {
    let world = World::reliable();
    set_layout(&world, 30);
    pipeline_layout(&world, 31, 30);
    destroy_set_layout(&world, 30);
    // An object that the first layout was made of had this id before.
    set_layout(&world, 32);
    pipeline_layout(&world, 30, 32);
    let (ahead, prelude) = ahead_of(&world, &Prelude::default());
    let early = null::renderer(Arc::new(NoResources));
    early.rebuild(&ahead, &[]).unwrap();
    assert!(has_layout(&early, 31) && !early.context().objects.read().has(30, ObjectType::PIPELINE_LAYOUT));
    early.destroy_objects();
    let successor = hand_over_behind(&world, &ahead, &prelude);
    assert!(has_layout(&successor, 30) && has_layout(&successor, 31));
}

/// A compute shader that does nothing: `void main() {}` in groups of one.
const SHADER: [u32; 34] = [
    0x0723_0203,
    0x1_0000,
    0,
    5,
    0, // SPIR-V 1.0, ids below 5
    2 << 16 | 17,
    1, // OpCapability Shader
    3 << 16 | 14,
    0,
    1, // OpMemoryModel Logical GLSL450
    5 << 16 | 15,
    5,
    1,
    0x6e69_616d,
    0, // OpEntryPoint GLCompute %1 "main"
    6 << 16 | 16,
    1,
    17,
    1,
    1,
    1, // OpExecutionMode %1 LocalSize 1 1 1
    2 << 16 | 19,
    2, // %2 = OpTypeVoid
    3 << 16 | 33,
    3,
    2, // %3 = OpTypeFunction %2
    5 << 16 | 54,
    2,
    1,
    0,
    3, // %1 = OpFunction %2 None %3
    2 << 16 | 248,
    4,             // %4 = OpLabel
    1 << 16 | 253, // OpReturn
];

/// Makes two pipelines with this layout and cache; 0 names no cache.
pub(super) fn pipelines_with(world: &World, ids: [u64; 2], layout: u64, (cache, chain): (u64, Chain<'_>)) {
    let code = [&SHADER[..], &[1 << 16 | 56]].concat(); // OpFunctionEnd
    let info = venus::ShaderModuleCreateInfo {
        code_size: 4 * code.len() as u64,
        p_code: Some(&code),
        ..Default::default()
    };
    let (module, p_create_info) = (venus::ShaderModule(50), Some(&info));
    let p_shader_module = Some(&module);
    world.execute(&Command::CreateShaderModule(venus::CreateShaderModule {
        device: DEVICE,
        p_create_info,
        p_shader_module,
    }));
    let stage = venus::PipelineShaderStageCreateInfo {
        stage: venus::ShaderStageFlags::COMPUTE,
        module,
        p_name: Some(c"main"),
        ..Default::default()
    };
    let layout = venus::PipelineLayout(layout);
    let info = venus::ComputePipelineCreateInfo { p_next: chain, stage, layout, ..Default::default() };
    let ids = ids.map(venus::Pipeline);
    world.execute(&Command::CreateComputePipelines(venus::CreateComputePipelines {
        device: DEVICE,
        pipeline_cache: venus::PipelineCache(cache),
        create_info_count: 2,
        p_create_infos: Some(&[info, info]),
        p_pipelines: Some(&ids),
    }));
    let destroy = venus::DestroyShaderModule { device: DEVICE, shader_module: module };
    world.execute(&Command::DestroyShaderModule(destroy));
}

pub(super) fn pipelines(world: &World, ids: [u64; 2], layout: u64) {
    pipelines_with(world, ids, layout, (0, &[]));
}

#[test]
fn pipelines_of_one_command_of_which_only_some_were_there_are_made_again() {
    let world = World::reliable();
    set_layout(&world, 30);
    pipeline_layout(&world, 31, 30);
    pipelines(&world, [40, 41], 31);
    let (ahead, mut prelude) = ahead_of(&world, &Prelude::default());
    let successor = hand_over_behind(&world, &ahead, &prelude);
    assert!([40, 41].into_iter().all(|id| is_there(&successor, id, ObjectType::PIPELINE)));
    // As if the second pipeline had not been bound to its id yet when the prelude was written.
    prelude.made.retain(|_, made| made.id != 41);
    let rest = world.renderer.save(&prelude, Carry::Copied).unwrap();
    let early = null::renderer(Arc::new(NoResources));
    early.rebuild(&ahead, &[]).unwrap();
    let destroy = venus::DestroyPipeline { device: DEVICE, pipeline: venus::Pipeline(41) };
    let bytes = super::synthesis::encoded(0, |w| destroy.encode(super::synthesis::NO_REPLY, w)).unwrap();
    early.rebuild(&[Step::Commands(bytes)], &[]).unwrap();
    early.rebuild(&comparable(&rest.steps), &rest.files_here()).unwrap();
    assert!([40, 41].into_iter().all(|id| is_there(&early, id, ObjectType::PIPELINE)));
}

#[test]
fn a_device_and_an_instance_that_have_gone_since_go_with_all_that_was_theirs() {
    let world = World::reliable();
    set_layout(&world, 30);
    pipeline_layout(&world, 31, 30);
    let (ahead, prelude) = ahead_of(&world, &Prelude::default());
    destroy_pipeline_layout(&world, 31);
    destroy_set_layout(&world, 30);
    world.execute(&Command::DestroyDevice(venus::DestroyDevice { device: DEVICE }));
    let successor = hand_over_behind(&world, &ahead, &prelude);
    assert!(!is_there(&successor, DEVICE.0, ObjectType::DEVICE));
    world.execute(&Command::DestroyInstance(venus::DestroyInstance { instance: INSTANCE }));
    let successor = hand_over_behind(&world, &ahead, &prelude);
    assert_eq!(successor.context().objects.read().count(), 0);
}

#[test]
fn parts_of_a_prelude_add_up_and_each_has_what_changed() {
    let world = World::reliable();
    set_layout(&world, 30);
    let (first, prelude) = ahead_of(&world, &Prelude::default());
    let (nothing, prelude) = ahead_of(&world, &prelude);
    assert_eq!(nothing, []);
    pipeline_layout(&world, 31, 30);
    pipeline_layout(&world, 32, 30);
    let (second, prelude) = ahead_of(&world, &prelude);
    destroy_pipeline_layout(&world, 32);
    destroy_set_layout(&world, 30);
    let (third, prelude) = ahead_of(&world, &prelude);
    assert!(command_bytes(&third) > 0, "something has gone");
    world.buffer(20);
    let successor = hand_over_behind(&world, &[first, second, third].concat(), &prelude);
    assert!(has_layout(&successor, 31) && !has_layout(&successor, 32));
}

#[test]
fn memory_and_what_is_made_of_it_waits_for_the_snapshot() {
    let world = World::reliable();
    drop(world.allocate_of(10, &[], SIZE, PAGES));
    world.buffer(20);
    world.bind(20, 10);
    let (ahead, prelude) = ahead_of(&world, &Prelude::default());
    assert!(!ahead.iter().any(|step| matches!(step, Step::Memory { .. })));
    let successor = hand_over_behind(&world, &ahead, &prelude);
    assert!(is_there(&successor, 20, ObjectType::BUFFER));
}
