//! Measures how several VMs share one GPU: a broker with a VM for each tenant, bridges instead of the VMs, and programs that keep the GPU
//! busy with kernels of known length.
//!
//! `mix` says which tenants there are, `tenants` runs them, `figures` makes shares of what they got, `goals` says
//! what they have to be, `plot` draws them.
//!
//! A share is what a tenant got done, in units of what it gets done alone: its kernels times what one takes when nobody else is there, for
//! the part of the time. So shares and utilisation are seen by the programs; no counter of the daemon is believed.

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
