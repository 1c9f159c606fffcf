//! Measures how several VMs share one GPU: a broker with a VM for each tenant, bridges instead of the VMs, and programs that keep the GPU
//! busy with kernels of known length.
//!
//! `mix` lists the tenants, `tenants` runs them, `figures` makes shares of their results, `goals` holds the least good shares, `plot` draws them.
//!
//! A share is a tenant's work in units of its work alone: the number of its kernels times the time of one kernel when no other tenant runs, divided
//! by the whole time. So the programs measure shares and utilisation; no counter of the daemon is used.

mod density;
mod figures;
mod goals;
mod mix;
mod plot;
mod size;
mod tenants;

pub use density::{Density, density};
pub use figures::{Figures, Outcome};
pub use goals::{ALONE, Verdict, verdicts};
pub use mix::{MIXES, Mix, Tenant, equal, mix};
pub use plot::plot;
pub use size::Size;
pub use tenants::{Kernels, Sharing, compare, run};
