//! A guest that breaks valid usage in ways that a driver would not notice. The worker leaves the wrong command out and lives on, and the rest of the
//! context still works; only a submission of commands that must not run ends the context.

use anyhow::{Context, Result, ensure};
use protocol::cursor::Writer;
use protocol::venus::generated as venus;
use protocol::venus::generated::{DescriptorType, ShaderStageFlags};
use std::sync::Arc;
use tests::daemon::{Daemon, eventually};
use tests::guest::PATIENCE;
use tests::guest::device::{Device, Source};
use tests::guest::ring::ASYNC;

/// Bytes of the buffer.
const SIZE: u64 = 4096;
/// Descriptors of binding 0; binding 2 is an inline uniform block of 16 bytes.
const DESCRIPTORS: u32 = 4;

/// A device with one object of each kind.
struct Bench {
    // In the order in which they end.
    vulkan: Device,
    daemon: Daemon,
    memory: venus::DeviceMemory,
    buffer: venus::Buffer,
    unbound: venus::Buffer,
    image: venus::Image,
    set_layout: venus::DescriptorSetLayout,
    layout: venus::PipelineLayout,
    sets: venus::DescriptorPool,
    set: venus::DescriptorSet,
    queries: venus::QueryPool,
    semaphore: venus::Semaphore,
    commands: venus::CommandBuffer,
    secondary: venus::CommandBuffer,
}

impl Bench {
    fn new() -> Result<Self> {
        let daemon = Daemon::start_with(&["--log-level", "debug"])?;
        let guest = Arc::new(daemon.guest()?);
        let mut vulkan = Device::create(&guest, "usage")?;
        let memory = vulkan.allocate(SIZE, Source::New)?.map_err(|result| anyhow::anyhow!("{result:?}"))?;
        let mut id = || vulkan.new_id();
        let (buffer, unbound, image) = (venus::Buffer(id()), venus::Buffer(id()), venus::Image(id()));
        let set_layout = venus::DescriptorSetLayout(id());
        let (layout, sets) = (venus::PipelineLayout(id()), venus::DescriptorPool(id()));
        let (set, queries) = (venus::DescriptorSet(id()), venus::QueryPool(id()));
        let (semaphore, commands) = (venus::Semaphore(id()), venus::CommandBuffer(id()));
        let secondary = venus::CommandBuffer(id());
        let mut bench = Self {
            vulkan,
            daemon,
            memory,
            buffer,
            unbound,
            image,
            set_layout,
            layout,
            sets,
            set,
            queries,
            semaphore,
            commands,
            secondary,
        };
        bench.create_buffers()?;
        bench.create_descriptors()?;
        bench.create_others()?;
        Ok(bench)
    }

