//! How large a kernel is, and how large one of a certain length has to be.

/// How large a kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Invocations.
    pub words: u32,
    /// Steps of each.
    pub steps: u32,
}

impl Size {
    /// On a processor: few workgroups for each core.
    pub const NARROW: Self = Self { words: 4096, steps: 16_000 };
    /// On a GPU: as many as run at a time.
    pub const WIDE: Self = Self { words: 1 << 18, steps: 16_000 };
    /// Microseconds after which a GPU starts other workgroups of a kernel: so it can turn to another context meanwhile, as it can in
    /// the kernels of most programs.
    const WAVE: f64 = 100.0;

    /// A kernel of so many microseconds, where a kernel of this size takes `taken`.
    #[must_use]
    pub fn of(self, taken: f64, microseconds: u32, wide: bool) -> Self {
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
