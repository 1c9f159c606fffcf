//! Memory for all VMs together, and what of it each of them gets.

use super::problem::Problem;

/// Returns what each VM gets of `total` bytes, given what some have of their own: those without share the rest equally.
pub(super) fn share_out(key: &str, total: u64, own: &[(&str, Option<u64>)]) -> Result<Vec<u64>, Problem> {
    let mut left = total;
    for (name, bytes) in own.iter().filter_map(|(name, bytes)| Some((name, (*bytes)?))) {
        left = left.checked_sub(bytes).ok_or_else(|| {
            let what = format!(
                "{} of this VM is more than the {} that the others leave of {} for all VMs",
                show(bytes),
                show(left),
                show(total)
            );
            Problem::of_vm(name, key, what)
        })?;
    }
    let without: Vec<&str> = own.iter().filter(|(_, bytes)| bytes.is_none()).map(|(name, _)| *name).collect();
    let part = left.checked_div(without.len() as u64).unwrap_or(0);
    if let (Some(name), true) = (without.first(), part < LEAST) {
        let what = format!(
            "nothing is left for this VM: the others have {} of {} for all VMs",
            show(total - left),
            show(total)
        );
        return Err(Problem::of_vm(name, key, what));
    }
    Ok(own.iter().map(|(_, bytes)| bytes.unwrap_or(part)).collect())
}

/// The least that a VM without memory of its own may get, in bytes; if there is less, nothing is left for it.
const LEAST: u64 = 1 << 20;

/// Writes a number of bytes with the largest unit that needs no fraction.
fn show(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} bytes"), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn who_has_nothing_of_its_own_gets_its_part_of_the_rest() {
        let own = [("a", Some(4 * GIB)), ("b", None), ("c", None)];
        assert_eq!(share_out("device-memory", 10 * GIB, &own).unwrap(), [4 * GIB, 3 * GIB, 3 * GIB]);
    }

    #[test]
    fn more_than_there_is_is_refused_with_the_numbers() {
        let own = [("a", Some(6 * GIB)), ("b", Some(5 * GIB))];
        assert_eq!(
            share_out("host-memory", 10 * GIB, &own).unwrap_err().to_string(),
            "[vm.b] host-memory: 5GiB of this VM is more than the 4GiB that the others leave of 10GiB for all VMs"
        );
        let own = [("a", Some(10 * GIB)), ("b", None)];
        assert_eq!(
            share_out("host-memory", 10 * GIB, &own).unwrap_err().to_string(),
            "[vm.b] host-memory: nothing is left for this VM: the others have 10GiB of 10GiB for all VMs"
        );
    }
}
