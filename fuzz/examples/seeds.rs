//! Writes the seeds of all targets into `corpus/`, and `venus.dict`: the same files in every run.

use config::{
    AtFault, CacheKey, DriverMapped, GpuChoice, Likeness, MemoryBackEnd, MemoryId, MemoryTrial, PerHeap,
    Protection, Queues,
};
use daemon::ipc::{
    Fence, FromBroker, GpuChange, HeldMemory, InForce, MapInfo, Placement, ResourceKind, RestartStage,
    RestartTook, SharedGpu, ToBroker, ToDevice, ToSuccessor, ToWorker, Unmovable, WorkerSetup,
};
use protocol::cursor::{Arena, Reader};
use protocol::error::{DecodeError, DecodeErrorKind as Kind};
use protocol::ids::*;
use protocol::venus::generated::{ChainStruct, Command as Venus, Reply};
use protocol::virtio_gpu::{self as gpu, BlobFlags, BlobMem, Command, FenceTimeline, Rect};
use std::{fs, io, path::Path, time::Duration};

fn main() -> io::Result<()> {
    fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("venus.dict"), dictionary())?;
    write("virtio_gpu_command", requests())?;
    let streams = streams(|number, r| Venus::decode(number, r).map(drop), true);
    write("venus_stream", streams.clone())?;
    write("venus_roundtrip", streams)?;
    write("venus_reply", self::streams(|number, r| Reply::decode(number, r).map(drop), false))?;
    write("spirv_module", vec![shader(4), shader(7), addresses()])?;
    write("ring_layout", vec![ring(4096, 131_072, 20), ring(0, 16, 17)])?;
    write("ipc_message", packets())?;
    write("worker_snapshot", daemon::worker::fuzzing::snapshots())?;
    write("device_state", daemon::serve::fuzzing::device_states())?;
    write("http_request", texts(HTTP))?;
    write("control_request", texts(CONTROL))?;
    write("vms_file", texts(FILES))?;
    write("broker_state", daemon::broker::fuzzing::states())?;
    let lines = texts(TRACES);
    // All other bytes are notes of workers.
    let notes = (1..=8).map(|seed| [vec![0], random_bytes(seed)].concat());
    write("trace", lines.into_iter().chain(notes).collect())?;
    // These targets make their events or commands from the bytes, and so accept any bytes.
    for target in [
        "device_commands",
        "device_process",
        "control_queue",
        "vhost_user_messages",
        "worker_ring",
        "worker_messages",
        "broker_vm",
        "grants_page",
    ] {
        write(target, (1..=8).map(random_bytes).collect())?;
    }
    // An odd first byte says that a recipe follows.
    let recipe = |seed| [vec![seed as u8 | 1], random_bytes(seed)].concat();
    write("venus_execute", (1..=8).map(recipe).collect())?;
    let steps = |seed| vulkan::fuzzing::steps_of(&random_bytes(seed)).and_then(|steps| written(&steps));
    write("venus_rebuild", (1..=100).filter_map(steps).take(8).collect())?;
    write("venus_replay", (1..=100).filter_map(vulkan::fuzzing::journal_of).take(8).collect())
}

/// Steps of a snapshot, one behind the other.
fn written(steps: &[vulkan::snapshot::step::Step]) -> Option<Vec<u8>> {
    let all: Option<Vec<_>> = steps.iter().map(|step| postcard::to_stdvec(step).ok()).collect();
    Some(all?.concat())
}

fn write(target: &str, seeds: Vec<Vec<u8>>) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder)?;
    for (index, seed) in seeds.into_iter().enumerate() {
        fs::write(folder.join(format!("seed_{index:02}")), seed)?;
    }
    Ok(())
}

