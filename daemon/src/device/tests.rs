//! Tests of the device with a fake world, which notes every effect. Tickets are numbers, and workers answer when the test says so.

use super::*;
use config::{ContextLimits, DeviceLimits, MemoryCount, MemoryId, PerHeap};
use protocol::ids::{BlobId, CapsetId, FenceId, RingIdx, ScanoutId};
use protocol::ids::{ContextId, ResourceId};
use protocol::virtio_gpu::{
    BlobFlags, BlobMem, Command, CommandType, Header, HeaderFlags, MapCache, Rect, Response, ResponseType,
};

#[path = "memory_tests.rs"]
mod memory;

/// The calls that the fake world was asked for, except answers.
#[derive(Clone, Debug, PartialEq)]
enum Asked {
    Start(u32, Vec<u8>),
    End(u32),
    Submit(u32, Vec<u8>, Option<(u8, u64)>),
    Shmem(u32, u64),
    Export(u32, u32, u64, u64, bool),
    Drop(u32),
    Attach(u32, u32, u64, Shown),
    Mirror(u32, u32, u64, Shown),
    Detach(u32, u32),
    Map(u32, u64, u64),
    Unmap(u32, u64, u64),
    Make(u32, u32, u64, u64),
    Grant(u32, u32, Option<u64>, u64),
    Waits(u32, u32),
    RefuseMemory(u32, u32, &'static str),
    Budget(u32, u32, PerHeap<MemoryCount>),
    Forget(u64),
    BlobGone(u32, u64),
    Revoke(u32),
}

#[derive(Default)]
struct World {
    asked: Vec<Asked>,
    answers: Vec<(u32, Response)>,
    refused: Vec<&'static str>,
    /// Ranges mapped in the frontend: offset and end.
    mapped: Vec<(u64, u64)>,
    fails: bool,
}

impl World {
    fn ask(&mut self, asked: Asked) -> Result<(), EffectFailed> {
        self.asked.push(asked);
        if self.fails { Err(EffectFailed) } else { Ok(()) }
    }
}

impl Effects for World {
    type Ticket = u32;

