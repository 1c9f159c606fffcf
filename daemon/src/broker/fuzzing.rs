//! Entry points for fuzzing the inputs of the broker: HTTP, the control protocol, the configuration file, and all messages and pages of a VM that its
//! guest has taken over.

use super::connections::Peer;
use super::control::{self, Answer, REQUEST_BYTES, Request};
use super::http::{self, Asked};
use super::operator::Reply;
use super::process::Process;
use super::reload::{How, model};
use super::report::{metrics, table};
use super::run::Broker;
use super::settings::share::{Change, Policy, WEIGHTS};
use super::settings::{RoomSettings, Settings, VmSettings, VmsFile};
pub use super::traces::fuzzing::traced;
use super::traces::{self, TraceEvent, Traces};
pub use super::upgrade::fuzzing::{fuzz_state, states};
use super::upgrade::passing::Pass;
use super::vm::Vms;
use super::vms::state::BrokerState;
use crate::ipc::{
    Channel, HeldMemory, InForce, Replaced, RestartStage, RestartTook, RoomState, SharedGpu, ToBroker,
    Unmovable,
};
use crate::options::VmOptions;
use arbitrary::{Result, Unstructured};
use config::{Amount, GPUS_MAX};
use log::LevelFilter;
use protocol::ids::ContextId;
use readiness::Events;
use sched::{Class, ContextKey, Nanos, Share, TenantId};
use shm::{self, Counters, Doorbell, GateSide, Mapping, Work, grant_page};
use std::cell::RefCell;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Checks that a request is judged by its head alone: the same however it is cut into pieces, and before more than [`http::REQUEST_BYTES`] are kept.
/// The answer contains nothing of the request. Returns whether the request was whole.
pub fn fuzz_http(bytes: &[u8]) -> usize {
    let whole = http::read(bytes);
    assert!(
        whole != Asked::Incomplete || bytes.len() < http::REQUEST_BYTES,
        "more is waited for than is kept"
    );
    let kept = &bytes[..bytes.len().min(http::REQUEST_BYTES - 1)];
    // All pieces of a short request, some of a long one.
    let step = 1 + kept.len() / 256;
    let first = (0..=kept.len()).step_by(step).find(|&end| http::read(&kept[..end]) != Asked::Incomplete);
    if let Some(end) = first {
        assert_eq!(http::read(&kept[..end]), whole, "bytes behind the head change the request");
    }
    let answer = match whole {
        Asked::Incomplete => return 0,
        Asked::Metrics => {
            assert!(bytes.starts_with(b"GET /"), "something else is taken for a wish for metrics");
            return 1;
        }
        Asked::Refused(status) => http::answer(status, &format!("{status}\n")),
    };
    let text = std::str::from_utf8(&answer).expect("an answer is text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head ends with an empty line");
    assert!(head.starts_with("HTTP/1.1 4") && head.contains(&format!("Content-Length: {}\r\n", body.len())));
    assert!(answer.len() < 256, "a refusal is longer than its text needs");
    1
}

/// Reads lines of the control protocol. A request is the same after it is written and read again, its changes stay within bounds, and each answer is
/// one line whose length the request bounds. Returns the number of requests.
pub fn fuzz_control(bytes: &[u8]) -> usize {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.len() <= REQUEST_BYTES);
    lines.map(|line| usize::from(control_line(line))).sum()
}

fn control_line(line: &[u8]) -> bool {
    let request = match control::read(line) {
        Ok(request) => request,
        Err(error) => {
            assert!(error.starts_with("not a request: "), "{error}");
            check_error(error, line.len());
            return false;
        }
    };
    let written = serde_json::to_vec(&request).expect("a request can be written");
    assert!(!written.contains(&b'\n'), "a request is a line");
    assert_eq!(control::read(&written).as_ref(), Ok(&request));
    let Request::Set { change, .. } = request else { return true };
    let share = Share { weight: 7, class: Class::Latency, ceiling: Some(0.5) };
    for policy in [Policy::BestEffort, Policy::Equal, Policy::Fixed] {
        match change.apply(share, policy) {
            Ok(changed) => {
                check_share(&changed);
                assert!(change.weight.is_none() || policy != Policy::Equal, "an equal share is weighted");
                assert!(change.weight.is_some() || changed.weight == share.weight);
                assert!(change.class.is_some() || changed.class == share.class);
                assert!(change.ceiling.is_some() || changed.ceiling == share.ceiling);
            }
            Err(error) => check_error(error, line.len()),
        }
    }
    true
}

