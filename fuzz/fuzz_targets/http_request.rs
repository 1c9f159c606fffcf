//! A request for metrics.
#![no_main]

fuzz::target!(daemon::broker::fuzzing::fuzz_http);