    fn respond(&mut self, ticket: u32, response: Response) {
        assert!(
            self.answers.iter().all(|(answered, _)| *answered != ticket),
            "ticket {ticket} answered twice"
        );
        self.answers.push((ticket, response));
    }
    fn refused(&mut self, _: &Header, error: &GuestError) {
        self.refused.push(error.name());
    }
    fn start_worker(&mut self, ctx_id: ContextId, debug_name: &[u8], _: u64) -> Result<(), EffectFailed> {
        self.ask(Asked::Start(ctx_id.0, debug_name.to_vec()))
    }
    fn end_worker(&mut self, ctx_id: ContextId) {
        let _ = self.ask(Asked::End(ctx_id.0));
    }
    fn submit(
        &mut self,
        ctx_id: ContextId,
        data: &[u8],
        fence: Option<(RingIdx, FenceId)>,
    ) -> Result<(), EffectFailed> {
        self.ask(Asked::Submit(ctx_id.0, data.to_vec(), fence.map(|(ring, fence)| (ring.0, fence.0))))
    }
    fn make_memory(
        &mut self,
        ctx_id: ContextId,
        request: u32,
        memory: MemoryId,
        size: u64,
    ) -> Result<(), EffectFailed> {
        self.ask(Asked::Make(ctx_id.0, request, memory.0, size))
    }
    fn grant_memory(&mut self, ctx_id: ContextId, request: u32, memory: Option<MemoryId>, bytes: u64) {
        let _ = self.ask(Asked::Grant(ctx_id.0, request, memory.map(|memory| memory.0), bytes));
    }
    fn tell_budget(&mut self, ctx_id: ContextId, request: u32, memory: PerHeap<MemoryCount>) {
        let _ = self.ask(Asked::Budget(ctx_id.0, request, memory));
    }
    fn memory_waits(&mut self, ctx_id: ContextId, request: u32) {
        let _ = self.ask(Asked::Waits(ctx_id.0, request));
    }
    fn refuse_memory(&mut self, ctx_id: ContextId, request: u32, limit: Option<&'static str>) {
        let _ = self.ask(Asked::RefuseMemory(ctx_id.0, request, limit.unwrap_or("")));
    }
    fn forget_memory(&mut self, memory: MemoryId) {
        let _ = self.ask(Asked::Forget(memory.0));
    }
    fn create_shmem(&mut self, resource_id: ResourceId, size: u64) -> Result<(), EffectFailed> {
        self.ask(Asked::Shmem(resource_id.0, size))
    }
    fn export_blob(
        &mut self,
        ctx_id: ContextId,
        resource_id: ResourceId,
        blob_id: BlobId,
        size: u64,
        mappable: bool,
    ) -> Result<(), EffectFailed> {
        self.ask(Asked::Export(ctx_id.0, resource_id.0, blob_id.0, size, mappable))
    }
    fn blob_gone(&mut self, ctx_id: ContextId, memory: MemoryId) {
        let _ = self.ask(Asked::BlobGone(ctx_id.0, memory.0));
    }
    fn revoke_blob(&mut self, resource_id: ResourceId) {
        let _ = self.ask(Asked::Revoke(resource_id.0));
    }
    fn drop_blob(&mut self, resource_id: ResourceId) {
        let _ = self.ask(Asked::Drop(resource_id.0));
    }
    fn attach(&mut self, ctx_id: ContextId, resource_id: ResourceId, size: u64, shown: Shown) {
        let _ = self.ask(Asked::Attach(ctx_id.0, resource_id.0, size, shown));
    }
    fn attach_to_successor(&mut self, ctx_id: ContextId, resource_id: ResourceId, size: u64, shown: Shown) {
        let _ = self.ask(Asked::Mirror(ctx_id.0, resource_id.0, size, shown));
    }
    fn detach(&mut self, ctx_id: ContextId, resource_id: ResourceId) {
        let _ = self.ask(Asked::Detach(ctx_id.0, resource_id.0));
    }
    fn map_blob(&mut self, resource_id: ResourceId, offset: u64, size: u64) -> Result<(), EffectFailed> {
        let end = offset.checked_add(size).expect("a range");
        assert!(offset.is_multiple_of(4096) && end <= WINDOW, "{offset:#x} + {size:#x}");
        let overlap = self.mapped.iter().any(|(start, stop)| offset < *stop && *start < end);
        assert!(!overlap, "{offset:#x} + {size:#x} overlaps");
        self.ask(Asked::Map(resource_id.0, offset, size))?;
        self.mapped.push((offset, end));
        Ok(())
    }
    fn unmap_blob(&mut self, resource_id: ResourceId, offset: u64, size: u64) -> Result<(), EffectFailed> {
        let at = self.mapped.iter().position(|range| *range == (offset, offset + size));
        self.mapped.remove(at.expect("a mapping of exactly this range"));
        self.ask(Asked::Unmap(resource_id.0, offset, size))
    }
    fn random(&mut self) -> Result<[u8; 16], EffectFailed> {
        Ok([0xff; 16])
    }
}

/// A device, its world, and the next ticket.
struct Rig {
    device: Device<u32>,
    world: World,
    tickets: u32,
}

const OK: Response = Response::OkNodata;
const WINDOW: u64 = 1 << 20;

fn error(number: ResponseType) -> Response {
    Response::Err(number)
}

fn header(ctx_id: u32, fence: Option<(Option<u8>, u64)>) -> Header {
    let mut flags = HeaderFlags::empty();
    flags.set(HeaderFlags::FENCE, fence.is_some());
    flags.set(HeaderFlags::INFO_RING_IDX, fence.is_some_and(|(ring, _)| ring.is_some()));
    Header {
        command: CommandType(0),
        flags,
        fence_id: FenceId(fence.map_or(0, |(_, id)| id)),
        ctx_id,
        ring_idx: RingIdx(fence.and_then(|(ring, _)| ring).unwrap_or(0)),
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(DeviceLimits::default())
    }

    fn with(limits: DeviceLimits) -> Self {
        let options = DeviceOptions {
            num_scanouts: 1,
            window_size: WINDOW,
            capset: vec![7; 160],
            limits,
            context_limits: ContextLimits::default(),
        };
        Self { device: Device::new(options), world: World::default(), tickets: 0 }
    }

    /// A device with Venus contexts 1 and 2 and an empty record.
    fn with_contexts() -> Self {
        let mut rig = Self::new();
        for ctx_id in [1, 2] {
            assert_eq!(rig.call(ctx_id, venus()), OK);
        }
        rig.world.asked.clear();
        rig
    }

    /// Hands a command in and returns its ticket.
    fn start(&mut self, header: Header, command: Command<'_>) -> u32 {
        self.tickets += 1;
        self.device.handle(&header, &command, self.tickets, &mut self.world);
        self.tickets
    }

    fn answer(&self, ticket: u32) -> Option<Response> {
        self.world
            .answers
            .iter()
            .find(|(answered, _)| *answered == ticket)
            .map(|(_, response)| response.clone())
    }

    /// Hands in a command that is answered at once, and returns the answer. A worker of it starts at once.
    fn call(&mut self, ctx_id: u32, command: Command<'_>) -> Response {
        let ticket = self.start(header(ctx_id, None), command);
        if matches!(command, Command::CtxCreate { .. }) {
            self.started(ctx_id);
        }
        self.answer(ticket).expect("an answer at once")
    }

    fn submit(&mut self, ctx_id: u32, ring_idx: u8, fence_id: u64) -> u32 {
        self.start(header(ctx_id, Some((Some(ring_idx), fence_id))), Command::Submit3d { data: b"x" })
    }

    fn signal(&mut self, ctx_id: u32, ring_idx: u8, fence_id: u64) {
        self.device.fence_signalled(ContextId(ctx_id), RingIdx(ring_idx), FenceId(fence_id), &mut self.world);
    }

    fn started(&mut self, ctx_id: u32) {
        self.device.worker_started(ContextId(ctx_id), &mut self.world);
    }

    fn asked(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.world.asked)
    }
}

fn venus() -> Command<'static> {
    Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"app" }
}

