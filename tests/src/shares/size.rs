//! The size of a kernel, and the size that a kernel of a certain length must have.

/// The size of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Invocations.
    pub words: u32,
    /// Steps of each.
    pub steps: u32,
}

impl Size {
    /// The size for a processor: few workgroups for each core.
    pub const NARROW: Self = Self { words: 4096, steps: 16_000 };
    /// The size for a GPU: as many workgroups as run at a time.
    pub const WIDE: Self = Self { words: 1 << 18, steps: 16_000 };
    /// Microseconds after which a GPU starts other workgroups of a kernel. It can turn to another context then, as in the kernels of most programs.
    pub const WAVE: u32 = 100;

    /// A kernel of these `microseconds`, where one of this size takes `taken`; if it is much longer than `wave`, its workgroups run for `wave` each.
    #[must_use]
    pub fn of(self, taken: f64, microseconds: u32, wave: Option<u32>) -> Self {
        let (wanted, steps) = (f64::from(microseconds), f64::from(self.steps) / taken);
        match wave.map(f64::from).filter(|wave| wanted > 2.0 * wave) {
            Some(wave) => {
                Self { words: self.words * (wanted / wave).round() as u32, steps: (steps * wave) as u32 }
            }
            None => Self { words: self.words, steps: (steps * wanted).max(1.0) as u32 },
        }
    }
}
