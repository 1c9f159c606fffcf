//! The page of grants, written by anybody.
#![no_main]

fuzz::target!(shm::fuzzing::fuzz_grants);