fn blob(resource_id: u32, blob_id: u64, size: u64) -> Command<'static> {
    Command::ResourceCreateBlob {
        resource_id: ResourceId(resource_id),
        blob_mem: BlobMem::Host3d,
        blob_flags: BlobFlags::MAPPABLE,
        blob_id: BlobId(blob_id),
        size,
        entries: &[],
    }
}

fn map(resource_id: u32, offset: u64) -> Command<'static> {
    Command::ResourceMapBlob { resource_id: ResourceId(resource_id), offset }
}

fn unmap(resource_id: u32) -> Command<'static> {
    Command::ResourceUnmapBlob { resource_id: ResourceId(resource_id) }
}

fn unref(resource_id: u32) -> Command<'static> {
    Command::ResourceUnref { resource_id: ResourceId(resource_id) }
}

fn attach(resource_id: u32) -> Command<'static> {
    Command::CtxAttachResource { resource_id: ResourceId(resource_id) }
}

fn detach(resource_id: u32) -> Command<'static> {
    Command::CtxDetachResource { resource_id: ResourceId(resource_id) }
}

const RECT: Rect = Rect { x: 0, y: 0, width: 4, height: 4 };

#[test]
fn the_probe_of_the_kernel_finds_one_capset_and_no_display() {
    let mut rig = Rig::new();
    let info =
        Response::OkCapsetInfo { capset_id: CapsetId::VENUS, capset_max_version: 0, capset_max_size: 160 };
    assert_eq!(rig.call(0, Command::GetCapsetInfo { capset_index: 0 }), info);
    let invalid = error(ResponseType::ERR_INVALID_PARAMETER);
    assert_eq!(rig.call(0, Command::GetCapsetInfo { capset_index: 1 }), invalid);
    let capset = |capset_id| Command::GetCapset { capset_id: CapsetId(capset_id), capset_version: 0 };
    assert_eq!(rig.call(0, capset(4)), Response::OkCapset(vec![7; 160]));
    assert_eq!(rig.call(0, capset(1)), invalid);
    let Response::OkDisplayInfo(modes) = rig.call(0, Command::GetDisplayInfo) else {
        panic!("no display info")
    };
    assert!(modes.iter().all(|mode| !mode.enabled));
}

#[test]
fn contexts_have_a_worker_only_with_the_venus_capset() {
    let mut rig = Rig::new();
    assert_eq!(rig.call(1, venus()), OK);
    assert_eq!(rig.call(2, Command::CtxCreate { capset_id: CapsetId(0), debug_name: b"fbdev" }), OK);
    assert_eq!(
        rig.call(3, Command::CtxCreate { capset_id: CapsetId(1), debug_name: b"virgl" }),
        error(ResponseType::ERR_INVALID_PARAMETER)
    );
    let no_context = error(ResponseType::ERR_INVALID_CONTEXT_ID);
    assert_eq!(rig.call(1, venus()), no_context);
    assert_eq!(rig.call(0, venus()), no_context);
    assert_eq!(rig.call(2, Command::Submit3d { data: b"x" }), no_context);
    assert_eq!(rig.call(9, Command::Submit3d { data: b"x" }), no_context);
    assert_eq!(rig.call(2, blob(5, 0, 4096)), no_context);
    assert_eq!(rig.call(2, Command::CtxDestroy), OK);
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    assert_eq!(rig.call(1, Command::CtxDestroy), no_context);
    assert_eq!(rig.asked(), [Asked::Start(1, b"app".to_vec()), Asked::End(1)]);
    assert_eq!(rig.device.contexts(), 0);
}

#[test]
fn a_worker_that_does_not_start_makes_no_context() {
    let mut rig = Rig::new();
    rig.world.fails = true;
    assert_eq!(rig.call(1, venus()), error(ResponseType::ERR_UNSPEC));
    assert_eq!(rig.device.contexts(), 0);
}

#[test]
fn shared_memory_is_made_attached_and_mapped() {
    let mut rig = Rig::with_contexts();
    assert_eq!(rig.call(1, blob(5, 0, 8192)), OK);
    assert_eq!(rig.call(0, map(5, 4096)), Response::OkMapInfo(MapCache::Cached));
    assert_eq!(rig.call(1, attach(5)), OK);
    assert_eq!(rig.call(2, attach(5)), OK);
    assert_eq!(rig.call(1, detach(5)), OK);
    assert_eq!(rig.call(0, unref(5)), OK);
    assert_eq!(
        rig.asked(),
        [
            Asked::Shmem(5, 8192),
            Asked::Attach(1, 5, 8192, Shown::SharedMemory),
            Asked::Map(5, 4096, 8192),
            Asked::Attach(2, 5, 8192, Shown::SharedMemory),
            Asked::Detach(1, 5),
            Asked::Unmap(5, 4096, 8192),
            Asked::Detach(2, 5),
            Asked::Drop(5),
        ]
    );
    assert_eq!(
        (rig.device.resources(), rig.device.live_maps(), rig.device.quotas.shmem_bytes.used()),
        (0, 0, 0)
    );
}