/// A compute shader with workgroup memory, a branch and a phi; `class` is the storage class of its array.
fn shader(class: u32) -> Vec<u8> {
    let instructions: &[(u32, &[u32])] = &[
        (17, &[1]),
        (14, &[0, 1]),
        (15, &[5, 1, u32::from_le_bytes(*b"main"), 0]),
        (16, &[1, 17, 64, 1, 1]),
        (71, &[20, 1, 7]),
        (19, &[2]),
        (33, &[3, 2]),
        (21, &[4, 32, 0]),
        (50, &[4, 20, 16]),
        (28, &[5, 4, 20]),
        (32, &[6, 4, 5]),
        (59, &[6, 10, 4]),
        (32, &[15, class, 5]),
        (20, &[9]),
        (41, &[9, 12]),
        (43, &[4, 13, 0]),
        (32, &[14, 4, 4]),
        (54, &[2, 1, 0, 3]),
        (248, &[30]),
        (59, &[15, 16, class]),
        (247, &[33, 0]),
        (250, &[12, 31, 33]),
        (248, &[31]),
        (65, &[14, 34, 10, 13]),
        (61, &[4, 35, 34]),
        (249, &[33]),
        (248, &[33]),
        (245, &[4, 36, 35, 31, 13, 30]),
        (253, &[]),
        (56, &[]),
    ];
    module(instructions)
}

/// A compute shader with types made of pointers that come later, a workgroup size that is computed, and remarks for tools.
fn addresses() -> Vec<u8> {
    let main = u32::from_le_bytes(*b"main");
    let [o, pe, nc, l] = [*b"Open", *b"CL.D", *b"ebug", *b"Info"].map(u32::from_le_bytes);
    let hundred = u32::from_le_bytes(*b".100");
    module(&[
        (17, &[1]),
        (17, &[5347]),
        (11, &[80, o, pe, nc, l, hundred, 0]),
        (14, &[5348, 1]),
        (15, &[5, 1, main, 0]),
        (15, &[5, 1, main + 1, 0]),
        (331, &[1, 38, 20, 21, 21]),
        (71, &[20, 1, 7]),
        (71, &[60, 11, 25]),
        (73, &[60]),
        (74, &[60, 27]),
        (19, &[2]),
        (33, &[3, 2]),
        (21, &[4, 32, 0]),
        (20, &[9]),
        (50, &[4, 20, 16]),
        (43, &[4, 21, 1]),
        (52, &[4, 22, 128, 20, 21]),
        (52, &[9, 23, 172, 22, 21]),
        (52, &[4, 24, 169, 23, 20, 22]),
        (23, &[25, 4, 3]),
        (51, &[25, 26, 24, 21, 21]),
        (52, &[25, 27, 79, 26, 26, 0, 4, 2]),
        (39, &[40, 5349]),
        (28, &[41, 40, 20]),
        (30, &[42, 4, 41]),
        (32, &[40, 5349, 42]),
        (12, &[2, 81, 80, 8, 0, 2, 4]),
        (12, &[2, 82, 80, 31, 83]),
        (12, &[2, 83, 80, 0]),
        (54, &[2, 1, 0, 3]),
        (248, &[30]),
        (12, &[2, 84, 80, 23, 83]),
        (253, &[]),
        (56, &[]),
    ])
}

