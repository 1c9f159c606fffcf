//! Tests of results of queries that are kept.

use super::*;
use crate::null;
use crate::snapshot::recordings;
use crate::snapshot::world_for_tests::{DEVICE, PRIMARIES, World, begin, end, stream};
use protocol::cursor::{Arena, Reader};
use protocol::venus::generated::{Command, CommandBufferUsageFlags, CommandFlagsEXT, QueryResultFlags};

const POOL: venus::QueryPool = venus::QueryPool(50);
const COUNT: u32 = 1500;
const NOT_READY: i32 = ash::vk::Result::NOT_READY.as_raw();

const NARROW: QueryResultFlags = QueryResultFlags(0);
const AVAILABILITY: QueryResultFlags = QueryResultFlags::WITH_AVAILABILITY;
const WIDE: QueryResultFlags = QueryResultFlags(QueryResultFlags::TYPE_64.0 | AVAILABILITY.0);

fn create(world: &World) {
    let info = venus::QueryPoolCreateInfo {
        query_type: venus::QueryType::TIMESTAMP,
        query_count: COUNT,
        ..Default::default()
    };
    world.run(&[Command::CreateQueryPool(venus::CreateQueryPool {
        device: DEVICE,
        p_create_info: Some(&info),
        p_query_pool: Some(&POOL),
    })]);
}

/// A successor of a context in which results are available up to a query; its own driver has none.
fn moved(available: u32) -> (null::Exclusive, World, World) {
    let (exclusive, one, other) = World::two();
    create(&one);
    create(&other);
    null::make_available(available);
    restore_all(&other, &saved(&one));
    null::make_available(0);
    (exclusive, one, other)
}

fn saved(world: &World) -> Vec<Step> {
    let mut steps = Vec::new();
    save(world.context(), &mut steps).unwrap();
    steps
}

fn restore_all(world: &World, steps: &[Step]) {
    for step in steps {
        let Step::Queries { pool, first, results } = step else { panic!("{step:?}") };
        restore(world.context(), *pool, *first, results).unwrap();
    }
}

