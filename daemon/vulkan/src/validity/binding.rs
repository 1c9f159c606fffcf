//! Bindings and dispatches in recordings: drivers copy bound objects into arrays of a fixed size, and read these arrays without a check.

use super::writes;
use crate::context::error::{Fault, demand};
use crate::kinds::buffer::BufferFacts;
use crate::kinds::command_buffer::RecordingState;
use crate::kinds::layout::SetLayout;
use crate::lowering::lower::Lowering;
use protocol::venus::generated as venus;
use std::sync::Arc;

/// `vkCmdBindPipeline`.
pub(crate) fn cmd_bind_pipeline(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdBindPipeline,
) -> Result<(), Fault> {
    let bind_point = l.objects.pipeline(c.pipeline)?.bind_point;
    demand(bind_point == c.pipeline_bind_point, "a pipeline is bound as one of another kind")?;
    match bind_point {
        venus::PipelineBindPoint::COMPUTE => state.bound.compute = true,
        _ => state.bound.graphics = true,
    }
    Ok(())
}

/// Demands that sets bound by one command fit a layout.
fn demand_sets(
    l: &Lowering<'_>,
    layout: venus::PipelineLayout,
    first: u32,
    ids: &[venus::DescriptorSet],
    dynamic: usize,
) -> Result<(), Fault> {
    let layout = l.objects.pipeline_layout(layout)?;
    let slots = layout.sets.get(first as usize..).and_then(|slots| slots.get(..ids.len()));
    let slots = slots.ok_or_else(|| Fault::invalid("more descriptor sets than the layout has"))?;
    let mut wanted = 0;
    for (id, slot) in ids.iter().zip(slots) {
        if id.0 == 0 {
            demand(slot.is_none(), "a descriptor set is missing")?;
            continue;
        }
        let set = l.objects.state(*id)?;
        let slot =
            slot.as_ref().ok_or_else(|| Fault::invalid("a descriptor set where the layout has none"))?;
        demand(same(&set.layout, slot), "a descriptor set of another layout")?;
        wanted += set.layout.facts.dynamic as usize;
    }
    demand(dynamic == wanted, "another number of dynamic offsets than of dynamic descriptors")
}

/// Returns whether two layouts are "identically defined", in the parts that drivers compute offsets of.
fn same(one: &Arc<SetLayout>, other: &Arc<SetLayout>) -> bool {
    Arc::ptr_eq(one, other) || one.facts == other.facts
}

/// `vkCmdBindDescriptorSets`.
pub(crate) fn cmd_bind_descriptor_sets(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdBindDescriptorSets<'_>,
) -> Result<(), Fault> {
    let offsets = c.p_dynamic_offsets.map_or(0, <[u32]>::len);
    demand_sets(l, c.layout, c.first_set, c.p_descriptor_sets.unwrap_or(&[]), offsets)
}

/// `vkCmdBindDescriptorSets2`.
pub(crate) fn cmd_bind_descriptor_sets2(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdBindDescriptorSets2<'_>,
) -> Result<(), Fault> {
    let info = c.p_bind_descriptor_sets_info.ok_or_else(|| Fault::invalid("sets without a description"))?;
    let offsets = info.p_dynamic_offsets.map_or(0, <[u32]>::len);
    demand_sets(l, info.layout, info.first_set, info.p_descriptor_sets.unwrap_or(&[]), offsets)
}

fn demand_push(
    l: &Lowering<'_>,
    layout: venus::PipelineLayout,
    set: u32,
    descriptors: Option<&[venus::WriteDescriptorSet<'_>]>,
) -> Result<(), Fault> {
    let layout = l.objects.pipeline_layout(layout)?;
    let slot = layout.sets.get(set as usize).and_then(Option::as_ref).filter(|slot| slot.facts.push);
    let slot = slot.ok_or_else(|| Fault::invalid("descriptors are pushed where the layout takes none"))?;
    let mut all = descriptors.unwrap_or(&[]).iter();
    all.try_for_each(|write| writes::check_write(l, &slot.facts, 0, write))
}

/// `vkCmdPushDescriptorSet`.
pub(crate) fn cmd_push_descriptor_set(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdPushDescriptorSet<'_>,
) -> Result<(), Fault> {
    demand_push(l, c.layout, c.set, c.p_descriptor_writes)
}

/// `vkCmdPushDescriptorSet2`.
pub(crate) fn cmd_push_descriptor_set2(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdPushDescriptorSet2<'_>,
) -> Result<(), Fault> {
    let info = c.p_push_descriptor_set_info.ok_or_else(|| Fault::invalid("a push without a description"))?;
    demand_push(l, info.layout, info.set, info.p_descriptor_writes)
}

fn demand_constants(
    l: &Lowering<'_>,
    layout: venus::PipelineLayout,
    (offset, size): (u32, u32),
    values: Option<&[u8]>,
) -> Result<(), Fault> {
    let limits = l.objects.pipeline_layout(layout)?.host.limits();
    let end = u64::from(offset) + u64::from(size);
    let words = offset.is_multiple_of(4) && size.is_multiple_of(4);
    let inside = words && end <= limits.max_push_constants_size.into();
    demand(inside && values.is_some(), "push constants outside of what the device has")
}

/// `vkCmdPushConstants`.
pub(crate) fn cmd_push_constants(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdPushConstants<'_>,
) -> Result<(), Fault> {
    demand_constants(l, c.layout, (c.offset, c.size), c.p_values)
}

/// `vkCmdPushConstants2`.
pub(crate) fn cmd_push_constants2(
    l: &Lowering<'_>,
    _: &mut RecordingState,
    c: &venus::CmdPushConstants2<'_>,
) -> Result<(), Fault> {
    let info = c.p_push_constants_info.ok_or_else(|| Fault::invalid("constants without a description"))?;
    demand_constants(l, info.layout, (info.offset, info.size), info.p_values)
}

const NO_PIPELINE: &str = "a dispatch without a compute pipeline";

fn demand_groups(state: &RecordingState, base: [u32; 3], count: [u32; 3]) -> Result<(), Fault> {
    demand(state.bound.compute, NO_PIPELINE)?;
    let most = state.most_groups;
    let fits = |at: usize| u64::from(base[at]) + u64::from(count[at]) <= most[at].into();
    demand((0..3).all(fits), "a dispatch of more groups than the device takes")
}

/// `vkCmdDispatch`.
pub(crate) fn cmd_dispatch(
    _: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdDispatch,
) -> Result<(), Fault> {
    demand_groups(state, [0; 3], [c.group_count_x, c.group_count_y, c.group_count_z])
}

/// `vkCmdDispatchBase`.
pub(crate) fn cmd_dispatch_base(
    _: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdDispatchBase,
) -> Result<(), Fault> {
    let base = [c.base_group_x, c.base_group_y, c.base_group_z];
    demand_groups(state, base, [c.group_count_x, c.group_count_y, c.group_count_z])
}

/// `vkCmdDispatchIndirect`.
pub(crate) fn cmd_dispatch_indirect(
    l: &Lowering<'_>,
    state: &mut RecordingState,
    c: &venus::CmdDispatchIndirect,
) -> Result<(), Fault> {
    demand(state.bound.compute, NO_PIPELINE)?;
    let buffer: &BufferFacts = l.objects.buffer(c.buffer)?;
    demand(c.offset.is_multiple_of(4), "an indirect dispatch of parts of words")?;
    buffer.demand(c.offset, 12, "an indirect dispatch outside of its buffer")
}
