//! The programs compute: on numbers of every type, in memory of every kind, together with other invocations.

pub mod addresses;
pub mod arithmetic;
pub mod atomics;
pub mod matrices;
pub mod shaders;
pub mod storage;
pub mod subgroups;