/// Checks that an error becomes an answer of one line, which a client reads as it was meant, and whose length the request bounds.
fn check_error(error: String, asked: usize) {
    let answer = Answer::Error { error };
    let line = control::line(&answer);
    // A byte takes up to six as an escape, and a number up to 309 digits.
    assert!(line.len() <= 6 * asked + 1024, "{} bytes answer {asked}", line.len());
    assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1), "an answer is a line");
    assert_eq!(serde_json::from_slice::<Answer>(&line).expect("an answer can be read"), answer);
}

fn check_share(share: &Share) {
    assert!(WEIGHTS.contains(&share.weight), "{share:?}");
    assert!(share.ceiling.is_none_or(|ceiling| (0.01..=1.0).contains(&ceiling)), "{share:?}");
}

/// Reads a configuration file, and after a zero byte perhaps a second file that replaces the first. The broker can start with a file that it accepts,
/// and such a file shares out no more than exists. A refused file gets a line for each mistake. The plan from the first file to the second, carried
/// out on the first, results in the second. Returns the number of VMs in both.
pub fn fuzz_settings(bytes: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
    let files: Vec<_> = text.splitn(2, '\0').filter_map(settings_of).collect();
    for old in &files {
        files.iter().for_each(|new| model::check(old, new));
    }
    files.iter().map(|settings| settings.vms.len()).sum()
}

fn settings_of(text: &str) -> Option<Settings> {
    let settings = match Settings::parse(text, LevelFilter::Info) {
        Ok(settings) => settings,
        Err(problems) => {
            let said = problems.to_string();
            assert!(!said.is_empty() && said.lines().count() < 30, "{said:?}");
            assert!(!said.lines().any(|line| line.contains(char::is_control)), "{said:?}");
            return None;
        }
    };
    assert!(settings.vms.len() <= 256);
    assert!(settings.vms.is_sorted_by(|one, next| one.name < next.name), "a name is there twice");
    assert!(settings.anticipation.is_none_or(|part| (0.0..=0.08).contains(&part)));
    for vm in &settings.vms {
        check_vm(vm, settings.policy);
    }
    let file: toml::Table = text.parse().expect("it was parsed before");
    let quotas = || settings.vms.iter().map(|vm| &vm.options.quotas);
    let device = quotas().map(|quotas| quotas.device_memory).collect::<Vec<_>>();
    let host = quotas().map(|quotas| quotas.host_memory.map(Amount::Bytes)).collect();
    for (key, parts) in [("device-memory", device), ("host-memory", host)] {
        let Some(total) = file.get(key).and_then(toml::Value::as_integer) else { continue };
        let bytes = |part: &Option<Amount>| match part {
            Some(Amount::Bytes(bytes)) => i128::from(*bytes),
            other => panic!("{other:?} is no part of {total} bytes"),
        };
        assert!(parts.iter().map(bytes).sum::<i128>() <= total.into(), "{parts:?} of {total}");
    }
    Some(settings)
}

fn check_vm(vm: &VmSettings, policy: Policy) {
    check_share(&vm.share);
    assert!(policy != Policy::Equal || vm.share.weight == 100, "an equal share is weighted");
    assert!(vm.options.socket_path.is_some() && vm.options.check().is_ok(), "{vm:?}");
    for written in vm.written.iter().chain(&vm.parts) {
        assert!(!written.contains('\0') && !written.starts_with('-'), "{written:?} is no option of a VM");
    }
    let VmOptions { waiting_without, restart_every, swap_every, checkpoint_after, .. } = &vm.options;
    let is_test = restart_every.is_some() || swap_every.is_some() || checkpoint_after.is_some();
    assert!(!is_test && waiting_without.is_empty(), "hidden options are no keys: {vm:?}");
    assert_eq!(&vm.clone().read_anew(), vm, "another program reads the same");
}

/// Plays two VMs: the first guest has taken over its device process and its workers; the second guest is honest. Whatever the first VM says, the
/// second keeps its device process and its context, is charged for its own work, and gets the GPU when the first is gone. No number in the status
/// goes down or is larger than bounds allow. Returns the number of events.
pub fn fuzz_vm(bytes: &[u8]) -> usize {
    thread_local! {
        // Each broker registers signals for good, hence all inputs use one broker.
        static BROKER: RefCell<Broker> = RefCell::new(broker());
    }
    BROKER.with_borrow_mut(|broker| {
        let before = descriptors();
        let happened = World::new(broker).run(&mut Unstructured::new(bytes));
        reset(broker);
        assert_eq!(descriptors(), before, "descriptors are left behind");
        happened
    })
}

