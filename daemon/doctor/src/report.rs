//! The outcome of checks: the finding of each, and how findings are printed. This file knows no check.

use serde::Serialize;
use std::fmt::Write;
use std::io::IsTerminal;
use std::process::ExitCode;

/// The version of the JSON form. It changes when a key is removed or changes its meaning.
const FORM: u32 = 1;

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The check has found no fault.
    Ok,
    /// There is nothing to check, or another fault must be repaired before the check is possible.
    Skipped,
    /// The host or guest works, but not as well as it could.
    Warning,
    /// A fault keeps the host or guest from working.
    Fault,
}

/// The finding of one check. A warning and a fault have a remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check, which never changes.
    pub check: &'static str,
    /// The subject of the check, if the check looks at several of a kind.
    pub subject: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason for the verdict: the facts that were found.
    pub reason: String,
    /// The remedy.
    pub remedy: Option<String>,
}

impl Finding {
    /// Returns the finding that no fault was found.
    pub fn ok(check: &'static str, reason: impl Into<String>) -> Self {
        Self { check, subject: None, verdict: Verdict::Ok, reason: reason.into(), remedy: None }
    }

    /// Returns the finding that the check was skipped, with the reason.
    pub fn skipped(check: &'static str, reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::Skipped, ..Self::ok(check, reason) }
    }

    /// Returns the finding that a part could work better.
    pub fn warning(check: &'static str, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warning, remedy: Some(remedy.into()), ..Self::ok(check, reason) }
    }

    /// Returns the finding that the host or guest cannot work.
    pub fn fault(check: &'static str, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fault, ..Self::warning(check, reason, remedy) }
    }

    /// Returns a fault if the finding is `serious`, otherwise a warning.
    pub fn unless_minor(
        serious: bool,
        check: &'static str,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        if serious { Self::fault(check, reason, remedy) } else { Self::warning(check, reason, remedy) }
    }

    /// Returns this finding; a fault becomes a warning unless the finding is `serious`.
    #[must_use]
    pub fn at_most(self, serious: bool) -> Self {
        let verdict = match self.verdict {
            Verdict::Fault if !serious => Verdict::Warning,
            verdict => verdict,
        };
        Self { verdict, ..self }
    }

    /// Returns this finding about one subject of several.
    #[must_use]
    pub fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }
}

/// The place that these checks examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The machine with the GPU, where the daemon runs.
    Host,
    /// A virtual machine.
    Vm,
}

/// All findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    form: u32,
    place: Place,
    can_work: bool,
    faults: usize,
    warnings: usize,
    /// The findings, in the best order to repair faults.
    pub checks: Vec<Finding>,
}

impl Report {
    /// Returns the report of these findings.
    #[must_use]
    pub fn new(place: Place, checks: Vec<Finding>) -> Self {
        let count = |verdict| checks.iter().filter(|finding| finding.verdict == verdict).count();
        let (faults, warnings) = (count(Verdict::Fault), count(Verdict::Warning));
        Self { form: FORM, place, can_work: faults == 0, faults, warnings, checks }
    }

    /// Returns the report as a line of JSON. Its strings hold hidden characters as escapes.
    #[must_use]
    pub fn json(&self) -> String {
        outside::json_for_terminal(&serde_json::to_string(self).unwrap_or_default()) + "\n"
    }

    /// Returns the report as lines for people.
    #[must_use]
    pub fn text(&self, colours: bool) -> String {
        let mut text = String::new();
        for Finding { check, subject, verdict, reason, remedy } in &self.checks {
            let (name, colour) = match verdict {
                Verdict::Ok => ("ok", "32"),
                Verdict::Skipped => ("skipped", "2"),
                Verdict::Warning => ("warning", "33"),
                Verdict::Fault => ("fault", "1;31"),
            };
            let subject = subject.as_ref().map_or(String::new(), |subject| format!(" {subject}"));
            let remedy = remedy.as_ref().map_or(String::new(), |remedy| format!("; remedy: {remedy}"));
            // Names and reasons come from drivers and files, and may hold characters that command a terminal or are invisible.
            let line: String = format!("{check}{subject}: {reason}{remedy}").chars().map(shown).collect();
            // Writing to a string cannot fail.
            let _ = match colours {
                true => writeln!(text, "\u{1b}[{colour}m{name:7}\u{1b}[0m {line}"),
                false => writeln!(text, "{name:7} {line}"),
            };
        }
        let _ = writeln!(text, "{}", self.verdict());
        text
    }

