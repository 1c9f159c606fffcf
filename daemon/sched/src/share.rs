//! The part of the GPU that a tenant is to have. This file knows no tenant.

/// The priority of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// The tenant gets its share.
    #[default]
    Normal,
    /// The tenant is served soon, as long as it uses no more than its share.
    Latency,
    /// The tenant gets the GPU time that no other tenant wants.
    Background,
}

/// The share of the GPU that a tenant is to have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The weight: the tenant's part is this divided by the weights of all that have work. 1 to 10 000, default 100; a number outside counts as the
    /// nearest inside.
    pub weight: u32,
    /// The tenant's priority.
    pub class: Class,
    /// The part of the GPU that it may use of any 100 ms, even if no other does; above 0. A submission that alone takes more is
    /// granted all the same, and has to be made up for. Default none.
    pub ceiling: Option<f64>,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 100, class: Class::Normal, ceiling: None }
    }
}

pub(super) const WEIGHT_MAX: u32 = 10_000;
