//! The contents of descriptor sets, as commands that write them.
//!
//! A descriptor that names a destroyed object is left out, as no command may use the descriptor any more. If another object has the id by now, the
//! descriptor is written as if it named that object, with all checks.

use super::saved::NotMovable;
use super::step::Step;
use crate::execution::context::Context;
use crate::kinds::descriptor_set::DescriptorSet;
use crate::kinds::descriptors::{Descriptor, Held};
use crate::kinds::layout::{Binding, SetFacts};
use crate::logical::device::Device;
use crate::objects::object::Handle;
use crate::objects::table::Table;
use protocol::cursor::Writer;
use protocol::venus::generated::{
    self as venus, ChainStruct, CommandFlagsEXT, DescriptorType, ObjectType, WriteDescriptorSet,
};
use std::sync::Arc;

/// The most descriptors, and bytes of an inline uniform block, of one write.
const WRITE: usize = 1024;

/// The most writes of one command.
const WRITES: usize = 64;

/// The bytes after which another step is begun.
const STEP: usize = 64 << 10;

/// Adds the steps that write the descriptors, behind the steps that make the objects.
///
/// # Errors
///
/// None: all descriptors are kept.
pub(super) fn save(context: &Context, steps: &mut Vec<Step>) -> Result<(), NotMovable> {
    let devices = context.objects.ids(ObjectType::DEVICE).into_iter().map(venus::Device);
    let devices: Vec<_> = devices.filter_map(|id| Some((id, context.objects.shared(id).ok()?))).collect();
    let mut commands = Writer::growing();
    for id in context.objects.ids(ObjectType::DESCRIPTOR_SET).into_iter().map(venus::DescriptorSet) {
        let Some((device, set)) = found(context, id, &devices) else { continue };
        for pieces in pieces(context, id, &set).chunks(WRITES) {
            encode(device, id, pieces, &mut commands);
            if commands.written() >= STEP {
                steps.push(Step::Commands(std::mem::replace(&mut commands, Writer::growing()).into_bytes()));
            }
        }
    }
    if commands.written() > 0 {
        steps.push(Step::Commands(commands.into_bytes()));
    }
    Ok(())
}

fn found(
    context: &Context,
    id: venus::DescriptorSet,
    devices: &[(venus::Device, Arc<Device>)],
) -> Option<(venus::Device, Arc<DescriptorSet>)> {
    let objects = context.objects.read();
    let object = objects.get(id).ok()?;
    let device = devices
        .iter()
        .find(|(_, device)| object.device.as_ref().is_some_and(|of| Arc::ptr_eq(of, device)))?;
    Some((device.0, object.shared::<venus::DescriptorSet>().ok()?))
}

/// Descriptors that follow each other in one binding and are of one type.
struct Piece {
    binding: u32,
    element: u32,
    ty: DescriptorType,
    values: Values,
}

enum Values {
    Images(Vec<venus::DescriptorImageInfo>),
    Buffers(Vec<venus::DescriptorBufferInfo>),
    BufferViews(Vec<venus::BufferView>),
    Bytes(Vec<u8>),
}

/// Splits the descriptors of a set into pieces that can be written again.
fn pieces(context: &Context, id: venus::DescriptorSet, set: &DescriptorSet) -> Vec<Piece> {
    let mut pieces = Vec::new();
    // The table is locked behind the pool.
    let sets = set.pool.lock();
    let objects = context.objects.read();
    let facts: &SetFacts = &set.layout.facts;
    let Some(live) = sets.live.get(&set.raw).filter(|live| live.id == id.0) else { return pieces };
    for (binding, held) in live.contents.bindings(facts) {
        match held {
            Held::Descriptors(held) => push_runs(&objects, binding, held, &mut pieces),
            // Offsets are multiples of 4.
            Held::Bytes(bytes) => pieces.extend((0..).zip(bytes.chunks(WRITE)).map(|(at, bytes)| Piece {
                binding: binding.number,
                element: at * WRITE as u32,
                ty: binding.ty,
                values: Values::Bytes(bytes.to_vec()),
            })),
        }
    }
    pieces
}

fn push_runs(objects: &Table, binding: &Binding, held: &[Descriptor], pieces: &mut Vec<Piece>) {
    let mut run: Option<Piece> = None;
    for (element, descriptor) in (0..).zip(held) {
        let of_type = descriptor.ty == binding.ty || binding.ty == DescriptorType::MUTABLE_EXT;
        let value = Some(descriptor).filter(|_| of_type).and_then(|held| value(objects, binding, held));
        let Some(value) = value else {
            pieces.extend(run.take());
            continue;
        };
        let extended = run.as_mut().is_some_and(|run| run.ty == descriptor.ty && run.values.add(&value));
        if !extended {
            let (binding, ty) = (binding.number, descriptor.ty);
            pieces.extend(run.replace(Piece { binding, element, ty, values: value }));
        }
    }
    pieces.extend(run);
}

