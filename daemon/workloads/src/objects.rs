//! The objects that the workloads use, and the commands that make them.

use daemon::worker::workload::REPLIES;
use protocol::cursor::Writer;
use protocol::venus::generated::{self as venus, ChainStruct, CommandFlagsEXT};

/// The guest does not wait for the reply.
pub(crate) const ASYNC: CommandFlagsEXT = CommandFlagsEXT(0);
/// The guest waits for the reply.
pub(crate) const REPLY: CommandFlagsEXT = CommandFlagsEXT::GENERATE_REPLY;

pub(crate) const DEVICE: venus::Device = venus::Device(3);
pub(crate) const QUEUE: venus::Queue = venus::Queue(4);
pub(crate) const POOL: venus::CommandPool = venus::CommandPool(5);
/// The command buffer that the workloads record.
pub(crate) const RECORDED: venus::CommandBuffer = venus::CommandBuffer(6);
/// The command buffer with one dispatch.
pub(crate) const READY: venus::CommandBuffer = venus::CommandBuffer(7);
pub(crate) const MEMORY: venus::DeviceMemory = venus::DeviceMemory(8);
pub(crate) const BUFFERS: [venus::Buffer; 4] =
    [venus::Buffer(10), venus::Buffer(11), venus::Buffer(12), venus::Buffer(13)];
pub(crate) const SET_LAYOUT: venus::DescriptorSetLayout = venus::DescriptorSetLayout(20);
pub(crate) const LAYOUT: venus::PipelineLayout = venus::PipelineLayout(21);
pub(crate) const DESCRIPTOR_POOL: venus::DescriptorPool = venus::DescriptorPool(22);
pub(crate) const SET: venus::DescriptorSet = venus::DescriptorSet(23);
pub(crate) const SHADER: venus::ShaderModule = venus::ShaderModule(24);
pub(crate) const PIPELINE: venus::Pipeline = venus::Pipeline(25);
pub(crate) const FENCE: venus::Fence = venus::Fence(26);
pub(crate) const QUERIES: venus::QueryPool = venus::QueryPool(27);
pub(crate) const SEMAPHORE: venus::Semaphore = venus::Semaphore(28);
/// The object that the workloads make and destroy.
pub(crate) const SPARE: u64 = 30;
/// The first of the objects that only live.
const OTHERS: u64 = 1000;

/// Bytes of each buffer.
pub(crate) const BUFFER_BYTES: u64 = 1 << 16;

/// Device memory, and memory that can be mapped.
pub(crate) const MEMORY_TYPES: [u32; 2] = [0, 1];

/// A compute shader that does nothing, for SPIR-V 1.0: its head, Shader, Logical GLSL450, an entry "main" of one invocation in a group.
const CODE: [u32; 35] = [
    0x0723_0203,
    0x0001_0000,
    0,
    5,
    0, // ids below 5
    0x0002_0011,
    1, // OpCapability
    0x0003_000e,
    0,
    1, // OpMemoryModel
    0x0005_000f,
    5,
    3,
    0x6e69_616d,
    0, // OpEntryPoint
    0x0006_0010,
    3,
    17,
    1,
    1,
    1, // OpExecutionMode
    0x0002_0013,
    1, // OpTypeVoid
    0x0003_0021,
    2,
    1, // OpTypeFunction
    0x0005_0036,
    1,
    3,
    0,
    2, // OpFunction
    0x0002_00f8,
    4,           // OpLabel
    0x0001_00fd, // OpReturn
    0x0001_0038, // OpFunctionEnd
];

/// Makes all objects, and in addition `live` buffers and `live` command buffers that only live.
pub(crate) fn prepare(live: u32) -> Vec<u8> {
    let mut writer = Writer::growing();
    let w = &mut writer;
    let replies = venus::CommandStreamDescriptionMESA { resource_id: REPLIES.0, offset: 0, size: REPLIES.1 };
    venus::SetReplyCommandStreamMESA { p_stream: Some(&replies) }.encode(ASYNC, w);
    device(w);
    memory(w);
    descriptors(w);
    pipeline(w);
    let p_create_info = Some(&venus::FenceCreateInfo::default());
    venus::CreateFence { device: DEVICE, p_create_info, p_fence: Some(&FENCE) }.encode(ASYNC, w);
    let kind = venus::SemaphoreTypeCreateInfo {
        semaphore_type: venus::SemaphoreType::TIMELINE,
        ..venus::SemaphoreTypeCreateInfo::default()
    };
    let chain = [ChainStruct::SemaphoreTypeCreateInfo(&kind)];
    let info = venus::SemaphoreCreateInfo { p_next: &chain, ..Default::default() };
    venus::CreateSemaphore { device: DEVICE, p_create_info: Some(&info), p_semaphore: Some(&SEMAPHORE) }
        .encode(ASYNC, w);
    let info = venus::QueryPoolCreateInfo {
        query_type: venus::QueryType::TIMESTAMP,
        query_count: 8,
        ..venus::QueryPoolCreateInfo::default()
    };
    venus::CreateQueryPool { device: DEVICE, p_create_info: Some(&info), p_query_pool: Some(&QUERIES) }
        .encode(ASYNC, w);
    recorded(w);
    others(w, live);
    writer.into_bytes()
}

