//! Runs the tenants of a mix.

use super::figures::{Figures, Outcome};
use super::mix::{self, CONTENDED, Mix, Tenant};
use super::place::Place;
use crate::bridge::Bridge;
use crate::daemon::eventually;
use crate::daemon_process::{children, workers};
use crate::frontend::{Options, Session};
use crate::guest::Gpu;
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// How large a kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Invocations.
    words: u32,
    /// Steps of each.
    steps: u32,
}

impl Size {
    /// On a processor: few workgroups for each core.
    const NARROW: Self = Self { words: 4096, steps: 16_000 };
    /// On a GPU: as many as run at a time.
    const WIDE: Self = Self { words: 1 << 18, steps: 16_000 };
    /// Microseconds after which a GPU starts other workgroups of a kernel: so it can turn to another context meanwhile, as it can in
    /// the kernels of most programs.
    const WAVE: f64 = 100.0;

    /// A kernel of so many microseconds, where a kernel of this size takes `taken`.
    fn of(self, taken: f64, microseconds: u32, wide: bool) -> Self {
        let (wanted, steps) = (f64::from(microseconds), f64::from(self.steps) / taken);
        match wide && wanted > 2.0 * Self::WAVE {
            true => Self {
                words: self.words * (wanted / Self::WAVE).round() as u32,
                steps: (steps * Self::WAVE) as u32,
            },
            false => Self { words: self.words, steps: (steps * wanted).max(1.0) as u32 },
        }
    }
}

/// How the GPU is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// By the host's driver alone: a daemon for each VM.
    Driver,
    /// By a broker with these lines at the top of its configuration.
    Broker(String),
    /// By the driver, and the tenants run on the host.
    Native,
}

/// How large kernels have to be, measured where they run.
#[derive(Debug, Default)]
pub struct Kernels {
    /// A kernel whose length is known, and its length in microseconds.
    known: Option<(Size, f64)>,
}

impl Kernels {
    /// The size of a kernel of about so many microseconds.
    pub(super) fn size(&mut self, place: &Place, microseconds: u32) -> Result<Size> {
        let wide = matches!(place, Place::Machine { .. });
        if self.known.is_none() {
            let tenant = mix::tenant("measure", 1, 1, 4);
            let stand = Stand::start(place, &Sharing::Driver, &[tenant])?;
            let mut size = if wide { Size::WIDE } else { Size::NARROW };
            // Long enough that submitting does not count.
            self.known = loop {
                let mut program = Program::start(stand.command(place, 0)?, &tenant, size)?;
                program.expect_line().with_context(|| stand.log())?;
                let taken = program.alone(&tenant)?;
                if taken > 4000.0 || size.steps > 1 << 28 {
                    break Some((size, taken));
                }
                size.steps *= 2;
            };
        }
        let (size, taken) = self.known.context("measured above")?;
        Ok(size.of(taken, microseconds, wide))
    }
}

/// Runs a mix for some time. Before and behind that each tenant runs alone for a moment, in turn, so that what a kernel takes alone is
/// known for the machine as it is then.
///
/// # Errors
/// Something does not start, or a tenant fails.
pub fn run(
    place: &Place,
    sharing: &Sharing,
    mix: &Mix,
    kernels: &mut Kernels,
    time: Duration,
) -> Result<Figures> {
    let sizes = mix.tenants.iter().map(|tenant| kernels.size(place, tenant.kernel));
    let sizes = sizes.collect::<Result<Vec<_>>>()?;
    let stand = Stand::start(place, sharing, &mix.tenants)?;
    let programs = mix.tenants.iter().zip(&sizes).enumerate();
    let programs =
        programs.map(|(at, (tenant, size))| Program::start(stand.command(place, at)?, tenant, *size));
    let mut programs = programs.collect::<Result<Vec<_>>>()?;
    for program in &mut programs {
        program.expect_line().with_context(|| format!("a tenant does not come up\n{}", stand.log()))?;
    }
    let mut alone = vec![Vec::new(); mix.tenants.len()];
    let mut measure = |programs: &mut [Program]| -> Result<()> {
        for _ in 0..ALONE_TIMES {
            let measured = programs.iter_mut().zip(&mix.tenants).zip(&mut alone);
            for ((program, tenant), alone) in measured.filter(|((_, tenant), _)| tenant.computes()) {
                alone.push(program.alone(tenant)?);
            }
        }
        Ok(())
    };
    measure(&mut programs)?;
    programs.iter_mut().try_for_each(|program| program.go(time, ""))?;
    let ended = mix.tenants.iter().any(|tenant| tenant.endless).then(|| stand.watch_for("is lost", time));
    let mut said = Vec::new();
    for (program, tenant) in programs.iter_mut().zip(&mix.tenants) {
        // One that is endless ends by the loss of its device, or is ended.
        said.push((!tenant.endless).then(|| program.expect_line()).transpose().with_context(|| stand.log())?);
    }
    if let Some(ended) = ended {
        let when = ended.join().ok().flatten();
        log::info!("the endless kernel was ended after {when:?}");
    } else {
        measure(&mut programs)?;
    }
    let outcomes = said.iter().zip(&mix.tenants).zip(&mut alone).map(|((said, tenant), alone)| {
        alone.sort_by(f64::total_cmp);
        let alone = alone.get(alone.len() / 2).copied().unwrap_or_default();
        match said {
            Some(said) => Outcome::read(said, *tenant, alone),
            None => Ok(Outcome::nothing(*tenant, time)),
        }
    });
    Ok(Figures { mix: mix.clone(), outcomes: outcomes.collect::<Result<_>>()? })
}