impl Values {
    /// Adds values of the same form, unless there are enough already. Returns whether they were added.
    fn add(&mut self, more: &Self) -> bool {
        match (self, more) {
            (Self::Images(all), Self::Images(more)) if all.len() < WRITE => all.extend(more),
            (Self::Buffers(all), Self::Buffers(more)) if all.len() < WRITE => all.extend(more),
            (Self::BufferViews(all), Self::BufferViews(more)) if all.len() < WRITE => all.extend(more),
            _ => return false,
        }
        true
    }

    fn count(&self) -> usize {
        match self {
            Self::Images(all) => all.len(),
            Self::Buffers(all) => all.len(),
            Self::BufferViews(all) => all.len(),
            Self::Bytes(all) => all.len(),
        }
    }
}

/// Returns one descriptor as it is written, without the fields that its type ignores; none if it is empty, or an object is gone.
fn value(objects: &Table, binding: &Binding, descriptor: &Descriptor) -> Option<Values> {
    let image = |with_sampler: bool, with_view: bool| {
        let mut info = descriptor.image();
        if !with_sampler || binding.immutable_samplers {
            info.sampler = venus::Sampler(0);
        }
        if !with_view {
            info.image_view = venus::ImageView(0);
        }
        let all = is_there(objects, info.sampler) && is_there(objects, info.image_view);
        all.then(|| Values::Images(vec![info]))
    };
    match descriptor.ty {
        DescriptorType::SAMPLER => image(true, false),
        DescriptorType::COMBINED_IMAGE_SAMPLER => image(true, true),
        DescriptorType::SAMPLED_IMAGE | DescriptorType::STORAGE_IMAGE | DescriptorType::INPUT_ATTACHMENT => {
            image(false, true)
        }
        DescriptorType::UNIFORM_TEXEL_BUFFER | DescriptorType::STORAGE_TEXEL_BUFFER => {
            let view = descriptor.buffer_view();
            is_there(objects, view).then(|| Values::BufferViews(vec![view]))
        }
        DescriptorType::UNIFORM_BUFFER
        | DescriptorType::STORAGE_BUFFER
        | DescriptorType::UNIFORM_BUFFER_DYNAMIC
        | DescriptorType::STORAGE_BUFFER_DYNAMIC => {
            let info = descriptor.buffer();
            is_there(objects, info.buffer).then(|| Values::Buffers(vec![info]))
        }
        _ => None,
    }
}

/// Returns whether an object is alive, or the handle names none (`nullDescriptor`).
fn is_there(objects: &Table, handle: impl Handle) -> bool {
    handle.id() == 0 || objects.get(handle).is_ok()
}

/// Encodes one command, as guests do.
fn encode(device: venus::Device, set: venus::DescriptorSet, pieces: &[Piece], commands: &mut Writer<'_>) {
    let blocks: Vec<_> = pieces.iter().map(block).collect();
    let chain = |block| Option::map(block, ChainStruct::WriteDescriptorSetInlineUniformBlock);
    let chains: Vec<_> = blocks.iter().map(|block| chain(block.as_ref())).collect();
    let writes = pieces.iter().zip(&chains).map(|(piece, chain)| write(set, piece, chain.as_slice()));
    let writes: Vec<_> = writes.collect();
    let update = venus::UpdateDescriptorSets {
        device,
        descriptor_write_count: writes.len() as u32,
        p_descriptor_writes: Some(&writes),
        ..venus::UpdateDescriptorSets::default()
    };
    update.encode(CommandFlagsEXT(0), commands);
}

fn block(piece: &Piece) -> Option<venus::WriteDescriptorSetInlineUniformBlock<'_>> {
    match &piece.values {
        Values::Bytes(bytes) => Some(venus::WriteDescriptorSetInlineUniformBlock {
            p_next: &[],
            data_size: bytes.len() as u32,
            p_data: Some(bytes),
        }),
        _ => None,
    }
}

fn write<'p>(
    dst_set: venus::DescriptorSet,
    piece: &'p Piece,
    p_next: &'p [ChainStruct<'p>],
) -> WriteDescriptorSet<'p> {
    let mut write = WriteDescriptorSet {
        p_next,
        dst_set,
        dst_binding: piece.binding,
        dst_array_element: piece.element,
        descriptor_count: piece.values.count() as u32,
        descriptor_type: piece.ty,
        ..WriteDescriptorSet::default()
    };
    match &piece.values {
        Values::Images(infos) => write.p_image_info = Some(infos),
        Values::Buffers(infos) => write.p_buffer_info = Some(infos),
        Values::BufferViews(views) => write.p_texel_buffer_view = Some(views),
        Values::Bytes(_) => {}
    }
    write
}

#[cfg(test)]
#[path = "descriptors_tests.rs"]
mod tests;
