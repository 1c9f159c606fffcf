//! Programs with stock drivers on the daemon: Mesa's client reaches it through `vtest-bridge`, without a virtual machine. All share one test program,
//! so that the processors are kept busy until the last test.

mod chaos;
mod clients;
mod crowd;
mod differential;
mod features;
mod hangs;
mod programs;
mod quotas;
mod residue;
mod restart;
mod soak;
mod threads;
mod validation;