/// What one lone tenant gets done with a broker, in relation to what it gets done without, measured by turns.
///
/// # Errors
/// As [`run`].
pub fn compare(
    place: &Place,
    head: &str,
    tenant: &Tenant,
    kernels: &mut Kernels,
    times: u32,
) -> Result<Vec<f64>> {
    let size = kernels.size(place, tenant.kernel)?;
    let start = |sharing: &Sharing| -> Result<(Program, Stand)> {
        let stand = Stand::start(place, sharing, std::slice::from_ref(tenant))?;
        let mut program = Program::start(stand.command(place, 0)?, tenant, size)?;
        program.expect_line().with_context(|| stand.log())?;
        Ok((program, stand))
    };
    let (mut with, _with) = start(&Sharing::Broker(head.to_owned()))?;
    let (mut without, _without) = start(&Sharing::Driver)?;
    (0..times).map(|_| Ok(without.alone(tenant)? / with.alone(tenant)?)).collect()
}

/// For how long a tenant runs alone, and how often before and behind a mix.
const ALONE: Duration = Duration::from_millis(300);
const ALONE_TIMES: u32 = 3;

/// Daemons and bridges for tenants; ends with this value.
pub struct Stand {
    // In the order in which they end.
    bridges: Vec<Bridge>,
    daemons: Vec<Running>,
    folder: TempDir,
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let ended = eventually(Duration::from_secs(10), || !matches!(self.0.try_wait(), Ok(None)));
        if !ended {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Stand {
    /// Starts what tenants need.
    ///
    /// # Errors
    /// Something does not start.
    pub fn start(place: &Place, sharing: &Sharing, tenants: &[Tenant]) -> Result<Self> {
        let mut stand = Self { bridges: Vec::new(), daemons: Vec::new(), folder: tempfile::tempdir()? };
        match sharing {
            Sharing::Native => return Ok(stand),
            Sharing::Broker(head) => {
                let file = stand.folder.path().join("vms.toml");
                std::fs::write(&file, stand.configuration(head, tenants))?;
                let mut daemon = place.daemon()?;
                daemon.arg("--config").arg(&file);
                stand.spawn(daemon)?;
            }
            Sharing::Driver => {
                for tenant in tenants {
                    let mut daemon = place.daemon()?;
                    daemon.arg("--socket-path").arg(stand.device_socket(tenant.name));
                    stand.spawn(daemon)?;
                }
            }
        }
        for tenant in tenants {
            let socket = stand.device_socket(tenant.name);
            let mut connected = None;
            let up = eventually(PATIENCE, || {
                connected = Session::connect(&socket, Options::default()).ok();
                connected.is_some()
            });
            ensure!(up, "no device for {}\n{}", tenant.name, stand.log());
            let gpu = Gpu::new(connected.context("connected")?);
            stand.bridges.push(Bridge::listen(&stand.client_socket(tenant.name), gpu)?);
        }
        Ok(stand)
    }

    fn configuration(&self, head: &str, tenants: &[Tenant]) -> String {
        let mut text = format!("control-socket = {:?}\n{head}\n", self.control_socket());
        for Tenant { name, weight, class, endless, .. } in tenants {
            let socket = self.device_socket(name);
            // An operator's quota would count against the loads of a test.
            let _ = write!(
                text,
                "[vm.{name}]\nsocket-path = {socket:?}\nweight = {weight}\nclass = \"{class}\"\n"
            );
            // Software drivers take their time.
            let contended = if *endless { CONTENDED } else { "60min" };
            let _ =
                writeln!(text, "max-submit-time = \"60min\"\nmax-submit-time-contended = \"{contended}\"");
        }
        text
    }

    fn spawn(&mut self, mut daemon: Command) -> Result<()> {
        let log = File::options().append(true).create(true).open(self.folder.path().join("log"))?;
        daemon.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.daemons.push(Running(daemon.spawn().context("cannot start the daemon")?));
        Ok(())
    }

    /// What the daemons logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Starts to wait for something to be logged; when that was, counted from now.
    fn watch_for(&self, what: &'static str, limit: Duration) -> JoinHandle<Option<Duration>> {
        let (file, start) = (self.folder.path().join("log"), Instant::now());
        std::thread::spawn(move || {
            let logged = || std::fs::read_to_string(&file).is_ok_and(|log| log.contains(what));
            eventually(limit, logged).then(|| start.elapsed())
        })
    }

    /// The broker's control socket.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    /// All processes of the daemons, themselves included.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(super) fn processes(&self) -> Result<Vec<Pid>> {
        let mut found: Vec<u32> = self.daemons.iter().map(|daemon| daemon.0.id()).collect();
        let mut at = 0;
        while let Some(process) = found.get(at) {
            found.extend(children(*process)?);
            at += 1;
        }
        Ok(found.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)).collect())
    }

    /// The workers among them.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(super) fn workers(&self) -> Result<Vec<Pid>> {
        let devices =
            self.daemons.iter().map(|daemon| children(daemon.0.id())).collect::<Result<Vec<_>>>()?;
        let workers = devices.into_iter().flatten().map(workers).collect::<Result<Vec<_>>>()?;
        Ok(workers.into_iter().flatten().filter_map(|pid| Pid::from_raw(pid as i32)).collect())
    }

    fn device_socket(&self, tenant: &str) -> PathBuf {
        self.folder.path().join(format!("{tenant}.gpu"))
    }

    /// Where programs of a tenant's VM connect.
    #[must_use]
    pub fn client_socket(&self, tenant: &str) -> PathBuf {
        self.folder.path().join(format!("{tenant}.vtest"))
    }

    pub(super) fn command(&self, place: &Place, tenant: usize) -> Result<Command> {
        match self.bridges.get(tenant) {
            Some(bridge) => place.tenant(bridge.path()),
            None => place.native().context("there is no GPU here whose driver could be used as it is"),
        }
    }
}