const EVENTS_MAX: usize = 512;
const PAGES_MAX: usize = 8;
/// The most device processes that an input starts.
const STARTS_MAX: usize = 6;
/// Contexts that each VM may have.
const CONTEXTS: usize = 3;
/// The context of the second VM.
const GOOD: ContextId = ContextId(1);
const MILLISECOND: Nanos = 1_000_000;

fn settings() -> Vec<VmSettings> {
    let written = vec![format!("max-contexts={CONTEXTS}"), "max-submit-time-contended=1s".into()];
    let vm = |name: &str| {
        let vm = VmSettings {
            name: name.into(),
            share: Share::default(),
            options: VmOptions::default(),
            written: written.clone(),
            parts: Vec::new(),
            own_paths: Vec::new(),
            reserved_memory: 0,
        };
        vm.read_anew()
    };
    vec![vm("bad"), vm("good")]
}

/// Returns the path of a socket that no other thread has.
fn socket_path() -> PathBuf {
    std::env::temp_dir().join(format!("fuzz-broker-{}", rustix::thread::gettid()))
}

pub(super) fn broker() -> Broker {
    let settings = Settings {
        policy: Policy::BestEffort,
        anticipation: None,
        hardware_slices: Default::default(),
        control_socket: socket_path(),
        control_socket_group: None,
        metrics: None,
        cgroup: Default::default(),
        log_grants: None,
        room: RoomSettings { gpu_memory: Some(Amount::Part(5000)), ..RoomSettings::default() },
        vms: settings(),
    };
    let file = VmsFile::new("/nowhere".into(), LevelFilter::Info);
    let mut broker = Broker::new(settings, file).expect("a broker");
    broker.connections.remove_sockets();
    broker.vms = Vms::default();
    broker
}

/// Removes all that an input has left in the broker.
pub(super) fn reset(broker: &mut Broker) {
    for process in broker.vms.iter_mut().filter_map(|vm| vm.process.as_mut()) {
        process.kill();
        process.reap().expect("it ends");
    }
    broker.vms = Vms::default();
    broker.gpus.clear();
    broker.requests.waiting.clear();
    broker.requests.traces = Traces::default();
    // The readers of traces, and the peers that asked for restarts.
    broker.connections.drop_all(&broker.epoll);
    broker.requests.restarts.clear();
    broker.requests.draining = None;
    broker.last_key = 0;
}

pub(super) struct World<'a> {
    broker: &'a mut Broker,
    peers: Vec<Channel>,
    /// The number of device processes so far.
    starts: usize,
    /// Pages that the first VM has sent, and can still write to.
    pages: Vec<Mapping>,
    good: GateSide,
    counters: Counters,
    now: Nanos,
    /// The totals of the last status.
    told: Totals,
    /// The reader of a trace of the first VM, and the part of a line that has come so far.
    reader: UnixStream,
    /// The peer that has asked for restarts and has disconnected.
    away: Peer,
    read: Vec<u8>,
}

/// The totals of a VM, which never fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
struct Totals([u64; 6]);

impl<'a> World<'a> {
    pub(super) fn new(broker: &'a mut Broker) -> Self {
        broker.settings.policy = Policy::BestEffort;
        broker.settings.vms = settings();
        settings().into_iter().for_each(|vm| _ = broker.vms.add(vm, 0));
        let page = grant_page().expect("a file");
        let good = GateSide::open(&page).expect("it is a page");
        let (reader, theirs) = UnixStream::pair().expect("a pair");
        reader.set_nonblocking(true).expect("it can be read without waiting");
        // An operator asks and goes away.
        let (_, away) = UnixStream::pair().expect("a pair");
        let away = broker.connections.play(away, &broker.epoll, 0);
        let peer = broker.connections.play(theirs, &broker.epoll, 0);
        let mut world = Self {
            broker,
            peers: Vec::new(),
            starts: 0,
            pages: Vec::new(),
            good,
            counters: Counters::default(),
            now: MILLISECOND,
            told: Totals::default(),
            reader,
            away,
            read: Vec::new(),
        };
        let wanted = traces::Wanted { index: 0, seconds: 300, names: true };
        world.broker.begin_trace(peer, wanted, 0);
        (0..2).for_each(|vm| world.start(vm));
        let gpus = vec![SharedGpu { name: "GPU".into(), memory: 1 << 30, ..SharedGpu::default() }];
        let limits = HeldMemory::default();
        world.say(1, &ToBroker::Ready { gpus, limits, in_force: InForce::default() }, None);
        let begins = ToBroker::ContextBegins { ctx_id: GOOD, debug_name: "good".into() };
        world.say(1, &begins, Some(&Doorbell::new().expect("a doorbell").into()));
        world.say(1, &ToBroker::ContextComes { ctx_id: GOOD, gpu: 0 }, Some(&page));
        world
    }

