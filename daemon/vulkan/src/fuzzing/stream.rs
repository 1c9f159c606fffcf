//! Commands made from a recipe: any bytes become commands that decode and mostly name objects that exist.
//!
//! A command begins in its plainest form: zeros, corrected where the decoder complains. The recipe then overwrites some words, and the command
//! is corrected again. The executor's complaints show which words name an object: each is replaced by the id of a live object of the right
//! kind, or by a fresh id if an object is to be made.

use super::World;
use crate::context::cause::{Cause, StreamError};
use protocol::cursor::{Arena, Reader};
use protocol::error::DecodeErrorKind as Kind;
use protocol::venus::generated::{
    AllocateCommandBuffers, AllocateDescriptorSets, AllocateMemory, Command, CreateBuffer, CreateCommandPool,
    CreateDescriptorPool, CreateDescriptorSetLayout, CreateDevice, CreateInstance, DestroyDevice,
    DestroyInstance, EnumeratePhysicalDevices, GetDeviceQueue2, ObjectType,
};
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// Room for one command.
const ROOM: usize = 4096;

/// A composer, which makes the next command from the rest of a recipe.
pub(super) struct Composer<'r> {
    recipe: &'r [u8],
    /// The command at hand: number, flags, parameters, zeros.
    bytes: Vec<u8>,
    last_id: u64,
    arena: Arena,
    prologue: std::slice::Iter<'static, Vec<u32>>,
}

/// The commands that every program begins with and needs for most others, in words that begin with number and flags.
static PROLOGUE: LazyLock<[Vec<u32>; 10]> = LazyLock::new(|| {
    let one_f32 = 1f32.to_bits();
    let queue = [2, 0, 0, 0, 0, 1, 1, 0, one_f32];
    let timeline = [TIMELINE_INFO, 0, 0, 1];
    let addresses = [ADDRESS_FEATURES, 0, 0, 1, 0, 0];
    [
        // Description (nothing in it), allocator, instance 1.
        vec![CreateInstance::NUMBER as u32, 0, 0, 0, 0, 0, 1, 0, 1, 0],
        // Instance 1, one physical device: 2.
        vec![EnumeratePhysicalDevices::NUMBER as u32, 0, 1, 0, 1, 0, 1, 1, 0, 2, 0],
        // Physical device 2, addresses of buffers, a queue, no layers, extensions and other features, allocator, device 3.
        [
            &[CreateDevice::NUMBER as u32, 0, 2, 0, 1, 0, 3, 1, 0][..],
            &addresses,
            &[0, 1, 1, 0],
            &queue,
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 0],
        ]
        .concat(),
        // Device 3, its queue on timeline 1: 4.
        [
            &[GetDeviceQueue2::NUMBER as u32, 0, 3, 0, 1, 0, QUEUE_INFO, 1, 0][..],
            &timeline,
            &[0, 0, 0, 1, 0, 4, 0],
        ]
        .concat(),
        // Device 3, pool 5.
        vec![CreateCommandPool::NUMBER as u32, 0, 3, 0, 1, 0, 39, 0, 0, 3, 0, 0, 0, 1, 0, 5, 0],
        // Device 3, pool 5, command buffer 6.
        vec![AllocateCommandBuffers::NUMBER as u32, 0, 3, 0, 1, 0, 40, 0, 0, 5, 0, 0, 1, 1, 0, 6, 0],
        // Device 3, no bindings, layout 7.
        vec![CreateDescriptorSetLayout::NUMBER as u32, 0, 3, 0, 1, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 7, 0],
        // Device 3, four sets of anything, pool 8.
        vec![CreateDescriptorPool::NUMBER as u32, 0, 3, 0, 1, 0, 33, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1, 0, 8, 0],
        // Device 3, pool 8, layout 7, set 9.
        vec![AllocateDescriptorSets::NUMBER as u32, 0, 3, 0, 1, 0, 34, 0, 0, 8, 0, 1, 1, 0, 7, 0, 1, 0, 9, 0],
        // Device 3, 64 KiB of pages that have an address, allocator, memory 10.
        [
            &[AllocateMemory::NUMBER as u32, 0, 3, 0, 1, 0, 5, 1, 0][..],
            &[ALLOCATE_FLAGS, 0, 0, 2, 0],
            &[1 << 16, 0, 1, 0, 0, 1, 0, 10, 0],
        ]
        .concat(),
    ]
});