/// Asks for results; returns `VkResult` and bytes.
fn results(world: &World, first: u32, count: u32, stride: u64, flags: QueryResultFlags) -> (i32, Vec<u8>) {
    let room = vec![0xee; (stride * u64::from(count)) as usize];
    let get = Command::GetQueryPoolResults(venus::GetQueryPoolResults {
        device: DEVICE,
        query_pool: POOL,
        first_query: first,
        query_count: count,
        data_size: room.len() as u64,
        p_data: Some(&room),
        stride,
        flags,
    });
    let arena = Arena::new(1 << 20);
    let bytes = stream(&[get], CommandFlagsEXT::GENERATE_REPLY);
    let (_, reply) = world.execute(&bytes, &arena);
    let mut reader = Reader::new(&reply, &arena);
    let reply = venus::GetQueryPoolResultsReply::decode(&mut reader).unwrap();
    (reply.result.0, reply.p_data.unwrap().to_vec())
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn available_results_are_kept_and_written_down_again() {
    let (_exclusive, _one, other) = moved(1200);
    let steps = saved(&other);
    let kept = |first: u32, end: u32| (first..end).map(|query| 1000 + u64::from(query)).collect::<Vec<_>>();
    let step = |first, end| Step::Queries { pool: POOL.0, first, results: kept(first, end) };
    assert_eq!(steps, [step(0, 1024), step(1024, 1200)]);
    let (result, bytes) = results(&other, 1198, 3, 16, WIDE);
    assert_eq!((result, words(&bytes)), (NOT_READY, vec![2198, 1, 2199, 1, 0, 0]));
}

#[test]
fn results_are_answered_with_all_flags() {
    let (_exclusive, _one, other) = moved(8);
    let (result, bytes) = results(&other, 2, 2, 8, QueryResultFlags::TYPE_64);
    assert_eq!((result, words(&bytes)), (0, vec![1002, 1003]));
    let (result, bytes) = results(&other, 2, 2, 4, NARROW);
    assert_eq!((result, &bytes[..]), (0, &[0xea, 3, 0, 0, 0xeb, 3, 0, 0][..]));
    let (result, bytes) = results(&other, 7, 2, 12, AVAILABILITY);
    let expected = [[0xef, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], [0; 12]].concat();
    assert_eq!((result, bytes), (NOT_READY, expected));
    // An available result is not waited for.
    let wait = QueryResultFlags(QueryResultFlags::WAIT.0 | WIDE.0);
    assert_eq!(words(&results(&other, 0, 1, 16, wait).1), [1000, 1]);
    let partial = QueryResultFlags(QueryResultFlags::PARTIAL.0 | WIDE.0);
    let (result, bytes) = results(&other, 7, 2, 16, partial);
    assert_eq!((result, words(&bytes)), (NOT_READY, vec![1007, 1, 0, 0]));
}

#[test]
fn results_are_kept_until_the_host_resets_the_queries() {
    let (_exclusive, _one, other) = moved(8);
    let reset = |first_query, query_count| {
        let query_pool = POOL;
        let reset = venus::ResetQueryPool { device: DEVICE, query_pool, first_query, query_count };
        other.run(&[Command::ResetQueryPool(reset)]);
    };
    // Outside of the pool: nothing happens.
    reset(0, COUNT + 1);
    reset(3, 2);
    let (result, bytes) = results(&other, 2, 4, 16, WIDE);
    assert_eq!((result, words(&bytes)), (NOT_READY, vec![1002, 1, 0, 0, 0, 0, 1005, 1]));
    let kept = |first, results: &[u64]| Step::Queries { pool: POOL.0, first, results: results.to_vec() };
    assert_eq!(saved(&other), [kept(0, &[1000, 1001, 1002]), kept(5, &[1005, 1006, 1007])]);
    reset(0, COUNT);
    assert_eq!(saved(&other), []);
}

#[test]
fn results_are_kept_until_a_recording_that_changes_them_is_submitted() {
    let (_exclusive, _one, other) = moved(8);
    let command_buffer = PRIMARIES[0];
    begin(command_buffer, CommandBufferUsageFlags(0), |commands| other.run(commands));
    other.run(&[
        Command::CmdResetQueryPool(venus::CmdResetQueryPool {
            command_buffer,
            query_pool: POOL,
            first_query: 1,
            query_count: 2,
        }),
        Command::CmdWriteTimestamp(venus::CmdWriteTimestamp {
            command_buffer,
            pipeline_stage: venus::PipelineStageFlags(1),
            query_pool: POOL,
            query: 6,
        }),
        end(command_buffer),
    ]);
    assert_eq!(results(&other, 0, 8, 16, WIDE).0, 0);
    other.submit(command_buffer);
    let available: Vec<_> = words(&results(&other, 0, 8, 16, WIDE).1).chunks(2).map(|pair| pair[1]).collect();
    assert_eq!(available, [1, 0, 0, 1, 1, 1, 0, 1]);
    // Results that the driver has made since count.
    null::make_available(8);
    assert_eq!(words(&results(&other, 6, 1, 16, WIDE).1), [1006, 1]);
}

#[test]
fn many_ranges_of_queries_are_told_apart_and_more_are_forgotten_together() {
    let (_exclusive, _one, other) = moved(COUNT);
    let command_buffer = PRIMARIES[0];
    begin(command_buffer, CommandBufferUsageFlags(0), |commands| other.run(commands));
    let write = |query| {
        let (pipeline_stage, query_pool) = (venus::PipelineStageFlags(1), POOL);
        Command::CmdWriteTimestamp(venus::CmdWriteTimestamp {
            command_buffer,
            pipeline_stage,
            query_pool,
            query,
        })
    };
    let all: Vec<_> = (0..600).map(|at| write(2 * at)).collect();
    other.run(&all);
    other.run(&[end(command_buffer)]);
    other.submit(command_buffer);
    let available: Vec<_> =
        words(&results(&other, 0, 250, 16, WIDE).1).chunks(2).map(|pair| pair[1]).collect();
    assert!(available.chunks(2).all(|pair| pair == [0, 1]));
    let available: Vec<_> =
        words(&results(&other, 1190, 20, 16, WIDE).1).chunks(2).map(|pair| pair[1]).collect();
    assert_eq!(available, [[0; 9].to_vec(), [1; 11].to_vec()].concat());
}

const BUFFER: venus::Buffer = venus::Buffer(60);

fn reset(command_buffer: venus::CommandBuffer, first_query: u32, query_count: u32) -> Command<'static> {
    let query_pool = POOL;
    Command::CmdResetQueryPool(venus::CmdResetQueryPool {
        command_buffer,
        query_pool,
        first_query,
        query_count,
    })
}