#[test]
fn a_mapping_is_checked_before_the_frontend_hears_of_it() {
    let mut rig = Rig::with_contexts();
    rig.call(1, blob(5, 0, 8192));
    rig.call(1, blob(6, 0, 8192));
    rig.call(0, Command::ResourceCreate2d { resource_id: ResourceId(7), format: 1, width: 4, height: 4 });
    rig.asked();
    let invalid = error(ResponseType::ERR_INVALID_PARAMETER);
    for offset in [1, 4095, WINDOW, WINDOW - 4096, u64::MAX - 4095, u64::MAX] {
        assert_eq!(rig.call(0, map(5, offset)), invalid, "{offset:#x}");
    }
    assert_eq!(rig.call(0, map(7, 0)), invalid);
    assert_eq!(rig.call(0, map(8, 0)), error(ResponseType::ERR_INVALID_RESOURCE_ID));
    assert_eq!(rig.call(0, unmap(5)), invalid);
    assert_eq!(rig.asked(), []);
    assert_eq!(rig.call(0, map(5, 8192)), Response::OkMapInfo(MapCache::Cached));
    assert_eq!(rig.call(0, map(5, 65536)), invalid);
    for offset in [4096, 8192, 12288] {
        assert_eq!(rig.call(0, map(6, offset)), invalid, "{offset:#x}");
    }
    assert_eq!(rig.call(0, map(6, 16384)), Response::OkMapInfo(MapCache::Cached));
    assert_eq!(rig.call(0, unmap(5)), OK);
    assert_eq!(rig.call(0, unmap(5)), invalid);
    assert_eq!(
        rig.asked(),
        [Asked::Map(5, 8192, 8192), Asked::Map(6, 16384, 8192), Asked::Unmap(5, 8192, 8192)]
    );
}

#[test]
fn a_mapping_the_frontend_refuses_leaves_its_range_free() {
    let mut rig = Rig::with_contexts();
    rig.call(1, blob(5, 0, 4096));
    rig.world.fails = true;
    assert_eq!(rig.call(0, map(5, 0)), error(ResponseType::ERR_UNSPEC));
    rig.world.fails = false;
    assert_eq!(rig.call(0, map(5, 0)), Response::OkMapInfo(MapCache::Cached));
}

#[test]
fn live_maps_are_capped_with_an_error_and_can_be_used_again() {
    let mut rig = Rig::with(DeviceLimits { live_maps: 2, ..DeviceLimits::default() });
    rig.call(1, venus());
    for id in 1..=3 {
        rig.call(1, blob(id, 0, 4096));
    }
    assert_eq!(rig.call(0, map(1, 0)), Response::OkMapInfo(MapCache::Cached));
    assert_eq!(rig.call(0, map(2, 4096)), Response::OkMapInfo(MapCache::Cached));
    assert_eq!(rig.call(0, map(3, 8192)), error(ResponseType::ERR_OUT_OF_MEMORY));
    assert_eq!(rig.world.refused, ["max-maps"]);
    assert_eq!(rig.call(0, unref(1)), OK);
    assert_eq!(rig.call(0, map(3, 8192)), Response::OkMapInfo(MapCache::Cached));
}

#[test]
fn limits_are_answered_by_name() {
    let limits = DeviceLimits {
        contexts: 1,
        resources: 2,
        shmem_blob_bytes: 16384,
        shmem_total_bytes: 28672,
        ..DeviceLimits::default()
    };
    let mut rig = Rig::with(limits);
    let full = error(ResponseType::ERR_OUT_OF_MEMORY);
    assert_eq!(rig.call(1, venus()), OK);
    assert_eq!(rig.call(2, venus()), full);
    assert_eq!(rig.call(1, blob(1, 0, 20480)), full);
    assert_eq!(rig.call(1, blob(1, 0, 16384)), OK);
    assert_eq!(rig.call(1, blob(2, 0, 12288)), full);
    assert_eq!(rig.call(1, blob(2, 0, 4096)), OK);
    assert_eq!(rig.call(1, blob(3, 0, 4096)), full);
    assert_eq!(rig.world.refused, ["max-contexts", "shmem_blob_bytes", "ring-memory", "max-resources"]);
    assert_eq!(rig.call(0, unref(1)), OK);
    assert_eq!(rig.call(1, blob(3, 0, 16384)), OK);
}

#[test]
fn an_export_is_answered_when_the_worker_answers() {
    let mut rig = Rig::with_contexts();
    let create = rig.start(header(1, None), blob(5, 77, 8192));
    assert_eq!(rig.answer(create), None);
    assert_eq!(rig.device.pending_export(ContextId(1), ResourceId(5)), Some((8192, true)));
    assert_eq!(rig.device.pending_export(ContextId(2), ResourceId(5)), None);
    rig.device.blob_exported(ResourceId(5), MapCache::WriteCombined, None, false, &mut rig.world);
    assert_eq!(rig.answer(create), Some(OK));
    assert_eq!(rig.device.pending_export(ContextId(1), ResourceId(5)), None);
    assert_eq!(rig.call(0, map(5, 0)), Response::OkMapInfo(MapCache::WriteCombined));
    // The worker counts the resource as attached already.
    assert_eq!(rig.call(1, attach(5)), OK);
    assert_eq!(rig.asked(), [Asked::Export(1, 5, 77, 8192, true), Asked::Map(5, 0, 8192)]);
}

