//! `cargo patched-waits`: measures waits with the patched driver beside those with Debian's: how long short ones take, how often long ones sleep, and
//! their processor time. It fails if the patched driver waits no better.
//!
//! Both drivers wait by turns for the same device, and for another thread of the program, which takes exactly as long whatever the device is
//! like. On a slow machine the device takes longer than the patched driver polls for, which sleeps then as often as Debian's driver, but for less
//! time; where other programs want the processors, sleeps are what differs, and not the time. So short waits have to differ in one of the two.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::clients::Setup;
use tests::packages::{ClientRoot, Device, Suite};
use tests::program::cargo::sibling;
use tests::stand::Dialogue;

/// The number of turns of each driver.
const TURNS: usize = 5;

/// A wait as it was in the median of the turns.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// Seconds that the median wait took.
    length: f64,
    sleeps: f64,
    /// Seconds of processor time of the program.
    processor: f64,
}

/// A program on one driver, and what it found in each turn.
struct Side {
    gauge: Dialogue,
    turns: Vec<Wait>,
}

impl Side {
    fn start(client: &ClientRoot, setup: &Setup) -> Result<Self> {
        let command = client.own(&sibling("gauge")?, Device::Venus(setup.socket()))?;
        let gauge = Dialogue::start(command)?;
        gauge.hear()?;
        Ok(Self { gauge, turns: Vec::new() })
    }

    fn turn(&mut self, measure: &str) -> Result<()> {
        self.gauge.say(measure)?;
        let said: Value = serde_json::from_str(&self.gauge.hear()?)?;
        let number = |key: &str| said[key].as_f64().with_context(|| format!("no {key} in {said}"));
        let of_each = |key| Ok::<_, anyhow::Error>(number(key)? / number("count")?);
        let length = number("median")? / 1e9;
        self.turns.push(Wait {
            length,
            sleeps: of_each("sleeps")?,
            processor: of_each("processor_seconds")?,
        });
        Ok(())
    }

    fn median(&self) -> Wait {
        let median = |of: fn(&Wait) -> f64| {
            let mut sorted: Vec<f64> = self.turns.iter().map(of).collect();
            sorted.sort_unstable_by(f64::total_cmp);
            sorted[sorted.len() / 2]
        };
        Wait {
            length: median(|wait| wait.length),
            sleeps: median(|wait| wait.sleeps),
            processor: median(|wait| wait.processor),
        }
    }
}

/// Returns what a wait is like with both drivers, the patched one first.
fn by_turns(measure: &str) -> Result<[Wait; 2]> {
    let (patched, stock) = (ClientRoot::patched()?, ClientRoot::open(Suite::Trixie)?);
    let setup = Setup::start()?;
    let mut sides = [Side::start(&patched, &setup)?, Side::start(&stock, &setup)?];
    for _ in 0..TURNS {
        sides.iter_mut().try_for_each(|side| side.turn(measure))?;
    }
    let medians = sides.map(|side| side.median());
    println!("{measure}: {medians:?}");
    Ok(medians)
}

/// Prints the medians, and fails if the patched driver's are no better. Where other programs want the processors, either driver sleeps and computes
/// less, down to nothing, so the bounds of long waits leave something that does not depend on the other driver.
fn main() -> Result<()> {
    env_logger::init();
    // Debian's driver sleeps for 160 us and the timer slack in nearly each.
    let [patched, stock] = by_turns("empty 500")?;
    let is_better = patched.length < 0.9 * stock.length || patched.sleeps < 0.5 * stock.sleeps;
    ensure!(is_better, "short waits take as long and sleep as often: {patched:?}, {stock:?}");
    // Steps that do not grow would be five times as many as Debian's.
    let [patched, stock] = by_turns("waits 20000 1000")?;
    ensure!(patched.sleeps < stock.sleeps + 10.0, "long waits wake up often: {patched:?}, {stock:?}");
    // To poll for the end alone would take more than a millisecond.
    ensure!(patched.processor < stock.processor + 100e-6, "long waits compute: {patched:?}, {stock:?}");
    Ok(())
}
