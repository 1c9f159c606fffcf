//! Assertions about findings, for the tests of host and guest.

use crate::report::{Finding, Verdict};

/// Returns the findings that are warnings or faults.
pub(crate) fn troubles(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.retain(|finding| !matches!(finding.verdict, Verdict::Ok | Verdict::Skipped));
    findings
}

/// Checks that exactly this check has found something, with this remedy.
#[track_caller]
pub(crate) fn only(found: &[Finding], check: &str, verdict: Verdict, remedy: &str) {
    let helps = found.first().and_then(|finding| finding.remedy.as_deref()).unwrap_or_default();
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].check == check && found[0].verdict == verdict && helps.contains(remedy), "{found:#?}");
}