#[test]
fn commands_on_a_pending_blob_wait_for_it_in_order() {
    let mut rig = Rig::with_contexts();
    let create = rig.start(header(1, None), blob(5, 77, 4096));
    let waiting: Vec<_> = [map(5, 0), attach(5), detach(5), unref(5), map(5, 0)]
        .into_iter()
        .map(|command| rig.start(header(1, None), command))
        .collect();
    assert!(waiting.iter().all(|ticket| rig.answer(*ticket).is_none()));
    // Other resources do not wait.
    assert_eq!(rig.call(1, blob(6, 0, 4096)), OK);
    rig.asked();
    rig.device.blob_exported(ResourceId(5), MapCache::Cached, None, false, &mut rig.world);
    assert_eq!(rig.answer(create), Some(OK));
    let answers: Vec<_> = waiting.iter().map(|ticket| rig.answer(*ticket).unwrap()).collect();
    let unknown = error(ResponseType::ERR_INVALID_RESOURCE_ID);
    assert_eq!(answers, [Response::OkMapInfo(MapCache::Cached), OK, OK, OK, unknown]);
    assert_eq!(
        rig.asked(),
        [
            Asked::Map(5, 0, 4096),
            // The creator's worker has had the resource since the export.
            Asked::Detach(1, 5),
            Asked::Unmap(5, 0, 4096),
            Asked::Drop(5),
        ]
    );
}

#[test]
fn a_pending_blob_is_expected_by_other_contexts_before_what_they_submit_next() {
    let mut rig = Rig::with_contexts();
    let create = rig.start(header(1, None), blob(5, 77, 4096));
    rig.asked();
    assert_eq!(rig.call(2, attach(5)), OK);
    let submit = Command::Submit3d { data: &[1, 2, 3, 4] };
    assert_eq!(rig.call(2, submit), OK);
    let expected = Asked::Attach(2, 5, 4096, Shown::Expected);
    assert_eq!(rig.asked(), [expected.clone(), Asked::Submit(2, vec![1, 2, 3, 4], None)]);
    rig.device.blob_exported(ResourceId(5), MapCache::Cached, None, false, &mut rig.world);
    assert_eq!(rig.answer(create), Some(OK));
    assert_eq!(
        rig.asked(),
        [Asked::Attach(2, 5, 4096, Shown::DeviceMemory { mappable: true, memory: None })]
    );

    // A blob that is detached in time, or refused, is expected no longer.
    rig.start(header(1, None), blob(6, 77, 4096));
    rig.asked();
    assert_eq!(rig.call(2, attach(6)), OK);
    assert_eq!(rig.call(2, detach(6)), OK);
    rig.device.blob_exported(ResourceId(6), MapCache::Cached, None, false, &mut rig.world);
    assert_eq!(rig.asked(), [Asked::Attach(2, 6, 4096, Shown::Expected), Asked::Detach(2, 6)]);
    for lose in [false, true] {
        rig.start(header(1, None), blob(7, 77, 4096));
        rig.asked();
        assert_eq!(rig.call(2, attach(7)), OK);
        match lose {
            false => rig.device.blob_refused(ResourceId(7), &mut rig.world),
            true => rig.device.context_lost(ContextId(1), &mut rig.world),
        }
        assert_eq!(rig.asked(), [Asked::Attach(2, 7, 4096, Shown::Expected), Asked::Detach(2, 7)]);
    }
}

#[test]
fn a_refused_export_leaves_no_resource() {
    let mut rig = Rig::with_contexts();
    let create = rig.start(header(1, None), blob(5, 77, 4096));
    let waiting = rig.start(header(0, None), map(5, 0));
    rig.device.blob_refused(ResourceId(5), &mut rig.world);
    assert_eq!(rig.answer(create), Some(error(ResponseType::ERR_UNSPEC)));
    assert_eq!(rig.answer(waiting), Some(error(ResponseType::ERR_INVALID_RESOURCE_ID)));
    assert_eq!(rig.device.resources(), 0);
    // A second answer of the worker, or one for a resource that is no export, changes nothing.
    rig.call(1, blob(6, 0, 4096));
    for id in [5, 6] {
        rig.device.blob_refused(ResourceId(id), &mut rig.world);
        rig.device.blob_exported(ResourceId(id), MapCache::Cached, None, false, &mut rig.world);
    }
    assert_eq!(rig.call(0, map(6, 0)), Response::OkMapInfo(MapCache::Cached));
}

