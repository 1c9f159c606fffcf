//! Shader modules on their way to the driver: they are checked, their workgroup memory starts as zeros, and no shader reaches the driver otherwise.
//!
//! Code reaches the driver as a module or inside a pipeline's stage; each stage is checked against the module it names. A refused command
//! is answered with `VK_ERROR_INVALID_SHADER_NV`, and a guest that goes on finds a tombstone.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::context::error::Fault;
use crate::execution::call::Call;
use crate::kinds::shader::Shader;
use crate::logical::device::Device;
use crate::logical::shaders::Shaders;
use crate::objects::object::StateOf;
use ash::vk;
use protocol::spirv;
use protocol::venus::generated::{self as venus, ChainStruct};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

fn check(
    rules: &Shaders,
    call: &Call<'_>,
    words: &[u32],
    specialisation: Option<HashMap<u32, u64>>,
) -> Result<spirv::Module, Fault> {
    let device = spirv::Device {
        version: rules.version,
        has_capability: &|number| rules.capabilities.contains(&number),
        graphics: rules.graphics,
        workgroup_size: rules.device.max_compute_work_group_size,
        workgroup_invocations: rules.device.max_compute_work_group_invocations,
        workgroup_bytes: rules.device.max_compute_shared_memory_size,
        descriptor_sets: rules.device.max_bound_descriptor_sets,
        specialisation,
    };
    spirv::check(words, &device, &rules.limits).map_err(|error| refused(call, &error))
}

/// The module as the driver gets it.
fn prepare<'a>(
    rules: &Shaders,
    call: &Call<'a>,
    info: &venus::ShaderModuleCreateInfo<'a>,
) -> Result<(venus::ShaderModuleCreateInfo<'a>, Shader), Fault> {
    let words = info.p_code.unwrap_or(&[]);
    let module = check(rules, call, words, None)?;
    let kept = module.sizes_vary.then(|| words.to_vec());
    let mut prepared = *info;
    prepared.p_code = Some(words);
    if rules.zero_workgroup
        && let Some(rewritten) = spirv::zero::workgroup(words)
    {
        prepared.p_code = Some(call.arena.slice_copy(&rewritten)?);
    }
    prepared.code_size = prepared.p_code.map_or(0, size_of_val) as u64;
    Ok((prepared, Shader { module, words: kept }))
}

/// A stage of a pipeline with this layout as the driver gets it: code in its chain is prepared, its module has the entry point
/// that the stage names, and the layout has the bindings that it uses.
pub(crate) fn stage<'a>(
    rules: &Shaders,
    call: &Call<'a>,
    stage: &venus::PipelineShaderStageCreateInfo<'a>,
    layout: venus::PipelineLayout,
) -> Result<venus::PipelineShaderStageCreateInfo<'a>, Fault> {
    let mut prepared = *stage;
    let mut inside = None;
    let chain = call.arena.slice_try_fill(stage.p_next.len(), |i| match stage.p_next[i] {
        ChainStruct::ShaderModuleCreateInfo(info) => {
            let (info, shader) = prepare(rules, call, info)?;
            inside = Some(Arc::new(shader));
            Ok(ChainStruct::ShaderModuleCreateInfo(call.arena.value(info)?))
        }
        other => Ok::<_, Fault>(other),
    })?;
    prepared.p_next = chain;
    let shader = match (stage.module.0, inside) {
        (0, Some(inside)) => inside,
        // No other way to name code is served.
        (0, None) => return Err(invalid()),
        _ => call.state(stage.module)?,
    };
    let name = stage.p_name.ok_or_else(invalid)?.to_bytes();
    let models = models(stage.stage.0);
    let is_named = |entry: &spirv::EntryPoint| models.contains(&entry.model) && entry.name == name;
    let Some(at) = shader.module.entry_points.iter().position(is_named) else {
        return Err(refused(call, &"a pipeline names an entry point that its module lacks"));
    };
    let values = match stage.p_specialization_info {
        Some(info) => specialisation(call, info, &shader.module)?,
        None => HashMap::new(),
    };
    // The same module has the same entry points, whatever its constants are.
    let specialised =
        shader.words.as_ref().map(|words| check(rules, call, words, Some(values))).transpose()?;
    let module = specialised.as_ref().unwrap_or(&shader.module);
    let entry_point = module.entry_points.get(at).ok_or_else(invalid)?;
    entry_point.launch.map_err(|error| refused(call, &error))?;
    check_layout(call, module, at, layout)?;
    Ok(prepared)
}

