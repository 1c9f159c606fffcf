//! The options of one VM as keys of a file. The parser of the command line reads their values, so that file and command line always accept the same.

use crate::options::{PATH_BYTES, VmOptions};
use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command, FromArgMatches};
use config::{Amount, GPUS_MAX};
use std::any::TypeId;
use std::error::Error;
use std::sync::LazyLock;
use std::time::Duration;
use toml::Value;

/// The options of a VM that are keys: all but the hidden ones, which are for tests.
#[derive(Debug)]
pub(super) struct Keys {
    command: Command,
}

/// The keys of all options.
pub(super) static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys { command: VmOptions::command() });

impl Keys {
    /// Names of all keys, sorted.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.arguments().map(|(name, _)| name).collect();
        names.sort_unstable();
        names
    }

    fn arguments(&self) -> impl Iterator<Item = (&str, &Arg)> {
        let shown = self.command.get_arguments().filter(|argument| !argument.is_hide_set());
        shown.filter_map(|argument| Some((argument.get_long()?, argument)))
    }

    /// Returns this key with its value, as `KEY=VALUE`: one text for each value of a list, and none for a switch that is off.
    ///
    /// # Errors
    ///
    /// `None` if the key does not exist, else the allowed values.
    pub(super) fn as_written(&self, key: &str, value: &Value) -> Result<Vec<String>, Option<String>> {
        let (_, argument) = self.arguments().find(|(name, _)| *name == key).ok_or(None)?;
        let flag = matches!(argument.get_action(), ArgAction::SetTrue);
        let written = |text: String| if flag { key.to_owned() } else { format!("{key}={text}") };
        let written: Vec<_> = texts(argument, value).map_err(Some)?.into_iter().map(written).collect();
        self.read(&written).map_err(Some)?;
        Ok(written)
    }

    /// Returns the options of a VM from `written`, where each is `KEY=VALUE`.
    ///
    /// # Errors
    ///
    /// The mistake.
    pub(super) fn read(&self, written: &[String]) -> Result<VmOptions, String> {
        let words = written.iter().map(|option| format!("--{option}"));
        let matches =
            self.command.clone().try_get_matches_from(words).map_err(|error| what_is_wrong(&error))?;
        let options = VmOptions::from_arg_matches(&matches).map_err(|error| what_is_wrong(&error))?;
        options.check().map(|()| options)
    }

    /// Returns the options of a VM from `written`, without those that cannot be read.
    pub(super) fn read_what_it_can(&self, written: &[String]) -> VmOptions {
        self.read(written).unwrap_or_else(|_| {
            let each = written.iter().filter(|option| self.read(std::slice::from_ref(option)).is_ok());
            self.read(&each.cloned().collect::<Vec<_>>()).unwrap_or_default()
        })
    }
}

/// The length of the longest text: no path and no name of a GPU is longer.
const TEXT_BYTES: usize = PATH_BYTES;

/// The kind of value that an option takes.
enum Kind {
    Switch,
    Number,
    WithUnit,
    Text,
}

fn kind(argument: &Arg) -> Kind {
    let parser: &ValueParser = argument.get_value_parser();
    let is = |kind: TypeId| parser.type_id() == kind;
    match argument.get_action() {
        ArgAction::SetTrue => Kind::Switch,
        _ if is(TypeId::of::<u32>()) || is(TypeId::of::<usize>()) => Kind::Number,
        _ if [TypeId::of::<u64>(), TypeId::of::<Amount>(), TypeId::of::<Duration>()].into_iter().any(is) => {
            Kind::WithUnit
        }
        _ => Kind::Text,
    }
}

/// Returns the value as on a command line, several texts for a list, and none for a switch that is off.
fn texts(argument: &Arg, value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| text(argument, value).map(|text| text.into_iter().collect());
    let Value::Array(list) = value else { return one(value) };
    match argument.get_action() {
        // All options that take a list name GPUs.
        ArgAction::Append if list.is_empty() => Err("an empty list: name one, or leave the key out".into()),
        ArgAction::Append if list.len() > GPUS_MAX => Err(format!("{} are more than {GPUS_MAX}", list.len())),
        ArgAction::Append => {
            if let Some((_, twice)) =
                list.iter().enumerate().find(|(index, one)| list[..*index].contains(one))
            {
                return Err(format!("{} is there twice", shown(twice)));
            }
            list.iter().filter_map(|one| text(argument, one).transpose()).collect()
        }
        _ => one(value),
    }
}

/// Returns one value as on a command line; none for a switch that is off.
fn text(argument: &Arg, value: &Value) -> Result<Option<String>, String> {
    let wrong = |allowed: &str| Err(format!("{} is not {allowed}", shown(value)));
    match (kind(argument), value) {
        (Kind::Switch, Value::Boolean(on)) => Ok(on.then(String::new)),
        (Kind::Switch, _) => wrong("true or false"),
        (Kind::Number | Kind::WithUnit, Value::Integer(number)) if *number >= 0 => {
            Ok(Some(number.to_string()))
        }
        // No name of a file or a GPU has a zero byte.
        (_, Value::String(text)) if text.contains('\0') => wrong("text without a zero byte"),
        (_, Value::String(text)) if text.len() > TEXT_BYTES => {
            Err(format!("a text of {} bytes is longer than {TEXT_BYTES} bytes", text.len()))
        }
        (Kind::WithUnit | Kind::Text, Value::String(text)) => Ok(Some(text.clone())),
        (Kind::Number, _) => wrong("a whole number, 0 or more"),
        (Kind::WithUnit, _) => wrong("a whole number, or a string with a number and a unit"),
        (Kind::Text, _) if matches!(argument.get_action(), ArgAction::Append) => {
            wrong("a string or a list of strings")
        }
        (Kind::Text, _) => wrong("a string"),
    }
}

/// A value for people, on one line.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Table(_) => "a table".into(),
        Value::Array(_) => "a list".into(),
        other => other.to_string().replace('\n', " "),
    }
}

fn what_is_wrong(error: &clap::Error) -> String {
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => format!("\"{value}\""),
        _ => "this".into(),
    };
    match (error.get(ContextKind::ValidValue), error.source()) {
        (Some(ContextValue::Strings(allowed)), _) if !allowed.is_empty() => {
            let allowed: Vec<_> = allowed.iter().map(|word| format!("\"{word}\"")).collect();
            format!("{value} is none of {}", allowed.join(", "))
        }
        (_, Some(why)) => format!("{value} is not allowed: {why}").replace('\n', " "),
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    }
}