fn device(w: &mut Writer<'_>) {
    let (instance, physical_device) = (venus::Instance(1), venus::PhysicalDevice(2));
    let p_create_info = Some(&venus::InstanceCreateInfo::default());
    venus::CreateInstance { p_create_info, p_instance: Some(&instance) }.encode(ASYNC, w);
    venus::EnumeratePhysicalDevices {
        instance,
        p_physical_device_count: Some(&1),
        p_physical_devices: Some(&[physical_device]),
    }
    .encode(ASYNC, w);
    let queues = [venus::DeviceQueueCreateInfo {
        queue_count: 1,
        p_queue_priorities: Some(&[1.0]),
        ..venus::DeviceQueueCreateInfo::default()
    }];
    let info = venus::DeviceCreateInfo {
        queue_create_info_count: 1,
        p_queue_create_infos: Some(&queues),
        ..venus::DeviceCreateInfo::default()
    };
    venus::CreateDevice { physical_device, p_create_info: Some(&info), p_device: Some(&DEVICE) }
        .encode(ASYNC, w);
    let timeline = venus::DeviceQueueTimelineInfoMESA { ring_idx: 1, ..Default::default() };
    let chain = [ChainStruct::DeviceQueueTimelineInfoMESA(&timeline)];
    let info = venus::DeviceQueueInfo2 { p_next: &chain, ..Default::default() };
    venus::GetDeviceQueue2 { device: DEVICE, p_queue_info: Some(&info), p_queue: Some(&QUEUE) }
        .encode(ASYNC, w);
    let p_create_info = Some(&venus::CommandPoolCreateInfo::default());
    venus::CreateCommandPool { device: DEVICE, p_create_info, p_command_pool: Some(&POOL) }.encode(ASYNC, w);
    command_buffers(w, &[RECORDED, READY]);
}

fn command_buffers(w: &mut Writer<'_>, made: &[venus::CommandBuffer]) {
    let info = venus::CommandBufferAllocateInfo {
        command_pool: POOL,
        command_buffer_count: made.len() as u32,
        ..venus::CommandBufferAllocateInfo::default()
    };
    venus::AllocateCommandBuffers {
        device: DEVICE,
        p_allocate_info: Some(&info),
        p_command_buffers: Some(made),
    }
    .encode(ASYNC, w);
}

/// Encodes the creation of a buffer.
pub(crate) fn create_buffer(w: &mut Writer<'_>, buffer: venus::Buffer) {
    let usage = venus::BufferUsageFlags::STORAGE_BUFFER.0
        | venus::BufferUsageFlags::TRANSFER_SRC.0
        | venus::BufferUsageFlags::TRANSFER_DST.0;
    let info = venus::BufferCreateInfo {
        size: BUFFER_BYTES,
        usage: venus::BufferUsageFlags(usage),
        ..venus::BufferCreateInfo::default()
    };
    venus::CreateBuffer { device: DEVICE, p_create_info: Some(&info), p_buffer: Some(&buffer) }
        .encode(ASYNC, w);
}

/// Encodes an allocation.
pub(crate) fn allocate(w: &mut Writer<'_>, memory: venus::DeviceMemory, memory_type_index: u32) {
    let allocation_size = BUFFER_BYTES * BUFFERS.len() as u64;
    let info = venus::MemoryAllocateInfo { allocation_size, memory_type_index, ..Default::default() };
    venus::AllocateMemory { device: DEVICE, p_allocate_info: Some(&info), p_memory: Some(&memory) }
        .encode(ASYNC, w);
}

fn memory(w: &mut Writer<'_>) {
    allocate(w, MEMORY, MEMORY_TYPES[0]);
    for (at, buffer) in BUFFERS.into_iter().enumerate() {
        create_buffer(w, buffer);
        let memory_offset = at as u64 * BUFFER_BYTES;
        let bind =
            venus::BindBufferMemoryInfo { buffer, memory: MEMORY, memory_offset, ..Default::default() };
        venus::BindBufferMemory2 { device: DEVICE, bind_info_count: 1, p_bind_infos: Some(&[bind]) }
            .encode(ASYNC, w);
    }
}