    /// Returns the verdict of all checks together: whether the place can work, and the number of faults and warnings.
    fn verdict(&self) -> String {
        let place = match self.place {
            Place::Host => "this host can serve VMs",
            Place::Vm => "programs of this VM can use the GPU",
        };
        let warnings = match self.warnings {
            1 => "1 warning".to_owned(),
            count => format!("{count} warnings"),
        };
        match (self.faults, self.warnings) {
            (0, 0) => place.to_owned(),
            (0, _) => format!("{place}, with {warnings}"),
            (faults, 0) => format!("{}: {faults} to put right", place.replace(" can ", " cannot ")),
            (faults, _) => {
                format!("{}: {faults} to put right, and {warnings}", place.replace(" can ", " cannot "))
            }
        }
    }

    /// Prints the report, with colours on a terminal whose user has not forbidden them (`NO_COLOR`). Returns the status of the process: 0 if host or
    /// guest can work, otherwise 1.
    #[must_use]
    pub fn print(&self, json: bool) -> ExitCode {
        let colours = std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let text = if json { self.json() } else { self.text(colours) };
        // The process returns the status even if its reader does not read to the end.
        let _ = outside::print(&text);
        if self.can_work { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Returns a character as a line may have it: a character that breaks the line becomes a space.
fn shown(c: char) -> char {
    if c.is_control() { ' ' } else { outside::visible(c) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_a_line_with_its_remedy_and_decides_the_status() {
        let checks = vec![
            Finding::ok("one", "f\u{202e}ine\u{200b}").about("a\u{1b}b"),
            Finding::warning("two", "slow", "do this"),
            Finding::fault("three", "broken", "do that"),
        ];
        let report = Report::new(Place::Host, checks);
        let text = "ok      one a b: f?ine?\nwarning two: slow; remedy: do this\nfault   three: broken; remedy: do that\n\
                    this host cannot serve VMs: 1 to put right, and 1 warning\n";
        assert_eq!(report.text(false), text);
        assert!(report.text(true).contains("\u{1b}[1;31mfault  \u{1b}[0m three"));
        assert!(!report.can_work);
        assert!(report.json().contains(r"f\u202eine\u200b") && report.json().contains(r"a\u001bb"));
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["can_work"], false);
        assert_eq!(json["place"], "host");
        assert_eq!((&json["faults"], &json["warnings"]), (&1.into(), &1.into()));
        assert_eq!(json["checks"][2]["remedy"], "do that");
        assert_eq!(json["checks"][0]["remedy"], serde_json::Value::Null);
        assert_eq!(json["checks"][1]["verdict"], "warning");
    }

    #[test]
    fn warnings_do_not_keep_it_from_working_and_are_counted_in_the_verdict() {
        let warnings = |count| vec![Finding::warning("two", "slow", "do this"); count];
        let verdict = |checks| {
            let report = Report::new(Place::Vm, checks);
            assert!(report.can_work);
            report.text(false).lines().last().map(str::to_owned).unwrap()
        };
        assert_eq!(verdict(Vec::new()), "programs of this VM can use the GPU");
        assert_eq!(verdict(warnings(1)), "programs of this VM can use the GPU, with 1 warning");
        assert_eq!(verdict(warnings(4)), "programs of this VM can use the GPU, with 4 warnings");
        let broken = Report::new(Place::Host, vec![Finding::fault("three", "broken", "do that")]);
        assert!(broken.text(false).ends_with("this host cannot serve VMs: 1 to put right\n"));
    }
}
