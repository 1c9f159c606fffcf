//! `vhost-user-vulkan-doctor`: the checks of a VM, as a small program to copy there. The daemon's `doctor --vm` does the same.

use doctor::guest::{Facts, check};
use doctor::report::{Place, Report};
use doctor::system::System;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "Check whether programs of this VM can use its GPU, and say what helps if not

Usage: vhost-user-vulkan-doctor [--json]

Options:
      --json     Print one line of JSON (docs/doctor.md)
  -h, --help     Print help
  -V, --version  Print version

Exit status: 0 if they can, 1 if not, 2 for a wrong option
";

fn main() -> ExitCode {
    let mut json = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            "-h" | "--help" => {
                return print(HELP);
            }
            "-V" | "--version" => {
                return print(concat!("vhost-user-vulkan-doctor ", env!("CARGO_PKG_VERSION"), "\n"));
            }
            other => {
                outside::tell(&format!(
                    "vhost-user-vulkan-doctor: unexpected argument {other:?}; --help lists the options\n"
                ));
                return ExitCode::from(2);
            }
        }
    }
    let facts = Facts::gather(&System::below(Path::new("/")));
    Report::new(Place::Vm, check(&facts)).print(json)
}

fn print(text: &str) -> ExitCode {
    if outside::print(text).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
