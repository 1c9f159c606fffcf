//! One ring; its guest changes everything that the two share.
#![no_main]

fuzz::target!(daemon::worker::fuzzing::fuzz_ring);