#[test]
fn fences_are_answered_in_order_per_timeline() {
    let mut rig = Rig::with_contexts();
    let unfenced = rig.start(header(1, None), Command::Submit3d { data: b"" });
    assert_eq!(rig.answer(unfenced), Some(OK));
    let [first, second, third] = [10, 11, 13].map(|fence_id| rig.submit(1, 3, fence_id));
    let other_ring = rig.submit(1, 4, 12);
    let other_context = rig.submit(2, 3, 14);
    rig.signal(1, 4, 12);
    assert_eq!(rig.answer(other_ring), Some(OK));
    // A fence that was never submitted there answers no command.
    for (ctx_id, ring_idx, fence_id) in [(1, 3, 12), (2, 3, 10), (1, 9, 10), (7, 3, 10)] {
        rig.signal(ctx_id, ring_idx, fence_id);
    }
    assert!([first, second, third, other_context].iter().all(|ticket| rig.answer(*ticket).is_none()));
    rig.signal(1, 3, 11);
    assert_eq!((rig.answer(first), rig.answer(second), rig.answer(third)), (Some(OK), Some(OK), None));
    rig.signal(1, 3, 10);
    rig.signal(1, 3, 13);
    assert_eq!(rig.answer(third), Some(OK));
    assert_eq!(rig.answer(other_context), None);
}

#[test]
fn a_fence_of_the_global_timeline_waits_for_execution() {
    let mut rig = Rig::with_contexts();
    let submit = rig.start(header(1, Some((None, 20))), Command::Submit3d { data: b"x" });
    assert_eq!(rig.answer(submit), None);
    assert_eq!(rig.asked(), [Asked::Submit(1, b"x".to_vec(), Some((0, 20)))]);
    rig.signal(1, 0, 20);
    assert_eq!(rig.answer(submit), Some(OK));
    // Other commands are done when they are answered.
    rig.call(0, Command::ResourceCreate2d { resource_id: ResourceId(7), format: 1, width: 4, height: 4 });
    let flush = Command::ResourceFlush { r: RECT, resource_id: ResourceId(7) };
    let flush = rig.start(header(0, Some((None, 21))), flush);
    assert_eq!(rig.answer(flush), Some(OK));
}

#[test]
fn a_timeline_beyond_the_last_is_refused() {
    let mut rig = Rig::with_contexts();
    let submit = rig.submit(1, 64, 10);
    assert_eq!(rig.answer(submit), Some(error(ResponseType::ERR_INVALID_PARAMETER)));
    assert_eq!(rig.asked(), []);
}

#[test]
fn a_destroyed_context_answers_everything_it_owes() {
    let mut rig = Rig::with_contexts();
    rig.call(1, blob(4, 0, 4096));
    rig.call(0, map(4, 0));
    let fences = [rig.submit(1, 0, 10), rig.submit(1, 5, 11)];
    let export = rig.start(header(1, None), blob(5, 77, 4096));
    let waiting = rig.start(header(0, None), map(5, 4096));
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    assert!(fences.iter().all(|ticket| rig.answer(*ticket) == Some(OK)));
    assert_eq!(rig.answer(export), Some(error(ResponseType::ERR_UNSPEC)));
    assert_eq!(rig.answer(waiting), Some(error(ResponseType::ERR_INVALID_RESOURCE_ID)));
    assert_eq!(rig.device.live_maps(), 1, "a mapping outlives the context");
    rig.signal(1, 0, 10);
    assert_eq!(rig.call(0, unref(4)), OK);
}

#[test]
fn a_lost_context_answers_its_fences_and_refuses_more() {
    let mut rig = Rig::with_contexts();
    rig.call(1, blob(4, 0, 4096));
    rig.call(0, map(4, 0));
    let fences = [rig.submit(1, 0, 10), rig.submit(1, 5, 11)];
    let export = rig.start(header(1, None), blob(5, 77, 4096));
    rig.asked();
    rig.device.context_lost(ContextId(1), &mut rig.world);
    rig.device.context_lost(ContextId(1), &mut rig.world);
    assert!(fences.iter().all(|ticket| rig.answer(*ticket) == Some(OK)));
    let lost = error(ResponseType::ERR_UNSPEC);
    assert_eq!(rig.answer(export), Some(lost.clone()));
    let late = rig.submit(1, 5, 12);
    assert_eq!(rig.answer(late), Some(lost.clone()), "a fence always retires");
    assert_eq!(rig.call(1, blob(6, 0, 4096)), lost);
    // The worker gets no message any more, but the bookkeeping goes on.
    assert_eq!(rig.call(1, attach(4)), OK);
    assert_eq!(rig.call(1, detach(4)), OK);
    assert_eq!(rig.call(0, unref(4)), OK);
    assert_eq!(rig.call(1, Command::CtxDestroy), OK);
    assert_eq!(rig.asked(), [Asked::Unmap(4, 0, 4096), Asked::Drop(4)]);
    // The neighbouring context does not notice.
    let other = rig.submit(2, 0, 13);
    rig.signal(2, 0, 13);
    assert_eq!(rig.answer(other), Some(OK));
}

