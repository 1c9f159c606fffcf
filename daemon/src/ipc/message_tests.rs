//! A test of the messages of workers, whose form is bound to their version.

use super::form_tests::{form, variants};
use super::message::{Fence, HandOver, MapInfo, ResourceKind, ToDevice, ToWorker, WORKER_MESSAGES};
use config::{AtFault, DepositId, Heap, MemoryCount, MemoryId, MemoryName, PerHeap, Wanted};
use protocol::ids::{BlobId, FenceId, ResourceId, RingIdx};
use std::time::Duration;

const RESOURCE: ResourceId = ResourceId(300);
const FENCE: Fence = Fence { ring_idx: RingIdx(1), fence_id: FenceId(2) };
const PIECE: MemoryId = MemoryId(3);

/// A device process goes on with workers of another program as long as this test passes. A worker gets [`ToWorker::Setup`] from its own program.
#[test]
fn messages_of_workers_that_change_have_another_version() {
    let counts = MemoryCount { held: 4, room: 5 };
    let pieces = ResourceKind::DeviceMemory { mappable: true, memory: Some(PIECE) };
    let attach = |kind| ToWorker::AttachResource { resource_id: RESOURCE, size: 6, kind };
    let to_worker = [
        attach(ResourceKind::SharedMemory),
        attach(pieces),
        attach(ResourceKind::Expected),
        ToWorker::DetachResource { resource_id: RESOURCE },
        ToWorker::Submit { size: 7, inline: vec![8, 9], fence: Some(FENCE) },
        ToWorker::ExportBlob { resource_id: RESOURCE, blob_id: BlobId(10), size: 11, mappable: true },
        ToWorker::MemoryGranted { request: 12, memory: Some(PIECE), bytes: 13 },
        ToWorker::MemoryRefused { request: 12 },
        ToWorker::Budget { request: 12, memory: PerHeap::each(|_| counts) },
        ToWorker::BlobGone { memory: PIECE },
        ToWorker::Grants,
        ToWorker::Doorbell,
        ToWorker::WritePrelude { goes_on: false, is_at_home: true },
        ToWorker::BuildPrelude,
        ToWorker::HandOver { copies: false, goes_on: true },
        ToWorker::TakeOver,
        ToWorker::GoOn,
        ToWorker::CaughtUp { request: 12 },
        ToWorker::MemoryWaits { request: 12 },
        ToWorker::WriteCheckpoint { number: 14 },
        ToWorker::KeepJournal,
    ];
    assert_eq!(variants::<ToWorker>(), 20);
    let bytes = "01ac020600 01ac020601010103 01ac020602 02ac02 0307020809010102 04ac020a0b01 050c01030d \
         060c 070c04050405 0803 09 0a 0b0001 0c 0d0001 0e 0f 100c 110c 120e 13";
    assert_eq!((WORKER_MESSAGES, form(&to_worker).as_str()), (3, bytes));

    let to_device = [
        ToDevice::Ready,
        ToDevice::BlobExported {
            resource_id: RESOURCE,
            map_info: MapInfo::WriteCombined,
            memory: Some(PIECE),
        },
        ToDevice::Anchor { left: 15 },
        ToDevice::BlobRefused { resource_id: RESOURCE, reason: "r".into() },
        ToDevice::FenceSignalled(FENCE),
        ToDevice::RingBegins { ring: 16, resource_id: RESOURCE, status: 17 },
        ToDevice::RingEnds { ring: 16 },
        ToDevice::MemoryWanted { request: 12, wanted: Wanted::Pages(18) },
        ToDevice::MemoryWanted { request: 12, wanted: Wanted::Piece { heap: Heap::Host, bytes: 18 } },
        ToDevice::MemoryWanted {
            request: 12,
            wanted: Wanted::Credit { heap: Heap::Device, least: 18, bytes: 19 },
        },
        ToDevice::MemoryWantedNoMore { request: 12 },
        ToDevice::BudgetWanted { request: 12 },
        ToDevice::MemoryReturned { memory: PIECE },
        ToDevice::Deposits { id: DepositId(20) },
        ToDevice::TakesBack { id: DepositId(20) },
        ToDevice::CreditReturned { heap: Heap::Host, bytes: 21 },
        ToDevice::LimitReached { limit: "l".into() },
        ToDevice::ShaderRefused { reason: "r".into() },
        ToDevice::Undrawn,
        ToDevice::Overdue { command: "c".into(), is_blocked: true },
        ToDevice::Wakes,
        ToDevice::PreludeBuilt { is_at_home: true },
        ToDevice::HandedOver,
        ToDevice::Stays { reason: "r".into(), for_now: true },
        ToDevice::TakesOver { pieces: vec![PIECE] },
        ToDevice::TakenOver { pieces: vec![PIECE], credit: PerHeap { device: 22, host: 23 } },
        ToDevice::Lost { at_fault: Some(AtFault::Driver), reason: "r".into() },
        ToDevice::Hung { limit: Duration::from_millis(24) },
        ToDevice::CatchUpWanted { request: 12 },
        ToDevice::ClosingWanted { request: 12 },
        ToDevice::CheckpointWritten { bytes: 25, took: Duration::from_nanos(26) },
        ToDevice::NoCheckpoint { reason: "r".into(), for_now: true },
        ToDevice::JournalFills,
    ];
    assert_eq!(variants::<ToDevice>(), 31);
    let bytes = "00 01ac02010103 020f 03ac020172 040102 0510ac0211 0610 070c0012 070c010112 070c02001213 \
         080c 090c 0a03 0b14 0c14 0d0115 0e016c 0f0172 10 11016301 12 1301 14 15017201 160103 \
         1701031617 1801010172 1918 1a0c 1b0c 1c19001a 1d017201 1e";
    assert_eq!((WORKER_MESSAGES, form(&to_device).as_str()), (3, bytes));

    let handed_over = [
        HandOver::File { memory: MemoryName::Piece(PIECE) },
        HandOver::File { memory: MemoryName::Unnamed },
        HandOver::File { memory: MemoryName::Deposit(DepositId(20)) },
        HandOver::Bytes(vec![8, 9]),
        HandOver::Slots { count: 27, bytes: 28 },
        HandOver::Journal { number: 29 },
        HandOver::End,
        HandOver::Filled,
        HandOver::Emptied,
    ];
    assert_eq!(variants::<HandOver>(), 7);
    let bytes = "000003 0001 000214 01020809 021b1c 031d 04 05 06";
    assert_eq!((WORKER_MESSAGES, form(&handed_over).as_str()), (3, bytes));
}
