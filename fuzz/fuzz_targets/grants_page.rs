//! The page of grants, written by any process.
#![no_main]

fuzz::target!(shm::fuzzing::fuzz_grants);