    /// Returns the broker's state, as for an upgrade.
    pub(super) fn state(&self, pass: &mut Pass<'_>) -> BrokerState {
        self.broker.state(None, self.now, pass).expect("a broker can be written down")
    }

    pub(super) fn end(self) {
        reset(self.broker);
    }

    /// Gives a VM a device process, which its channel plays.
    fn start(&mut self, vm: usize) {
        let (process, peer) = Process::played().expect("a process");
        (self.broker.vms[vm].process, self.broker.vms[vm].start_at) = (Some(process), None);
        match self.peers.get_mut(vm) {
            Some(old) => *old = peer,
            None => self.peers.push(peer),
        }
        self.starts += 1;
    }

    /// A device process names its GPUs before it reads anything of its guest.
    fn first_is_ready(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let ready = ready(u)?;
        self.say(0, &ready, None);
        Ok(())
    }

    fn is_dying(&self) -> bool {
        self.broker.vms[0].process.as_ref().is_none_or(|process| process.dying)
    }

    fn run(mut self, u: &mut Unstructured<'_>) -> usize {
        let mut happened = usize::from(self.first_is_ready(u).is_ok());
        while happened < EVENTS_MAX && !u.is_empty() && self.happen(u).is_ok() {
            happened += 1;
            self.check();
        }
        self.check_status();
        self.first_ends();
        happened
    }

    fn say(&mut self, vm: usize, message: &ToBroker, file: Option<&OwnedFd>) {
        // The broker does not listen to a dying process, and the test does not read the broker's messages.
        if self.broker.vms[vm].process.as_ref().is_some_and(|process| !process.dying) {
            let sent = self.peers[vm].try_send(message, file.map(AsFd::as_fd));
            sent.expect("the broker reads everything");
            self.broker.channel(vm, Events::EPOLLIN, self.now);
        }
        while let Ok(Some(_)) = self.peers[vm].try_receive::<crate::ipc::FromBroker>() {}
    }

