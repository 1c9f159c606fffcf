//! Descriptors as they were last written into a set, by the guest's ids, so that a successor can write it again.
//!
//! No driver lets descriptors be read. The kept descriptors never exceed the layout's, and a binding costs nothing until a descriptor is
//! written into it. They are kept with the set in its pool, under the pool's lock. Ids are not looked up: their objects may be gone.

use super::layout::{Binding, SetFacts};
use protocol::venus::generated::{self as venus, ChainStruct, DescriptorType};
use smallvec::SmallVec;

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The type, which a mutable binding leaves open; [`Descriptor::NOTHING`] has none.
    pub ty: DescriptorType,
    /// Sampler, image view and layout; or buffer, offset and range; or a buffer view.
    words: [u64; 3],
}

impl Descriptor {
    /// A descriptor that was never written.
    pub const NOTHING: Self = Self { ty: DescriptorType(i32::MIN), words: [0; 3] };

    /// Returns the written value, if it was an image or a sampler.
    pub fn image(&self) -> venus::DescriptorImageInfo {
        let [sampler, view, layout] = self.words;
        venus::DescriptorImageInfo {
            sampler: venus::Sampler(sampler),
            image_view: venus::ImageView(view),
            image_layout: venus::ImageLayout(layout as i32),
        }
    }

    /// Returns the written value, if it was a buffer.
    pub fn buffer(&self) -> venus::DescriptorBufferInfo {
        let [buffer, offset, range] = self.words;
        venus::DescriptorBufferInfo { buffer: venus::Buffer(buffer), offset, range }
    }

    /// Returns the written value, if it was a buffer view.
    pub fn buffer_view(&self) -> venus::BufferView {
        venus::BufferView(self.words[0])
    }
}

/// The descriptors of one binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// Descriptors, up to the last written one.
    Descriptors(Vec<Descriptor>),
    /// The bytes of an inline uniform block, up to the last written one.
    Bytes(Vec<u8>),
}

/// The descriptors of one set.
#[derive(Debug, Default)]
pub struct Contents {
    /// One value for each binding of the layout, in its order; empty if nothing was written.
    bindings: Box<[Held]>,
}

impl Contents {
    /// Returns the bindings of a set and their contents; none if nothing was written into the set.
    pub fn bindings<'s>(&'s self, facts: &'s SetFacts) -> impl Iterator<Item = (&'s Binding, &'s Held)> {
        facts.bindings.iter().zip(&self.bindings)
    }

    /// Notes a write, which was checked to stay within the bindings of the set.
    #[inline]
    pub fn write(&mut self, facts: &SetFacts, variable_count: u32, write: &venus::WriteDescriptorSet<'_>) {
        if !self.write_again(facts, write) {
            self.write_any(facts, variable_count, write);
        }
    }

    /// Notes a write of one buffer over another, as most writes are: with this function, an update of four descriptors takes 160 of
    /// 4 950 instructions less. Returns whether the write is such a write.
    #[inline]
    fn write_again(&mut self, facts: &SetFacts, write: &venus::WriteDescriptorSet<'_>) -> bool {
        let ty = write.descriptor_type;
        if let DescriptorType::UNIFORM_BUFFER
        | DescriptorType::STORAGE_BUFFER
        | DescriptorType::UNIFORM_BUFFER_DYNAMIC
        | DescriptorType::STORAGE_BUFFER_DYNAMIC = ty
            && let Some([info]) = write.p_buffer_info
            && let number = write.dst_binding
            && facts.bindings.get(number as usize).is_some_and(|binding| binding.number == number)
            && let Some(Held::Descriptors(held)) = self.bindings.get_mut(number as usize)
            && let Some(slot) = held.get_mut(write.dst_array_element as usize)
        {
            *slot = Descriptor { ty, words: [info.buffer.0, info.offset, info.range] };
            return true;
        }
        false
    }

    #[inline(never)]
    fn write_any(&mut self, facts: &SetFacts, variable_count: u32, write: &venus::WriteDescriptorSet<'_>) {
        if self.bindings.is_empty() {
            self.bindings = emptied(facts);
        }
        let to = Span { facts, variable_count, number: write.dst_binding, element: write.dst_array_element };
        let ty = write.descriptor_type;
        match ty {
            DescriptorType::UNIFORM_BUFFER
            | DescriptorType::STORAGE_BUFFER
            | DescriptorType::UNIFORM_BUFFER_DYNAMIC
            | DescriptorType::STORAGE_BUFFER_DYNAMIC => {
                self.put(&to, write.p_buffer_info.unwrap_or(&[]), |info| Descriptor {
                    ty,
                    words: [info.buffer.0, info.offset, info.range],
                });
            }
            DescriptorType::UNIFORM_TEXEL_BUFFER | DescriptorType::STORAGE_TEXEL_BUFFER => {
                let views = write.p_texel_buffer_view.unwrap_or(&[]);
                self.put(&to, views, |view| Descriptor { ty, words: [view.0, 0, 0] });
            }
            DescriptorType::INLINE_UNIFORM_BLOCK => self.put_bytes(&to, inline_data(write)),
            _ => self.put(&to, write.p_image_info.unwrap_or(&[]), |info| Descriptor {
                ty,
                words: [info.sampler.0, info.image_view.0, info.image_layout.0 as u64],
            }),
        }
    }

    /// Returns the descriptors that a copy takes from the set, from an element of a binding on.
    pub fn copied(&self, from: &Span<'_>, count: u32) -> Copied {
        let mut copied = Copied::default();
        for Piece { at, element, before: _, count } in from.pieces(count) {
            match self.bindings.get(at) {
                Some(Held::Bytes(bytes)) => {
                    let held = bytes.get(element..).unwrap_or_default().iter().copied();
                    copied.bytes.extend(held.chain(std::iter::repeat(0)).take(count));
                }
                Some(Held::Descriptors(held)) => {
                    let held = held.get(element..).unwrap_or_default().iter().copied();
                    let held = held.chain(std::iter::repeat(Descriptor::NOTHING)).take(count);
                    copied.descriptors.extend(held);
                }
                None => copied.descriptors.extend(std::iter::repeat_n(Descriptor::NOTHING, count)),
            }
        }
        copied
    }

    /// Notes the descriptors that a copy puts into the set, from an element of a binding on.
    pub fn paste(&mut self, to: &Span<'_>, copied: &Copied) {
        if self.bindings.is_empty() {
            self.bindings = emptied(to.facts);
        }
        self.put(to, &copied.descriptors, |descriptor| *descriptor);
        self.put_bytes(to, &copied.bytes);
    }

    #[inline]
    fn put<T>(&mut self, to: &Span<'_>, values: &[T], descriptor: impl Fn(&T) -> Descriptor) {
        let element = to.element as usize;
        let held = to.first().and_then(|at| self.bindings.get_mut(at));
        // An element that was written once has room.
        if let Some(Held::Descriptors(held)) = held
            && let Some(held) = held.get_mut(element..element + values.len())
        {
            held.iter_mut().zip(values).for_each(|(slot, value)| *slot = descriptor(value));
        } else {
            self.put_anew(to, values, descriptor);
        }
    }

    #[cold]
    fn put_anew<T>(&mut self, to: &Span<'_>, values: &[T], descriptor: impl Fn(&T) -> Descriptor) {
        for Piece { at, element, before, count } in to.pieces(values.len() as u32) {
            let Some(Held::Descriptors(held)) = self.bindings.get_mut(at) else { continue };
            let end = element + count;
            if held.len() < end {
                held.resize(end, Descriptor::NOTHING);
            }
            let values = values.iter().skip(before);
            held[element..end].iter_mut().zip(values).for_each(|(slot, value)| *slot = descriptor(value));
        }
    }

    fn put_bytes(&mut self, to: &Span<'_>, bytes: &[u8]) {
        for Piece { at, element, before, count } in to.pieces(bytes.len() as u32) {
            let Some(Held::Bytes(held)) = self.bindings.get_mut(at) else { continue };
            let end = element + count;
            if held.len() < end {
                held.resize(end, 0);
            }
            held[element..end].copy_from_slice(&bytes[before..before + count]);
        }
    }
}

