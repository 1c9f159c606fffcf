//! Checks of layouts of descriptor sets and of pipelines, and of the numbers that drivers multiply when they make pools and sets.

use crate::context::error::{Fault, demand};
use crate::kinds::layout::{Binding, SetFacts, SetLayout};
use crate::logical::device::Device;
use crate::lowering::lower::Lowering;
use protocol::venus::generated::{
    self as venus, ChainStruct, DescriptorBindingFlags, DescriptorSetLayoutCreateFlags,
};
use std::sync::Arc;

/// The most descriptors of one layout or pool, and sets of a pool. Multiplied by the size of the largest descriptor, this number fits into 32 bits.
const DESCRIPTORS: u64 = 1 << 24;

/// The largest number of a binding. Drivers keep arrays up to this number.
const BINDING: u32 = 1 << 20;

/// Checks the description of a layout of descriptor sets, and returns the facts about the layout.
pub(crate) fn of_bindings(
    l: &Lowering<'_>,
    info: Option<&venus::DescriptorSetLayoutCreateInfo<'_>>,
) -> Result<SetFacts, Fault> {
    let info = info.ok_or_else(|| Fault::invalid("a descriptor set layout without a description"))?;
    let bindings = info.p_bindings.unwrap_or(&[]);
    let flags = binding_flags(info)?;
    let mut facts = Vec::with_capacity(bindings.len());
    for (at, binding) in bindings.iter().enumerate() {
        let samplers = binding.p_immutable_samplers.unwrap_or(&[]);
        samplers.iter().try_for_each(|sampler| demand(sampler.0 != 0, "an immutable sampler is missing"))?;
        samplers.iter().try_for_each(|sampler| l.handle(*sampler).map(drop))?;
        facts.push(Binding {
            number: binding.binding,
            ty: binding.descriptor_type,
            count: binding.descriptor_count,
            stages: binding.stage_flags.0,
            immutable_samplers: !samplers.is_empty(),
            flags: flags.get(at).map_or(0, |flags| flags.0),
        });
    }
    facts.sort_unstable_by_key(|binding| binding.number);
    demand(facts.windows(2).all(|pair| pair[0].number != pair[1].number), "two bindings of one number")?;
    demand(facts.last().is_none_or(|last| last.number <= BINDING), "a binding of too large a number")?;
    let total: u64 = facts.iter().map(|binding| u64::from(binding.count)).sum();
    demand(total <= DESCRIPTORS, "too many descriptors in a layout (limit: descriptors)")?;
    let dynamic = facts.iter().filter(|binding| is_dynamic(binding.ty)).map(|binding| binding.count).sum();
    let push = info.flags.contains(DescriptorSetLayoutCreateFlags::PUSH_DESCRIPTOR);
    Ok(SetFacts { bindings: facts, dynamic, push })
}

fn binding_flags<'a>(
    info: &venus::DescriptorSetLayoutCreateInfo<'a>,
) -> Result<&'a [DescriptorBindingFlags], Fault> {
    let mut found: &[_] = &[];
    for next in info.p_next {
        match next {
            ChainStruct::DescriptorSetLayoutBindingFlagsCreateInfo(flags) => {
                found = flags.p_binding_flags.unwrap_or(&[]);
                let complete = flags.binding_count == 0
                    || flags.binding_count == info.binding_count
                        && found.len() == flags.binding_count as usize;
                demand(complete, "another number of binding flags than of bindings")?;
            }
            ChainStruct::MutableDescriptorTypeCreateInfoEXT(lists) => {
                let lists = lists.mutable_descriptor_type_list_count;
                demand(lists <= info.binding_count, "more lists of types than bindings")?;
            }
            _ => {}
        }
    }
    Ok(found)
}

fn is_dynamic(ty: venus::DescriptorType) -> bool {
    ty == venus::DescriptorType::UNIFORM_BUFFER_DYNAMIC || ty == venus::DescriptorType::STORAGE_BUFFER_DYNAMIC
}

/// Checks the description of a layout of pipelines, and returns the set layouts that it names.
pub(crate) fn of_pipelines(
    l: &Lowering<'_>,
    device: &Device,
    info: Option<&venus::PipelineLayoutCreateInfo<'_>>,
) -> Result<Vec<Option<Arc<SetLayout>>>, Fault> {
    let info = info.ok_or_else(|| Fault::invalid("a pipeline layout without a description"))?;
    let limits = &device.physical.limits;
    let open = info.flags.contains(venus::PipelineLayoutCreateFlags::INDEPENDENT_SETS_EXT);
    let ids = info.p_set_layouts.unwrap_or(&[]);
    demand(ids.len() <= limits.max_bound_descriptor_sets as usize, "more set layouts than the device takes")?;
    for range in info.p_push_constant_ranges.unwrap_or(&[]) {
        let end = u64::from(range.offset) + u64::from(range.size);
        demand(end <= limits.max_push_constants_size.into(), "more push constants than the device has")?;
    }
    let set = |id: &venus::DescriptorSetLayout| match id.0 {
        0 if open => Ok(None),
        0 => Err(Fault::invalid("a set layout is missing")),
        _ => Ok(Some(set_layout(l, *id)?)),
    };
    ids.iter().map(set).collect()
}

fn set_layout(l: &Lowering<'_>, id: venus::DescriptorSetLayout) -> Result<Arc<SetLayout>, Fault> {
    l.objects.get(id)?.shared::<venus::DescriptorSetLayout>()
}

/// `vkCreateDescriptorPool`: drivers add these numbers up and multiply them.
pub(crate) fn check_pool(info: &venus::DescriptorPoolCreateInfo<'_>) -> Result<(), Fault> {
    let sizes = info.p_pool_sizes.unwrap_or(&[]).iter().map(|size| u64::from(size.descriptor_count));
    demand(info.max_sets > 0, "a descriptor pool for no sets")?;
    let fits = u64::from(info.max_sets) <= DESCRIPTORS && sizes.sum::<u64>() <= DESCRIPTORS;
    demand(fits, "a descriptor pool for too many descriptors (limit: descriptors)")
}

/// `vkAllocateDescriptorSets`: the layout of each set, and the count of its variable binding.
pub(crate) fn of_new_sets(
    l: &Lowering<'_>,
    info: &venus::DescriptorSetAllocateInfo<'_>,
) -> Result<Vec<(Arc<SetLayout>, u32)>, Fault> {
    let ids = info.p_set_layouts.unwrap_or(&[]);
    let mut counts: &[u32] = &[];
    for next in info.p_next {
        if let ChainStruct::DescriptorSetVariableDescriptorCountAllocateInfo(variable) = next {
            counts = variable.p_descriptor_counts.unwrap_or(&[]);
            let complete = counts.len() == variable.descriptor_set_count as usize
                && (counts.is_empty() || counts.len() == ids.len());
            demand(complete, "another number of variable counts than of sets")?;
        }
    }
    let set = |(at, id): (usize, &venus::DescriptorSetLayout)| {
        demand(id.0 != 0, "a set layout is missing")?;
        let layout = set_layout(l, *id)?;
        demand(!layout.facts.push, "a set of a layout for push descriptors")?;
        let variable = layout.facts.bindings.last().filter(|binding| binding.is_variable());
        let count = counts.get(at).copied().unwrap_or_default();
        let most = variable.map_or(0, |binding| binding.count);
        demand(variable.is_none() || count <= most, "a larger count than the layout's")?;
        Ok((layout, count.min(most)))
    };
    ids.iter().enumerate().map(set).collect()
}
