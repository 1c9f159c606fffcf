//! Tests of [`super::save`]: recordings are recorded again, and then written down again as they were.

use super::*;
use crate::null;
use crate::snapshot::world_for_tests::{PRIMARIES, SECONDARY, World, begin, end, stream};
use config::ContextLimits;
use protocol::venus::generated::{Command, CommandBufferUsageFlags, CommandFlagsEXT};

const ONCE: CommandBufferUsageFlags = CommandBufferUsageFlags::ONE_TIME_SUBMIT;
const ANY: CommandBufferUsageFlags = CommandBufferUsageFlags(0);

fn saved(world: &World) -> Vec<Step> {
    let mut steps = Vec::new();
    save(world.context(), &Available::default(), &mut steps).unwrap();
    steps
}

fn barrier(command_buffer: venus::CommandBuffer, at: u32) -> Command<'static> {
    Command::CmdPipelineBarrier(venus::CmdPipelineBarrier {
        command_buffer,
        src_stage_mask: venus::PipelineStageFlags(at),
        ..Default::default()
    })
}

fn fill(command_buffer: venus::CommandBuffer, dst_buffer: venus::Buffer) -> Command<'static> {
    let (dst_offset, size, data) = (0, 64, 7);
    Command::CmdFillBuffer(venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset, size, data })
}

fn stage(world: &World, id: venus::CommandBuffer) -> (Stage, Option<i32>) {
    let command_buffer = world.context().objects.shared(id).unwrap();
    let mut recordings = command_buffer.pool.lock();
    let state = &recordings.find(&command_buffer).unwrap().state;
    (state.stage, state.spoilt)
}

#[test]
fn recordings_that_are_recorded_again_are_written_down_as_they_were() {
    let (_exclusive, one, other) = World::two();
    let [first, second, third] = PRIMARIES;
    // In runs, one by one, and with replies.
    begin(first, ANY, |commands| one.run(commands));
    let run: Vec<_> = (0..200).map(|at| barrier(first, at)).collect();
    one.run(&run);
    one.run_heard(&[barrier(first, 200), end(first)]);
    begin(second, ANY, |commands| one.run_heard(commands));
    one.run(&[barrier(second, 1)]);
    begin(SECONDARY, ANY, |commands| one.run(commands));
    one.run(&[barrier(SECONDARY, 2), end(SECONDARY)]);
    begin(third, ANY, |commands| one.run(commands));
    one.run_heard(&[Command::CmdExecuteCommands(venus::CmdExecuteCommands {
        command_buffer: third,
        command_buffer_count: 1,
        p_command_buffers: Some(&[SECONDARY]),
    })]);
    one.run(&[end(third)]);
    let steps = saved(&one);
    assert_eq!(steps.len(), 4);
    let mut whole = Vec::new();
    begin(first, ANY, |commands| whole = stream(commands, CommandFlagsEXT(0)));
    let run: Vec<_> = (0..=200).map(|at| barrier(first, at)).chain([end(first)]).collect();
    whole.extend(stream(&run, CommandFlagsEXT(0)));
    assert_eq!(steps[1], Step::Commands(whole));
    other.replay(&steps);
    assert_eq!(saved(&other), steps);
    let stages = [first, second, third, SECONDARY].map(|id| stage(&other, id).0);
    assert_eq!(stages, [Stage::Executable, Stage::Recording, Stage::Executable, Stage::Executable]);
    // The recordings go on from there.
    other.submit(first);
    other.run(&[barrier(second, 2), end(second)]);
    other.submit(second);
    other.submit(third);
}

#[test]
fn what_begins_anew_or_is_reset_is_forgotten() {
    let (_exclusive, world, _other) = World::two();
    let [first, second, third] = PRIMARIES;
    for id in PRIMARIES {
        begin(id, ANY, |commands| world.run(commands));
        world.run(&[barrier(id, 1), end(id)]);
    }
    begin(first, ANY, |commands| world.run(commands));
    let flags = venus::CommandBufferResetFlags(0);
    world.run(&[Command::ResetCommandBuffer(venus::ResetCommandBuffer { command_buffer: second, flags })]);
    let device = crate::snapshot::world_for_tests::DEVICE;
    let (command_pool, p_command_buffers) =
        (crate::snapshot::world_for_tests::COMMAND_POOL, Some(&[third][..]));
    world.run(&[Command::FreeCommandBuffers(venus::FreeCommandBuffers {
        device,
        command_pool,
        command_buffer_count: 1,
        p_command_buffers,
    })]);
    let mut expected = Vec::new();
    begin(first, ANY, |commands| expected = stream(commands, CommandFlagsEXT(0)));
    assert_eq!(saved(&world), [Step::Commands(expected)]);
    let flags = venus::CommandPoolResetFlags(0);
    world.run(&[Command::ResetCommandPool(venus::ResetCommandPool { device, command_pool, flags })]);
    assert_eq!(saved(&world), []);
}