fn write(command_buffer: venus::CommandBuffer, query: u32) -> Command<'static> {
    let (pipeline_stage, query_pool) = (venus::PipelineStageFlags(1), POOL);
    Command::CmdWriteTimestamp(venus::CmdWriteTimestamp { command_buffer, pipeline_stage, query_pool, query })
}

/// Copies results to the beginning of the buffer, one behind the other.
fn copy(
    command_buffer: venus::CommandBuffer,
    (first_query, query_count): (u32, u32),
    (stride, flags): (u64, QueryResultFlags),
) -> Command<'static> {
    let (query_pool, dst_buffer, dst_offset) = (POOL, BUFFER, 16);
    Command::CmdCopyQueryPoolResults(venus::CmdCopyQueryPoolResults {
        command_buffer,
        query_pool,
        first_query,
        query_count,
        dst_buffer,
        dst_offset,
        stride,
        flags,
    })
}

fn record(world: &World, flags: CommandBufferUsageFlags, commands: &[Command<'_>]) {
    begin(PRIMARIES[0], flags, |commands| world.run(commands));
    world.run(commands);
    world.run(&[end(PRIMARIES[0])]);
}

fn recordings_saved(world: &World) -> Result<(), NotMovable> {
    let mut steps = Vec::new();
    let available = save(world.context(), &mut steps)?;
    recordings::save(world.context(), &available, &mut steps)
}

#[test]
fn who_copies_results_that_others_have_made_stays_for_now() {
    let (_exclusive, one, _other) = World::two();
    create(&one);
    one.create_buffer(BUFFER);
    let (id, wide) = (PRIMARIES[0], (16, WIDE));
    let (any, once) = (CommandBufferUsageFlags(0), CommandBufferUsageFlags::ONE_TIME_SUBMIT);
    // Of eight queries that are available.
    for (commands, stays) in [
        (&[copy(id, (0, 8), wide)][..], true),
        (&[copy(id, (7, 8), wide)], true),
        (&[copy(id, (8, 100), wide)], false),
        (&[reset(id, 0, 8), copy(id, (0, 8), wide)], false),
        (&[copy(id, (0, 8), wide), reset(id, 0, 8)], true),
        (&[reset(id, 1, 7), copy(id, (0, 8), wide)], true),
        (&[write(id, 3), copy(id, (3, 1), wide)], false),
        (&[write(id, 3), copy(id, (3, 2), wide)], true),
        (&[write(id, 4), write(id, 3), copy(id, (3, 2), wide)], false),
        (&[write(id, 6), reset(id, 3, 2), write(id, 5), write(id, 7), copy(id, (3, 5), wide)], false),
        (&[write(id, 5), write(id, 7), copy(id, (5, 3), wide)], true),
    ] {
        record(&one, any, commands);
        null::make_available(8);
        let saved = recordings_saved(&one);
        let reason =
            saved.as_ref().err().map(|stays| (stays.for_now, stays.reason.contains("copies results")));
        assert_eq!(reason, stays.then_some((true, true)), "{commands:?}");
        null::make_available(0);
        assert!(recordings_saved(&one).is_ok(), "nothing is available");
    }
    null::make_available(8);
    record(&one, once, &[copy(id, (0, 8), wide)]);
    assert!(recordings_saved(&one).is_err());
    one.submit(id);
    assert!(recordings_saved(&one).is_ok(), "it is not submitted any more");
}

#[test]
fn queries_are_reset_in_a_successor_whose_program_lets_the_host() {
    let (_exclusive, one, other) = World::two();
    create(&one);
    create(&other);
    null::make_available(2);
    assert!(matches!(saved(&one)[..], [Step::Queries { .. }]), "its device does not let the host reset");
    let with = |host_query_reset| {
        let features = venus::PhysicalDeviceHostQueryResetFeatures { p_next: &[], host_query_reset };
        let chain = [ChainStruct::PhysicalDeviceHostQueryResetFeatures(&features)];
        let info = venus::DeviceCreateInfo { p_next: &chain, ..Default::default() };
        let physical_device = venus::PhysicalDevice(2);
        lets_host_reset(&Command::CreateDevice(venus::CreateDevice {
            physical_device,
            p_create_info: Some(&info),
            p_device: Some(&DEVICE),
        }))
    };
    assert!(with(1) && !with(0));
    // Kept results are restored behind the reset.
    other.run_bytes(&reset_of(DEVICE, POOL, COUNT).unwrap());
    restore_all(&other, &saved(&one));
    assert_eq!(words(&results(&other, 1, 1, 16, WIDE).1), [1001, 1]);
}

#[test]
fn many_ranges_are_told_apart_and_more_keep_the_context_where_it_is() {
    let mut own = Ranges::default();
    (0..300).for_each(|at| own.add(2 * at..2 * at + 1));
    assert_eq!(own.0.len(), RANGES);
    assert!(covers(Some(&own), &(510..511)) && !covers(Some(&own), &(512..513)));
    own.add(0..600);
    assert_eq!((own.0.len(), own.0.first()), (1, Some(&(0..600))));
    let mut all = Ranges::default();
    (0..300).for_each(|at| all.add_all(2 * at..2 * at + 1));
    assert_eq!((all.0.len(), all.0.last()), (RANGES, Some(&(510..599))));
    assert_eq!(all.within(&(508..520)).collect::<Vec<_>>(), [508..509, 510..520]);
    own.add(5..5);
    own.add(u32::MAX - 1..u32::MAX);
    assert_eq!(own.0.len(), 2);
}

#[test]
fn results_that_were_made_before_are_copied_from_what_is_kept() {
    let (_exclusive, _one, other) = moved(8);
    other.create_buffer(BUFFER);
    let id = PRIMARIES[0];
    let recorded = |commands: &[Command<'_>]| {
        record(&other, CommandBufferUsageFlags(0), commands);
        std::mem::take(&mut *null::RESULTS.lock())
    };
    let wide = |value: u64| [value.to_le_bytes(), 1_u64.to_le_bytes()].concat();
    assert_eq!(recorded(&[copy(id, (9, 3), (16, WIDE))]), [(16, Err((9, 3)))]);
    assert_eq!(
        recorded(&[copy(id, (6, 4), (24, WIDE))]),
        [(16, Ok(wide(1006))), (40, Ok(wide(1007))), (64, Err((8, 2)))]
    );
    let narrow = |value: u32| value.to_le_bytes().to_vec();
    // The driver knows the results that the recording makes itself.
    assert_eq!(
        recorded(&[write(id, 2), reset(id, 4, 1), copy(id, (1, 4), (4, NARROW))]),
        [(16, Ok(narrow(1001))), (20, Err((2, 1))), (24, Ok(narrow(1003))), (28, Err((4, 1)))]
    );
    other.submit(id);
    assert_eq!(recorded(&[copy(id, (2, 1), (4, NARROW))]), [(16, Err((2, 1)))], "they were made anew");
    // Copies that a driver would refuse, or for which it would keep too many bytes, are left to the driver.
    assert_eq!(recorded(&[copy(id, (0, 2), (2, NARROW))]), [(16, Ok(narrow(1000))), (18, Err((1, 1)))]);
    let many: Vec<_> = (0..3000).map(|_| copy(id, (0, 2), (16, WIDE))).collect();
    let written = recorded(&many).into_iter().filter_map(|(_, what)| Some(what.ok()?.len()));
    assert_eq!(written.sum::<usize>(), 64 << 10);
    // A successor's successor does the same.
    let third = saved(&other);
    assert!(matches!(&third[0], Step::Queries { first: 0, results, .. } if results[..2] == [1000, 1001]));
}

#[test]
fn hostile_results_are_refused() {
    let (_exclusive, _one, other) = moved(0);
    for (pool, first, count) in [
        (POOL.0, 0, COUNT as usize + 1),
        (POOL.0, COUNT, 1),
        (POOL.0, u32::MAX, 1),
        (DEVICE.0, 0, 1),
        (0, 0, 1),
        (1234, 0, 1),
    ] {
        assert!(restore(other.context(), pool, first, &vec![0; count]).is_err(), "{pool} {first} {count}");
    }
    assert!(restore(other.context(), POOL.0, 0, &[]).is_ok());
    assert_eq!(saved(&other), []);
}