/// `VK_STRUCTURE_TYPE_DEVICE_QUEUE_INFO_2`, `..._DEVICE_QUEUE_TIMELINE_INFO_MESA`,
/// `..._PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES` and `..._MEMORY_ALLOCATE_FLAGS_INFO`.
const QUEUE_INFO: u32 = 1_000_145_003;
const TIMELINE_INFO: u32 = 1_000_384_005;
const ADDRESS_FEATURES: u32 = 1_000_257_000;
const ALLOCATE_FLAGS: u32 = 1_000_060_000;

/// Every command in its plainest form, and with as many pointers as it takes.
static FORMS: LazyLock<FxHashMap<i32, [Vec<u8>; 2]>> = LazyLock::new(|| {
    let mut all = FxHashMap::default();
    for number in Command::NUMBERS {
        let mut arena = Arena::new(1 << 20);
        let mut bytes = vec![0; ROOM];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        if let Some(length) = put_right(&mut bytes, &mut arena) {
            let usual = PROLOGUE.iter().find(|words| words[0] == *number as u32);
            let rich =
                usual.map_or_else(|| enrich(bytes.clone(), length, &mut arena), |words| encoded(words));
            bytes.truncate(length);
            all.insert(*number, [bytes, rich]);
        }
    }
    all
});

/// Commands that make, use and destroy objects; they take turns with all other commands.
static LIVES: LazyLock<Vec<i32>> = LazyLock::new(|| {
    const BEGINNINGS: [&str; 10] = [
        "vkCreate",
        "vkAllocate",
        "vkDestroy",
        "vkFree",
        "vkReset",
        "vkBegin",
        "vkEnd",
        "vkUpdate",
        "vkQueueSubmit",
        "vkCmdBind",
    ];
    let is_one = |number: &i32| {
        Command::name(*number).is_some_and(|name| BEGINNINGS.iter().any(|b| name.starts_with(b)))
    };
    Command::NUMBERS.iter().copied().filter(is_one).collect()
});