/// A tenant's program.
pub(super) struct Program {
    child: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<String>,
    errors: TempDir,
}

impl Program {
    pub(super) fn start(mut command: Command, tenant: &Tenant, size: Size) -> Result<Self> {
        let errors = tempfile::tempdir()?;
        let steps = if tenant.endless { u32::MAX } else { size.steps };
        let mut arguments =
            vec![("--steps", steps), ("--words", size.words), ("--in-flight", tenant.in_flight)];
        arguments.extend([("--period", tenant.period), ("--think", tenant.think)]);
        // So many behind each other that a fast GPU takes hours, too.
        arguments.push(("--dispatches", if tenant.endless { 10_000 } else { 1 }));
        for (name, value) in arguments {
            command.arg(name).arg(value.to_string());
        }
        command.args(tenant.empty.then_some("--empty")).args(tenant.endless.then_some("--cold"));
        let log = File::create(errors.path().join("stderr"))?;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let input = child.stdin.take().context("standard input is piped")?;
        let output = child.stdout.take().context("standard output is piped")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { child, input, lines, errors })
    }

    pub(super) fn expect_line(&mut self) -> Result<String> {
        let line = self.lines.recv_timeout(PATIENCE);
        line.with_context(|| std::fs::read_to_string(self.errors.path().join("stderr")).unwrap_or_default())
    }

    pub(super) fn go(&mut self, time: Duration, how: &str) -> Result<()> {
        Ok(writeln!(self.input, "{}{how}", time.as_millis())?)
    }

    /// Microseconds that a kernel takes alone.
    pub(super) fn alone(&mut self, tenant: &Tenant) -> Result<f64> {
        let mut time = ALONE;
        let outcome = loop {
            self.go(time, " alone")?;
            let outcome = Outcome::read(&self.expect_line()?, *tenant, 0.0)?;
            if outcome.kernels > 1 {
                break outcome;
            }
            // A processor that others use as well makes a slow GPU.
            time *= 2;
            ensure!(time < PATIENCE / 4, "not two kernels in {:?}", time / 2);
        };
        Ok(outcome.per_kernel)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
