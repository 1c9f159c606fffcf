//! One ring whose guest changes everything that it can reach, whenever it can.

use super::words::{self, Place as From};
use super::{MEMORY, attach_all, channels, setup};
use crate::worker::at_rest::Begin;
use crate::worker::context::Context;
use crate::worker::resources::Resources;
use crate::worker::ring::Ring;
use crate::worker::stream::{Executor, Place};
use arbitrary::{Result, Unstructured};
use protocol::venus::ring::RingLayout;
use shm::Mapping;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vulkan::null;

const BUFFER: usize = 1024;
const COMMANDS_MAX: usize = 512;

/// A ring takes the commands that its guest publishes and ends or goes on, however the guest changes head, tail, status, buffer, streams and replies
/// between two commands.
pub fn fuzz_ring(bytes: &[u8]) -> usize {
    let mut guest = Unstructured::new(bytes);
    let _exclusive = null::begin(bytes.len() as u64);
    let (ours, peer) = channels();
    let resources = Arc::<Resources>::default();
    let memory = attach_all(&resources);
    let backend = null::renderer(Arc::clone(&resources) as _);
    let context = Arc::new(Context::new(&setup(), Arc::new(ours), resources, backend));
    let layout = RingLayout { head: 0, tail: 64, status: 128, buffer: 192..192 + BUFFER, extra: 1216..1280 };
    let pages = Arc::clone(&memory[2]);
    let ring = Arc::new(Ring::new(pages, layout, Duration::ZERO).expect("the layout fits"));
    // No other thread publishes a position later.
    ring.publish_virtqueue_seqno(u64::MAX);
    if publish(&memory, &mut guest).is_err() {
        return 0;
    }
    let mut executor = Executor::new(Arc::clone(&context), Place::Ring(Arc::clone(&ring)), Begin::default());
    let (mut taken, mut position) = (0, 0u32);
    let outcome = ring.serve(&mut executor.batches(), |commands| {
        let length = executor.run_some(commands)?;
        assert!((1..=commands.len()).contains(&length), "a command of {length} bytes");
        taken += 1;
        position = position.wrapping_add(length as u32);
        let _ = change(&memory, &mut guest);
        // An empty ring would wait, and no thread would wake it.
        let tail = memory[2].word(64).expect("it is there").load(Ordering::SeqCst);
        if tail == position || taken >= COMMANDS_MAX || guest.is_empty() {
            ring.end();
        }
        Ok(length)
    });
    if let Err(lost) = outcome {
        context.lose(&lost);
    }
    context.end();
    context.join();
    crate::worker::backend::Backend::destroy_objects(&context.backend);
    drop(peer);
    taken
}

/// Publishes the guest's first commands, and streams and replies to name.
fn publish(memory: &[Arc<Mapping>], guest: &mut Unstructured<'_>) -> Result<()> {
    let mut streams = Vec::new();
    // Two commands of 16 bytes without a reply; most streams consist of these.
    for _ in 0..2 {
        streams.extend([137u32, 0, 1, 0].iter().flat_map(|word| word.to_le_bytes()));
    }
    for _ in 0..guest.int_in_range(0..=6u8)? {
        streams.extend(words::command(guest, From::Ring)?);
    }
    streams.truncate(MEMORY as usize);
    memory[0].copy_in(0, &streams).expect("there is room");
    // A window for replies first.
    let window = [178u32, 0, 1, 0, 2, 0, 0, 0x4000, 0];
    let mut commands: Vec<u8> = window.iter().flat_map(|word| word.to_le_bytes()).collect();
    while commands.len() < BUFFER / 2 && !guest.is_empty() {
        commands.extend(words::command(guest, From::Ring)?);
    }
    commands.truncate(BUFFER);
    memory[2].copy_in(192, &commands).expect("there is room");
    let tail = if guest.ratio(1, 16)? { guest.arbitrary()? } else { commands.len() as u32 };
    memory[2].word(64).expect("it is there").store(tail, Ordering::SeqCst);
    // An empty ring would wait for ever.
    if tail == 0 { Err(arbitrary::Error::NotEnoughData) } else { Ok(()) }
}

/// Changes one of the guest's words.
fn change(memory: &[Arc<Mapping>], guest: &mut Unstructured<'_>) -> Result<()> {
    let how: u8 = guest.arbitrary()?;
    let words = &memory[2];
    match how & 7 {
        0 => {
            let tail = words.word(64).expect("it is there");
            let step = if how & 8 == 0 { u32::from(how >> 4) * 4 } else { guest.arbitrary()? };
            tail.store(tail.load(Ordering::Relaxed).wrapping_add(step), Ordering::SeqCst);
        }
        1 => words.word(0).expect("it is there").store(guest.arbitrary()?, Ordering::SeqCst),
        2 => words.word(128).expect("it is there").store(guest.arbitrary()?, Ordering::SeqCst),
        3 | 4 => {
            let at = u64::from(guest.arbitrary::<u16>()?) % MEMORY;
            let bytes: Vec<u8> = guest.arbitrary()?;
            let room = (MEMORY - at).min(bytes.len() as u64) as usize;
            memory[usize::from(how >> 4) % memory.len()].copy_in(at, &bytes[..room]).expect("there is room");
        }
        _ => {}
    }
    Ok(())
}