    /// Sends commands and waits until they are executed.
    fn send(&mut self, commands: impl FnOnce(&mut Writer<'_>)) -> Result<()> {
        let seqno = self.vulkan.ring.command(commands)?;
        self.vulkan.ring.wait(seqno, PATIENCE)
    }

    fn create_buffers(&mut self) -> Result<()> {
        let (device, memory, image) = (self.vulkan.device, self.memory, self.image);
        let (buffer, unbound) = (self.buffer, self.unbound);
        let usage = venus::BufferUsageFlags(0x1b3);
        let info = venus::BufferCreateInfo { size: SIZE, usage, ..Default::default() };
        let picture = picture();
        for buffer in [buffer, unbound] {
            self.vulkan.call(|w| {
                venus::CreateBuffer { device, p_create_info: Some(&info), p_buffer: Some(&buffer) }
                    .encode(venus::CommandFlagsEXT::GENERATE_REPLY, w);
            })?;
        }
        let bind = [venus::BindBufferMemoryInfo { buffer, memory, ..Default::default() }];
        self.send(|w| {
            venus::BindBufferMemory2 { device, bind_info_count: 1, p_bind_infos: Some(&bind) }
                .encode(ASYNC, w);
            venus::CreateImage { device, p_create_info: Some(&picture), p_image: Some(&image) }
                .encode(ASYNC, w);
        })
    }

    fn create_descriptors(&mut self) -> Result<()> {
        let device = self.vulkan.device;
        let (set_layout, layout, sets, set) = (self.set_layout, self.layout, self.sets, self.set);
        let bindings = [
            binding(0, DescriptorType::STORAGE_BUFFER, DESCRIPTORS),
            binding(1, DescriptorType::STORAGE_BUFFER_DYNAMIC, 1),
        ];
        let info = set_layout_of(&bindings);
        let range =
            [venus::PushConstantRange { stage_flags: ShaderStageFlags::COMPUTE, offset: 0, size: 16 }];
        let set_layouts = [set_layout];
        let pipelines = venus::PipelineLayoutCreateInfo {
            set_layout_count: 1,
            p_set_layouts: Some(&set_layouts),
            push_constant_range_count: 1,
            p_push_constant_ranges: Some(&range),
            ..Default::default()
        };
        let sizes = [
            venus::DescriptorPoolSize { ty: DescriptorType::STORAGE_BUFFER, descriptor_count: 64 },
            venus::DescriptorPoolSize { ty: DescriptorType::STORAGE_BUFFER_DYNAMIC, descriptor_count: 16 },
        ];
        let pool = venus::DescriptorPoolCreateInfo {
            max_sets: 16,
            pool_size_count: 2,
            p_pool_sizes: Some(&sizes),
            ..Default::default()
        };
        let allocate = venus::DescriptorSetAllocateInfo {
            descriptor_pool: sets,
            descriptor_set_count: 1,
            p_set_layouts: Some(&set_layouts),
            ..Default::default()
        };
        self.send(|w| {
            let p_set_layout = Some(&set_layout);
            venus::CreateDescriptorSetLayout { device, p_create_info: Some(&info), p_set_layout }
                .encode(ASYNC, w);
            let p_pipeline_layout = Some(&layout);
            venus::CreatePipelineLayout { device, p_create_info: Some(&pipelines), p_pipeline_layout }
                .encode(ASYNC, w);
            venus::CreateDescriptorPool {
                device,
                p_create_info: Some(&pool),
                p_descriptor_pool: Some(&sets),
            }
            .encode(ASYNC, w);
            let p_descriptor_sets = Some(std::slice::from_ref(&set));
            venus::AllocateDescriptorSets { device, p_allocate_info: Some(&allocate), p_descriptor_sets }
                .encode(ASYNC, w);
        })
    }

    fn create_others(&mut self) -> Result<()> {
        let device = self.vulkan.device;
        let (queries, semaphore) = (self.queries, self.semaphore);
        let query = venus::QueryPoolCreateInfo {
            query_type: venus::QueryType::TIMESTAMP,
            query_count: 4,
            ..Default::default()
        };
        let primary = self.allocation(venus::CommandBufferLevel::PRIMARY);
        let second = self.allocation(venus::CommandBufferLevel::SECONDARY);
        let (commands, secondary) = (self.commands, self.secondary);
        self.send(|w| {
            venus::CreateQueryPool { device, p_create_info: Some(&query), p_query_pool: Some(&queries) }
                .encode(ASYNC, w);
            let p_create_info = Some(&venus::SemaphoreCreateInfo::default());
            venus::CreateSemaphore { device, p_create_info, p_semaphore: Some(&semaphore) }.encode(ASYNC, w);
            for (info, buffer) in [(primary, commands), (second, secondary)] {
                let p_command_buffers = Some(std::slice::from_ref(&buffer));
                venus::AllocateCommandBuffers { device, p_allocate_info: Some(&info), p_command_buffers }
                    .encode(ASYNC, w);
            }
        })
    }

    fn allocation(&self, level: venus::CommandBufferLevel) -> venus::CommandBufferAllocateInfo<'static> {
        let command_pool = self.vulkan.pool;
        venus::CommandBufferAllocateInfo {
            command_pool,
            level,
            command_buffer_count: 1,
            ..Default::default()
        }
    }