#[test]
fn the_context_whose_worker_owes_most_answers_is_known() {
    let mut rig = Rig::with_contexts();
    let most = |rig: &Rig| rig.device.owes_most().map(|(ctx_id, owed)| (ctx_id.0, owed));
    assert_eq!(most(&rig), None);
    rig.submit(2, 0, 10);
    assert_eq!(most(&rig), Some((2, 1)));
    rig.submit(1, 0, 11);
    assert_eq!(most(&rig), Some((1, 1)), "the older of two");
    // An export, and commands of other contexts about it.
    rig.start(header(2, None), blob(5, 77, 4096));
    rig.start(header(0, None), map(5, 4096));
    assert_eq!(most(&rig), Some((2, 3)));
    rig.submit(1, 3, 12);
    rig.submit(1, 4, 13);
    rig.submit(1, 4, 14);
    assert_eq!(most(&rig), Some((1, 4)));
    rig.signal(1, 4, 14);
    assert_eq!(most(&rig), Some((2, 3)));
    rig.device.context_lost(ContextId(2), &mut rig.world);
    assert_eq!(most(&rig), Some((1, 2)));
    rig.call(1, Command::CtxDestroy);
    assert_eq!(most(&rig), None);
}

#[test]
fn scanouts_and_2d_resources_are_bookkeeping() {
    let mut rig = Rig::new();
    let id = ResourceId(7);
    let create = Command::ResourceCreate2d { resource_id: id, format: 2, width: 640, height: 480 };
    assert_eq!(rig.call(0, create), OK);
    assert_eq!(rig.call(0, create), error(ResponseType::ERR_INVALID_RESOURCE_ID));
    let scanout =
        |number, resource_id| Command::SetScanout { r: RECT, scanout_id: ScanoutId(number), resource_id };
    let commands = [
        Command::ResourceAttachBacking { resource_id: id, entries: &[] },
        scanout(0, Some(id)),
        Command::TransferToHost2d { r: RECT, offset: 0, resource_id: id },
        Command::ResourceFlush { r: RECT, resource_id: id },
        Command::ResourceDetachBacking { resource_id: id },
        Command::UpdateCursor { scanout_id: ScanoutId(0), resource_id: Some(id) },
        Command::MoveCursor { scanout_id: ScanoutId(0) },
        scanout(0, None),
        unref(7),
    ];
    for command in commands {
        assert_eq!(rig.call(0, command), OK, "{command:?}");
    }
    assert_eq!(rig.call(0, scanout(1, None)), error(ResponseType::ERR_INVALID_SCANOUT_ID));
    assert_eq!(rig.call(0, scanout(0, Some(id))), error(ResponseType::ERR_INVALID_RESOURCE_ID));
    for command in &commands[..5] {
        assert_eq!(rig.call(0, *command), error(ResponseType::ERR_INVALID_RESOURCE_ID), "{command:?}");
    }
    assert_eq!(rig.asked(), []);
}

#[test]
fn guest_blobs_are_bookkeeping_and_hybrid_ones_are_refused() {
    let mut rig = Rig::with_contexts();
    let with = |resource_id, blob_mem, blob_flags| Command::ResourceCreateBlob {
        resource_id: ResourceId(resource_id),
        blob_mem,
        blob_flags,
        blob_id: BlobId(0),
        size: 4096,
        entries: &[],
    };
    let invalid = error(ResponseType::ERR_INVALID_PARAMETER);
    assert_eq!(rig.call(0, with(1, BlobMem::Guest, BlobFlags::MAPPABLE)), OK);
    assert_eq!(rig.call(1, attach(1)), OK);
    assert_eq!(rig.call(0, map(1, 0)), invalid);
    assert_eq!(rig.call(1, with(2, BlobMem::Host3dGuest, BlobFlags::MAPPABLE)), invalid);
    assert_eq!(rig.asked(), []);
    assert_eq!(rig.call(1, with(2, BlobMem::Host3d, BlobFlags::empty())), OK);
    assert_eq!(rig.call(0, map(2, 0)), invalid);
}

#[test]
fn a_uuid_is_assigned_once() {
    let mut rig = Rig::with_contexts();
    rig.call(1, blob(5, 0, 4096));
    let assign = |id| Command::ResourceAssignUuid { resource_id: ResourceId(id) };
    let mut uuid = [0xff; 16];
    (uuid[6], uuid[8]) = (0x4f, 0xbf);
    assert_eq!(rig.call(0, assign(5)), Response::OkResourceUuid(uuid));
    assert_eq!(rig.call(0, assign(5)), Response::OkResourceUuid(uuid));
    assert_eq!(rig.call(0, assign(6)), error(ResponseType::ERR_INVALID_RESOURCE_ID));
}

#[test]
fn a_reset_forgets_everything_and_unmaps_what_the_frontend_keeps() {
    for maps in [MapsAtReset::Forget, MapsAtReset::Unmap] {
        let mut rig = Rig::with_contexts();
        rig.call(1, blob(5, 0, 8192));
        rig.call(0, map(5, 4096));
        let pending = [rig.submit(1, 1, 10), rig.start(header(1, None), blob(6, 7, 4096))];
        rig.asked();
        rig.device.reset(maps, &mut rig.world);
        if maps == MapsAtReset::Forget {
            rig.world.mapped.clear();
        }
        let mut asked = rig.asked();
        if maps == MapsAtReset::Unmap {
            assert_eq!(asked.remove(0), Asked::Unmap(5, 4096, 8192));
        }
        asked.sort_by_key(|asked| format!("{asked:?}"));
        assert_eq!(asked, [Asked::Drop(5), Asked::End(1), Asked::End(2)]);
        assert!(pending.iter().all(|ticket| rig.answer(*ticket).is_none()));
        assert_eq!((rig.device.contexts(), rig.device.resources(), rig.device.live_maps()), (0, 0, 0));
        // The same ids and ranges can be used again.
        assert_eq!(rig.call(1, venus()), OK);
        assert_eq!(rig.call(1, blob(5, 0, 8192)), OK);
        assert_eq!(rig.call(0, map(5, 4096)), Response::OkMapInfo(MapCache::Cached));
    }
}

