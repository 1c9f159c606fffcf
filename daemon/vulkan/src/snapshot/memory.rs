//! Memory: the file of each allocation, and the memory that buffers and images are bound to.

use super::contents;
use super::saved::{Carry, NotMovable, Saved, SavedFile};
use super::step::Step;
use super::synthesis::{NO_REPLY, decoded, encoded};
use crate::backing::memory::{Exported, Made, Memory};
use crate::context::allowance::{MemoryFile, Piece};
use crate::execution::context::Context;
use crate::kinds::bound::Bound;
use crate::memory::refill;
use crate::memory::spare::Wanted;
use crate::objects::object::Object;
use crate::objects::table::Table;
use ash::vk;
use config::DepositId;
use protocol::cursor::Arena;
use protocol::venus::generated::{self as venus, ChainStruct, Command};
use rustc_hash::{FxHashMap, FxHashSet};
use std::os::fd::AsFd as _;
use std::sync::Arc;

/// An object that is alive, its id and that of its device.
pub(super) struct Live<'t> {
    pub id: u64,
    pub device: u64,
    pub object: &'t Object,
}

/// Returns the step before an allocation: it names the file that the allocation is made of, and a new file joins those of the snapshot. There is no
/// step before memory that only the driver uses and that a successor makes anew.
///
/// # Errors
///
/// The memory cannot be given away.
pub(super) fn step(
    context: &Context,
    (id, object): (u64, &Object),
    is_used: bool,
    saved: &mut Saved,
    known: &mut FxHashMap<usize, u32>,
) -> Result<Option<Step>, NotMovable> {
    let memory = object.get::<venus::DeviceMemory>();
    let (memory, pages) = match memory.map(|memory| (memory, &memory.made)) {
        Some((memory, Made::Pages(pages, _))) => (memory, pages),
        Some((memory, Made::Private { .. }))
            if is_used && saved.carry.hands_over(memory) && refill::is_possible(object, memory) =>
        {
            return exported(context, (id, object), memory, saved);
        }
        Some((_, Made::Private { .. })) => return Ok(None),
        _ => return Err(NotMovable::ever("the driver holds memory that cannot be passed on")),
    };
    let file = pages.file();
    let index = *known.entry(Arc::as_ptr(&file).addr()).or_insert_with(|| {
        saved.files.push(SavedFile::Here(file));
        saved.files.len() as u32 - 1
    });
    if !pages.is_placed() {
        return Err(NotMovable::ever("memory has an address that a successor may not get"));
    }
    let (address, size) = (pages.address().addr() as u64, pages.size());
    Ok(Some(Step::Memory { id, file: index, size, address, shown: context.pool.shown(memory) }))
}

/// Deposits the descriptors of all memory that a successor takes as it is. A later snapshot then takes little time, as few deposits are missing.
pub(crate) fn deposit_all(context: &Context) {
    let is_new = |object: &Object| match object.get::<venus::DeviceMemory>().map(|memory| &memory.made) {
        Some(Made::Private { exported: Some(_), deposit, .. }) => deposit.lock().is_none(),
        _ => false,
    };
    look_at_each(context, named(context, is_new), |(id, object), memory| {
        if refill::is_possible(object, memory) {
            deposited(context, (id, object), memory);
        }
    });
}

/// Returns the ids of these objects, and their places in the order of creation.
fn named(context: &Context, is_one: impl Fn(&Object) -> bool) -> Vec<(u64, u64)> {
    let table = context.objects.read();
    let these = table.objects().filter(|(_, object, _)| is_one(object));
    these.map(|(id, object, _)| (id, object.usage.serial())).collect()
}

/// Calls `look` for each of these allocations, named by id and place in the order of creation, that is still there. The table is unlocked between two
/// allocations, so that commands go on.
fn look_at_each(
    context: &Context,
    allocations: impl IntoIterator<Item = (u64, u64)>,
    mut look: impl FnMut((u64, &Object), &Memory),
) {
    for (id, serial) in allocations {
        let table = context.objects.read();
        let Ok(object) = table.get(venus::DeviceMemory(id)) else { continue };
        let is_there = object.usage.serial() == serial && !table.is_only_destroyed(id);
        let memory = object.get::<venus::DeviceMemory>();
        if let Some(memory) = memory.filter(|_| is_there) {
            look((id, object), memory);
        }
    }
}

