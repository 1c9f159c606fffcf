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
    /// The weight, 1 to 10 000, default 100: the tenant's part is its weight divided by the sum of the weights of all tenants with work. A number
    /// outside of the range counts as the nearest one inside.
    pub weight: u32,
    /// The tenant's priority.
    pub class: Class,
    /// The part of any 100 ms for which the tenant may use the GPU, even if no other does; above 0. A submission that alone takes more is
    /// still granted, and the tenant waits afterwards to make up for it. Default none.
    pub ceiling: Option<f64>,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 100, class: Class::Normal, ceiling: None }
    }
}

pub(super) const WEIGHT_MAX: u32 = 10_000;
