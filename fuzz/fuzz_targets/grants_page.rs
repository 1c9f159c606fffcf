//! The page of grants, written by anybody.
#![no_main]

fuzz::target!(daemon::shm::fuzzing::fuzz_grants);