/// Returns the step before an allocation that a successor takes as it is, whose descriptor joins the files; none if the driver makes no
/// descriptor: the contents are copied then.
///
/// # Errors
///
/// There is no descriptor, and contents are not copied.
fn exported(
    context: &Context,
    (id, object): (u64, &Object),
    memory: &Memory,
    saved: &mut Saved,
) -> Result<Option<Step>, NotMovable> {
    let file = if saved.carry == Carry::Deposited {
        let deposit = deposited(context, (id, object), memory).map(SavedFile::Deposited);
        Some(deposit.ok_or_else(|| NotMovable::for_now("the driver makes no descriptor of its memory now"))?)
    } else {
        let there = saved.descriptors.remove(&object.usage.serial());
        there.or_else(|| descriptor((id, object), memory)).map(SavedFile::Here)
    };
    let Some(file) = file else { return Ok(None) };
    saved.files.push(file);
    Ok(Some(Step::Exported { id, file: saved.files.len() as u32 - 1 }))
}

/// Returns descriptors of all memory that a successor can have while this context goes on, without the memory that it `has` already, by the places of the
/// allocations in the order of creation. Memory with an address, which the successor makes anew, is included if the GPU has enough to spare: this memory
/// exists twice until the successor's is filled. Memory for one image or buffer is not included, even if the driver does not insist on such memory, as
/// the image or buffer has to be made first.
pub(super) fn descriptors(
    context: &Context,
    has: impl Fn(&Object) -> bool,
) -> FxHashMap<u64, Arc<MemoryFile>> {
    let (mut new, mut twice) = (Vec::new(), Wanted::default());
    for (id, object, _) in context.objects.read().objects() {
        let memory = object.get::<venus::DeviceMemory>().filter(|memory| refill::is_possible(object, memory));
        let Some(memory) = memory.filter(|memory| Carry::HandedOver.hands_over(memory) && !has(object))
        else {
            continue;
        };
        if memory.replays {
            twice.add(object, memory);
        }
        new.push((id, object.usage.serial(), memory.replays));
    }
    let may_be_twice = twice.is_to_spare();
    let fit = new.into_iter().filter(|(.., is_twice)| may_be_twice || !is_twice);
    let (mut all, mut arena) = (FxHashMap::default(), context.arena(0));
    look_at_each(context, fit.map(|(id, serial, _)| (id, serial)), |(id, object), memory| {
        if is_for_one(object, &mut arena) {
            return;
        }
        let file = descriptor((id, object), memory);
        all.extend(file.map(|file| (object.usage.serial(), file)));
    });
    all
}

/// Returns the memory that a successor can make anew while this context goes on, without the memory that it `has` already, by the places of the
/// allocations in the order of creation: memory that only the driver uses, and that is not for one image or buffer.
pub(super) fn copied(context: &Context, has: impl Fn(&Object) -> bool) -> FxHashSet<u64> {
    let new = named(context, |object| contents::can_be_copied(object) && !has(object));
    let (mut all, mut arena) = (FxHashSet::default(), context.arena(0));
    look_at_each(context, new, |(_, object), _| {
        if !is_for_one(object, &mut arena) {
            all.insert(object.usage.serial());
        }
    });
    all
}

/// Returns whether the program has allocated memory for one image or buffer.
fn is_for_one(object: &Object, arena: &mut Arena) -> bool {
    let names_one = |command: &Command<'_>| {
        let Command::AllocateMemory(allocate) = command else { return true };
        let mut chain = allocate.p_allocate_info.into_iter().flat_map(|info| info.p_next);
        chain.any(|next| match next {
            ChainStruct::MemoryDedicatedAllocateInfo(one) => one.image.0 != 0 || one.buffer.0 != 0,
            _ => false,
        })
    };
    let created_by = object.created_by.as_ref();
    created_by.is_none_or(|created_by| decoded(created_by, arena, names_one).unwrap_or(true))
}