    fn happen(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=15u8)? {
            0..=4 => {
                let message = message(u)?;
                let file = descriptor(u, &message)?;
                if let Some(file) = &file
                    && self.pages.len() < PAGES_MAX
                    && let Ok(size) = rustix::fs::fstat(file).map(|stat| stat.st_size.unsigned_abs())
                    && let Ok(page) = Mapping::new(file, size)
                {
                    self.pages.push(page);
                }
                self.say(0, &message, file.as_ref());
            }
            5..=8 => {
                let Some(page) = self.pages.get(u.int_in_range(0..=PAGES_MAX)?) else { return Ok(()) };
                let value: u32 = if u.arbitrary()? { u.arbitrary()? } else { u.int_in_range(0..=3)? };
                // The page begins with the counters.
                let words = if u.arbitrary()? { 33.min(page.len() / 4) } else { page.len() / 4 };
                let offset = u.int_in_range(0..=words - 1)? * 4;
                page.copy_in(offset, &value.to_le_bytes()).expect("it is in the page");
            }
            9..=10 => self.look(),
            11 => self.work(u)?,
            12 if u.ratio(1, 8)? => self.read_file_again(u)?,
            12 => {
                let request = request(u)?;
                match self.broker.obey(request, self.now) {
                    Ok(Reply::Restart(index, ctx_id, what, change)) => {
                        self.broker.begin_restart(self.away, (index, ctx_id), what, change, self.now);
                    }
                    Ok(Reply::Drain(gpu)) => self.broker.begin_drain(self.away, gpu, self.now),
                    Ok(Reply::DrainPlan(gpu)) => drop(self.broker.drain_plan(gpu)),
                    Ok(_) => {}
                    Err(error) => assert!(error.len() < 1024, "{error}"),
                }
                self.broker.restarts_due(self.now);
                let of_first = self.broker.vms[0].contexts.len();
                assert!(
                    self.broker.requests.restarts.len() <= of_first,
                    "restarts of contexts that have ended"
                );
            }
            13 => {
                self.read_trace();
                self.now += if u.ratio(1, 8)? { u.arbitrary::<u32>()?.into() } else { MILLISECOND };
                self.broker.gpus.iter_mut().for_each(|gpu| gpu.sample(self.now));
            }
            14 => {
                let limit = |_| Duration::from_secs(1);
                for gpu in &mut self.broker.gpus {
                    gpu.look_at_busy(self.now, None);
                    // The context that is named exists.
                    if let Some((tenant, ctx_id)) = gpu.hung(self.now, limit) {
                        assert!(self.broker.vms[tenant.0 as usize].contexts.contains_key(&ctx_id));
                    }
                }
            }
            _ if self.is_dying() && self.starts < STARTS_MAX => {
                self.broker.child_ended(0, self.now);
                self.start(0);
                self.first_is_ready(u)?;
            }
            _ => self.check_status(),
        }
        Ok(())
    }

    /// Checks that the reader of a trace of the first VM gets readable lines, and no more at a time than allowed.
    fn read_trace(&mut self) -> Vec<TraceEvent> {
        self.now += traces::LOOK;
        self.broker.trace_due(self.now);
        let mut bytes = [0; 1 << 16];
        while let Ok(count @ 1..) = self.reader.read(&mut bytes) {
            self.read.extend_from_slice(&bytes[..count]);
        }
        let rest = self.read.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.read.drain(..rest).collect();
        let lines = lines.split_inclusive(|byte| *byte == b'\n').map(|line| {
            assert!(line.len() < 1024 && !line[..line.len() - 1].iter().any(u8::is_ascii_control));
            serde_json::from_slice(line)
        });
        // The first says that the trace begins.
        let events: Vec<TraceEvent> = lines.filter_map(|event| event.ok()).collect();
        assert!(events.len() <= traces::LINES_PER_LOOK, "{} lines at once", events.len());
        for event in &events {
            if let TraceEvent::Submission(submission) = event {
                let traces::Submission { submitted, ready, dispatched, begin, end, noticed, .. } = submission;
                assert!([submitted, ready, dispatched, begin, end, noticed].is_sorted(), "{submission:?}");
            }
        }
        events
    }

    /// Has the broker read a file that has changed, but not for the second VM.
    fn read_file_again(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let mut settings = self.broker.settings.clone();
        // Not `Fixed`: with it the second VM may have to wait although no other VM has work.
        settings.policy = *u.choose(&[Policy::BestEffort, Policy::Equal])?;
        let bad = &mut settings.vms[0];
        let weight = if settings.policy == Policy::Equal { 100 } else { u.int_in_range(1..=10_000)? };
        bad.share.weight = weight;
        if u.arbitrary()? {
            // The device process is asked to end, and may ignore the request.
            bad.written.retain(|written| !written.starts_with("max-maps="));
            bad.written.push(format!("max-maps={}", u.arbitrary::<u8>()?));
            *bad = bad.clone().read_anew();
        }
        let how = How { now: weight % 2 == 0, dry_run: false };
        let told = self.broker.adopt(settings, how, self.now);
        assert!(told.unchanged.contains(&"good".to_owned()), "{told:?}");
        assert!(
            told.notes.len() == told.pending.len() && told.pending.len() <= usize::from(!how.now),
            "{told:?}"
        );
        Ok(())
    }

    /// All workers ring, and the schedulers decide.
    fn look(&mut self) {
        for gpu in &mut self.broker.gpus {
            (1..=self.broker.last_key).for_each(|key| gpu.look(ContextKey(key), self.now, None));
            gpu.decide(self.now, None);
        }
    }

    /// The second VM is honest: it dispatches the submissions that it was granted, and completes them after a while.
    fn work(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let Counters { dispatched, completed, .. } = self.counters;
        if dispatched != completed {
            let busy = u.int_in_range(1..=4 * MILLISECOND)?;
            self.now += busy;
            let (begin, end) = (self.now - busy, self.now);
            self.complete(Work { begin, end, busy, count: dispatched - completed, copy: false });
        } else {
            self.counters.dispatched = self.good.granted();
            self.counters.ready = u.int_in_range(0..=2)?;
        }
        self.good.tell(self.counters);
        Ok(())
    }

    fn complete(&mut self, work: Work) {
        // If the scheduler has not read the page for long, the worker reports its work later.
        if self.good.tell_work(&work) {
            self.counters.completed = self.counters.dispatched;
        }
    }

    /// Checks the invariants that hold in spite of the first VM.
    fn check(&mut self) {
        let vms: Vec<_> = self.broker.vms.iter().collect();
        let [bad, good] = vms.as_slice() else { panic!("a VM is gone") };
        assert!(bad.contexts.len() <= CONTEXTS && bad.gpus.len() <= GPUS_MAX);
        assert!(bad.contexts.values().all(|context| context.keys.len() <= bad.gpus.len()));
        let keys: usize = bad.contexts.values().map(|context| context.keys.len()).sum();
        assert_eq!(bad.gpus.iter().map(|on| on.contexts).sum::<usize>(), keys);
        assert!(good.process.as_ref().is_some_and(|process| !process.dying), "the second VM is ended");
        assert!(good.contexts.len() == 1 && good.contexts.contains_key(&GOOD));
        assert_eq!(good.past.kills.sum(), 0);
        let usage = self.broker.gpus[0].tenant_usage(TenantId(1));
        assert!(usage.submissions <= u64::from(self.counters.completed) && usage.strays == 0, "{usage:?}");
        let of_gpus = |of: fn(&sched::Usage) -> u64| {
            let used = self.broker.gpus.iter().map(|gpu| of(&gpu.tenant_usage(TenantId(0))));
            used.fold(of(&bad.past.usage), u64::saturating_add)
        };
        let kills = bad.past.kills.sum();
        let workers = bad.past.workers_cpu.as_millis() as u64;
        let told = Totals([
            of_gpus(|usage| usage.submissions),
            of_gpus(|usage| usage.strays),
            usage.submissions,
            kills,
            workers,
            bad.past.restarts,
        ]);
        let rises = self.told.0.iter().zip(&told.0).all(|(before, now)| before <= now);
        assert!(rises, "{:?} became {told:?}", self.told);
        self.told = told;
    }

    /// Checks the reports to operators and collectors of metrics.
    fn check_status(&mut self) {
        let status = self.broker.status(self.now);
        let names = status.vms.iter().flat_map(|vm| &vm.contexts).map(|context| &context.name);
        let names = names.chain(status.gpus.iter().map(|gpu| &gpu.name));
        names.for_each(|name| assert!(name.len() <= 64 && !name.contains(char::is_control), "{name:?}"));
        assert!(status.gpus.iter().all(|gpu| (0.0..=1.0).contains(&gpu.utilisation)), "{status:?}");
        let text = metrics::text(&status);
        assert!(text.ends_with("# EOF\n") && text.lines().count() < 200, "{text}");
        let line = control::line(&Answer::Status(status));
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1), "an answer is a line");
        let Ok(Answer::Status(read)) = serde_json::from_slice(&line) else {
            panic!("a client cannot read {}", String::from_utf8_lossy(&line));
        };
        let shown = table::table(&read);
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    }

    /// Ends the first VM, and checks that the second then gets each grant that it wants.
    fn first_ends(&mut self) {
        if let Some(process) = &mut self.broker.vms[0].process {
            process.kill();
        }
        self.broker.child_ended(0, self.now);
        assert!(self.broker.vms[0].contexts.is_empty(), "a context has no process");
        self.look();
        let Counters { dispatched, completed, .. } = self.counters;
        if dispatched != completed {
            self.now += MILLISECOND;
            let (begin, end, count) = (self.now - MILLISECOND, self.now, dispatched - completed);
            self.complete(Work { begin, end, busy: MILLISECOND, count, copy: false });
        }
        self.counters.ready = 1;
        self.good.tell(self.counters);
        for _ in 0..1000 {
            if self.good.is_leased() || self.good.granted() != self.counters.dispatched {
                return;
            }
            self.now += MILLISECOND;
            self.look();
        }
        panic!(
            "the second VM waits for a VM that is gone: {:?}",
            self.broker.gpus[0].tenant_usage(TenantId(1))
        );
    }
}

