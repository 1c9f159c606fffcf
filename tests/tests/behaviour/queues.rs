//! Queues that announce graphics but cannot draw (`--queues`): the worker refuses requests to draw, and the program's context lives.

use anyhow::{Context, Result, ensure};
use protocol::venus::generated as venus;
use protocol::venus::generated::{Format, FormatFeatureFlags, ImageUsageFlags, VkResult};
use std::sync::Arc;
use tests::daemon::{Daemon, eventually};
use tests::guest::PATIENCE;
use tests::guest::device::{Device, Source};
use tests::guest::ring::{ASYNC, REPLY};

const REFUSED: VkResult = VkResult::ERROR_OUT_OF_DEVICE_MEMORY;

struct Setup {
    // In the order in which they end.
    vulkan: Device,
    daemon: Daemon,
}

fn setup(queues: &str) -> Result<Setup> {
    let daemon = Daemon::start_with(&["--queues", queues])?;
    let vulkan = Device::create(&Arc::new(daemon.guest()?), "drawing")?;
    Ok(Setup { vulkan, daemon })
}

impl Setup {
    /// The context computes, and the log knows of no loss.
    fn assert_computes(&mut self) -> Result<()> {
        let Ok(memory) = self.vulkan.allocate(4096, Source::New)? else { anyhow::bail!("no memory") };
        self.vulkan.fill(memory, 4096, 7)?;
        self.assert_not_lost()
    }

    fn assert_not_lost(&self) -> Result<()> {
        ensure!(!self.daemon.log().contains("is lost:"), "{}", self.daemon.log());
        Ok(())
    }
}

/// The result of `vkCreateRenderPass`, and the id.
fn render_pass(vulkan: &mut Device) -> Result<(venus::RenderPass, VkResult)> {
    let (device, pass) = (vulkan.device, venus::RenderPass(vulkan.new_id()));
    let subpasses = [venus::SubpassDescription::default()];
    let info =
        venus::RenderPassCreateInfo { subpass_count: 1, p_subpasses: Some(&subpasses), ..Default::default() };
    let result = vulkan.query(
        |w| {
            let (p_create_info, p_render_pass) = (Some(&info), Some(&pass));
            venus::CreateRenderPass { device, p_create_info, p_render_pass }.encode(REPLY, w);
        },
        |reply| Ok(venus::CreateRenderPassReply::decode(reply)?.result),
    )?;
    Ok((pass, result))
}

/// The result of `vkCreateFramebuffer`.
fn framebuffer(vulkan: &mut Device, render_pass: venus::RenderPass) -> Result<VkResult> {
    let (device, framebuffer) = (vulkan.device, venus::Framebuffer(vulkan.new_id()));
    let (width, height, layers) = (1, 1, 1);
    let info = venus::FramebufferCreateInfo { render_pass, width, height, layers, ..Default::default() };
    vulkan.query(
        |w| {
            let (p_create_info, p_framebuffer) = (Some(&info), Some(&framebuffer));
            venus::CreateFramebuffer { device, p_create_info, p_framebuffer }.encode(REPLY, w);
        },
        |reply| Ok(venus::CreateFramebufferReply::decode(reply)?.result),
    )
}

/// The result of `vkCreateGraphicsPipelines`.
fn pipeline(vulkan: &mut Device) -> Result<VkResult> {
    let (device, pipelines) = (vulkan.device, [venus::Pipeline(vulkan.new_id())]);
    let infos = [venus::GraphicsPipelineCreateInfo::default()];
    vulkan.query(
        |w| {
            venus::CreateGraphicsPipelines {
                device,
                pipeline_cache: venus::PipelineCache(0),
                create_info_count: 1,
                p_create_infos: Some(&infos),
                p_pipelines: Some(&pipelines),
            }
            .encode(REPLY, w);
        },
        |reply| Ok(venus::CreateGraphicsPipelinesReply::decode(reply)?.result),
    )
}

/// The result of `vkCreateImage`.
fn image(vulkan: &mut Device, usage: ImageUsageFlags) -> Result<VkResult> {
    let info = venus::ImageCreateInfo {
        image_type: venus::ImageType::TYPE_2D,
        format: Format::R8G8B8A8_UNORM,
        extent: venus::Extent3D { width: 64, height: 64, depth: 1 },
        mip_levels: 1,
        array_layers: 1,
        samples: venus::SampleCountFlags::TYPE_1,
        usage,
        ..Default::default()
    };
    let (device, image) = (vulkan.device, venus::Image(vulkan.new_id()));
    vulkan.query(
        |w| {
            let (p_create_info, p_image) = (Some(&info), Some(&image));
            venus::CreateImage { device, p_create_info, p_image }.encode(REPLY, w);
        },
        |reply| Ok(venus::CreateImageReply::decode(reply)?.result),
    )
}

