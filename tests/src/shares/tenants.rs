//! Runs the tenants of a mix.

use super::figures::{Figures, Outcome};
use super::mix::{self, CONTENDED, Mix, Tenant};
use super::size::Size;
use crate::stand::{Dialogue, PATIENCE, Place, Stand};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

/// The way in which the GPU is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// By the host's driver alone: a daemon for each VM.
    Driver,
    /// By a broker with these lines at the top of its configuration.
    Broker(String),
    /// By the driver, and the tenants run on the host.
    Native,
}

/// The sizes that kernels must have, measured on the device that runs them.
#[derive(Debug, Default)]
pub struct Kernels {
    /// A kernel of known length, and its length in microseconds.
    known: Option<(Size, f64)>,
}

impl Kernels {
    /// The size of a tenant's kernel.
    pub(super) fn size(&mut self, place: &Place, tenant: &Tenant) -> Result<Size> {
        let &Tenant { kernel, long_workgroups, .. } = tenant;
        let wide = place.is_machine();
        if self.known.is_none() {
            let tenant = mix::tenant("measure", 1, 1, 4);
            let stand = start(place, &Sharing::Driver, &[tenant])?;
            let mut size = if wide { Size::WIDE } else { Size::NARROW };
            // The kernel is long enough that the time of submitting does not matter.
            self.known = loop {
                let mut program = Program::start(command(&stand, place, 0)?, &tenant, size)?;
                program.expect_line().with_context(|| stand.log())?;
                let taken = program.alone(&tenant)?;
                if taken > 4000.0 || size.steps > 1 << 28 {
                    break Some((size, taken));
                }
                size.steps *= 2;
            };
        }
        let (size, taken) = self.known.context("measured above")?;
        let wave = if long_workgroups { kernel / 4 } else { Size::WAVE };
        Ok(size.of(taken, kernel, wide.then_some(wave)))
    }
}

/// Runs a mix for some time. Before and after the mix each tenant runs alone for a moment, in turn, which shows the time of a kernel alone in the
/// machine's present state.
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
    let sizes = mix.tenants.iter().map(|tenant| kernels.size(place, tenant));
    let sizes = sizes.collect::<Result<Vec<_>>>()?;
    let stand = start(place, sharing, &mix.tenants)?;
    let programs = mix.tenants.iter().zip(&sizes).enumerate();
    let programs =
        programs.map(|(at, (tenant, size))| Program::start(command(&stand, place, at)?, tenant, *size));
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
        // An endless program prints no line: it loses its device, or is ended.
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

/// Returns the work of one lone tenant with a broker, in relation to its work without one, measured by turns.
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
    let size = kernels.size(place, tenant)?;
    let begin = |sharing: &Sharing| -> Result<(Program, Stand)> {
        let stand = start(place, sharing, std::slice::from_ref(tenant))?;
        let mut program = Program::start(command(&stand, place, 0)?, tenant, size)?;
        program.expect_line().with_context(|| stand.log())?;
        Ok((program, stand))
    };
    let (mut with, _with) = begin(&Sharing::Broker(head.to_owned()))?;
    let (mut without, _without) = begin(&Sharing::Driver)?;
    (0..times).map(|_| Ok(without.alone(tenant)? / with.alone(tenant)?)).collect()
}

/// The time for which a tenant runs alone, and the number of such runs before and after a mix.
const ALONE: Duration = Duration::from_millis(300);
const ALONE_TIMES: u32 = 3;

/// Starts the daemons and the programs of the tenants.
///
/// # Errors
/// A daemon or a program does not start.
pub(super) fn start(place: &Place, sharing: &Sharing, tenants: &[Tenant]) -> Result<Stand> {
    let mut stand = Stand::new()?;
    match sharing {
        Sharing::Native => return Ok(stand),
        Sharing::Broker(head) => {
            let file = stand.path("vms.toml");
            std::fs::write(&file, configuration(&stand, head, tenants))?;
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
    tenants.iter().try_for_each(|tenant| stand.connect(tenant.name))?;
    Ok(stand)
}

fn configuration(stand: &Stand, head: &str, tenants: &[Tenant]) -> String {
    let mut text = format!("control-socket = {:?}\n{head}\n", stand.path("control"));
    for Tenant { name, weight, class, endless, .. } in tenants {
        let socket = stand.device_socket(name);
        // An operator's quota would restrict the loads of a test.
        let _ =
            write!(text, "[vm.{name}]\nsocket-path = {socket:?}\nweight = {weight}\nclass = \"{class}\"\n");
        // Software drivers are slow.
        let contended = if *endless { CONTENDED } else { "60min" };
        let _ = writeln!(text, "max-submit-time = \"60min\"\nmax-submit-time-contended = \"{contended}\"");
    }
    text
}

/// The program of the tenant of this number.
pub(super) fn command(stand: &Stand, place: &Place, tenant: usize) -> Result<Command> {
    match stand.bridge(tenant) {
        Some(bridge) => place.guest(0, bridge.path()),
        None => place.native(),
    }
}

/// A tenant's program.
pub(super) struct Program(Dialogue);

impl Program {
    pub(super) fn start(mut command: Command, tenant: &Tenant, size: Size) -> Result<Self> {
        let steps = if tenant.endless { u32::MAX } else { size.steps };
        let mut arguments =
            vec![("--steps", steps), ("--words", size.words), ("--in-flight", tenant.in_flight)];
        arguments.extend([("--period", tenant.period), ("--think", tenant.think)]);
        // The dispatches run one after the other; even a fast GPU takes hours for so many.
        arguments.push(("--dispatches", if tenant.endless { 10_000 } else { 1 }));
        for (name, value) in arguments {
            command.arg(name).arg(value.to_string());
        }
        command.args(tenant.empty.then_some("--empty")).args(tenant.endless.then_some("--cold"));
        Dialogue::start(command).map(Self)
    }

    pub(super) fn expect_line(&mut self) -> Result<String> {
        self.0.hear()
    }

    pub(super) fn go(&mut self, time: Duration, how: &str) -> Result<()> {
        self.0.say(&format!("{}{how}", time.as_millis()))
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
            // The GPU may be slow: a processor that other programs use, too.
            time *= 2;
            ensure!(time < PATIENCE / 4, "not two kernels in {:?}", time / 2);
        };
        Ok(outcome.per_kernel)
    }
}