/// Makes a message of the GPUs, which is mostly valid.
fn ready(u: &mut Unstructured<'_>) -> Result<ToBroker> {
    let count: u8 = if u.ratio(1, 16)? { u.int_in_range(0..=10)? } else { u.int_in_range(1..=2)? };
    let (first, twice): (u8, bool) = (u.int_in_range(0..=1)?, u.ratio(1, 16)?);
    let mut gpus = Vec::new();
    for at in 0..count {
        let uuid = [if twice { first } else { first + at }; 16];
        let (name, software, memory) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
        // Mostly valid: the first GPU is not spare.
        let spare = if u.ratio(1, 16)? { u.arbitrary()? } else { at > 0 };
        gpus.push(SharedGpu { uuid, name, software, memory, spare, ..SharedGpu::default() });
    }
    let limits = HeldMemory { device: u.arbitrary()?, host: u.arbitrary()? };
    Ok(ToBroker::Ready { gpus, limits, in_force: InForce::default() })
}

fn message(u: &mut Unstructured<'_>) -> Result<ToBroker> {
    let ctx_id = ContextId(if u.ratio(1, 16)? { u.arbitrary()? } else { u.int_in_range(0..=4)? });
    let gpu = |u: &mut Unstructured<'_>| if u.ratio(1, 32)? { u.arbitrary() } else { u.int_in_range(0..=1) };
    let held = |u: &mut Unstructured<'_>| Ok(HeldMemory { device: u.arbitrary()?, host: u.arbitrary()? });
    Ok(match u.int_in_range(0..=15u8)? {
        0 if u.ratio(1, 8)? => ready(u)?,
        0..=2 => ToBroker::Frontend { connected: u.arbitrary()? },
        3..=5 => ToBroker::ContextBegins { ctx_id, debug_name: u.arbitrary()? },
        6..=9 => ToBroker::ContextComes { ctx_id, gpu: gpu(u)? },
        10 if u.ratio(1, 8)? => {
            ToBroker::Replaced { what: Replaced::Program(u.arbitrary::<String>()?.into()) }
        }
        10 => ToBroker::ContextLeaves { ctx_id, gpu: gpu(u)? },
        11..=12 => ToBroker::ContextEnds { ctx_id, lost: u.arbitrary()?, hung: u.arbitrary()? },
        13 if u.ratio(1, 4)? => ToBroker::Recovered { ctx_id },
        13 if u.arbitrary()? => ToBroker::Restarting { ctx_id, stage: RestartStage::Rests },
        13 => {
            let took = RestartTook { pause_ms: u.arbitrary()?, total_ms: u.arbitrary()? };
            let outcome = if u.arbitrary()? { Ok(took) } else { Err(u.arbitrary()?) };
            ToBroker::Restarted { ctx_id, outcome }
        }
        14 if u.arbitrary()? => ToBroker::Room(RoomState {
            order: if u.arbitrary()? { u.int_in_range(0..=9)? } else { u.arbitrary()? },
            held: u.arbitrary()?,
            lacks: u.arbitrary()?,
            holds: u.arbitrary()?,
            idle: u.arbitrary()?,
            back_ms: u.arbitrary()?,
        }),
        _ => {
            let count = u.int_in_range(0..=4)?;
            let contexts = (0..count).map(|_| Ok((ContextId(u.int_in_range(0..=4)?), held(u)?)));
            let contexts = contexts.collect::<Result<_>>()?;
            let unmovable = vec![(ctx_id, Unmovable::Lends)];
            ToBroker::Memory { contexts, vm: held(u)?, unmovable, recoverable: vec![ctx_id] }
        }
    })
}

