//! A configuration file of several VMs.
#![no_main]

fuzz::target!(daemon::broker::fuzzing::fuzz_settings);
