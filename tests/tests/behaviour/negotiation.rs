//! Tests the daemon's offers to a VMM, and the choices that it accepts.

use anyhow::Result;
use protocol::ids::CapsetId;
use protocol::virtio_gpu::{Command, Response};
use tests::daemon::{Daemon, on_machine};
use tests::frontend::Options;
use vhost::vhost_user::message::VhostUserProtocolFeatures as ProtocolFeatures;

#[test]
fn device_features_are_those_every_frontend_can_carry() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    // VIRGL, RESOURCE_UUID, RESOURCE_BLOB, CONTEXT_INIT; INDIRECT_DESC, EVENT_IDX; VERSION_1.
    let required = 0b1_1101 | 1 << 28 | 1 << 29 | 1 << 32;
    assert_eq!(guest.session.features() & required, required);
    // BLOB_ALIGNMENT breaks Mesa, ACCESS_PLATFORM aborts QEMU with an IOMMU, a packed ring is not supported.
    let harmful = 1 << 5 | 1 << 33 | 1 << 34;
    assert_eq!(guest.session.features() & harmful, 0);
    Ok(())
}

#[test]
fn protocol_features_are_exactly_those_qemu_needs() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let expected = ProtocolFeatures::MQ
        | ProtocolFeatures::REPLY_ACK
        | ProtocolFeatures::BACKEND_REQ
        | ProtocolFeatures::CONFIG
        | ProtocolFeatures::BACKEND_SEND_FD
        | ProtocolFeatures::CONFIGURE_MEM_SLOTS
        | ProtocolFeatures::DEVICE_STATE
        | ProtocolFeatures::SHMEM;
    // STATUS would abort QEMU.
    assert_eq!(guest.session.protocol_features(), expected);
    Ok(())
}

#[test]
fn config_space_has_one_scanout_and_one_capset_by_default() -> Result<()> {
    for (options, scanouts) in [(&[][..], 1), (&["--scanouts", "0"], 0)] {
        let daemon = Daemon::start_with(options)?;
        let config = daemon.guest()?.session.config();
        let (fields, _) = config.as_chunks::<4>();
        assert_eq!([0, 0, scanouts, 1], [0, 1, 2, 3].map(|i| u32::from_le_bytes(fields[i])));
    }
    Ok(())
}

#[test]
fn window_has_the_size_asked_for() -> Result<()> {
    for (options, size) in [(&[][..], 8 << 30), (&["--window-size", "256MiB"], 256 << 20)] {
        // By default the window has room for the GPU's memory.
        if on_machine() && options.is_empty() {
            continue;
        }
        let daemon = Daemon::start_with(options)?;
        assert_eq!(daemon.guest()?.session.window.size(), size);
    }
    Ok(())
}

#[test]
fn control_queue_of_32768_entries_works() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest_with(Options { control_size: 32768, ..Options::default() })?;
    assert_eq!(guest.capset()?.len(), protocol::venus::capset::SIZE);
    Ok(())
}

#[test]
fn queue_works_without_indirect_descriptors_and_event_idx() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest_with(Options { features: !(1 << 28 | 1 << 29), ..Options::default() })?;
    for _ in 0..2000 {
        assert_eq!(guest.capset()?.len(), protocol::venus::capset::SIZE);
    }
    Ok(())
}

#[test]
fn capset_is_venus_as_mesa_reads_it() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let info = guest.call(&Command::GetCapsetInfo { capset_index: 0 }, None)?;
    let expected = Response::OkCapsetInfo {
        capset_id: CapsetId::VENUS,
        capset_max_version: 0,
        capset_max_size: protocol::venus::capset::SIZE as u32,
    };
    assert_eq!(info, expected);
    let capset = guest.capset()?;
    let (fields, _) = capset.as_chunks::<4>();
    let field = |i: usize| u32::from_le_bytes(fields[i]);
    assert_eq!(fields.len(), 42);
    assert_eq!(
        (field(40), field(41)),
        (u32::from_le_bytes(*b"VUV1"), 3),
        "the additions to upstream's protocol"
    );
    assert_eq!(field(0), 1, "wire_format_version");
    assert_eq!(field(1) >> 22, 1, "major version of the registry");
    assert_eq!(field(2), 1, "vk_ext_command_serialization_spec_version");
    assert!((1..=4).contains(&field(3)), "vk_mesa_venus_protocol_spec_version");
    assert_eq!(field(4), 1, "supports_blob_id_0");
    assert_eq!(field(5) & 1, 1, "the extension mask is meaningful");
    for extension in [315, 384, 385, 414] {
        assert_ne!(field(5 + extension / 32) & 1 << (extension % 32), 0, "extension number {extension}");
    }
    assert_eq!([field(37), field(38), field(39)], [1, 1, 0], "wait syncs, multiple timelines, no guest VRAM");
    Ok(())
}

#[test]
fn capset_that_does_not_exist_is_an_error() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    assert!(guest.call(&Command::GetCapsetInfo { capset_index: 1 }, None).is_err());
    for capset_id in [0, 1, 2, 3, 5, 6, u32::MAX] {
        let command = Command::GetCapset { capset_id: CapsetId(capset_id), capset_version: 0 };
        assert!(guest.call(&command, None).is_err(), "capability set {capset_id}");
    }
    Ok(())
}
