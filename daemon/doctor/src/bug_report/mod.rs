//! The text for a bug report: versions, findings, files of settings, the answers of the daemons, and the end of the log. Parts that identify the
//! machine's owner are replaced. docs/reporting.md lists the contents.

mod private;
mod sources;

use crate::report::Report;
use crate::system::System;
use private::Private;
use std::path::Path;

/// The most bytes of a section; a longer one loses its beginning, since a log has its latest lines at the end.
const SECTION_BYTES: usize = 256 << 10;
/// The most characters of a line.
const LINE_CHARS: usize = 1000;

/// A text in sections, for people to read and send.
#[derive(Debug)]
pub struct BugReport<'s> {
    system: &'s System,
    private: Private,
    text: String,
}

impl<'s> BugReport<'s> {
    /// Begins a report by a program of this name and version, with its findings.
    #[must_use]
    pub fn of(system: &'s System, program: &str, findings: &Report) -> Self {
        let text = "For a bug report (docs/reporting.md): read it before you send it.\n".to_owned();
        let mut report = Self { system, private: Private::of(system), text };
        report.add("versions", &sources::versions(system, program));
        report.add("findings", &findings.text(false));
        report
    }

    /// Adds the files of settings: the file of several VMs, and the files of the daemons of one VM.
    pub fn add_settings(&mut self, vms: Option<&Path>) {
        for (path, text) in sources::settings(self.system, vms) {
            self.add(&format!("settings {}", path.display()), &text);
        }
    }

    /// Adds the end of the log of the services.
    pub fn add_log(&mut self) {
        self.add("log", &sources::log(self.system));
    }

    /// Adds a section, without the parts that identify the machine's owner.
    pub fn add(&mut self, heading: &str, text: &str) {
        let heading = self.private.without(heading);
        let text = self.private.without(end(text));
        self.text += &format!("\n== {}\n\n", shown(&heading));
        for line in text.lines() {
            self.text += &shown(line);
            self.text.push('\n');
        }
    }

    /// Returns the whole text, without characters that command a terminal.
    #[must_use]
    pub fn text(self) -> String {
        self.text
    }
}

/// Returns the end of a text that is too long, from the beginning of a line on.
fn end(text: &str) -> &str {
    let too_much = text.len().saturating_sub(SECTION_BYTES);
    let start =
        (too_much..text.len()).find(|at| text.as_bytes()[*at] == b'\n').map_or(text.len(), |at| at + 1);
    if too_much == 0 { text } else { &text[start..] }
}

/// Returns a line as the report has it, cut if it is too long.
fn shown(line: &str) -> String {
    let mut shown: String =
        line.chars().take(LINE_CHARS).map(|c| if c == '\t' { ' ' } else { outside::visible(c) }).collect();
    if line.chars().nth(LINE_CHARS).is_some() {
        shown += " … (cut)";
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Finding, Place};
    use crate::system::made::put;
    use std::fs;

    /// Returns a host with settings, and a program in place of `journalctl`.
    fn host(journal: &str) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| put(root.path(), path, text);
        put("etc/hostname", "tower\n");
        put("etc/passwd", "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000:Alice:/home/alice:/bin/sh\n");
        put("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n");
        put("etc/vhost-user-vulkan/vms.toml", "[vm.web]\nstate-dir = \"/home/alice/state\"\n");
        put("etc/vhost-user-vulkan/db.env", "OPTIONS=--gpu GPU-01020304-0506-0708-090a-0b0c0d0e0f10\n");
        put("etc/vhost-user-vulkan/other.txt", "not ours");
        put("bin/journalctl", journal);
        let system = System::below(root.path()).without_variables().with("PATH", "/bin");
        (root, system)
    }

    fn report(system: &System) -> String {
        let findings = Report::new(Place::Host, vec![Finding::ok("vmm", "/home/alice/qemu is QEMU 11.1.2")]);
        let mut report = BugReport::of(system, "vhost-user-vulkan 9.8.7", &findings);
        report.add_settings(Some(Path::new("/etc/vhost-user-vulkan/vms.toml")));
        report.add("status", "web \u{1b}[31m connected from 10.0.0.5\n");
        report.add_log();
        report.text()
    }

    #[test]
    fn a_report_has_what_is_needed_and_not_whose_machine_it_is() {
        let (root, system) = host("");
        let text = report(&system);
        for part in [
            "\nvhost-user-vulkan 9.8.7\n",
            "Debian GNU/Linux 13 (trixie)",
            "ok      vmm: /home/<user 1>/qemu is QEMU 11.1.2",
            "== settings /etc/vhost-user-vulkan/vms.toml\n\n[vm.web]\nstate-dir = \"/home/<user 1>/state\"\n",
            "OPTIONS=--gpu GPU-<identifier 1>\n",
            "web ?[31m connected from <address 1>\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
        for part in ["alice", "tower", "01020304", "not ours", "\u{1b}"] {
            assert!(!text.contains(part), "{part:?} is in:\n{text}");
        }
        // The report says that a file is missing, and does not follow a link to a device.
        fs::remove_file(root.path().join("etc/vhost-user-vulkan/vms.toml")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", root.path().join("etc/vhost-user-vulkan/web.env")).unwrap();
        let text = report(&system);
        assert!(
            text.contains("vms.toml\n\ncannot be read: No such file")
                && text.contains("web.env\n\ncannot be read: "),
            "{text}"
        );
    }

    #[test]
    fn sections_and_lines_have_bounds() {
        let (_root, system) = host("");
        let mut report = BugReport::of(&system, "x", &Report::new(Place::Host, Vec::new()));
        let before = report.text.len();
        let line = "é".repeat(LINE_CHARS + 1);
        report.add("long", &format!("{}\nlast\n", vec![line.as_str(); 1000].join("\n")));
        let text = report.text();
        assert!(text.len() < before + SECTION_BYTES + 10_000, "{}", text.len());
        assert!(text.ends_with("é … (cut)\nlast\n"), "the end");
    }
}