/// Demands that a pipeline's layout has the bindings that an entry point uses (VUID-VkComputePipelineCreateInfo-layout-07988), for those sets
/// whose contents it states.
fn check_layout(
    call: &Call<'_>,
    module: &spirv::Module,
    entry_point: usize,
    layout: venus::PipelineLayout,
) -> Result<(), Fault> {
    if layout.0 == 0 {
        return Ok(());
    }
    let layout = call.state(layout)?;
    let used = module.resources.used_by(entry_point).map_err(|error| refused(call, &error))?;
    for (set, binding) in used {
        let is_there = match layout.sets.get(set as usize) {
            Some(Some(set)) => set.facts.place(binding).is_some(),
            // A pipeline library leaves the set open.
            Some(None) => true,
            None => false,
        };
        if !is_there {
            let missing =
                format_args!("a shader uses set {set}, binding {binding}, which its pipeline's layout lacks");
            return Err(refused(call, &missing));
        }
    }
    Ok(())
}

/// Execution models of a stage.
fn models(stage: u32) -> &'static [u32] {
    match stage {
        0x01 => &[0],
        0x02 => &[1],
        0x04 => &[2],
        0x08 => &[3],
        0x10 => &[4],
        0x20 => &[5],
        0x40 => &[5267, 5364],
        0x80 => &[5268, 5365],
        _ => &[],
    }
}

/// The values of specialisation constants that the module has, each inside the data and as wide as its constant.
fn specialisation(
    call: &Call<'_>,
    info: &venus::SpecializationInfo<'_>,
    module: &spirv::Module,
) -> Result<HashMap<u32, u64>, Fault> {
    let data = info.p_data.unwrap_or(&[]);
    let widths: HashMap<u32, u8> = module.specialisable.iter().copied().collect();
    let mut values = HashMap::new();
    for entry in info.p_map_entries.unwrap_or(&[]) {
        let start = entry.offset as usize;
        let bytes =
            usize::try_from(entry.size).ok().and_then(|size| data.get(start..start.checked_add(size)?));
        let Some(value) = bytes else {
            return Err(refused(call, &"a pipeline specialises a constant with what is outside its data"));
        };
        // A constant that the module does not have is not specialised, whatever the value's width.
        let Some(width) = widths.get(&entry.constant_id) else { continue };
        if value.len() != usize::from(*width) {
            return Err(refused(call, &"a pipeline specialises a constant with a value of another width"));
        }
        let mut number = [0; 8];
        number[..value.len()].copy_from_slice(value);
        values.insert(entry.constant_id, u64::from_le_bytes(number));
    }
    Ok(values)
}

/// Tells the operator why the driver does not get a shader, or a pipeline of a shader.
#[cold]
fn refused(call: &Call<'_>, reason: &dyn Display) -> Fault {
    call.context.env.allowance.shader_refused(reason);
    invalid()
}

fn invalid() -> Fault {
    vk::Result::ERROR_INVALID_SHADER_NV.into()
}

/// `vkCreateShaderModule`.
pub(crate) fn create_shader_module<'a>(
    call: &Call<'a>,
    c: &venus::CreateShaderModule<'a>,
) -> Result<venus::CreateShaderModuleReply<'a>, Fault> {
    let device = call.device(c.device)?;
    let Some(info) = c.p_create_info else {
        return Err(Fault::without("a description"));
    };
    let (raw, shader) = create(call, &device, info)?;
    call.bind(c.p_shader_module, raw, &device, 0, StateOf::of(shader))?;
    Ok(venus::CreateShaderModuleReply { result: venus::VkResult(0), p_shader_module: c.p_shader_module })
}

fn create<'a>(
    call: &Call<'a>,
    device: &Device,
    info: &venus::ShaderModuleCreateInfo<'a>,
) -> Result<(u64, Shader), Fault> {
    let Some(function) = device.table.create_shader_module else {
        return Err(Fault::missing("vkCreateShaderModule"));
    };
    let (info, shader) = prepare(&device.shaders, call, info)?;
    let lowered = call.lowering().pointer(Some(&info))?;
    let mut raw = 0u64;
    // SAFETY: the device is live, `lowered` and the code it points to live in the arena or in the command.
    let result = unsafe { function(device.raw(), lowered, std::ptr::null(), &raw mut raw) };
    if result < 0 { Err(Fault::Failed(result)) } else { Ok((raw, shader)) }
}