/// Returns the deposit of an allocation, and makes it if there is none yet; returns none if the driver makes no descriptor.
fn deposited(context: &Context, (id, object): (u64, &Object), memory: &Memory) -> Option<DepositId> {
    let Made::Private { exported: Some(_), deposit, .. } = &memory.made else { return None };
    let mut deposit = deposit.lock();
    if deposit.is_none() {
        *deposit = context.env.allowance.deposit(descriptor((id, object), memory)?.as_fd());
    }
    deposit.as_ref().map(|deposit| deposit.id)
}

/// Returns a descriptor of memory that the driver gives away; none if the driver makes no descriptor.
fn descriptor((id, object): (u64, &Object), memory: &Memory) -> Option<Arc<MemoryFile>> {
    let Made::Private { exported: Some(exported), .. } = &memory.made else { return None };
    if let Exported::Imported(file) = exported {
        return Some(Arc::clone(file));
    }
    let made = object.device.as_ref()?.exports.as_ref()?.export(object.raw);
    let said = |why: &vk::Result| log::debug!("the driver does not export memory {id}: {why}");
    Some(Arc::new(MemoryFile::new(made.inspect_err(said).ok()?, Piece::uncounted())))
}

/// Returns whether a buffer or image is bound to memory that still exists.
pub(super) fn is_bound(table: &Table, object: &Object) -> bool {
    let image = object.get::<venus::Image>().and_then(|image| image.bound.lock()[0]);
    let bound = object.get::<venus::Buffer>().and_then(|buffer| buffer.bound()).or(image);
    bound.is_some_and(|bound| bound.is_to_live(table))
}

/// Returns the commands that bind buffers and images to memory that still exists, with their places in the order of all.
///
/// # Errors
///
/// A command has no encoding.
pub(super) fn bindings<'t>(
    table: &'t Table,
    objects: impl Iterator<Item = Live<'t>>,
) -> Result<Vec<(u64, Vec<u8>)>, NotMovable> {
    let mut all = Vec::new();
    for Live { id, device, object } in objects {
        let device = venus::Device(device);
        // An object that can only be destroyed may not have been bound.
        if table.is_only_destroyed(id) {
            continue;
        }
        let bound = object.get::<venus::Buffer>().and_then(|buffer| buffer.bound());
        if let Some(bound) = bound.filter(|bound| bound.is_to_live(table)) {
            all.push((bound.serial, buffer_bound(device, venus::Buffer(id), &bound)?));
        }
        let planes = object.get::<venus::Image>().map(|image| *image.bound.lock());
        for bound in planes.into_iter().flatten().flatten().filter(|bound| bound.is_to_live(table)) {
            all.push((bound.serial, image_bound(device, venus::Image(id), &bound)?));
        }
    }
    Ok(all)
}

fn buffer_bound(device: venus::Device, buffer: venus::Buffer, bound: &Bound) -> Result<Vec<u8>, NotMovable> {
    let (memory, memory_offset) = (bound.memory, bound.offset);
    let bind = venus::BindBufferMemory { device, buffer, memory, memory_offset };
    encoded(0, |w| bind.encode(NO_REPLY, w))
}

fn image_bound(device: venus::Device, image: venus::Image, bound: &Bound) -> Result<Vec<u8>, NotMovable> {
    let (memory, memory_offset) = (bound.memory, bound.offset);
    if bound.plane.0 == 0 {
        let bind = venus::BindImageMemory { device, image, memory, memory_offset };
        return encoded(0, |w| bind.encode(NO_REPLY, w));
    }
    let plane = venus::BindImagePlaneMemoryInfo { p_next: &[], plane_aspect: bound.plane };
    let chain = [ChainStruct::BindImagePlaneMemoryInfo(&plane)];
    let info = [venus::BindImageMemoryInfo { p_next: &chain, image, memory, memory_offset }];
    let bind = venus::BindImageMemory2 { device, bind_info_count: 1, p_bind_infos: Some(&info) };
    encoded(0, |w| bind.encode(NO_REPLY, w))
}
