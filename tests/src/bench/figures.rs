//! The results of the rounds, as medians and ratios.

use super::goals::{Goal, goal};
use super::measures::{Row, Unit};

/// The result of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The number in the unit of the row; less is better.
    pub value: f64,
    /// The 99th percentile of single times in this round; none if the round has a single number.
    pub p99: Option<f64>,
}

impl Reading {
    /// Returns a reading that is one number for the whole round.
    #[must_use]
    pub fn of(value: f64) -> Self {
        Self { value, p99: None }
    }
}

/// The results of one side, round by round.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// The side.
    pub name: String,
    /// The result of each round; none if the side has no such number.
    pub rounds: Vec<Option<Reading>>,
}

/// One row with its columns.
#[derive(Clone, Debug)]
pub struct Line {
    /// The row.
    pub row: Row,
    /// The columns of the sides, the host's first.
    pub columns: Vec<Column>,
    /// The sides on which the row's probe could not be taken or was limited, each with the reason; only the probe's last row has them.
    pub notes: Vec<(String, String)>,
    /// True if the host's device is a driver in software.
    pub software: bool,
}

/// The bounds of the middle half of the numbers that were found, and their median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quartiles {
    /// A quarter of the numbers is less.
    pub low: f64,
    /// Half of the numbers is less.
    pub median: f64,
    /// A quarter of the numbers is more.
    pub high: f64,
}

impl Quartiles {
    /// Returns the quartiles of these numbers, if there are any.
    #[must_use]
    pub fn of(mut numbers: Vec<f64>) -> Option<Self> {
        numbers.sort_by(f64::total_cmp);
        let last = numbers.len().checked_sub(1)?;
        let at = |part: f64| {
            let place = part * last as f64;
            let (below, above) = (numbers[place.floor() as usize], numbers[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Self { low: at(0.25), median: at(0.5), high: at(0.75) })
    }
}

impl Column {
    /// The median of the rounds' readings.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        Quartiles::of(self.rounds.iter().flatten().map(|reading| reading.value).collect()).map(|of| of.median)
    }

    /// The median of the rounds' 99th percentiles.
    #[must_use]
    pub fn p99(&self) -> Option<f64> {
        Quartiles::of(self.rounds.iter().flatten().filter_map(|reading| reading.p99).collect())
            .map(|of| of.median)
    }
}

impl Line {
    /// The host's part.
    #[must_use]
    pub fn native(&self) -> &Column {
        &self.columns[0]
    }

    /// The guests' parts.
    #[must_use]
    pub fn guests(&self) -> &[Column] {
        &self.columns[1..]
    }

    /// Returns the speed of the guest relative to the host, as quartiles over the rounds: the host's reading divided by the guest's in the same
    /// round. 1 is as good as the host, and more is better.
    #[must_use]
    pub fn ratio(&self, guest: &Column) -> Option<Quartiles> {
        self.ratio_to(self.native(), guest)
    }

    /// Returns the same quartiles as [`Line::ratio`], with another side in the place of the host.
    #[must_use]
    pub fn ratio_to(&self, base: &Column, guest: &Column) -> Option<Quartiles> {
        if matches!(self.row.unit, Unit::Amount(_)) {
            return None;
        }
        let rounds = base.rounds.iter().zip(&guest.rounds);
        let both = rounds.filter_map(|(base, guest)| Some((base.as_ref()?.value, guest.as_ref()?.value)));
        Quartiles::of(both.filter(|(_, guest)| *guest > 0.0).map(|(base, guest)| base / guest).collect())
    }

    /// Returns the goal that a guest has to reach, if it has one.
    #[must_use]
    pub fn goal(&self, guest: &Column) -> Option<Goal> {
        goal(&self.row, &guest.name, self.software)
    }

    /// Returns whether the guest reaches its goal, if it has one and there are numbers.
    #[must_use]
    pub fn is_reached(&self, guest: &Column) -> Option<bool> {
        let ratio = self.ratio(guest).map(|ratio| ratio.median);
        self.goal(guest)?.is_reached(self.native().median(), guest.median()?, ratio)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, values: &[f64]) -> Column {
        let rounds = values.iter().map(|&value| Some(Reading { value, p99: Some(2.0 * value) })).collect();
        Column { name: name.into(), rounds }
    }

    #[test]
    fn ratios_are_of_the_same_round_and_below_one_where_the_guest_takes_longer() {
        let row = Row { group: "kernels", name: "kernel-2ms-one".into(), unit: Unit::Rate };
        // The machine became slower from round to round; the ratio did not.
        let columns = vec![column("native", &[1.0, 2.0, 4.0]), column("mesa-26.1", &[2.0, 4.0, 8.0])];
        let line = Line { row, columns, notes: Vec::new(), software: false };
        let ratio = line.ratio(&line.guests()[0]).unwrap();
        assert_eq!(ratio, Quartiles { low: 0.5, median: 0.5, high: 0.5 });
        assert_eq!(line.is_reached(&line.guests()[0]), Some(false));
        assert_eq!(line.guests()[0].p99(), Some(8.0));
    }

    #[test]
    fn quartiles_lie_between_neighbours() {
        let of = Quartiles::of(vec![4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((of.low, of.median, of.high), (1.75, 2.5, 3.25));
        assert_eq!(Quartiles::of(Vec::new()), None);
    }
}
