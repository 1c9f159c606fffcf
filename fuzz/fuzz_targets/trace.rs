//! What workers note for a trace, and whoever reads it.
#![no_main]

fuzz::target!(daemon::trace::fuzzing::fuzz_trace);