/// Descriptors on their way from one set to another.
#[derive(Debug, Default)]
pub struct Copied {
    descriptors: SmallVec<[Descriptor; 2]>,
    bytes: Vec<u8>,
}

/// The place in a set at which descriptors begin.
pub struct Span<'s> {
    /// The set's layout.
    pub facts: &'s SetFacts,
    /// Descriptors in the binding whose count is variable.
    pub variable_count: u32,
    /// The number of the first binding.
    pub number: u32,
    /// The first element, from that binding on.
    pub element: u32,
}

/// Descriptors of one binding, among those that one command writes.
struct Piece {
    /// The place of the binding in the layout.
    at: usize,
    /// The first of the descriptors.
    element: usize,
    /// The number of descriptors of the command that go into earlier bindings.
    before: usize,
    /// The number of descriptors, at least 1.
    count: usize,
}

impl<'s> Span<'s> {
    /// The place of the first binding in the layout.
    #[inline]
    fn first(&self) -> Option<usize> {
        self.facts.place(self.number)
    }

    /// Splits descriptors by their bindings: descriptors beyond a binding's own number go into the bindings that follow.
    fn pieces(&self, count: u32) -> impl Iterator<Item = Piece> + use<'s> {
        let first = self.first().unwrap_or(usize::MAX);
        let (variable_count, mut element, mut before) = (self.variable_count, self.element, 0);
        let pieces = self.facts.bindings.iter().enumerate().skip(first).map_while(move |(at, binding)| {
            let left = count - before;
            let room = binding.room(variable_count).saturating_sub(element);
            let count = left.min(room);
            let piece =
                Piece { at, element: element as usize, before: before as usize, count: count as usize };
            element = element.saturating_sub(binding.room(variable_count));
            before += count;
            (left > 0).then_some(piece)
        });
        pieces.filter(|piece| piece.count > 0)
    }
}

fn emptied(facts: &SetFacts) -> Box<[Held]> {
    let held = |binding: &Binding| match binding.ty {
        DescriptorType::INLINE_UNIFORM_BLOCK => Held::Bytes(Vec::new()),
        _ => Held::Descriptors(Vec::new()),
    };
    facts.bindings.iter().map(held).collect()
}

fn inline_data<'a>(write: &venus::WriteDescriptorSet<'a>) -> &'a [u8] {
    let data = write.p_next.iter().find_map(|next| match next {
        ChainStruct::WriteDescriptorSetInlineUniformBlock(block) => block.p_data,
        _ => None,
    });
    data.unwrap_or_default()
}

#[cfg(test)]
#[path = "descriptors_tests.rs"]
mod tests;
