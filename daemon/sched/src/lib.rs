//! This crate decides which context may use a GPU next, and for how much work: start-time fair queueing of the submissions of several VMs.
//!
//! The VMs are *tenants*. Each tenant has several *contexts*, and each context has a worker process. Workers dispatch the submissions that they were
//! granted. Two *units*, that is grants that have not completed, are in the driver at once, so that one runs while the next is staged. Tenants are
//! served in proportion to their weights, and the contexts of a tenant equally. Each has a virtual time: the GPU time that it was charged, divided by
//! its weight. The one with the least virtual time comes next. It is charged an estimate in advance, and the measured time afterwards.
//!
//! A context that is alone gets a *lease*: its worker need not ask until another context has work.
//!
//! This crate knows no clock, no process and no memory: the caller passes in the time, and the claims of workers. A claim may be false: no claim
//! makes others lose their share, or the scheduler fail. The scheduler itself sees for how long a submission was the first in the driver, from its
//! grant to the completion that the worker reports. The workers of a tenant may leave an eighth of that time unexplained ([`Tuning::doubt`]); the
//! tenant pays for the rest. The scheduler cannot prevent two attacks: a worker that a guest has taken over can dispatch submissions without a grant,
//! and can report unfinished work as complete. Then the driver shares out the GPU, not the scheduler.
//!
//! | file | is |
//! | --- | --- |
//! | `time`, `ids`, `share` | the description of a VM for the scheduler, and its units |
//! | `worker` | the messages from and to a worker |
//! | `usage` | the accounts of used time |
//! | `tuning` | the constants |
//! | `tenant` | the records of tenants and contexts; virtual time |
//! | `units` | the grants in the driver |
//! | `timeline` | the record of which context used the GPU when |
//! | `window` | the time that a tenant used lately |
//! | `doubt` | for how long a tenant may have held the GPU without work that its workers name |
//! | `habit` | how soon a program submits again |
//! | `alone` | since when a context is the only one with work |
//! | `patience` | the GPU time that may be idled away |
//! | `scheduler` | the existing tenants and contexts |
//! | `scheduler::bill` | the charges for work |
//! | `scheduler::pick` | which context comes next |
//! | `scheduler::crowd` | how many contexts of a tenant are in the driver |
//! | `scheduler::wait` | idling for a context that will submit at once |
//! | `scheduler::lease` | the context that need not ask |
//! | `scheduler::resume` | the state that a scheduler takes over from another |

#![forbid(unsafe_code)]

mod alone;
mod doubt;
mod habit;
mod ids;
mod patience;
mod scheduler;
mod share;
mod tenant;
mod time;
mod timeline;
mod tuning;
mod units;
mod usage;
mod window;
mod worker;

pub use ids::{ContextKey, TenantId};
pub use scheduler::{Scheduler, Standing};
pub use share::{Class, Share};
pub use time::{Nanos, nanos};
pub use tuning::Tuning;
pub use usage::Usage;
pub use worker::{Order, Seen, Span};
