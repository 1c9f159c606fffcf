//! Messages of a hostile frontend.
#![no_main]

fuzz::target!(daemon::transport::fuzzing::fuzz_frontend);