/// A small generator of numbers (xorshift), which are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn random_command(numbers: &mut Numbers) -> Command<'static> {
    let resource = 1 + numbers.below(6) as u32;
    let offset =
        [numbers.below(40) * 2048, u64::MAX - numbers.below(8192), WINDOW - 4096][numbers.below(3) as usize];
    match numbers.below(12) {
        0 => Command::CtxCreate { capset_id: CapsetId(4 * numbers.below(2) as u32), debug_name: b"n" },
        1 => Command::CtxDestroy,
        2 => blob(resource, 0, 4096 * (1 + numbers.below(4))),
        3 | 4 => blob(resource, 1 + numbers.below(3), 4096 * (1 + numbers.below(4))),
        5 => unref(resource),
        6 => map(resource, offset),
        7 => unmap(resource),
        8 => attach(resource),
        9 => detach(resource),
        _ => Command::Submit3d { data: b"x" },
    }
}

#[test]
fn whatever_guest_and_workers_do_every_command_is_answered_once_and_ranges_stay_disjoint() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..200 {
        let mut rig = Rig::new();
        for step in 0..300 {
            let ctx_id = numbers.below(4) as u32;
            match numbers.below(8) {
                0 => rig.signal(ctx_id, numbers.below(3) as u8, numbers.below(300)),
                1 => {
                    let id = ResourceId(numbers.below(7) as u32);
                    if numbers.below(2) == 0 {
                        rig.device.blob_exported(id, MapCache::Cached, None, false, &mut rig.world);
                    } else {
                        rig.device.blob_refused(id, &mut rig.world);
                    }
                }
                2 if numbers.below(8) == 0 => rig.device.context_lost(ContextId(ctx_id), &mut rig.world),
                _ => {
                    let fence = (numbers.below(2) == 0).then(|| (Some(numbers.below(3) as u8), step));
                    let command = random_command(&mut numbers);
                    rig.start(header(ctx_id, fence), command);
                }
            }
            rig.world.fails = numbers.below(16) == 0;
        }
        rig.world.fails = false;
        // Destroying all contexts leaves nothing unanswered.
        for ctx_id in 1..4 {
            rig.call(ctx_id, Command::CtxDestroy);
        }
        assert_eq!(rig.world.answers.len(), rig.tickets as usize);
    }
}

/// A device whose context's worker starts, with two blobs of shared memory, and the tickets of the commands that map them.
fn starting() -> (Rig, [u32; 2]) {
    let mut rig = Rig::new();
    let created = rig.start(header(1, None), venus());
    assert_eq!(rig.answer(created), Some(OK));
    let maps = [(3, 0), (4, 4096)].map(|(resource, offset)| {
        assert_eq!(rig.call(1, blob(resource, 0, 4096)), OK);
        rig.start(header(0, None), map(resource, offset))
    });
    assert_eq!(rig.world.mapped, [(0, 4096), (4096, 8192)]);
    assert_eq!(maps.map(|ticket| rig.answer(ticket)), [None, None]);
    (rig, maps)
}

#[test]
fn shared_memory_is_mapped_at_once_and_the_guest_hears_of_it_when_the_worker_has_started() {
    let mapped = Some(Response::OkMapInfo(MapCache::Cached));
    let ends: [fn(&mut Rig); 4] = [
        |rig| rig.started(1),
        |rig| rig.device.context_lost(ContextId(1), &mut rig.world),
        |rig| assert_eq!(rig.call(1, Command::CtxDestroy), OK),
        |rig| rig.device.await_no_start(&mut rig.world),
    ];
    for end in ends {
        let (mut rig, maps) = starting();
        assert_eq!(rig.device.owes_most(), Some((ContextId(1), 2)));
        end(&mut rig);
        assert_eq!(maps.map(|ticket| rig.answer(ticket)), [mapped.clone(), mapped.clone()]);
        assert_eq!(rig.device.owes_most(), None);
    }
    let (mut rig, maps) = starting();
    // Memory of others has nothing to wait for.
    assert_eq!(rig.call(2, venus()), OK);
    assert_eq!(rig.call(2, blob(5, 0, 4096)), OK);
    assert_eq!(rig.call(0, map(5, 8192)), Response::OkMapInfo(MapCache::Cached));
    rig.device.reset(MapsAtReset::Unmap, &mut rig.world);
    assert_eq!(maps.map(|ticket| rig.answer(ticket)), [None, None], "the requests are void");
}