fn module(instructions: &[(u32, &[u32])]) -> Vec<u8> {
    let mut words = vec![0x0723_0203, 0x1_0300, 0, 100, 0];
    for (opcode, operands) in instructions {
        words.push((operands.len() as u32 + 1) << 16 | opcode);
        words.extend_from_slice(operands);
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn requests() -> Vec<Vec<u8>> {
    let (resource_id, scanout_id) = (ResourceId(5), ScanoutId(0));
    let r = Rect { x: 0, y: 0, width: 64, height: 32 };
    let entries = &[gpu::MemEntry { addr: 4096.into(), length: 8192.into(), padding: 0.into() }; 2];
    let (format, width, height) = (1, 64, 32);
    let shown = Some(resource_id);
    let (strides, offsets) = ([256, 0, 0, 0], [0; 4]);
    let (blob_mem, blob_flags, size) = (BlobMem::Host3d, BlobFlags::MAPPABLE, 8192);
    let commands = [
        Command::GetDisplayInfo,
        Command::ResourceCreate2d { resource_id, format, width, height },
        Command::ResourceUnref { resource_id },
        Command::SetScanout { r, scanout_id, resource_id: shown },
        Command::TransferToHost2d { r, offset: 64, resource_id },
        Command::ResourceAttachBacking { resource_id, entries },
        Command::GetCapsetInfo { capset_index: 0 },
        Command::GetCapset { capset_id: CapsetId::VENUS, capset_version: 0 },
        Command::ResourceCreateBlob { resource_id, blob_mem, blob_flags, blob_id: BlobId(7), size, entries },
        Command::SetScanoutBlob {
            r,
            scanout_id,
            resource_id: shown,
            width,
            height,
            format,
            strides,
            offsets,
        },
        Command::CtxCreate { capset_id: CapsetId::VENUS, debug_name: b"vkcube" },
        Command::CtxAttachResource { resource_id },
        Command::Submit3d { data: &[9; 20] },
        Command::ResourceMapBlob { resource_id, offset: 8192 },
        Command::UpdateCursor { scanout_id, resource_id: shown },
    ];
    let fence = gpu::Fence { timeline: FenceTimeline::Ring(RingIdx(1)), fence_id: FenceId(3) };
    let encoded = commands.iter().map(|command| {
        let mut bytes = Vec::new();
        command.encode(Some(ContextId(1)), Some(fence), &mut bytes);
        bytes
    });
    encoded.collect()
}

/// Numbers that a decoder compares with, a word each.
fn dictionary() -> String {
    let numbers = Venus::NUMBERS.iter().chain(ChainStruct::S_TYPES);
    let words = numbers.map(|number| number.to_le_bytes().map(|byte| format!("\\x{byte:02x}")).concat());
    words.map(|word| format!("\"{word}\"\n")).collect()
}

type Decoder = fn(i32, &mut Reader<'_>) -> Result<(), DecodeError>;

/// The plainest form of every command or reply, some after each other in each seed.
fn streams(decode: Decoder, framed: bool) -> Vec<Vec<u8>> {
    let head =
        |number: i32| if framed { [number.to_le_bytes(), 1_u32.to_le_bytes()].concat() } else { Vec::new() };
    let all = Venus::NUMBERS.iter().map(|&number| [head(number), plainest(number, decode)].concat());
    all.collect::<Vec<_>>().chunks(12).map(|some| some.concat()).collect()
}

/// Bytes of zeros, corrected at each place where the decoder reports an error.
fn plainest(number: i32, decode: Decoder) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    for _ in 0..100 {
        let arena = Arena::new(1 << 20);
        let mut reader = Reader::new(&bytes, &arena);
        let Err(error) = decode(number, &mut reader) else {
            let length = reader.offset();
            bytes.truncate(length);
            return bytes;
        };
        let (at, value) = match error.kind {
            Kind::Null => (error.offset - 8, 1),
            Kind::Count { expected, .. } => (error.offset - 8, expected),
            Kind::String { .. } => (error.offset - 8, 1),
            Kind::StructureType { expected, .. } => (error.offset - 4, expected as u64),
            Kind::Command(_) => (error.offset - 4, number as u64),
            other => panic!("command {number}: {other}"),
        };
        let size = error_size(error.kind);
        bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    panic!("command {number} has no plain form");
}

/// Bytes of the number that is wrong.
fn error_size(kind: Kind) -> usize {
    if matches!(kind, Kind::StructureType { .. } | Kind::Command(_)) { 4 } else { 8 }
}

/// Members of a create info, the resource's length, position, bytes pending, extra offset.
fn ring(offset: u64, buffer: u64, pending: u32) -> Vec<u8> {
    let size = 192 + buffer + 4;
    let places = [offset, size, 1_000_000, 0, 64, 128, 192, buffer, 192 + buffer, 4, offset + size];
    let mut bytes = [0_u32, 4].map(u32::to_le_bytes).concat();
    bytes.extend(places.iter().flat_map(|place| place.to_le_bytes()));
    bytes.extend([u32::MAX - 7, pending, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

fn packets() -> Vec<Vec<u8>> {
    let (resource_id, size) = (ResourceId(5), 8192);
    let fence = Fence { ring_idx: RingIdx(1), fence_id: FenceId(300) };
    let trial = MemoryTrial {
        mappable_types: 7,
        shareable: true,
        driver_mapped: DriverMapped::default(),
        exportable_types: 0,
    };
    let gpu = GpuChoice {
        uuid: [3; 16],
        memory: MemoryBackEnd::Memfd,
        trial,
        queues: Queues::All,
        protection: Protection::default(),
    };
    let setup = WorkerSetup {
        ctx_id: ContextId(1),
        debug_name: "vkcube".into(),
        gpus: vec![gpu],
        limits: Default::default(),
        cache_key: CacheKey([0; 32]),
        passage: None,
        waiting_off: Vec::new(),
        swapped_out: None,
    };
    let to_worker = [
        ToWorker::Setup(Box::new(setup)),
        ToWorker::AttachResource { resource_id, size, kind: ResourceKind::SharedMemory },
        ToWorker::AttachResource {
            resource_id,
            size,
            kind: ResourceKind::DeviceMemory { mappable: true, memory: None },
        },
        ToWorker::AttachResource { resource_id, size, kind: ResourceKind::Expected },
        ToWorker::DetachResource { resource_id },
        ToWorker::Submit { size: 3, inline: vec![1, 2, 3], fence: Some(fence) },
        ToWorker::ExportBlob { resource_id, blob_id: BlobId(9), size, mappable: true },
        ToWorker::WritePrelude { goes_on: true, is_at_home: true },
        ToWorker::BuildPrelude,
        ToWorker::HandOver { copies: true, goes_on: true },
        ToWorker::TakeOver,
        ToWorker::WriteCheckpoint { number: 7 },
        ToWorker::GoOn,
    ];
    let reason = || "words".to_owned();
    let to_device = [
        ToDevice::Ready,
        ToDevice::BlobExported { resource_id, map_info: MapInfo::WriteCombined, memory: None },
        ToDevice::BlobRefused { resource_id, reason: reason() },
        ToDevice::FenceSignalled(fence),
        ToDevice::Lost { at_fault: Some(AtFault::Host), reason: reason() },
        ToDevice::ShaderRefused { reason: reason() },
        ToDevice::Overdue { command: reason(), is_blocked: true },
        ToDevice::Hung { limit: Duration::from_millis(2500) },
        ToDevice::Wakes,
        ToDevice::PreludeBuilt { is_at_home: false },
        ToDevice::HandedOver,
        ToDevice::Stays { reason: reason(), for_now: true },
        ToDevice::CheckpointWritten { bytes: size, took: Duration::ZERO },
        ToDevice::NoCheckpoint { reason: reason(), for_now: true },
        ToDevice::TakesOver { pieces: vec![MemoryId(7)] },
        ToDevice::TakenOver {
            pieces: vec![MemoryId(7), MemoryId(8)],
            credit: PerHeap { device: 1 << 26, host: 4096 },
        },
    ];
    let (ctx_id, held) = (ContextId(1), HeldMemory { device: size, host: size });
    let gpu = |pci_address, spare| SharedGpu {
        uuid: [3; 16],
        name: reason(),
        software: false,
        memory: 1 << 30,
        pci_address,
        likeness: Likeness { parts: [1, 2, 3, 4, 5, u64::MAX] },
        spare,
        driver: reason(),
    };
    let in_force =
        InForce { window_size: size, memory: reason(), maps_device_memory: true, queues: reason() };
    let to_broker = [
        ToBroker::Ready {
            gpus: vec![gpu(Some("0000:01:00.0".to_owned()), false), gpu(None, true)],
            limits: held,
            in_force,
        },
        ToBroker::ContextBegins { ctx_id, debug_name: reason() },
        ToBroker::ContextComes { ctx_id, gpu: 1 },
        ToBroker::ContextLeaves { ctx_id, gpu: 0 },
        ToBroker::ContextEnds { ctx_id, lost: Some(reason()), hung: true },
        ToBroker::Memory {
            contexts: vec![(ctx_id, held)],
            vm: held,
            unmovable: vec![(ctx_id, Unmovable::Lends)],
            recoverable: vec![ctx_id],
        },
    ];
    let took = RestartTook { pause_ms: 38, total_ms: 121 };
    let more_to_broker = [
        ToBroker::Frontend { connected: true },
        ToBroker::Restarting { ctx_id, stage: RestartStage::Moves },
        ToBroker::Restarted { ctx_id, outcome: Ok(took) },
        ToBroker::Restarted { ctx_id, outcome: Err(reason()) },
    ];
    let from_broker = [
        FromBroker::Kill { ctx_id },
        FromBroker::Hung { ctx_id },
        FromBroker::Report,
        FromBroker::Restart { ctx_id, change: None },
        FromBroker::Restart { ctx_id, change: Some(GpuChange { from: 0, to: 1 }) },
        FromBroker::Place { placement: Placement::default() },
        FromBroker::HandOn,
    ];
    let to_successor = [
        ToSuccessor::Begins { form: 1 },
        ToSuccessor::NotNow { reason: reason() },
        ToSuccessor::State(vec![1, 2]),
        ToSuccessor::Serve,
    ];
    let packets = to_worker.iter().map(postcard::to_stdvec);
    let packets = packets.chain(to_device.iter().map(postcard::to_stdvec));
    let packets = packets.chain(to_broker.iter().chain(&more_to_broker).map(postcard::to_stdvec));
    let packets = packets.chain(from_broker.iter().map(postcard::to_stdvec));
    let packets = packets.chain(to_successor.iter().map(postcard::to_stdvec));
    packets.map(|bytes| bytes.expect("encodes")).collect()
}

fn texts(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// The requests that a collector of metrics sends, and some that it should not send.
const HTTP: &[&str] = &[
    "GET /metrics HTTP/1.1\r\nHost: localhost:9400\r\nAccept: application/openmetrics-text\r\n\r\n",
    "GET / HTTP/1.0\n\n",
    "GET /metrics?a=b HTTP/1.1\r\n\r\nmore",
    "GET /secret HTTP/1.1\r\n\r\n",
    "POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "GET /metrics\r\n\r\n",
    "GET /metrics HTTP/1.1\r\nHost: x\r\n",
];

/// Lines of the control protocol.
const CONTROL: &[&str] = &[
    "{\"request\":\"status\"}\n{\"request\":\"kill\",\"vm\":\"web\",\"context\":3}\n",
    "{\"request\":\"set\",\"vm\":\"web\",\"change\":{\"weight\":7,\"class\":\"latency\",\"ceiling\":\"25%\"}}\n",
    "{\"request\":\"set\",\"vm\":\"a\\nb\",\"change\":{\"ceiling\":\"none\"}}\n",
    "{\"request\":\"set\",\"vm\":\"web\",\"change\":{\"class\":\"\\u0000fast\\n\"}}\n",
    "{\"request\":\"reboot\"}\nstatus\n{\"request\":\"kill\",\"vm\":\"web\",\"context\":1e308}\n",
];

/// Configuration files.
const FILES: &[&str] = &[
    "[vm.a]\nsocket-path = \"/run/a\"\n",
    concat!(
        "policy = \"fixed\"\nanticipation = \"1.5%\"\ncontrol-socket = \"/run/control\"\nmetrics = \"127.0.0.1:9400\"\n",
        "cgroup = \"off\"\nlog-grants = \"/tmp/grants\"\ndevice-memory = 17179869184\nhost-memory = 4294967296\n",
        "[defaults]\nclass = \"latency\"\ngpu = [\"NVIDIA\", \"AMD\"]\nmovable = true\nmax-contexts = 3\n",
        "[vm.a]\nsocket-path = \"/run/a\"\nweight = 300\nceiling = \"25%\"\ndevice-memory = 4294967296\nscanouts = 1\n",
        "[vm.b-2]\nsocket-path = \"b\"\nclass = \"background\"\nmovable = false\nhost-memory = 0\nqueues = \"all\"\n",
        "max-tasks = 64\nworker-memory = 1048576\nmax-submit-time-contended = \"3s\"\n",
    ),
    "policy = \"equal\"\nmetrics = \"/run/metrics\"\n[vm.a]\nsocket-path = \"/run/a\"\n[vm.b]\nsocket-path = \"/run/b\"\n",
    "policy = \"equal\"\n[vm.a]\nsocket-path = \"/run/a\"\nweight = 100\n",
    "[vm.a]\nsocket-path = \"/run/a\"\n[vm.b]\nsocket-path = \"/run/./a\"\n",
    "colour = 3\n[vm.a]\nsocket-path = \"/run/a\"\n",
    // A file, and the file that replaces it.
    concat!(
        "host-memory = 8388608\n[vm.a]\nsocket-path = \"/run/a\"\nweight = 3\n[vm.b]\nsocket-path = \"/run/b\"\n",
        "[vm.c]\nsocket-path = \"/run/c\"\n\0",
        "policy = \"fixed\"\nhost-memory = 8388608\nmetrics = \"/run/metrics\"\n[vm.a]\nsocket-path = \"/run/a\"\n",
        "ceiling = \"9%\"\n[vm.c]\nsocket-path = \"/run/b\"\n[vm.d]\nsocket-path = \"/run/c\"\nmovable = true\n",
    ),
];

/// Lines that the reader of a trace gets: as a broker sends them, and as no broker sends them.
const TRACES: &[&str] = &[
    concat!(
        "{\"event\":\"gpu\",\"gpu\":0,\"name\":\"G\"}\n",
        "{\"event\":\"context\",\"key\":1,\"context\":3,\"gpu\":0,\"name\":\"llama\"}\n",
        "{\"event\":\"submission\",\"key\":1,\"queue\":1,\"number\":1,\"submitted\":1000,\"ready\":2000,\"dispatched\":3000,",
        "\"begin\":4000,\"end\":5000,\"noticed\":6000,\"measured\":true,\"copies\":false,\"free\":false}\n",
        "{\"event\":\"told\",\"key\":1,\"queue\":1,\"number\":1,\"at\":7000}\n",
        "{\"event\":\"busy\",\"gpu\":0,\"holder\":{\"other\":\"b\"},\"begin\":0,\"end\":2500}\n",
        "{\"event\":\"unfinished\",\"gpu\":0,\"holder\":\"own\",\"since\":6000}\n",
        "{\"event\":\"memory\",\"at\":5000,\"device\":1048576,\"host\":4096}\n",
        "{\"event\":\"end\",\"at\":9000,\"lost\":1,\"refused\":2,\"dropped\":3}\n",
    ),
    concat!(
        "{\"event\":\"busy\",\"gpu\":18446744073709551615,\"holder\":{\"other\":null},\"begin\":18446744073709551615,\"end\":0}\n",
        "{\"event\":\"unfinished\",\"gpu\":4294967295,\"holder\":\"own\",\"since\":18446744073709551615}\n",
        "{\"event\":\"end\",\"at\":0,\"lost\":18446744073709551615,\"refused\":18446744073709551615,\"dropped\":0}\n",
    ),
];

/// Four kilobytes, which make some hundred events (splitmix64).
fn random_bytes(seed: u64) -> Vec<u8> {
    let words = (1..=512_u64).map(|at| {
        let mixed = (seed << 32).wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    });
    words.flatten().collect()
}
