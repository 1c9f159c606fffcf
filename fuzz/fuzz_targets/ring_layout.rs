//! A ring's create info and counters.
#![no_main]

fuzz::target!(protocol::venus::fuzzing::fuzz_ring_layout);
