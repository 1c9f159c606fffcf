//! The host, and guests: each with the program `gauge`, which is started once and asked again and again.

use crate::shares::Size;
use crate::stand::{Dialogue, Place, Stand};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The name of the side that is on the host and waits as a guest does.
pub const LOOKING: &str = "native-looks";
/// The argument by which `gauge` waits as a guest does.
pub const LOOK: &str = "--look";

/// The host or a guest, on which a measure is taken.
pub struct Side {
    /// `native`, or the name of the guest's Mesa.
    pub name: String,
    /// The daemon and the bridge of a guest.
    pub stand: Option<Stand>,
    /// The program that measures.
    pub gauge: Dialogue,
    /// More programs of its kind, which stay idle.
    pub idle: Vec<Dialogue>,
    mesa: usize,
    /// The message in which the program described its device.
    hello: Value,
}

/// The host, and all guests behind it.
pub struct Sides {
    /// The sides: the host first, and last, if it was added, the host with the guests' way of waiting.
    pub all: Vec<Side>,
    /// The program and the drivers with which the sides are started.
    pub place: Place,
    /// A kernel of known length, and its length in microseconds.
    known: Option<(Size, f64)>,
}

impl Sides {
    /// Starts the program on the host and, with a daemon and a bridge each, in a guest of each Mesa.
    ///
    /// # Errors
    /// Something does not start; most often because there is no Vulkan device.
    pub fn start(place: Place) -> Result<Self> {
        let mut all = vec![Side::start(&place, "native".into(), None, 0)?];
        for (mesa, name) in place.mesas().into_iter().enumerate() {
            let stand = Stand::with_daemon(&place, &name, "guest").with_context(|| name.clone())?;
            all.push(Side::start(&place, name, Some(stand), mesa)?);
        }
        Ok(Self { all, place, known: None })
    }

    /// Adds one more program on the host, which waits for fences as Mesa does in guests. The daemon causes the guest's difference from it.
    ///
    /// # Errors
    /// The program does not start.
    pub fn add_looking(&mut self) -> Result<()> {
        let mut command = self.place.native()?;
        command.arg(LOOK);
        let gauge = Dialogue::start(command)?;
        self.all.push(Side::of(LOOKING.into(), None, gauge, 0)?);
        Ok(())
    }

    /// The host's device, as it calls itself.
    #[must_use]
    pub fn device(&self) -> String {
        self.all[0].hello["device"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns whether the host's device is a driver in software.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.all[0].hello["software"].as_bool().unwrap_or_default()
    }

    /// The size of a kernel that takes about this number of microseconds on the host.
    ///
    /// # Errors
    /// The program on the host fails.
    pub fn kernel(&mut self, microseconds: u32) -> Result<Size> {
        let wide = !self.is_software();
        if self.known.is_none() {
            let mut size = if wide { Size::WIDE } else { Size::NARROW };
            // The kernel is long enough that the time of submitting does not matter.
            self.known = loop {
                let question = format!("kernels {} {} 4 {}", size.words, size.steps, CALIBRATION.as_millis());
                let taken = self.all[0].ask(&question)?["median"].as_f64().context("a median")? / 1e3;
                if taken > 4000.0 || size.steps > 1 << 28 {
                    break Some((size, taken));
                }
                size.steps *= 2;
            };
        }
        let (size, taken) = self.known.context("measured above")?;
        Ok(size.of(taken, microseconds, wide.then_some(Size::WAVE)))
    }
}

/// The time for which a kernel runs again and again until its length is known.
const CALIBRATION: Duration = Duration::from_millis(300);

impl Side {
    fn start(place: &Place, name: String, stand: Option<Stand>, mesa: usize) -> Result<Self> {
        let bridge = stand.as_ref().and_then(|stand| stand.bridge(0));
        let command = match bridge {
            Some(bridge) => place.guest(mesa, bridge.path())?,
            None => place.native()?,
        };
        Self::of(name, stand, Dialogue::start(command)?, mesa)
    }

    fn of(name: String, stand: Option<Stand>, gauge: Dialogue, mesa: usize) -> Result<Self> {
        let mut side = Self { name, stand, gauge, idle: Vec::new(), mesa, hello: Value::Null };
        side.hello = side.answer().with_context(|| format!("{} does not start", side.name))?;
        Ok(side)
    }

    /// Asks the program and waits for its answer.
    ///
    /// # Errors
    /// The program ends, or takes too long.
    pub fn ask(&mut self, question: &str) -> Result<Value> {
        self.gauge.say(question)?;
        self.answer()
    }

    /// The answer to the last question to the program.
    ///
    /// # Errors
    /// As [`Side::ask`].
    pub fn answer(&mut self) -> Result<Value> {
        let said = self.gauge.hear().with_context(|| self.log())?;
        Ok(serde_json::from_str(&said)?)
    }

    /// Another program on this side, as [`Place::native_of`] finds it.
    ///
    /// # Errors
    /// The program is not there.
    pub fn command(&self, place: &Place, program: &Path) -> Result<Command> {
        match self.stand.as_ref().and_then(|stand| stand.bridge(0)) {
            Some(bridge) => place.guest_of(program, self.mesa, bridge.path()),
            None => place.native_of(program),
        }
    }

    /// Returns the daemon's log.
    #[must_use]
    pub fn log(&self) -> String {
        self.stand.as_ref().map(Stand::log).unwrap_or_default()
    }
}
