//! The memory for all VMs together, and the part of each VM.

use super::problem::Problem;
use config::Amount;

/// Returns the part of `total` that each VM gets, given the parts that some VMs have of their own: VMs without one share the rest equally. The bytes
/// of a percentage of a GPU are not known here, so either all amounts are percentages or none is.
pub(super) fn share_out(
    key: &str,
    total: Amount,
    own: &[(&str, Option<Amount>)],
) -> Result<Vec<Amount>, Problem> {
    let (all, unit) = Unit::of(total);
    let mut left = all;
    for (name, amount) in own.iter().filter_map(|(name, amount)| Some((name, (*amount)?))) {
        let wrong = |what: String| Problem::of_vm(name, key, what);
        let number = match Unit::of(amount) {
            (number, own) if own == unit => number,
            (number, own) => return Err(wrong(unlike(&own.show(number), &unit.show(all)))),
        };
        left = left.checked_sub(number).ok_or_else(|| {
            let [number, left, all] = [number, left, all].map(|number| unit.show(number));
            wrong(format!(
                "{number} of this VM is more than the {left} that the others leave of {all} for all VMs"
            ))
        })?;
    }
    let without: Vec<&str> =
        own.iter().filter(|(_, amount)| amount.is_none()).map(|(name, _)| *name).collect();
    let part = left.checked_div(without.len() as u64).unwrap_or(0);
    if let (Some(name), true) = (without.first(), part < unit.least()) {
        let [others, all] = [all - left, all].map(|number| unit.show(number));
        let what = format!("nothing is left for this VM: the others have {others} of {all} for all VMs");
        return Err(Problem::of_vm(name, key, what));
    }
    Ok(own.iter().map(|(_, amount)| amount.unwrap_or(unit.amount(part))).collect())
}

fn unlike(own: &str, all: &str) -> String {
    format!("{own} cannot be compared with {all} for all VMs: write both as percentages, or neither")
}

/// The unit of an amount, without its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Part,
}

impl Unit {
    fn of(amount: Amount) -> (u64, Self) {
        match amount {
            Amount::Bytes(bytes) => (bytes, Self::Bytes),
            Amount::Part(part) => (part, Self::Part),
        }
    }

    fn amount(self, number: u64) -> Amount {
        match self {
            Self::Bytes => Amount::Bytes(number),
            Self::Part => Amount::Part(number),
        }
    }

    /// The least that a VM without memory of its own may get: 1 MiB, or 1%. If the part is smaller, nothing is left for this VM.
    fn least(self) -> u64 {
        match self {
            Self::Bytes => 1 << 20,
            Self::Part => 100,
        }
    }

    fn show(self, number: u64) -> String {
        match self {
            Self::Bytes => show(number),
            Self::Part => Amount::Part(number).to_string(),
        }
    }
}

/// Writes a number of bytes with the largest unit that needs no fraction.
fn show(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} bytes"), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gib(number: u64) -> Amount {
        Amount::Bytes(number << 30)
    }

    fn percent(number: u64) -> Amount {
        Amount::Part(number * 100)
    }

    #[test]
    fn who_has_nothing_of_its_own_gets_its_part_of_the_rest() {
        let own = [("a", Some(gib(4))), ("b", None), ("c", None)];
        assert_eq!(share_out("device-memory", gib(10), &own).unwrap(), [gib(4), gib(3), gib(3)]);
        let own = [("a", Some(percent(40))), ("b", None), ("c", None)];
        let shared = share_out("device-memory", percent(90), &own).unwrap();
        assert_eq!(shared, [percent(40), percent(25), percent(25)]);
    }

    #[test]
    fn percentages_are_compared_with_percentages_only() {
        let said =
            |total, own| share_out("device-memory", total, &[("a", Some(own))]).unwrap_err().to_string();
        assert_eq!(
            said(percent(50), percent(60)),
            "[vm.a] device-memory: 60% of this VM is more than the 50% that the others leave of 50% for all VMs"
        );
        assert_eq!(
            said(gib(10), percent(60)),
            "[vm.a] device-memory: 60% cannot be compared with 10GiB for all VMs: write both as percentages, or neither"
        );
        let none_left = share_out("device-memory", percent(50), &[("a", Some(percent(50))), ("b", None)]);
        assert_eq!(
            none_left.unwrap_err().to_string(),
            "[vm.b] device-memory: nothing is left for this VM: the others have 50% of 50% for all VMs"
        );
    }

    #[test]
    fn more_than_there_is_is_refused_with_the_numbers() {
        let own = [("a", Some(gib(6))), ("b", Some(gib(5)))];
        assert_eq!(
            share_out("host-memory", gib(10), &own).unwrap_err().to_string(),
            "[vm.b] host-memory: 5GiB of this VM is more than the 4GiB that the others leave of 10GiB for all VMs"
        );
        let own = [("a", Some(gib(10))), ("b", None)];
        assert_eq!(
            share_out("host-memory", gib(10), &own).unwrap_err().to_string(),
            "[vm.b] host-memory: nothing is left for this VM: the others have 10GiB of 10GiB for all VMs"
        );
    }
}