/// A descriptor of any kind; mostly the kind that belongs to the message.
fn descriptor(u: &mut Unstructured<'_>, message: &ToBroker) -> Result<Option<OwnedFd>> {
    Ok(match (u.int_in_range(0..=63u8)?, message) {
        (0, _) => None,
        (1, _) => rustix::pipe::pipe().ok().map(|(read, _)| read),
        (2, _) => shm::create("fuzz", 100).ok(),
        (3, _) => std::fs::File::open("/dev/null").ok().map(Into::into),
        (4, _) | (_, ToBroker::ContextBegins { .. }) => Doorbell::new().ok().map(Into::into),
        (5, _) | (_, ToBroker::ContextComes { .. }) => grant_page().ok(),
        _ => None,
    })
}

/// Makes a request about the first VM, as an operator who is not hostile.
fn request(u: &mut Unstructured<'_>) -> Result<Request> {
    let vm = if u.ratio(1, 16)? { "ugly" } else { "bad" }.to_owned();
    Ok(match u.arbitrary()? {
        true if u.ratio(1, 4)? => Request::Restart { vm, context: u.int_in_range(0..=4)? },
        true if u.ratio(1, 8)? => Request::SwapOut { vm, context: u.int_in_range(0..=4)? },
        true if u.ratio(1, 4)? => {
            let gpu = "00".repeat(16).replace('0', if u.arbitrary()? { "0" } else { "1" });
            match u.int_in_range(0..=3)? {
                0 => Request::Drain { gpu, dry_run: u.arbitrary()? },
                1 => Request::Undrain { gpu },
                _ => Request::Move { vm, context: u.int_in_range(0..=4)?, gpu, from: None },
            }
        }
        true => Request::Kill { vm, context: u.int_in_range(0..=4)? },
        false => {
            let class = ["normal", "latency", "background", "none"];
            let class = u.choose(&class)?;
            let weight = u.int_in_range(0..=10_001)?;
            let ceiling = format!("{}%", u.int_in_range(0..=101u8)?);
            let change = Change {
                weight: u.arbitrary::<bool>()?.then_some(weight),
                class: u.arbitrary::<bool>()?.then(|| (*class).to_owned()),
                ceiling: u.arbitrary::<bool>()?.then_some(ceiling),
            };
            Request::Set { vm, change }
        }
    })
}

