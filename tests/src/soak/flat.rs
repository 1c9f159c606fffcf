//! Judges whether numbers taken one after another grow: by the median of the slopes between all pairs (Theil and Sen), which a few outliers do not
//! move.

use std::fmt;

/// The growth over a whole soak by which a measure still counts as flat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// The growth is at most this.
    By(f64),
    /// The growth is at most this part of the median.
    Part(f64),
    /// The growth is not judged, because other programs of the machine change the measure. It is only a figure.
    Figure,
}

/// One measure, as taken at each rest.
#[derive(Clone, Debug)]
pub struct Line {
    /// The name, with the unit.
    pub name: String,
    values: Vec<f64>,
    tolerance: Tolerance,
}

impl Line {
    /// A measure with its values in order.
    #[must_use]
    pub fn new(name: String, values: Vec<f64>, tolerance: Tolerance) -> Self {
        Self { name, values, tolerance }
    }

    /// Returns the growth from the first value to the last, according to the slope.
    #[must_use]
    pub fn growth(&self) -> f64 {
        let values = self.values.iter().enumerate();
        let pairs = values.flat_map(|(at, before)| {
            let later = self.values.iter().enumerate().skip(at + 1);
            later.map(move |(then, after)| (after - before) / (then - at) as f64)
        });
        median(pairs.collect()) * self.values.len().saturating_sub(1) as f64
    }

    /// Returns whether the measure does not grow, within its tolerance.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        self.growth() <= self.tolerated()
    }

    fn tolerated(&self) -> f64 {
        match self.tolerance {
            Tolerance::By(most) => most,
            Tolerance::Part(part) => part * median(self.values.clone()).abs(),
            Tolerance::Figure => f64::INFINITY,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = |values: &[f64]| values.first().copied().zip(values.last().copied()).unwrap_or_default();
        let (first, last) = ends(&self.values);
        let verdict = match self.tolerance {
            Tolerance::Figure => "figure",
            _ if self.is_flat() => "flat",
            _ => "GROWS",
        };
        let (name, median, count) = (&self.name, median(self.values.clone()), self.values.len());
        let (growth, tolerated) = (self.growth(), self.tolerated());
        write!(
            f,
            "{verdict}: {name}: {first:.1} first, {median:.1} median, {last:.1} last of {count}; grows by {growth:.2}, \
             {tolerated:.2} is tolerated"
        )
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(values: impl IntoIterator<Item = f64>, most: f64) -> Line {
        Line::new("x".into(), values.into_iter().collect(), Tolerance::By(most))
    }

    #[test]
    fn what_grows_slowly_is_seen_through_noise_and_outliers() {
        // Values that grow by one in ten steps, with up to 3 more or less at random, and a peak.
        let noise = [1.0, -2.0, 3.0, 0.0, -3.0, 2.0, -1.0];
        let grows = |slope: f64| {
            let values = (0..100).map(move |at| 50.0 + slope * f64::from(at) + noise[at as usize % 7]);
            values.map(|value| if value == 53.0 { 900.0 } else { value })
        };
        assert!(line(grows(0.0), 1.0).is_flat());
        assert!(!line(grows(0.1), 5.0).is_flat());
        assert!((line(grows(0.1), 5.0).growth() - 9.9).abs() < 1.0);
    }

    #[test]
    fn what_falls_or_stays_is_flat() {
        assert!(line([5.0, 4.0, 3.0], 0.0).is_flat() && line([5.0; 9], 0.0).is_flat());
        assert!(line([], 0.0).is_flat() && line([7.0], 0.0).is_flat());
        assert!(!line([5.0, 6.0, 7.0], 0.0).is_flat());
        let part = Line::new("x".into(), vec![100.0, 102.0, 104.0], Tolerance::Part(0.05));
        assert!(part.is_flat());
        assert!(Line::new("x".into(), vec![1.0, 100.0, 1000.0], Tolerance::Figure).is_flat());
    }
}
