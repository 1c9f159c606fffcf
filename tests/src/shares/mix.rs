//! The mixes of tenants that share the GPU.

/// A tenant: one VM with one program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tenant {
    /// The name of the tenant's VM.
    pub name: &'static str,
    /// The VM's weight.
    pub weight: u32,
    /// The VM's class.
    pub class: &'static str,
    /// Microseconds that one kernel takes alone.
    pub kernel: u32,
    /// Kernels submitted at a time.
    pub in_flight: u32,
    /// Microseconds from one submission to the next; 0 for as many as possible.
    pub period: u32,
    /// Microseconds that it pauses between a kernel and the next.
    pub think: u32,
    /// A workgroup of its kernel runs for a quarter of the kernel's time, rather than a moment.
    pub long_workgroups: bool,
    /// The tenant's submissions are empty, and it makes them as often as it can.
    pub empty: bool,
    /// The tenant's kernel never ends, and is ended by the limit of `CONTENDED`.
    pub endless: bool,
}

impl Tenant {
    /// Returns whether the tenant's submissions take time and come to an end.
    pub(super) fn computes(&self) -> bool {
        !self.empty && !self.endless
    }
}

/// The time for which a submission may run while others wait, in a mix with an endless kernel.
pub(super) const CONTENDED: &str = "2s";

/// Tenants that share the GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// The mix's name.
    pub name: String,
    /// The point that the mix shows.
    pub shows: &'static str,
    /// The tenants that take part.
    pub tenants: Vec<Tenant>,
}

pub(super) const fn tenant(name: &'static str, weight: u32, kernel: u32, in_flight: u32) -> Tenant {
    let (class, period, think, empty, endless) = ("normal", 0, 0, false, false);
    Tenant { name, weight, class, kernel, in_flight, period, think, long_workgroups: false, empty, endless }
}

/// A tenant whose kernels of 25 ms have workgroups that a GPU has to wait for when it turns to another context.
const HOG: Tenant = Tenant { long_workgroups: true, ..tenant("hog", 1, 25_000, 2) };
/// A VM of the latency class whose program submits 1 ms of work each 10 ms.
const PROMPT: Tenant = Tenant { class: "latency", period: 10_000, ..tenant("prompt", 1, 1000, 1) };

const NAMES: [&str; 16] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];

/// Mixes of few tenants, with the purpose of each.
pub const MIXES: &[(&str, &str, &[Tenant])] = &[
    (
        "weights",
        "weights 4:2:1:1, kernels of 0.2 to 20 ms",
        &[
            tenant("four", 4, 200, 8),
            tenant("two", 2, 1000, 4),
            tenant("one", 1, 5000, 4),
            tenant("one-too", 1, 20_000, 4),
        ],
    ),
    (
        "equal",
        "equal weights, kernels of 0.1 to 25 ms",
        &[
            tenant("tiny", 1, 100, 16),
            tenant("short", 1, 1000, 4),
            tenant("long", 1, 5000, 4),
            tenant("longest", 1, 25_000, 4),
        ],
    ),
    (
        "long-short",
        "25 ms against 2 ms, equal weights",
        &[tenant("long", 1, 25_000, 2), tenant("short", 1, 2000, 3)],
    ),
    (
        "synchronous",
        "25 ms against 2 ms that wait for each kernel and think for 0.3 ms",
        &[tenant("long", 1, 25_000, 2), Tenant { think: 300, ..tenant("short", 1, 2000, 1) }],
    ),
    ("four-deep", "2 ms four deep, beside 25 ms kernels", &[HOG, tenant("short", 1, 2000, 4)]),
    ("two-deep", "2 ms two deep, beside 25 ms kernels", &[HOG, tenant("short", 1, 2000, 2)]),
    ("one-at-a-time", "2 ms one at a time, beside 25 ms kernels", &[HOG, tenant("short", 1, 2000, 1)]),
    (
        "thinks-0.1ms",
        "2 ms one at a time, 0.1 ms between them, beside 25 ms kernels",
        &[HOG, Tenant { think: 100, ..tenant("short", 1, 2000, 1) }],
    ),
    (
        "thinks-0.3ms",
        "2 ms one at a time, 0.3 ms between them, beside 25 ms kernels",
        &[HOG, Tenant { think: 300, ..tenant("short", 1, 2000, 1) }],
    ),
    (
        "thinks-5ms",
        "2 ms one at a time, 5 ms between them, beside 25 ms kernels",
        &[HOG, Tenant { think: 5000, ..tenant("short", 1, 2000, 1) }],
    ),
    (
        "two-wait",
        "two with 1.5 ms one at a time, 0.1 and 0.3 ms between them, beside 25 ms kernels",
        &[
            HOG,
            Tenant { think: 100, ..tenant("soon", 1, 1500, 1) },
            Tenant { think: 300, ..tenant("later", 1, 1500, 1) },
        ],
    ),
    (
        "latency-long",
        "1 ms each 10 ms in the latency class, beside 25 ms kernels of long workgroups",
        &[HOG, PROMPT],
    ),
    (
        "latency",
        "1 ms each 10 ms in the latency class, beside 25 ms kernels",
        &[tenant("batch", 1, 25_000, 2), PROMPT],
    ),
    (
        "latency-two",
        "1 ms each 10 ms in the latency class, beside two with 60 ms kernels",
        &[tenant("one", 1, 60_000, 2), tenant("two", 1, 60_000, 2), PROMPT],
    ),
    ("batch", "25 ms kernels alone", &[tenant("batch", 1, 25_000, 2)]),
    (
        "background",
        "2 ms kernels beside 2 ms kernels in the background",
        &[tenant("front", 1, 2000, 4), Tenant { class: "background", ..tenant("back", 1, 2000, 4) }],
    ),
    (
        "flood",
        "empty submissions, as many as possible, beside two tenants with 2 ms kernels",
        &[
            tenant("left", 1, 2000, 4),
            tenant("right", 1, 2000, 4),
            Tenant { empty: true, ..tenant("flood", 1, 1, 16) },
        ],
    ),
    (
        "endless",
        "a kernel that never ends, beside 1 ms kernels; its limit is 2 s while others wait",
        &[tenant("neighbour", 1, 1000, 2), Tenant { endless: true, ..tenant("hog", 1, 1000, 1) }],
    ),
    ("alone-1ms", "1 ms kernels alone", &[tenant("alone", 1, 1000, 4)]),
    ("alone-100us", "100 us kernels alone", &[tenant("alone", 1, 100, 16)]),
];

/// The mix of this name.
#[must_use]
pub fn mix(name: &str) -> Option<Mix> {
    if let Some(count) = name.strip_prefix("equal-").and_then(|count| count.parse().ok()) {
        return (1..=NAMES.len()).contains(&count).then(|| equal(count));
    }
    let (name, shows, tenants) = MIXES.iter().find(|(known, ..)| *known == name)?;
    Some(Mix { name: (*name).into(), shows, tenants: tenants.to_vec() })
}

/// A mix of `count` equal tenants with kernels of 1 ms.
#[must_use]
pub fn equal(count: usize) -> Mix {
    let tenants = NAMES[..count].iter().map(|name| tenant(name, 1, 1000, 4)).collect();
    Mix { name: format!("equal-{count}"), shows: "equal tenants, kernels of 1 ms", tenants }
}
