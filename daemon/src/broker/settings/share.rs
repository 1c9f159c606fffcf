//! The words by which an operator sets a VM's share of the GPU, in the configuration and while the VM runs, and their bounds.

use sched::{Class, Share};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Weights that may be given; the default is 100.
pub(crate) const WEIGHTS: RangeInclusive<u32> = 1..=10_000;
/// The weight of a VM without a weight in the file.
pub(crate) const WEIGHT: u32 = 100;

/// The policy by which the VMs share a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// VMs share by weight. Time that one VM leaves goes to the others; no time is left unused to keep a place for a VM.
    #[default]
    BestEffort,
    /// All VMs get the same share.
    Equal,
    /// VMs share by weight, and no VM gets more than its part, even if others leave time unused.
    Fixed,
}

/// The time slices of GPUs' hardware while VMs of the latency class have work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HardwareSlices {
    /// They stay as the driver has them. This is the default, as the scheduler's accounts take the slices of all contexts to be equal.
    #[default]
    Driver,
    /// They are short for other VMs and long for those of the class, where the driver lets them be set.
    Short,
}

impl HardwareSlices {
    /// The choice with this name.
    ///
    /// # Errors
    ///
    /// The allowed names.
    pub(super) fn named(name: &str) -> Result<Self, String> {
        match name {
            "driver" => Ok(Self::Driver),
            "short" => Ok(Self::Short),
            _ => Err(format!("\"{name}\" is not \"driver\" or \"short\"")),
        }
    }
}

impl Policy {
    /// The name of the policy.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "best-effort",
            Self::Equal => "equal",
            Self::Fixed => "fixed",
        }
    }

    /// The policy with this name.
    ///
    /// # Errors
    ///
    /// The allowed names.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "best-effort" => Ok(Self::BestEffort),
            "equal" => Ok(Self::Equal),
            "fixed" => Ok(Self::Fixed),
            _ => Err(format!("\"{name}\" is none of \"best-effort\", \"equal\", \"fixed\"")),
        }
    }
}

/// The form in which a share is written down.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Share")]
pub(in crate::broker) struct ShareForm {
    weight: u32,
    #[serde(with = "ClassForm")]
    class: Class,
    ceiling: Option<f64>,
}

/// The form in which a class is written down.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Class", rename_all = "kebab-case")]
enum ClassForm {
    Normal,
    Latency,
    Background,
}

/// The changes to a VM's share. Values without a change stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The VM's part in proportion to those of the others, from `WEIGHTS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i64>,
    /// The urgency of the VM's work: `normal`, `latency` or `background`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The most that the VM gets of a GPU, as `25%`, or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<String>,
}

impl Change {
    /// Reads the changes from words such as `weight=200`.
    ///
    /// # Errors
    ///
    /// The wrong word, and the allowed ones.
    pub fn of_words(words: &[String]) -> Result<Self, String> {
        let mut change = Self::default();
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("{word}: not KEY=VALUE"))?;
            match key {
                "weight" => {
                    change.weight = Some(value.parse().map_err(|_| format!("weight: {}", no_weight(value)))?);
                }
                "class" => change.class = Some(value.to_owned()),
                "ceiling" => change.ceiling = Some(value.to_owned()),
                _ => return Err(format!("{key}: unknown; weight, class and ceiling can be set")),
            }
        }
        if change == Self::default() {
            return Err("nothing to set; weight, class and ceiling can be set".into());
        }
        Ok(change)
    }

    /// Returns `share` with the changes.
    ///
    /// # Errors
    ///
    /// The mistake, and the allowed values.
    pub fn apply(&self, share: Share, policy: Policy) -> Result<Share, String> {
        let mut share = share;
        if let Some(number) = self.weight {
            share.weight = weight(number).map_err(|wrong| format!("weight: {wrong}"))?;
            if policy == Policy::Equal {
                return Err(format!("weight: {EQUAL}"));
            }
        }
        if let Some(name) = &self.class {
            share.class = class(name).map_err(|wrong| format!("class: {wrong}"))?;
        }
        match self.ceiling.as_deref() {
            None => {}
            Some("none") => share.ceiling = None,
            Some(text) => share.ceiling = Some(ceiling(text).map_err(|wrong| format!("ceiling: {wrong}"))?),
        }
        Ok(share)
    }
}

/// The reason why no weight may be given with [`Policy::Equal`].
pub(crate) const EQUAL: &str = "with policy = \"equal\" all weights are the same, and none may be given";

