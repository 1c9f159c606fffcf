//! The commands of a guest with a console: the device answers them, and shows nothing.

use anyhow::Result;
use protocol::ids::{CapsetId, ContextId, FenceId, ResourceId, ScanoutId};
use protocol::virtio_gpu::{Command, Fence, FenceTimeline, MemEntry, Rect, Response};
use tests::daemon::Daemon;
use tests::guest::PATIENCE;

const CONSOLE: Rect = Rect { x: 0, y: 0, width: 640, height: 480 };

#[test]
fn every_display_is_reported_as_disabled() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let Response::OkDisplayInfo(modes) = guest.call(&Command::GetDisplayInfo, None)? else {
        panic!("no display info")
    };
    assert_eq!(modes.len(), 16);
    assert!(modes.iter().all(|mode| !mode.enabled));
    Ok(())
}

#[test]
fn console_of_an_older_kernel_is_served() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let (resource_id, scanout_id, console) = (ResourceId(1), ScanoutId(0), Some(ContextId(1)));
    let pages: Vec<MemEntry> = (0..300u64)
        .map(|page| MemEntry {
            addr: (0x4000_0000 + page * 4096).into(),
            length: 4096.into(),
            padding: 0.into(),
        })
        .collect();
    let shell = Command::CtxCreate { capset_id: CapsetId(0), debug_name: b"" };
    for (command, context) in [
        (Command::ResourceCreate2d { resource_id, format: 2, width: 640, height: 480 }, None),
        (Command::ResourceAttachBacking { resource_id, entries: &pages }, None),
        (shell, console),
        (Command::CtxAttachResource { resource_id }, console),
        (Command::SetScanout { r: CONSOLE, scanout_id, resource_id: Some(resource_id) }, None),
        (Command::TransferToHost2d { r: CONSOLE, offset: 0, resource_id }, None),
        (Command::ResourceFlush { r: CONSOLE, resource_id }, None),
        (Command::SetScanout { r: CONSOLE, scanout_id, resource_id: None }, None),
        (Command::CtxDetachResource { resource_id }, console),
        (Command::ResourceDetachBacking { resource_id }, None),
        (Command::ResourceUnref { resource_id }, None),
    ] {
        assert_eq!(guest.call(&command, context), Ok(Response::OkNodata), "{command:?}");
    }
    assert_eq!(daemon.workers(), []);
    Ok(())
}

#[test]
fn flush_with_a_fence_of_the_device_is_answered_at_once_and_echoes_it() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let resource_id = ResourceId(1);
    guest.call(&Command::ResourceCreate2d { resource_id, format: 2, width: 64, height: 64 }, None)?;
    let fence = Fence { timeline: FenceTimeline::Global, fence_id: FenceId(0x1_0000_0007) };
    let answer = guest.start(&Command::ResourceFlush { r: CONSOLE, resource_id }, None, Some(fence));
    let (header, _) = answer.wait_with_header(PATIENCE)?;
    assert_eq!(header.fence(), Some(fence));
    Ok(())
}

#[test]
fn what_does_not_exist_is_refused() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let resource_id = ResourceId(5);
    for command in [
        Command::ResourceFlush { r: CONSOLE, resource_id },
        Command::ResourceUnref { resource_id },
        Command::SetScanout { r: CONSOLE, scanout_id: ScanoutId(0), resource_id: Some(resource_id) },
        Command::SetScanout { r: CONSOLE, scanout_id: ScanoutId(1), resource_id: None },
        Command::ResourceAssignUuid { resource_id },
        Command::ResourceMapBlob { resource_id, offset: 0 },
        Command::ResourceUnmapBlob { resource_id },
    ] {
        assert!(guest.call(&command, None).is_err(), "{command:?}");
    }
    Ok(())
}

#[test]
fn uuid_of_a_resource_stays_the_same_and_is_its_own() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    let context = guest.create_context("uuid")?;
    let blobs = [guest.create_shmem(context, 4096)?, guest.create_shmem(context, 4096)?];
    let uuid =
        |i: usize| guest.call(&Command::ResourceAssignUuid { resource_id: blobs[i].resource_id }, None);
    let first = uuid(0)?;
    assert_eq!(uuid(0)?, first);
    assert_ne!(uuid(1)?, first);
    assert_ne!(first, Response::OkResourceUuid([0; 16]));
    Ok(())
}

#[test]
fn cursor_commands_are_returned_without_a_response() -> Result<()> {
    let daemon = Daemon::start()?;
    let guest = daemon.guest()?;
    for _ in 0..100 {
        let mut bytes = Vec::new();
        Command::MoveCursor { scanout_id: ScanoutId(0) }.encode(None, None, &mut bytes);
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let request = tests::frontend::virtqueue::Request {
            readable: &[&bytes],
            response_len: 0,
            completion: Box::new(move |response| drop(sender.send(response))),
        };
        guest.session.cursor.submit(vec![request])?;
        assert_eq!(receiver.recv_timeout(PATIENCE)?, Some(Vec::new()));
    }
    Ok(())
}