/// Descriptors open in this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("there is /proc").count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    fn replay(target: &str, mut check: impl FnMut(&[u8]) -> usize) -> usize {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.map(|file| check(&fs::read(file).unwrap())).sum()
    }

    #[test]
    fn committed_requests_hold() {
        assert!(replay("http_request", fuzz_http) > 2);
        assert!(replay("control_request", fuzz_control) > 4);
    }

    #[test]
    fn committed_files_hold() {
        assert!(replay("vms_file", fuzz_settings) > 4);
    }

    #[test]
    fn committed_states_hold_and_are_those_that_are_written_today() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/broker_state");
        for (index, state) in states().iter().enumerate() {
            assert_eq!(fs::read(folder.join(format!("seed_{index:02}"))).unwrap(), *state);
        }
        assert!(replay("broker_state", fuzz_state) >= 4);
    }

    #[test]
    fn a_worker_that_floods_a_trace_is_bounded_and_what_is_missing_is_told() {
        let mut broker = broker();
        let mut world = World::new(&mut broker);
        let gpus = vec![SharedGpu { name: "GPU".into(), memory: 1 << 30, ..SharedGpu::default() }];
        let (limits, in_force) = (HeldMemory::default(), InForce::default());
        world.say(0, &ToBroker::Ready { gpus, limits, in_force }, None);
        let page = grant_page().unwrap();
        let begins = ToBroker::ContextBegins { ctx_id: ContextId(1), debug_name: "bad".into() };
        world.say(0, &begins, Some(&Doorbell::new().unwrap().into()));
        world.say(0, &ToBroker::ContextComes { ctx_id: ContextId(1), gpu: 0 }, Some(&page));
        let bad = GateSide::open(&page).unwrap();
        let named = world.read_trace();
        assert!(
            matches!(&named[..], [TraceEvent::Gpu { .. }, TraceEvent::Context { key: 2, .. }]),
            "{named:?}"
        );
        assert!(bad.is_traced() && !world.good.is_traced(), "only the VM of the trace tells anything");
        let of = |number| shm::SubmissionId { queue: 1, number };
        let (mut told, mut came) = (0, 0);
        for _ in 0..50 {
            for _ in 0..400 {
                told += 1;
                let at = if told % 2 == 0 { shm::page_clock() } else { u64::MAX };
                bad.tell_note(&shm::TraceNote::Told { of: of(told), at });
            }
            came += world.read_trace().len() as u64;
        }
        // The process writes arbitrary values to the fields that the broker reads.
        let forged = Mapping::new(&page, page_bytes(&page)).unwrap();
        for written in [7u32, u32::MAX, 1 << 31] {
            forged.copy_in(88, &written.to_le_bytes()).unwrap();
            came += world.read_trace().len() as u64;
        }
        assert!((1..told / 2 + 1).contains(&came), "{came} of {told}");
        // The end of the VM ends the trace.
        let gone = world.broker.vms.remove(0).and_then(|vm| vm.process);
        gone.into_iter().for_each(|mut process| {
            process.kill();
            process.reap().unwrap();
        });
        let last = (0..100).flat_map(|_| world.read_trace()).last();
        let Some(TraceEvent::End { lost, refused, .. }) = last else { panic!("{last:?}") };
        assert!(lost > 0 && refused > 0, "{lost} {refused}");
        assert!(world.broker.requests.traces.next_look().is_none(), "nothing is looked at any more");
        reset(&mut broker);
    }

    fn page_bytes(page: &OwnedFd) -> u64 {
        rustix::fs::fstat(page).unwrap().st_size.unsigned_abs()
    }

    #[test]
    fn committed_vms_hold() {
        let mut broker = broker();
        // Descriptors are not counted: tests run side by side.
        let events = replay("broker_vm", |bytes| {
            let happened = World::new(&mut broker).run(&mut Unstructured::new(bytes));
            reset(&mut broker);
            assert_eq!(broker.connections.next_deadline(), None, "a connection is left behind");
            happened
        });
        assert!(events > 500, "only {events} events");
    }
}