/// A weight.
///
/// # Errors
///
/// The allowed weights.
pub(crate) fn weight(number: i64) -> Result<u32, String> {
    let weight = u32::try_from(number).ok().filter(|weight| WEIGHTS.contains(weight));
    weight.ok_or_else(|| no_weight(number))
}

fn no_weight(what: impl std::fmt::Display) -> String {
    format!("{what} is not a whole number from {} to {}", WEIGHTS.start(), WEIGHTS.end())
}

/// The class with this name.
///
/// # Errors
///
/// The allowed names.
pub(crate) fn class(name: &str) -> Result<Class, String> {
    match name {
        "normal" => Ok(Class::Normal),
        "latency" => Ok(Class::Latency),
        "background" => Ok(Class::Background),
        _ => Err(format!("\"{name}\" is none of \"normal\", \"latency\", \"background\"")),
    }
}

/// The name of a class.
#[must_use]
pub(crate) fn class_name(class: Class) -> &'static str {
    match class {
        Class::Normal => "normal",
        Class::Latency => "latency",
        Class::Background => "background",
    }
}

/// A ceiling, as a fraction.
///
/// # Errors
///
/// The allowed ceilings.
pub(crate) fn ceiling(text: &str) -> Result<f64, String> {
    percent(text, 1.0..=100.0)
}

/// A percentage within bounds, as a fraction.
pub(in crate::broker) fn percent(text: &str, bounds: RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let number = number.filter(|number| bounds.contains(number));
    let (least, most) = (bounds.start(), bounds.end());
    number
        .map(|number| number / 100.0)
        .ok_or_else(|| format!("\"{text}\" is not a percentage from \"{least}%\" to \"{most}%\""))
}

/// The ceiling of a VM as it is applied: with [`Policy::Fixed`] no VM gets more than its part of the weights of all.
pub(in crate::broker) fn effective(share: Share, policy: Policy, weights: u64) -> Share {
    if policy != Policy::Fixed {
        return share;
    }
    let part = f64::from(share.weight) / weights.max(1) as f64;
    Share { ceiling: Some(share.ceiling.map_or(part, |ceiling| ceiling.min(part))), ..share }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Share = Share { weight: WEIGHT, class: Class::Normal, ceiling: None };

    fn set(words: &[&str], policy: Policy) -> Result<Share, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        Change::of_words(&words)?.apply(SHARE, policy)
    }

    #[test]
    fn what_is_named_changes_and_the_rest_stays() {
        let share = set(&["weight=10000"], Policy::Fixed).unwrap();
        assert_eq!((share.weight, share.class, share.ceiling), (10_000, Class::Normal, None));
        let share = set(&["class=latency", "ceiling=12.5%"], Policy::Equal).unwrap();
        assert_eq!((share.weight, share.class, share.ceiling), (WEIGHT, Class::Latency, Some(0.125)));
        assert_eq!(set(&["ceiling=none"], Policy::Equal).unwrap().ceiling, None);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        let wrong = [
            (&["weight=0"][..], "weight: 0 is not a whole number from 1 to 10000"),
            (&["weight=much"], "weight: much is not a whole number from 1 to 10000"),
            (&["class=fast"], "class: \"fast\" is none of \"normal\", \"latency\", \"background\""),
            (&["ceiling=0%"], "ceiling: \"0%\" is not a percentage from \"1%\" to \"100%\""),
            (&["ceiling=NaN%"], "ceiling: \"NaN%\" is not a percentage from \"1%\" to \"100%\""),
            (&["ceiling=25"], "ceiling: \"25\" is not a percentage from \"1%\" to \"100%\""),
            (&["size=3"], "size: unknown; weight, class and ceiling can be set"),
            (&["fast"], "fast: not KEY=VALUE"),
            (&[], "nothing to set; weight, class and ceiling can be set"),
        ];
        for (words, error) in wrong {
            assert_eq!(set(words, Policy::BestEffort), Err(error.to_owned()));
        }
        assert_eq!(set(&["weight=5"], Policy::Equal), Err(format!("weight: {EQUAL}")));
    }

    #[test]
    fn fixed_parts_are_ceilings() {
        let quarter = effective(SHARE, Policy::Fixed, 400);
        assert_eq!(quarter.ceiling, Some(0.25));
        let less = Share { ceiling: Some(0.1), ..SHARE };
        assert_eq!(effective(less, Policy::Fixed, 400).ceiling, Some(0.1));
        assert_eq!(effective(SHARE, Policy::BestEffort, 400).ceiling, None);
    }
}