fn descriptors(w: &mut Writer<'_>) {
    let descriptor_type = venus::DescriptorType::STORAGE_BUFFER;
    let count = BUFFERS.len() as u32;
    let binding = |binding| venus::DescriptorSetLayoutBinding {
        binding,
        descriptor_type,
        descriptor_count: 1,
        stage_flags: venus::ShaderStageFlags::COMPUTE,
        ..venus::DescriptorSetLayoutBinding::default()
    };
    let bindings: Vec<_> = (0..count).map(binding).collect();
    let info = venus::DescriptorSetLayoutCreateInfo {
        binding_count: count,
        p_bindings: Some(&bindings),
        ..venus::DescriptorSetLayoutCreateInfo::default()
    };
    venus::CreateDescriptorSetLayout {
        device: DEVICE,
        p_create_info: Some(&info),
        p_set_layout: Some(&SET_LAYOUT),
    }
    .encode(ASYNC, w);
    let sizes = [venus::DescriptorPoolSize { ty: descriptor_type, descriptor_count: count }];
    let info = venus::DescriptorPoolCreateInfo {
        max_sets: 1,
        pool_size_count: 1,
        p_pool_sizes: Some(&sizes),
        ..venus::DescriptorPoolCreateInfo::default()
    };
    venus::CreateDescriptorPool {
        device: DEVICE,
        p_create_info: Some(&info),
        p_descriptor_pool: Some(&DESCRIPTOR_POOL),
    }
    .encode(ASYNC, w);
    let info = venus::DescriptorSetAllocateInfo {
        descriptor_pool: DESCRIPTOR_POOL,
        descriptor_set_count: 1,
        p_set_layouts: Some(&[SET_LAYOUT]),
        ..venus::DescriptorSetAllocateInfo::default()
    };
    venus::AllocateDescriptorSets {
        device: DEVICE,
        p_allocate_info: Some(&info),
        p_descriptor_sets: Some(&[SET]),
    }
    .encode(ASYNC, w);
}

fn pipeline(w: &mut Writer<'_>) {
    let stage_flags = venus::ShaderStageFlags::COMPUTE;
    let ranges = [venus::PushConstantRange { stage_flags, offset: 0, size: 64 }];
    let info = venus::PipelineLayoutCreateInfo {
        set_layout_count: 1,
        p_set_layouts: Some(&[SET_LAYOUT]),
        push_constant_range_count: 1,
        p_push_constant_ranges: Some(&ranges),
        ..venus::PipelineLayoutCreateInfo::default()
    };
    venus::CreatePipelineLayout {
        device: DEVICE,
        p_create_info: Some(&info),
        p_pipeline_layout: Some(&LAYOUT),
    }
    .encode(ASYNC, w);
    let info = venus::ShaderModuleCreateInfo {
        code_size: size_of_val(&CODE) as u64,
        p_code: Some(&CODE),
        ..venus::ShaderModuleCreateInfo::default()
    };
    venus::CreateShaderModule { device: DEVICE, p_create_info: Some(&info), p_shader_module: Some(&SHADER) }
        .encode(ASYNC, w);
    let stage = venus::PipelineShaderStageCreateInfo {
        stage: stage_flags,
        module: SHADER,
        p_name: Some(c"main"),
        ..venus::PipelineShaderStageCreateInfo::default()
    };
    let infos = [venus::ComputePipelineCreateInfo { stage, layout: LAYOUT, ..Default::default() }];
    venus::CreateComputePipelines {
        device: DEVICE,
        pipeline_cache: venus::PipelineCache(0),
        create_info_count: 1,
        p_create_infos: Some(&infos),
        p_pipelines: Some(&[PIPELINE]),
    }
    .encode(ASYNC, w);
}

/// Encodes a recording of one dispatch.
fn recorded(w: &mut Writer<'_>) {
    let command_buffer = READY;
    begin(w, command_buffer);
    venus::CmdDispatch { command_buffer, group_count_x: 1, group_count_y: 1, group_count_z: 1 }
        .encode(ASYNC, w);
    venus::EndCommandBuffer { command_buffer }.encode(ASYNC, w);
}

/// Encodes the beginning of a recording, with the pipeline bound.
pub(crate) fn begin(w: &mut Writer<'_>, command_buffer: venus::CommandBuffer) {
    let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
    venus::BeginCommandBuffer { command_buffer, p_begin_info }.encode(ASYNC, w);
    let pipeline_bind_point = venus::PipelineBindPoint::COMPUTE;
    venus::CmdBindPipeline { command_buffer, pipeline_bind_point, pipeline: PIPELINE }.encode(ASYNC, w);
}

fn others(w: &mut Writer<'_>, live: u32) {
    (0..u64::from(live)).for_each(|at| create_buffer(w, venus::Buffer(OTHERS + 2 * at)));
    let made: Vec<_> = (0..u64::from(live)).map(|at| venus::CommandBuffer(OTHERS + 2 * at + 1)).collect();
    if !made.is_empty() {
        command_buffers(w, &made);
    }
}
