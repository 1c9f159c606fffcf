//! Goals for the sharing of the GPU. No other file has these numbers. Tests do not check them, since a machine with other work shares its own
//! processors among programs, broker and, without a GPU, the driver that computes.

use super::figures::Figures;

/// Points that a share may be off.
const OFF: f64 = 5.0;
/// The part of the GPU's time that must be used.
const USED: f64 = 0.8;
/// The least that a tenant must have, as a part of the largest amount of an equal tenant.
const EVEN: f64 = 0.9;
/// Microseconds that urgent work may wait beyond the kernel that runs.
const URGENT: f64 = 3000.0;
/// The most that the background may have beside work that never ends.
const BACKGROUND: f64 = 0.02;
/// Microseconds that a neighbour of an endless kernel may wait: the limit of that kernel and a tenth of a second.
const BESIDE_ENDLESS: f64 = 2_100_000.0;
/// The least work that a lone tenant must complete with a broker, relative to its work without a broker.
pub const ALONE: f64 = 0.97;

/// A goal, in words, and whether it was reached.
pub type Verdict = (String, bool);

/// Returns the goals that a mix has, and whether they were reached.
#[must_use]
pub fn verdicts(figures: &Figures) -> Vec<Verdict> {
    let error = || (format!("shares are off by {OFF} points at most"), figures.error() <= OFF);
    let used = || (format!("the GPU is in use to {:.0} %", USED * 100.0), figures.utilisation() >= USED);
    match figures.mix.name.as_str() {
        "weights" | "equal" | "long-short" => vec![error(), used()],
        "latency" => vec![urgent(figures), used()],
        "background" => {
            let part = figures.shares()[1];
            let words = format!("the background has {:.0} % at most", BACKGROUND * 100.0);
            vec![(words, part <= BACKGROUND), used()]
        }
        "flood" => victims(figures),
        "endless" => {
            let [_, _, longest] = figures.outcomes[0].latency;
            let words = format!("the neighbour waits for {:.1} s at most", BESIDE_ENDLESS / 1e6);
            vec![(words, longest <= BESIDE_ENDLESS)]
        }
        name if name.starts_with("equal-") => {
            let words = format!("the least has {:.0} % of the most", EVEN * 100.0);
            vec![(words, figures.min_max() >= EVEN)]
        }
        _ => Vec::new(),
    }
}

fn urgent(figures: &Figures) -> Verdict {
    let [batch, prompt] = &figures.outcomes[..] else { return ("there are two tenants".into(), false) };
    let [_, p99, _] = prompt.latency;
    let words = format!("99 % wait for {:.0} ms at most behind a kernel", URGENT / 1e3);
    (words, p99 <= batch.alone + URGENT)
}

/// Processors do the work of a software GPU, and the flood's program needs them, too.
fn victims(figures: &Figures) -> Vec<Verdict> {
    let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    let flood = &figures.outcomes[2];
    let left = 1.0 - flood.processor / flood.seconds / processors;
    let least = 1.0 / 3.0 - OFF / 100.0;
    let verdict = |victim: &super::Outcome| {
        let words =
            format!("{} has {:.0} % of what the flood's program leaves", victim.tenant.name, least * 100.0);
        (words, victim.part() / left >= least)
    };
    figures.outcomes[..2].iter().map(verdict).collect()
}
