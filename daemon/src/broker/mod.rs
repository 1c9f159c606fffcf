//! The broker: serves several VMs, each by a device process of its own, and says whose worker may use the GPU next.
//!
//! Everything but the start of processes (`starter`) and reading the file again (`reload::reader`) runs on one thread around one epoll instance.
//! Events for which workers wait come first in each turn: doorbells, the pages of contexts, the scheduler's decision (`gpu`); then messages of device
//! processes (`vms`), then operators and metrics (`operator`, `connections`). The broker waits for no peer. It reads no guest byte. A guest may have
//! taken over device processes and workers, so the broker bounds their messages and lets them count for their own VM only.
//!
//! In a daemon of one VM the broker is one thread of the device process (`vms::one_vm`). `settings` is the configuration file. `reload` carries out
//! the changes when that file is read again. `client` is the other end of the control socket: the subcommands of an operator.

mod backoff;
mod client;
mod connections;
mod control;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gpu;
mod grant_log;
mod groups;
mod http;
mod ledger;
mod operator;
mod process;
mod rates;
mod reload;
mod report;
mod run;
mod settings;
mod source;
mod starter;
mod traces;
mod upgrade;
mod vm;
mod vms;

pub use client::{
    ClientError, Stream, Watch, ask, daemon_of, drain, kill, move_to, plan_drain, reload, restart, set,
    show_all, show_status, status, status_table, swap_out, undrain, upgrade, vm_of,
};
pub use control::{Answer, PlannedMove, Request};
pub use reload::Reloaded;
pub use report::status::{
    ContextStatus, GpuStatus, KillCounts, PendingStatus, RestartCounts, Status, Used, VmGpuStatus, VmStatus,
};
pub use report::words::percent;
pub use report::{counted, vms as number_of_vms};
pub use run::serve;
pub use settings::places::{
    Ambiguous, brokers_control_socket, control_socket_beside, control_sockets, operators_control_socket,
};
pub use settings::share::{Change, Policy};
pub use settings::{MetricsAddress, Problems, RoomSettings, Settings, VmSettings, VmsFile};
pub use traces::{Holder, Submission, TraceEvent};
pub use vms::one_vm::{OneVm, OneVmOptions};
pub use vms::state::{Passed, Predecessor};
pub use vms::upgrade::follow;