    /// Begins, records, ends and submits.
    fn run(&mut self, record: impl FnOnce(venus::CommandBuffer, &mut Writer<'_>)) -> Result<()> {
        let (command_buffer, queue) = (self.commands, self.vulkan.queue);
        self.send(|w| {
            let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
            venus::BeginCommandBuffer { command_buffer, p_begin_info }.encode(ASYNC, w);
            record(command_buffer, w);
            venus::EndCommandBuffer { command_buffer }.encode(ASYNC, w);
        })?;
        self.submit(queue)
    }

    fn submit(&mut self, queue: venus::Queue) -> Result<()> {
        let buffers = [self.commands];
        let submit = [venus::SubmitInfo {
            command_buffer_count: 1,
            p_command_buffers: Some(&buffers),
            ..Default::default()
        }];
        self.send(|w| {
            venus::QueueSubmit { queue, submit_count: 1, p_submits: Some(&submit), fence: venus::Fence(0) }
                .encode(ASYNC, w);
            venus::QueueWaitIdle { queue }.encode(ASYNC, w);
        })
    }

    fn update(&mut self, write: venus::WriteDescriptorSet<'_>) -> Result<()> {
        let (device, writes) = (self.vulkan.device, [write]);
        self.send(|w| {
            venus::UpdateDescriptorSets {
                device,
                descriptor_write_count: 1,
                p_descriptor_writes: Some(&writes),
                descriptor_copy_count: 0,
                p_descriptor_copies: None,
            }
            .encode(ASYNC, w);
        })
    }

    /// Checks that the device still computes, in the same worker.
    fn assert_sound(&mut self) -> Result<()> {
        let memory =
            self.vulkan.allocate(SIZE, Source::New)?.map_err(|result| anyhow::anyhow!("{result:?}"))?;
        self.vulkan.fill(memory, SIZE, 0x1234_5678)?;
        self.vulkan.free(memory)
    }
}

fn binding(
    binding: u32,
    descriptor_type: DescriptorType,
    descriptor_count: u32,
) -> venus::DescriptorSetLayoutBinding<'static> {
    let stage_flags = ShaderStageFlags::COMPUTE;
    venus::DescriptorSetLayoutBinding {
        binding,
        descriptor_type,
        descriptor_count,
        stage_flags,
        ..Default::default()
    }
}

fn picture() -> venus::ImageCreateInfo<'static> {
    venus::ImageCreateInfo {
        image_type: venus::ImageType::TYPE_2D,
        format: venus::Format::R8G8B8A8_UNORM,
        extent: venus::Extent3D { width: 8, height: 8, depth: 1 },
        mip_levels: 1,
        array_layers: 1,
        samples: venus::SampleCountFlags::TYPE_1,
        usage: venus::ImageUsageFlags::TRANSFER_DST,
        ..Default::default()
    }
}

fn set_layout_of<'a>(
    bindings: &'a [venus::DescriptorSetLayoutBinding<'a>],
) -> venus::DescriptorSetLayoutCreateInfo<'a> {
    venus::DescriptorSetLayoutCreateInfo {
        binding_count: bindings.len() as u32,
        p_bindings: Some(bindings),
        ..Default::default()
    }
}

fn write(
    dst_set: venus::DescriptorSet,
    (dst_binding, dst_array_element): (u32, u32),
    infos: Option<&[venus::DescriptorBufferInfo]>,
) -> venus::WriteDescriptorSet<'_> {
    venus::WriteDescriptorSet {
        dst_set,
        dst_binding,
        dst_array_element,
        descriptor_count: infos.map_or(1, |infos| infos.len() as u32),
        descriptor_type: DescriptorType::STORAGE_BUFFER,
        p_buffer_info: infos,
        ..Default::default()
    }
}

type Attack = fn(&mut Bench) -> Result<()>;