fn encoded(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Sets each pointer that makes the command longer.
fn enrich(mut bytes: Vec<u8>, mut length: usize, arena: &mut Arena) -> Vec<u8> {
    let mut at = 8;
    while at + 8 <= length.min(512) {
        if bytes[at..at + 8] == [0; 8] {
            let mut changed = bytes.clone();
            changed[at] = 1;
            if let Some(longer) = put_right(&mut changed, arena)
                && longer > length
                && changed[at] == 1
            {
                (bytes, length) = (changed, longer);
            }
        }
        at += 4;
    }
    bytes.truncate(length);
    bytes
}

impl<'r> Composer<'r> {
    /// Makes commands from this recipe.
    pub(super) fn new(recipe: &'r [u8]) -> Self {
        let prologue = PROLOGUE.iter();
        Self { recipe, bytes: vec![0; ROOM], last_id: 1000, arena: Arena::new(16 << 20), prologue }
    }

    /// Composes the next command, if the recipe has one.
    pub(super) fn next(&mut self, world: &World) -> Option<()> {
        if self.prologue.len() == 0 && world.renderer.context().objects.ids(ObjectType::DEVICE).is_empty() {
            self.prologue = PROLOGUE.iter();
        }
        self.bytes.fill(0);
        if let Some(words) = self.prologue.next() {
            let words = encoded(words);
            self.bytes[..words.len()].copy_from_slice(&words);
            return Some(());
        }
        let choice = usize::from(u16::from_le_bytes(self.take::<2>()?));
        let [how] = self.take::<1>()?;
        let numbers = if how & 0x20 == 0 { Command::NUMBERS } else { &LIVES };
        let number = match numbers[choice % numbers.len()] {
            // Seldom, because these commands destroy everything else too.
            DestroyDevice::NUMBER | DestroyInstance::NUMBER if how & 0x18 != 0 => CreateBuffer::NUMBER,
            number => number,
        };
        let form = FORMS.get(&number).map_or(&[][..], |forms| &forms[usize::from(how >> 6 & 1)]);
        self.bytes[..form.len()].copy_from_slice(form);
        self.bytes[4] = u8::from(how & 0x80 == 0);
        self.patch(usize::from(how & 7), form.len());
        Some(())
    }

    /// Overwrites some words behind number and flags; mostly by small numbers.
    fn patch(&mut self, patches: usize, length: usize) {
        for _ in 0..patches {
            let Some([at, how, value]) = self.take::<3>() else { return };
            let words = (length.saturating_sub(8) / 4 + 16).max(1);
            let at = 8 + usize::from(at) % words * 4;
            let value = match how & 7 {
                0..=4 => u32::from(value),
                5 => 1 << (value & 31),
                6 => u32::MAX - u32::from(value),
                _ => self.take::<4>().map_or(0, u32::from_le_bytes),
            };
            self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Executes the command, and corrects it as often as that helps. Returns whether it was executed in the end.
    pub(super) fn execute(&mut self, world: &World) -> bool {
        let Some(mut length) = put_right(&mut self.bytes, &mut self.arena) else { return false };
        for _ in 0..16 {
            self.arena.reset();
            let Err(lost) = world.execute(&self.bytes[..length], &self.arena) else { return true };
            if !self.put_ids_right(world, lost.cause(), length) {
                return false;
            }
            // A replaced id may also have been a count.
            match put_right(&mut self.bytes, &mut self.arena) {
                Some(new) => length = new,
                None => return false,
            }
        }
        false
    }

    /// Replaces the id that the executor complains of; returns false if there is nothing to replace.
    fn put_ids_right(&mut self, world: &World, cause: Option<&Cause>, length: usize) -> bool {
        let (id, wanted) = match cause {
            Some(Cause::Stream(StreamError::Without("an id" | "a queue"))) => {
                return self.fresh_id(0, length);
            }
            Some(Cause::Stream(StreamError::IdInUse(id))) => return self.fresh_id(*id, length),
            Some(Cause::Stream(
                StreamError::NoObject { id, wanted } | StreamError::OtherKind { id, wanted, .. },
            )) => (*id, *wanted),
            _ => return false,
        };
        let live = world.renderer.context().objects.ids(wanted);
        let [choice] = self.take::<1>().unwrap_or_default();
        let Some(replacement) = live.get(usize::from(choice) % live.len().max(1)) else { return false };
        self.replace(id, *replacement, length, false)
    }

    /// Puts a fresh id in the last place of `id`.
    fn fresh_id(&mut self, id: u64, length: usize) -> bool {
        self.last_id += 1;
        self.replace(id, self.last_id, length, true)
    }

    /// Replaces the first occurrence of `id` after number and flags, or the last.
    fn replace(&mut self, id: u64, by: u64, length: usize, last: bool) -> bool {
        let starts = 2..(length / 4).saturating_sub(1);
        let is_id = |word: &usize| self.bytes[4 * word..4 * word + 8] == id.to_le_bytes();
        let found = if last { starts.rev().find(is_id) } else { starts.clone().find(is_id) };
        let Some(word) = found else { return false };
        self.bytes[4 * word..4 * word + 8].copy_from_slice(&by.to_le_bytes());
        true
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.recipe.split_first_chunk::<N>()?;
        self.recipe = rest;
        Some(*taken)
    }
}

/// Corrects a command until it decodes, and returns its length.
fn put_right(bytes: &mut [u8], arena: &mut Arena) -> Option<usize> {
    for _ in 0..64 {
        arena.reset();
        let number = i32::from_le_bytes(*bytes.first_chunk()?);
        let mut reader = Reader::new(&bytes[8..], arena);
        let Err(error) = Command::decode(number, &mut reader) else { return Some(8 + reader.offset()) };
        let (back, size, value) = match error.kind {
            Kind::Null => (8, 8, 1),
            Kind::NotNull => (8, 8, 0),
            Kind::Presence(_) => (8, 8, 1),
            Kind::Count { expected, .. } => (8, 8, expected),
            Kind::String { .. } => (8, 8, 1),
            Kind::StructureType { expected, .. } => (4, 4, expected as u64),
            Kind::Command(_) => (4, 4, number as u64),
            Kind::UnionTag(_) => (4, 4, 0),
            // No chain, rather than a wrong one.
            Kind::ChainStructure(_) => (12, 8, 0),
            _ => return None,
        };
        let at = (8 + error.offset).checked_sub(back).filter(|at| *at >= 8)?;
        bytes.get_mut(at..at + size)?.copy_from_slice(&value.to_le_bytes()[..size]);
    }
    None
}
