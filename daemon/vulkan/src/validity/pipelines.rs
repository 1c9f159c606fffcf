//! Pipelines and their caches.

use crate::context::error::{Fault, demand};
use crate::kinds::pipeline::PipelineFacts;
use crate::lowering::lower::Lowering;
use crate::objects::object::StateOf;
use protocol::venus::generated as venus;

/// Returns the facts about a pipeline of this kind.
pub(crate) fn facts(
    l: &Lowering<'_>,
    bind_point: venus::PipelineBindPoint,
    layout: venus::PipelineLayout,
) -> Result<StateOf<venus::Pipeline>, Fault> {
    let layout =
        if layout.0 == 0 { None } else { Some(l.objects.get(layout)?.shared::<venus::PipelineLayout>()?) };
    Ok(StateOf::of(PipelineFacts { bind_point, layout }))
}

/// Checks descriptions of compute pipelines: each has a shader and a layout, and refers to no missing pipeline.
pub(crate) fn check_compute(infos: &[venus::ComputePipelineCreateInfo<'_>]) -> Result<(), Fault> {
    for (at, info) in infos.iter().enumerate() {
        demand(info.stage.p_name.is_some(), "a shader without an entry point")?;
        demand(info.stage.stage == venus::ShaderStageFlags::COMPUTE, "a compute pipeline of another stage")?;
        demand(info.layout.0 != 0, "a pipeline without a layout")?;
        if info.flags.contains(venus::PipelineCreateFlags::DERIVATIVE) {
            let earlier = usize::try_from(info.base_pipeline_index).is_ok_and(|base| base < at);
            let base = info.base_pipeline_handle.0 != 0 || earlier;
            demand(base, "a derivative of a pipeline that is not there")?;
        }
        check_specialization(info.stage.p_specialization_info)?;
    }
    Ok(())
}

/// Checks descriptions of graphics pipelines: entry points and specialisation only; the rest is up to the driver.
pub(crate) fn check_graphics(infos: &[venus::GraphicsPipelineCreateInfo<'_>]) -> Result<(), Fault> {
    let stages = infos.iter().flat_map(|info| info.p_stages.unwrap_or(&[]));
    for stage in stages {
        demand(stage.p_name.is_some(), "a shader without an entry point")?;
        check_specialization(stage.p_specialization_info)?;
    }
    Ok(())
}

/// Demands that specialisation constants lie in their data.
pub(crate) fn check_specialization(info: Option<&venus::SpecializationInfo<'_>>) -> Result<(), Fault> {
    let Some(info) = info else { return Ok(()) };
    let bytes = info.p_data.map_or(0, <[u8]>::len) as u64;
    for entry in info.p_map_entries.unwrap_or(&[]) {
        let end = u64::from(entry.offset).checked_add(entry.size);
        demand(end.is_some_and(|end| end <= bytes), "a specialisation constant outside of its data")?;
    }
    Ok(())
}
