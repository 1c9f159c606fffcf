//! A pipeline layout that fits a module: the bindings of its variables.

use anyhow::Result;
use protocol::venus::generated::{self as venus, DescriptorType};
use std::collections::{BTreeMap, HashMap};
use tests::guest::device::Device;
use tests::guest::ring::REPLY;

/// Descriptors of an array whose length is ignored.
const ARRAY: u32 = 16;
/// Bytes of push constants.
const PUSH_CONSTANTS: u32 = 128;

/// Set, binding, type of the descriptors, and their number.
type Binding = (u32, u32, DescriptorType, u32);

/// Layouts of sets, one binding after the other.
pub(crate) struct Layout(BTreeMap<u32, Vec<(u32, DescriptorType, u32)>>);

impl Layout {
    /// The layout with these bindings.
    pub(crate) fn of(bindings: &[Binding]) -> Self {
        let mut sets: BTreeMap<u32, Vec<(u32, DescriptorType, u32)>> = BTreeMap::new();
        for &(set, binding, kind, count) in bindings {
            let set = sets.entry(set).or_default();
            if set.iter().all(|(known, ..)| *known != binding) {
                set.push((binding, kind, count));
            }
        }
        Self(sets)
    }

    /// Makes the layout on a device.
    pub(crate) fn make(&self, vulkan: &mut Device) -> Result<venus::PipelineLayout> {
        let device = vulkan.device;
        let count = self.0.keys().max().map_or(0, |last| last + 1);
        let mut sets = Vec::new();
        for number in 0..count {
            let none = Vec::new();
            let bindings: Vec<_> = (self.0.get(&number).unwrap_or(&none).iter())
                .map(|&(binding, descriptor_type, descriptor_count)| venus::DescriptorSetLayoutBinding {
                    binding,
                    descriptor_type,
                    descriptor_count,
                    stage_flags: venus::ShaderStageFlags::COMPUTE,
                    p_immutable_samplers: None,
                })
                .collect();
            let info = venus::DescriptorSetLayoutCreateInfo {
                binding_count: bindings.len() as u32,
                p_bindings: Some(&bindings),
                ..Default::default()
            };
            let set = venus::DescriptorSetLayout(vulkan.new_id());
            let create = venus::CreateDescriptorSetLayout {
                device,
                p_create_info: Some(&info),
                p_set_layout: Some(&set),
            };
            vulkan.call(|w| create.encode(REPLY, w))?;
            sets.push(set);
        }
        let constants = [venus::PushConstantRange {
            stage_flags: venus::ShaderStageFlags::COMPUTE,
            offset: 0,
            size: PUSH_CONSTANTS,
        }];
        let info = venus::PipelineLayoutCreateInfo {
            set_layout_count: count,
            p_set_layouts: Some(&sets),
            push_constant_range_count: 1,
            p_push_constant_ranges: Some(&constants),
            ..Default::default()
        };
        let layout = venus::PipelineLayout(vulkan.new_id());
        let create = venus::CreatePipelineLayout {
            device,
            p_create_info: Some(&info),
            p_pipeline_layout: Some(&layout),
        };
        vulkan.call(|w| create.encode(REPLY, w))?;
        Ok(layout)
    }
}

/// The bindings of the variables of a module.
pub(crate) fn bindings(words: &[u32]) -> Vec<Binding> {
    let mut decorated: HashMap<(u32, u32), u32> = HashMap::new();
    let mut declared: HashMap<u32, (u32, &[u32])> = HashMap::new();
    let mut variables = Vec::new();
    let mut at = 5;
    while let Some(first) = words.get(at) {
        let length = (first >> 16).max(1) as usize;
        let operands = words.get(at + 1..at + length).unwrap_or(&[]);
        match (first & 0xffff, operands) {
            (71, [target, decoration, value @ ..]) => {
                decorated.insert((*target, *decoration), value.first().copied().unwrap_or(0));
            }
            (19..=33, [id, rest @ ..]) => {
                declared.insert(*id, (first & 0xffff, rest));
            }
            (59, [ty, id, class, ..]) => variables.push((*ty, *id, *class)),
            _ => {}
        }
        at += length;
    }
    let bound = |&(pointer, id, class): &(u32, u32, u32)| {
        let (set, binding) = (*decorated.get(&(id, 34))?, *decorated.get(&(id, 33))?);
        let (_, [_, contents, ..]) = declared.get(&pointer)? else { return None };
        let (mut ty, mut count) = (*contents, 1);
        while let Some((28..=29, [element, ..])) = declared.get(&ty) {
            (ty, count) = (*element, ARRAY);
        }
        let kind = match (class, declared.get(&ty)?) {
            (12, _) => DescriptorType::STORAGE_BUFFER,
            (2, _) if decorated.contains_key(&(ty, 3)) => DescriptorType::STORAGE_BUFFER,
            (2, _) => DescriptorType::UNIFORM_BUFFER,
            (_, (26, _)) => DescriptorType::SAMPLER,
            (_, (27, _)) => DescriptorType::COMBINED_IMAGE_SAMPLER,
            (_, (25, [_, 5, _, _, _, 2, ..])) => DescriptorType::STORAGE_TEXEL_BUFFER,
            (_, (25, [_, 5, ..])) => DescriptorType::UNIFORM_TEXEL_BUFFER,
            (_, (25, [_, _, _, _, _, 2, ..])) => DescriptorType::STORAGE_IMAGE,
            _ => DescriptorType::SAMPLED_IMAGE,
        };
        Some((set, binding, kind, count))
    };
    variables.iter().filter_map(bound).collect()
}
