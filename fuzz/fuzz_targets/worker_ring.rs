//! One ring whose guest changes everything it shares.
#![no_main]

fuzz::target!(daemon::worker::fuzzing::fuzz_ring);
