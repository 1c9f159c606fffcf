//! Descriptor chains of a hostile driver.
#![no_main]

fuzz::target!(daemon::transport::fuzzing::fuzz_chains);