/// The attacks: the name, the rule that refuses it, and the commands.
const ATTACKS: &[(&str, &str, Attack)] = &[
    ("fill behind the end", "a range outside of its buffer", |b| {
        let dst_buffer = b.buffer;
        b.run(|command_buffer, w| {
            venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 1 << 40, size: 4096, data: 7 }
                .encode(ASYNC, w);
        })
    }),
    ("copy from behind the end", "a range outside of its buffer", |b| {
        let buffer = b.buffer;
        let region = [venus::BufferCopy { src_offset: 1 << 40, dst_offset: 0, size: 4096 }];
        b.run(|command_buffer, w| {
            venus::CmdCopyBuffer {
                command_buffer,
                src_buffer: buffer,
                dst_buffer: buffer,
                region_count: 1,
                p_regions: Some(&region),
            }
            .encode(ASYNC, w);
        })
    }),
    ("fill of a buffer without memory", "a range outside of its buffer", |b| {
        let dst_buffer = b.unbound;
        b.run(|command_buffer, w| {
            venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 0, size: 64, data: 7 }
                .encode(ASYNC, w);
        })
    }),
    ("clear of an image without memory", "an image without memory is cleared", |b| {
        let image = b.image;
        let ranges = [venus::ImageSubresourceRange {
            aspect_mask: venus::ImageAspectFlags::COLOR,
            level_count: 1,
            layer_count: 1,
            ..Default::default()
        }];
        b.run(|command_buffer, w| {
            venus::CmdClearColorImage {
                command_buffer,
                image,
                image_layout: venus::ImageLayout::GENERAL,
                p_color: Some(&venus::ClearColorValue::Uint32([0; 4])),
                range_count: 1,
                p_ranges: Some(&ranges),
            }
            .encode(ASYNC, w);
        })
    }),
    ("push constants of a megabyte", "push constants outside", |b| {
        let (layout, values) = (b.layout, vec![0x41; 1 << 16]);
        b.run(|command_buffer, w| {
            venus::CmdPushConstants {
                command_buffer,
                layout,
                stage_flags: ShaderStageFlags::COMPUTE,
                offset: 0,
                size: values.len() as u32,
                p_values: Some(&values),
            }
            .encode(ASYNC, w);
        })
    }),
    ("descriptor sets from the thousandth on", "more descriptor sets than the layout has", |b| {
        let (layout, sets) = (b.layout, [b.set]);
        b.run(|command_buffer, w| {
            venus::CmdBindDescriptorSets {
                command_buffer,
                pipeline_bind_point: venus::PipelineBindPoint::COMPUTE,
                layout,
                first_set: 100_000,
                descriptor_set_count: 1,
                p_descriptor_sets: Some(&sets),
                dynamic_offset_count: 0,
                p_dynamic_offsets: None,
            }
            .encode(ASYNC, w);
        })
    }),
    ("no dynamic offset for a dynamic descriptor", "another number of dynamic offsets", |b| {
        let (layout, sets) = (b.layout, [b.set]);
        b.run(|command_buffer, w| {
            venus::CmdBindDescriptorSets {
                command_buffer,
                pipeline_bind_point: venus::PipelineBindPoint::COMPUTE,
                layout,
                first_set: 0,
                descriptor_set_count: 1,
                p_descriptor_sets: Some(&sets),
                dynamic_offset_count: 0,
                p_dynamic_offsets: None,
            }
            .encode(ASYNC, w);
        })
    }),
    ("dispatch without a pipeline", "a dispatch without a compute pipeline", |b| {
        b.run(|command_buffer, w| {
            venus::CmdDispatch { command_buffer, group_count_x: 1, group_count_y: 1, group_count_z: 1 }
                .encode(ASYNC, w);
        })
    }),
    ("timestamp far behind the pool", "queries outside of their pool", |b| {
        let query_pool = b.queries;
        b.run(|command_buffer, w| {
            venus::CmdWriteTimestamp {
                command_buffer,
                pipeline_stage: venus::PipelineStageFlags::BOTTOM_OF_PIPE,
                query_pool,
                query: 50_000_000,
            }
            .encode(ASYNC, w);
        })
    }),
    ("reset of queries that are not there", "queries outside of their pool", |b| {
        let query_pool = b.queries;
        b.run(|command_buffer, w| {
            venus::CmdResetQueryPool { command_buffer, query_pool, first_query: 3, query_count: u32::MAX }
                .encode(ASYNC, w);
        })
    }),
    ("begin of a timestamp", "a query of another kind than its pool", |b| {
        let query_pool = b.queries;
        b.run(|command_buffer, w| {
            venus::CmdBeginQuery { command_buffer, query_pool, query: 0, flags: venus::QueryControlFlags(0) }
                .encode(ASYNC, w);
        })
    }),
    ("image of a format that does not exist", "an image of an unknown format", |b| {
        let (device, image) = (b.vulkan.device, venus::Image(b.vulkan.new_id()));
        let info = venus::ImageCreateInfo { format: venus::Format(0x7fff_0000), ..picture() };
        b.send(|w| {
            venus::CreateImage { device, p_create_info: Some(&info), p_image: Some(&image) }.encode(ASYNC, w);
        })
    }),
    ("sampler that compares in a way of its own", "a value outside its enumeration", |b| {
        let (device, sampler) = (b.vulkan.device, venus::Sampler(b.vulkan.new_id()));
        let info = venus::SamplerCreateInfo {
            border_color: venus::BorderColor(i32::MAX),
            compare_op: venus::CompareOp(-1),
            ..Default::default()
        };
        b.send(|w| {
            venus::CreateSampler { device, p_create_info: Some(&info), p_sampler: Some(&sampler) }
                .encode(ASYNC, w);
        })
    }),
    ("properties of a format that does not exist", "a value outside its enumeration", |b| {
        let (physical_device, format) = (b.vulkan.physical, venus::Format(i32::MIN));
        b.send(|w| {
            let p_format_properties = Some(&venus::FormatProperties2::default());
            venus::GetPhysicalDeviceFormatProperties2 { physical_device, format, p_format_properties }
                .encode(ASYNC, w);
        })
    }),
    ("buffer described twice", "a chain holds a struct twice", |b| {
        let (device, buffer) = (b.vulkan.device, venus::Buffer(b.vulkan.new_id()));
        let external = venus::ExternalMemoryBufferCreateInfo::default();
        let twice = [venus::ChainStruct::ExternalMemoryBufferCreateInfo(&external); 2];
        let info = venus::BufferCreateInfo { p_next: &twice, size: 64, ..Default::default() };
        b.send(|w| {
            venus::CreateBuffer { device, p_create_info: Some(&info), p_buffer: Some(&buffer) }
                .encode(ASYNC, w);
        })
    }),
    ("semaphore described twice, and destroyed", "a chain holds a struct twice", |b| {
        let (device, semaphore) = (b.vulkan.device, venus::Semaphore(b.vulkan.new_id()));
        let ty = venus::SemaphoreTypeCreateInfo::default();
        let twice = [venus::ChainStruct::SemaphoreTypeCreateInfo(&ty); 2];
        let info = venus::SemaphoreCreateInfo { p_next: &twice, ..Default::default() };
        b.send(|w| {
            venus::CreateSemaphore { device, p_create_info: Some(&info), p_semaphore: Some(&semaphore) }
                .encode(ASYNC, w);
            venus::DestroySemaphore { device, semaphore }.encode(ASYNC, w);
        })
    }),
    ("query pool of four thousand million queries", "a query pool of no or too many queries", |b| {
        let (device, pool) = (b.vulkan.device, venus::QueryPool(b.vulkan.new_id()));
        let info = venus::QueryPoolCreateInfo { query_count: u32::MAX, ..Default::default() };
        b.send(|w| {
            venus::CreateQueryPool { device, p_create_info: Some(&info), p_query_pool: Some(&pool) }
                .encode(ASYNC, w);
        })
    }),
    ("descriptor pool whose numbers overflow", "a descriptor pool for too many descriptors", |b| {
        let (device, pool) = (b.vulkan.device, venus::DescriptorPool(b.vulkan.new_id()));
        let sizes =
            [venus::DescriptorPoolSize { ty: DescriptorType::STORAGE_BUFFER, descriptor_count: u32::MAX }; 3];
        let info = venus::DescriptorPoolCreateInfo {
            max_sets: 1,
            pool_size_count: 3,
            p_pool_sizes: Some(&sizes),
            ..Default::default()
        };
        b.send(|w| {
            venus::CreateDescriptorPool {
                device,
                p_create_info: Some(&info),
                p_descriptor_pool: Some(&pool),
            }
            .encode(ASYNC, w);
        })
    }),
    ("binding of the largest number", "a binding of too large a number", |b| {
        let (device, layout) = (b.vulkan.device, venus::DescriptorSetLayout(b.vulkan.new_id()));
        let bindings = [binding(u32::MAX, DescriptorType::STORAGE_BUFFER, 1)];
        let info = set_layout_of(&bindings);
        b.send(|w| {
            venus::CreateDescriptorSetLayout {
                device,
                p_create_info: Some(&info),
                p_set_layout: Some(&layout),
            }
            .encode(ASYNC, w);
        })
    }),
    ("pipeline layout of a thousand sets", "more set layouts than the device takes", |b| {
        let (device, layout) = (b.vulkan.device, venus::PipelineLayout(b.vulkan.new_id()));
        let set_layouts = vec![b.set_layout; 1000];
        let info = venus::PipelineLayoutCreateInfo {
            set_layout_count: 1000,
            p_set_layouts: Some(&set_layouts),
            ..Default::default()
        };
        b.send(|w| {
            venus::CreatePipelineLayout {
                device,
                p_create_info: Some(&info),
                p_pipeline_layout: Some(&layout),
            }
            .encode(ASYNC, w);
        })
    }),
    ("write to a binding that is not there", "a binding that the layout does not have", |b| {
        let infos = [venus::DescriptorBufferInfo { buffer: b.buffer, offset: 0, range: 64 }];
        b.update(write(b.set, (900, 0), Some(&infos)))
    }),
    ("write behind the elements of a binding", "descriptors outside of their binding", |b| {
        let infos = [venus::DescriptorBufferInfo { buffer: b.buffer, offset: 0, range: 64 }];
        b.update(write(b.set, (0, 60_000_000), Some(&infos)))
    }),
    ("write of too many elements", "descriptors outside of their binding", |b| {
        let infos = [venus::DescriptorBufferInfo { buffer: b.buffer, offset: 0, range: 64 }; 4000];
        b.update(write(b.set, (0, 0), Some(&infos)))
    }),
    ("write without descriptions", "descriptions of buffers are missing", |b| {
        b.update(write(b.set, (0, 0), None))
    }),
    ("write of a sampler into a buffer's place", "a descriptor of another type than its binding", |b| {
        let write = venus::WriteDescriptorSet {
            descriptor_type: DescriptorType::SAMPLER,
            ..write(b.set, (0, 0), None)
        };
        b.update(write)
    }),
    ("descriptor of a buffer without memory", "a descriptor of a range outside of its buffer", |b| {
        let infos = [venus::DescriptorBufferInfo { buffer: b.unbound, offset: 0, range: 64 }];
        b.update(write(b.set, (0, 0), Some(&infos)))
    }),
    ("memory bound behind its end", "it is bound outside of its memory", |b| {
        let (device, buffer, memory) = (b.vulkan.device, b.unbound, b.memory);
        b.send(|w| {
            venus::BindBufferMemory { device, buffer, memory, memory_offset: 1 << 40 }.encode(ASYNC, w)
        })
    }),
    ("buffer bound twice", "a buffer is bound twice", |b| {
        let (device, buffer, memory) = (b.vulkan.device, b.buffer, b.memory);
        b.send(|w| venus::BindBufferMemory { device, buffer, memory, memory_offset: 0 }.encode(ASYNC, w))
    }),
    ("buffer of a refused batch", "a descriptor of a range outside of its buffer", |b| {
        let (device, buffer, memory) = (b.vulkan.device, b.unbound, b.memory);
        let bind = venus::BindBufferMemoryInfo { p_next: &[], buffer, memory, memory_offset: 0 };
        b.send(|w| {
            let bind =
                venus::BindBufferMemory2 { device, bind_info_count: 2, p_bind_infos: Some(&[bind, bind]) };
            bind.encode(ASYNC, w);
        })?;
        let infos = [venus::DescriptorBufferInfo { buffer, offset: 0, range: 64 }];
        b.update(write(b.set, (0, 0), Some(&infos)))
    }),
    ("buffer of another device", "an object of another device", |b| {
        let (device, physical_device) = (venus::Device(b.vulkan.new_id()), b.vulkan.physical);
        let (buffer, memory) = (b.unbound, b.memory);
        let queues = [venus::DeviceQueueCreateInfo {
            queue_count: 1,
            p_queue_priorities: Some(&[1.0]),
            ..Default::default()
        }];
        let info = venus::DeviceCreateInfo {
            queue_create_info_count: 1,
            p_queue_create_infos: Some(&queues),
            ..Default::default()
        };
        b.send(|w| {
            venus::CreateDevice { physical_device, p_create_info: Some(&info), p_device: Some(&device) }
                .encode(ASYNC, w);
            venus::BindBufferMemory { device, buffer, memory, memory_offset: 0 }.encode(ASYNC, w);
        })
    }),
    ("value of a binary semaphore", "a semaphore that is no timeline has no value", |b| {
        let (device, semaphore) = (b.vulkan.device, b.semaphore);
        b.send(|w| venus::GetSemaphoreCounterValue { device, semaphore, p_value: Some(&0) }.encode(ASYNC, w))
    }),
    ("secondary without inheritance", "a secondary command buffer begins without inheritance", |b| {
        let command_buffer = b.secondary;
        b.send(|w| {
            let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
            venus::BeginCommandBuffer { command_buffer, p_begin_info }.encode(ASYNC, w);
        })
    }),
    (
        "primary that executes itself",
        "vkCmdExecuteCommands with a command buffer that is no executable secondary one",
        |b| {
            b.run(|command_buffer, w| {
                let p_command_buffers = Some(std::slice::from_ref(&command_buffer));
                venus::CmdExecuteCommands { command_buffer, command_buffer_count: 1, p_command_buffers }
                    .encode(ASYNC, w);
            })
        },
    ),
    ("recording before begin", "a command is recorded outside of begin and end", |b| {
        let (command_buffer, dst_buffer) = (b.commands, b.buffer);
        b.send(|w| {
            venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 0, size: 64, data: 7 }
                .encode(ASYNC, w);
        })
    }),
    ("command pool of a family that is not there", "a command pool for a queue family", |b| {
        let (device, pool) = (b.vulkan.device, venus::CommandPool(b.vulkan.new_id()));
        let info = venus::CommandPoolCreateInfo { queue_family_index: 77, ..Default::default() };
        b.send(|w| {
            venus::CreateCommandPool { device, p_create_info: Some(&info), p_command_pool: Some(&pool) }
                .encode(ASYNC, w);
        })
    }),
];

