//! The programs compute: on numbers of every type, in memory of every kind, together with other invocations.

pub(super) mod addresses;
pub(super) mod arithmetic;
pub(super) mod atomics;
pub(super) mod matrices;
pub(super) mod shaders;
pub(super) mod storage;
pub(super) mod subgroups;