/// The result of `vkGetPhysicalDeviceImageFormatProperties2`.
fn image_support(vulkan: &mut Device, usage: ImageUsageFlags) -> Result<VkResult> {
    let physical_device = vulkan.physical;
    let (format, ty) = (Format::R8G8B8A8_UNORM, venus::ImageType::TYPE_2D);
    let info = venus::PhysicalDeviceImageFormatInfo2 { format, ty, usage, ..Default::default() };
    let partial = venus::ImageFormatProperties2::default();
    vulkan.query(
        |w| {
            let (p_image_format_info, p_image_format_properties) = (Some(&info), Some(&partial));
            venus::GetPhysicalDeviceImageFormatProperties2 {
                physical_device,
                p_image_format_info,
                p_image_format_properties,
            }
            .encode(REPLY, w);
        },
        |reply| Ok(venus::GetPhysicalDeviceImageFormatProperties2Reply::decode(reply)?.result),
    )
}

/// The features of a format, as the query of Vulkan 1.0 answers.
fn first_features(vulkan: &mut Device, format: Format) -> Result<u64> {
    let (physical_device, partial) = (vulkan.physical, venus::FormatProperties::default());
    vulkan.query(
        |w| {
            let p_format_properties = Some(&partial);
            venus::GetPhysicalDeviceFormatProperties { physical_device, format, p_format_properties }
                .encode(REPLY, w);
        },
        |reply| {
            let reply = venus::GetPhysicalDeviceFormatPropertiesReply::decode(reply)?;
            Ok(reply.p_format_properties.context("properties")?.optimal_tiling_features.0.into())
        },
    )
}

/// The features of a format in both structs of the query that Mesa makes.
fn features(vulkan: &mut Device, format: Format) -> Result<[u64; 2]> {
    let (physical_device, newer) = (vulkan.physical, venus::FormatProperties3::default());
    let chain = [venus::ChainStruct::FormatProperties3(&newer)];
    let partial = venus::FormatProperties2 { p_next: &chain, ..Default::default() };
    vulkan.query(
        |w| {
            let p_format_properties = Some(&partial);
            venus::GetPhysicalDeviceFormatProperties2 { physical_device, format, p_format_properties }
                .encode(REPLY, w);
        },
        |reply| {
            let reply = venus::GetPhysicalDeviceFormatProperties2Reply::decode(reply)?;
            let found = reply.p_format_properties.context("properties")?;
            match found.p_next {
                [venus::ChainStruct::FormatProperties3(newer)] => {
                    let older = found.format_properties.optimal_tiling_features.0;
                    Ok([older.into(), newer.optimal_tiling_features.0])
                }
                other => anyhow::bail!("the chain came back as {other:?}"),
            }
        },
    )
}

#[test]
fn creations_for_drawing_fail_and_the_context_lives() -> Result<()> {
    for queues in ["compute", "nominal"] {
        let mut setup = setup(queues)?;
        let vulkan = &mut setup.vulkan;
        let (pass, result) = render_pass(vulkan)?;
        assert_eq!([result, framebuffer(vulkan, pass)?, pipeline(vulkan)?], [REFUSED; 3], "{queues}");
        let device = vulkan.device;
        vulkan.ring.command(|w| venus::DestroyRenderPass { device, render_pass: pass }.encode(ASYNC, w))?;
        setup.assert_computes()?;
    }
    let mut setup = setup("all")?;
    assert_eq!(render_pass(&mut setup.vulkan)?.1, VkResult::SUCCESS);
    setup.assert_computes()
}