fn refused(name: &str, rule: &str, attack: Attack) -> Result<()> {
    let mut bench = Bench::new()?;
    let worker = bench.daemon.wait_for_workers(1)?;
    let outcome = attack(&mut bench).and_then(|()| bench.assert_sound());
    outcome.with_context(|| bench.daemon.log())?;
    let told = || bench.daemon.log().contains(&format!("valid usage: {rule}"));
    let told = eventually(PATIENCE, told);
    let log = bench.daemon.log();
    ensure!(bench.daemon.wait_for_workers(1)? == worker, "{name}: another worker");
    ensure!(told, "not refused as {rule:?}: {log}");
    Ok(())
}

#[test]
fn what_breaks_valid_usage_is_left_out_and_the_worker_lives_on() -> Result<()> {
    let outcomes = ATTACKS.iter().map(|(name, rule, attack)| (name, refused(name, rule, *attack)));
    let failed: Vec<_> = outcomes.filter_map(|(name, outcome)| Some((name, outcome.err()?))).collect();
    ensure!(failed.is_empty(), "{} of {}: {failed:#?}", failed.len(), ATTACKS.len());
    Ok(())
}

/// Submissions that a guest makes although they must not run, and the reason of the context's loss.
const FATAL: &[(&str, &str, Attack)] = &[
    ("command buffer that was not recorded", "a submitted command buffer is not executable", |b| {
        let queue = b.vulkan.queue;
        b.submit(queue)
    }),
    ("command buffer that uses a destroyed buffer", "uses an object that was destroyed", |b| {
        let (dst_buffer, device, command_buffer) = (b.buffer, b.vulkan.device, b.commands);
        b.send(|w| {
            let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
            venus::BeginCommandBuffer { command_buffer, p_begin_info }.encode(ASYNC, w);
            venus::CmdFillBuffer { command_buffer, dst_buffer, dst_offset: 0, size: 64, data: 7 }
                .encode(ASYNC, w);
            venus::EndCommandBuffer { command_buffer }.encode(ASYNC, w);
            venus::DestroyBuffer { device, buffer: dst_buffer }.encode(ASYNC, w);
        })?;
        let queue = b.vulkan.queue;
        b.submit(queue)
    }),
];

#[test]
fn what_must_not_run_ends_its_context_with_the_reason() -> Result<()> {
    for (name, reason, attack) in FATAL {
        let mut bench = Bench::new()?;
        ensure!(attack(&mut bench).is_err(), "{name} was executed");
        let told = eventually(PATIENCE, || bench.daemon.log().contains(reason));
        ensure!(told && bench.daemon.is_running(), "{name}: {}", bench.daemon.log());
    }
    Ok(())
}