#[test]
fn what_breaks_valid_usage_is_no_part_of_a_recording_that_outlives_what_it_names() {
    let (_exclusive, one, other) = World::two();
    let [first, second, _] = PRIMARIES;
    let buffer = venus::Buffer(20);
    one.create_buffer(buffer);
    let outside = |command_buffer| {
        let (dst_buffer, dst_offset, size, data) = (buffer, 0, 8192, 7);
        Command::CmdFillBuffer(venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset, size, data })
    };
    let commands = |id| [barrier(id, 1), outside(id), outside(id), barrier(id, 2), outside(id)];
    begin(first, ANY, |commands| one.run(commands));
    one.run(&commands(first));
    one.run(&[end(first)]);
    begin(second, ANY, |commands| one.run(commands));
    one.run_heard(&commands(second));
    one.run(&[end(second)]);
    one.destroy_buffer(buffer);
    let steps = saved(&one);
    other.replay(&steps);
    assert_eq!(saved(&other), steps);
    for id in [first, second] {
        assert_eq!(stage(&other, id), (Stage::Executable, None));
        let recorded = stream(&[barrier(id, 1), barrier(id, 2)], CommandFlagsEXT(0));
        let has = |step: &Step| matches!(step, Step::Commands(bytes) if bytes.windows(recorded.len()).any(|part| part == recorded));
        assert!(steps.iter().any(has), "{id:?}");
    }
}

#[test]
fn recordings_that_can_never_be_submitted_are_left_out() {
    let (_exclusive, world, _other) = World::two();
    let [first, second, third] = PRIMARIES;
    let buffer = venus::Buffer(100);
    world.create_buffer(buffer);
    begin(first, ANY, |commands| world.run(commands));
    world.run(&[fill(first, buffer), end(first)]);
    begin(second, ONCE, |commands| world.run(commands));
    world.run(&[barrier(second, 1), end(second)]);
    begin(third, ANY, |commands| world.run(commands));
    world.run(&[barrier(third, 1), end(third)]);
    assert_eq!(saved(&world).len(), 3);
    world.submit(second);
    world.submit(third);
    assert_eq!(saved(&world).len(), 2);
    world.destroy_buffer(buffer);
    assert_eq!(saved(&world).len(), 1);
    // A recording that is begun again counts as not submitted.
    begin(second, ONCE, |commands| world.run(commands));
    world.run(&[end(second)]);
    assert_eq!(saved(&world).len(), 2);
}

#[test]
fn a_spoilt_recording_is_spoilt_again_and_healed_by_its_next_beginning() {
    let (_exclusive, one, other) = World::two();
    let [first, ..] = PRIMARIES;
    let (buffer, memory) = (venus::Buffer(100), ash::vk::Result::ERROR_OUT_OF_DEVICE_MEMORY.as_raw());
    one.context().objects.insert_failed(buffer.0, ObjectType::BUFFER, memory).unwrap();
    begin(first, ANY, |commands| one.run(commands));
    one.run(&[barrier(first, 1), fill(first, buffer), barrier(first, 2)]);
    let steps = saved(&one);
    assert_eq!(steps, [Step::Spoilt { id: first.0, result: memory }]);
    spoil(other.context(), first.0, memory).unwrap();
    assert_eq!(saved(&other), steps);
    begin(first, ANY, |commands| other.run(commands));
    assert_eq!(stage(&other, first), (Stage::Recording, None));
    // Steps that make no sense are refused.
    for (id, result) in [(first.0, 0), (first.0, 1), (0, -1), (3, -1), (1234, -1)] {
        assert!(spoil(other.context(), id, result).is_err(), "{id} {result}");
    }
}

#[test]
fn a_recording_beyond_the_limit_keeps_the_context_where_it_is_while_it_lives() {
    let limits = ContextLimits { recording_bytes: 4096, ..null::LIMITS };
    let (_exclusive, world, _other) = World::two_within(limits);
    let [first, second, _] = PRIMARIES;
    begin(first, ANY, |commands| world.run(commands));
    let run: Vec<_> = (0..200).map(|at| barrier(first, at)).collect();
    world.run(&run);
    world.run(&[end(first)]);
    begin(second, ANY, |commands| world.run(commands));
    let refused = save(world.context(), &Available::default(), &mut Vec::new()).unwrap_err();
    assert!(refused.for_now && refused.reason.contains("recording_bytes"), "{refused}");
    // The recording can be submitted all the same.
    world.submit(first);
    begin(first, ANY, |commands| world.run(commands));
    assert_eq!(saved(&world).len(), 2);
}