#[test]
fn a_recorded_draw_costs_the_device_when_it_is_submitted_and_nothing_before() -> Result<()> {
    for queues in ["compute", "nominal"] {
        let mut setup = setup(queues)?;
        let vulkan = &mut setup.vulkan;
        let (device, queue) = (vulkan.device, vulkan.queue);
        let (fence, commands) = (venus::Fence(vulkan.new_id()), venus::CommandBuffer(vulkan.new_id()));
        let allocate = venus::CommandBufferAllocateInfo {
            command_pool: vulkan.pool,
            command_buffer_count: 1,
            ..Default::default()
        };
        vulkan.ring.command(|w| {
            // A fence of the host, which reports the loss.
            let p_create_info = Some(&venus::FenceCreateInfo::default());
            venus::CreateFence { device, p_create_info, p_fence: Some(&fence) }.encode(ASYNC, w);
            let p_command_buffers = Some(std::slice::from_ref(&commands));
            venus::AllocateCommandBuffers { device, p_allocate_info: Some(&allocate), p_command_buffers }
                .encode(ASYNC, w);
            let p_begin_info = Some(&venus::CommandBufferBeginInfo::default());
            venus::BeginCommandBuffer { command_buffer: commands, p_begin_info }.encode(ASYNC, w);
            venus::CmdDraw { command_buffer: commands, ..Default::default() }.encode(ASYNC, w);
            venus::EndCommandBuffer { command_buffer: commands }.encode(ASYNC, w);
        })?;
        setup.assert_computes()?;
        let submit = [venus::SubmitInfo {
            command_buffer_count: 1,
            p_command_buffers: Some(std::slice::from_ref(&commands)),
            ..Default::default()
        }];
        let vulkan = &mut setup.vulkan;
        vulkan.ring.command(|w| {
            venus::QueueSubmit { queue, submit_count: 1, p_submits: Some(&submit), fence }.encode(ASYNC, w);
        })?;
        let status = vulkan.query(
            |w| venus::GetFenceStatus { device, fence }.encode(REPLY, w),
            |reply| Ok(venus::GetFenceStatusReply::decode(reply)?.result),
        )?;
        assert_eq!(status, VkResult::ERROR_DEVICE_LOST, "{queues}");
        setup.assert_not_lost()?;
    }
    Ok(())
}

#[test]
fn nothing_can_be_drawn_upon_where_queues_only_say_that_they_draw() -> Result<()> {
    use ImageUsageFlags as U;
    let attachments = FormatFeatureFlags::COLOR_ATTACHMENT.0 | FormatFeatureFlags::DEPTH_STENCIL_ATTACHMENT.0;
    let drawn = U(U::COLOR_ATTACHMENT.0 | U::SAMPLED.0 | U::TRANSFER_SRC.0 | U::TRANSFER_DST.0);
    // The uses of a program that computes, and gives its images all possible uses.
    let every = U(drawn.0 | U::STORAGE.0);
    for queues in ["compute", "nominal", "all"] {
        let (mut setup, nominal) = (setup(queues)?, queues == "nominal");
        let vulkan = &mut setup.vulkan;
        for format in [Format::R8G8B8A8_UNORM, Format::D32_SFLOAT] {
            let [older, newer] = features(vulkan, format)?;
            for found in [first_features(vulkan, format)?, older, newer] {
                ensure!((found & u64::from(attachments) == 0) == nominal, "{queues}, {format:?}: {found:#x}");
                ensure!(found & u64::from(FormatFeatureFlags::SAMPLED_IMAGE.0) != 0, "{queues}, {format:?}");
            }
        }
        // Vulkan promises that one of two formats is for depth and stencil everywhere.
        let mut found = 0;
        for format in [Format::D24_UNORM_S8_UINT, Format::D32_SFLOAT_S8_UINT] {
            found |= features(vulkan, format)?[1];
        }
        ensure!(found & u64::from(FormatFeatureFlags::DEPTH_STENCIL_ATTACHMENT.0) != 0, "{queues}");
        let refused = [VkResult::ERROR_FORMAT_NOT_SUPPORTED, REFUSED];
        let expected = if nominal { refused } else { [VkResult::SUCCESS; 2] };
        assert_eq!([image_support(vulkan, drawn)?, image(vulkan, drawn)?], expected, "{queues}");
        let made = [image_support(vulkan, every)?, image(vulkan, every)?];
        assert_eq!(made, [VkResult::SUCCESS; 2], "{queues}");
        setup.assert_computes()?;
    }
    Ok(())
}

#[test]
fn the_log_names_the_option_once_for_a_vm() -> Result<()> {
    // Without the option, as this is its default.
    let daemon = Daemon::start()?;
    let guest = Arc::new(daemon.guest()?);
    let mut contexts = [Device::create(&guest, "first")?, Device::create(&guest, "second")?];
    // Some programs query formats and make no request to draw, so the daemon logs one line at its start.
    let ready = "guests cannot draw with --queues nominal: programs that draw need --queues all";
    let mentions = daemon.log().matches("--queues nominal").count();
    ensure!(mentions == 1 && daemon.log().contains(ready), "{}", daemon.log());
    for vulkan in contexts.iter_mut().chain(&mut [Device::create(&guest, "third")?]) {
        for _ in 0..3 {
            assert_eq!(render_pass(vulkan)?.1, REFUSED);
        }
    }
    let said = || daemon.log().matches("asks for graphics, which --queues nominal refuses").count();
    ensure!(eventually(PATIENCE, || said() > 0), "not said\n{}", daemon.log());
    // The answers of all three are in the log before the next context has a worker, and so is any line after these.
    drop(Device::create(&guest, "fourth")?);
    ensure!(said() == 1, "said {} times\n{}", said(), daemon.log());
    Ok(())
}
