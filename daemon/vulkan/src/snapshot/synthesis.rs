//! Commands that no guest sent, and the objects that commands of guests have made.

use super::saved::NotMovable;
use protocol::cursor::{Arena, Reader, Writer};
use protocol::venus::generated::{self as venus, Command, ObjectType};
use protocol::venus::stream::Header;

/// Bytes for a command that names few objects, and for each further object.
const ROOM: usize = 256;
const ROOM_EACH: usize = 16;

/// The flags of a command whose reply is not needed.
pub(super) const NO_REPLY: venus::CommandFlagsEXT = venus::CommandFlagsEXT(0);

/// Returns the encoding of a command that names `count` objects, as `encode` writes it. So the program contains encoders only of our own commands.
///
/// # Errors
///
/// The encoding is longer than the room for `count` objects.
pub(super) fn encoded(count: usize, encode: impl FnOnce(&mut Writer<'_>)) -> Result<Vec<u8>, NotMovable> {
    let mut bytes = vec![0; ROOM + count.saturating_mul(ROOM_EACH)];
    let mut writer = Writer::window(&mut bytes);
    encode(&mut writer);
    let length = writer.finish().map_err(|error| NotMovable::ever(format!("a command of ours: {error}")))?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Decodes a command that was executed before, and calls `look` with it.
///
/// # Errors
///
/// The bytes are no command.
pub(super) fn decoded<T>(
    bytes: &[u8],
    arena: &mut Arena,
    look: impl FnOnce(&Command<'_>) -> T,
) -> Result<T, NotMovable> {
    arena.reset();
    Ok(look(&next(&mut Reader::new(bytes, arena), "a command that made an object")?))
}

/// Decodes commands that follow each other, and calls `look` with each.
///
/// # Errors
///
/// The bytes are no commands.
pub(super) fn each_decoded(
    mut bytes: &[u8],
    arena: &mut Arena,
    mut look: impl FnMut(&Command<'_>),
) -> Result<(), NotMovable> {
    while !bytes.is_empty() {
        arena.reset();
        let mut reader = Reader::new(bytes, arena);
        look(&next(&mut reader, "a command that was recorded")?);
        bytes = &bytes[reader.offset()..];
    }
    Ok(())
}

/// Returns the next command; an error names it by `what`.
fn next<'a>(reader: &mut Reader<'a>, what: &str) -> Result<Command<'a>, NotMovable> {
    let command = Header::decode(reader).and_then(|header| Command::decode(header.number, reader));
    command.map_err(|error| NotMovable::ever(format!("{what}: {error}")))
}

/// Returns the ids that a command gave, if it makes several objects that can be destroyed one by one.
pub(super) fn ids(command: &Command<'_>) -> Vec<u64> {
    match command {
        Command::AllocateDescriptorSets(c) => {
            c.p_descriptor_sets.unwrap_or(&[]).iter().map(|id| id.0).collect()
        }
        Command::AllocateCommandBuffers(c) => {
            c.p_command_buffers.unwrap_or(&[]).iter().map(|id| id.0).collect()
        }
        Command::CreateGraphicsPipelines(c) => c.p_pipelines.unwrap_or(&[]).iter().map(|id| id.0).collect(),
        Command::CreateComputePipelines(c) => c.p_pipelines.unwrap_or(&[]).iter().map(|id| id.0).collect(),
        _ => Vec::new(),
    }
}

/// Returns the encoding of commands that destroy some of the objects that `command` made.
///
/// # Errors
///
/// The objects that `command` made cannot be destroyed one by one.
pub(super) fn undone(command: &Command<'_>, gone: &[u64]) -> Result<Vec<u8>, NotMovable> {
    let count = gone.len() as u32;
    match command {
        Command::AllocateDescriptorSets(c) => {
            let sets: Vec<_> = gone.iter().map(|id| venus::DescriptorSet(*id)).collect();
            let descriptor_pool =
                c.p_allocate_info.map_or(venus::DescriptorPool(0), |info| info.descriptor_pool);
            let (device, p_descriptor_sets) = (c.device, Some(&sets[..]));
            let free = venus::FreeDescriptorSets {
                device,
                descriptor_pool,
                descriptor_set_count: count,
                p_descriptor_sets,
            };
            encoded(gone.len(), |w| free.encode(NO_REPLY, w))
        }
        Command::AllocateCommandBuffers(c) => {
            let buffers: Vec<_> = gone.iter().map(|id| venus::CommandBuffer(*id)).collect();
            let command_pool = c.p_allocate_info.map_or(venus::CommandPool(0), |info| info.command_pool);
            let (device, p_command_buffers) = (c.device, Some(&buffers[..]));
            let free = venus::FreeCommandBuffers {
                device,
                command_pool,
                command_buffer_count: count,
                p_command_buffers,
            };
            encoded(gone.len(), |w| free.encode(NO_REPLY, w))
        }
        Command::CreateGraphicsPipelines(venus::CreateGraphicsPipelines { device, .. })
        | Command::CreateComputePipelines(venus::CreateComputePipelines { device, .. }) => {
            let all = gone.iter().map(|id| destruction(ObjectType::PIPELINE, device.0, *id));
            Ok(all.collect::<Result<Vec<_>, _>>()?.concat())
        }
        _ => Err(NotMovable::ever("some of the objects that one command made are destroyed")),
    }
}

/// Returns the encoding of the command that destroys an object that others were made of.
///
/// # Errors
///
/// Nothing is made of objects of this kind.
pub(super) fn destruction(kind: ObjectType, device: u64, id: u64) -> Result<Vec<u8>, NotMovable> {
    let device = venus::Device(device);
    match kind {
        ObjectType::INSTANCE => {
            let destroy = venus::DestroyInstance { instance: venus::Instance(id) };
            return encoded(0, |w| destroy.encode(NO_REPLY, w));
        }
        ObjectType::DEVICE => {
            let destroy = venus::DestroyDevice { device: venus::Device(id) };
            return encoded(0, |w| destroy.encode(NO_REPLY, w));
        }
        _ => {}
    }
    macro_rules! destroy {
        ($($kind:ident => $command:ident $type:ident $field:ident),* $(,)?) => {
            match kind {
                $(ObjectType::$kind => {
                    let destroy = venus::$command { device, $field: venus::$type(id) };
                    encoded(0, |w| destroy.encode(NO_REPLY, w))
                })*
                _ => Err(NotMovable::ever(format!("something was made of an object of kind {}", kind.0))),
            }
        };
    }
    destroy! {
        IMAGE_VIEW => DestroyImageView ImageView image_view,
        SAMPLER => DestroySampler Sampler sampler,
        SAMPLER_YCBCR_CONVERSION => DestroySamplerYcbcrConversion SamplerYcbcrConversion ycbcr_conversion,
        DESCRIPTOR_SET_LAYOUT => DestroyDescriptorSetLayout DescriptorSetLayout descriptor_set_layout,
        PIPELINE_LAYOUT => DestroyPipelineLayout PipelineLayout pipeline_layout,
        RENDER_PASS => DestroyRenderPass RenderPass render_pass,
        SHADER_MODULE => DestroyShaderModule ShaderModule shader_module,
        PIPELINE_CACHE => DestroyPipelineCache PipelineCache pipeline_cache,
        PIPELINE => DestroyPipeline Pipeline pipeline,
        DEVICE_MEMORY => FreeMemory DeviceMemory memory,
    }
}
