//! The options of one VM as keys of a file. The keys and the checks of their values come from the command line's parser, so that both always know the
//! same.

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::{Amount, GPUS_MAX};
use std::any::TypeId;
use std::error::Error;
use std::ffi::OsString;
use std::time::Duration;
use toml::Value;

/// Options that make no sense for one VM of several. A device process that ended with its frontend would be started again.
const NOT_OF_A_VM: &[&str] = &[
    "fd",
    "cgroup",
    "control-socket",
    "control-socket-group",
    "metrics",
    "list-gpus",
    "print-capabilities",
    "print-seccomp",
    "config",
    "check-config",
    "exit-on-disconnect",
    "help",
    "version",
    "vm-name",
];

/// Values of options by which guests get memory that binds their programs to a worker, by the options' ids.
const AGAINST_MOVABLE: &[(&str, &str)] = &[("memory", "dma-buf"), ("map_device_memory", "auto")];

/// Returns what is wrong if `--movable` stands beside a value of another option that contradicts it.
#[must_use]
pub fn against_movable(matches: &ArgMatches) -> Option<String> {
    let is_movable = matches.try_get_one::<bool>("movable").ok().flatten() == Some(&true);
    let is_given = |(id, value): &&(&str, &str)| {
        matches.value_source(id) == Some(ValueSource::CommandLine)
            && matches.get_raw(id).is_some_and(|mut words| words.any(|word| word == *value))
    };
    let (id, value) = AGAINST_MOVABLE.iter().filter(|_| is_movable).find(is_given)?;
    let option = id.replace('_', "-");
    Some(format!(
        "--movable cannot stand beside --{option}={value}, with which programs cannot get another worker: leave one of them out"
    ))
}

/// The command line of one VM.
#[derive(Debug)]
pub(super) struct VmOptions<'a> {
    command: &'a Command,
}

impl<'a> VmOptions<'a> {
    pub(super) fn of(command: &'a Command) -> Self {
        Self { command }
    }

    /// Names of all keys, sorted.
    pub(super) fn keys(&self) -> Vec<&'a str> {
        let mut keys: Vec<_> = self.arguments().map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys
    }

    fn arguments(&self) -> impl Iterator<Item = (&'a str, &'a Arg)> {
        // Hidden options are for the daemon's own use.
        let shown = self.command.get_arguments().filter(|argument| !argument.is_hide_set());
        let named = shown.filter_map(|argument| Some((argument.get_long()?, argument)));
        named.filter(|(name, _)| !NOT_OF_A_VM.contains(name))
    }

    /// Returns the words of the command line for this key and value; none for a switch that is off.
    ///
    /// # Errors
    ///
    /// `None` if there is no such key, else the allowed values.
    pub(super) fn words(&self, key: &str, value: &Value) -> Result<Vec<OsString>, Option<String>> {
        let (_, argument) = self.arguments().find(|(name, _)| *name == key).ok_or(None)?;
        let flag = matches!(argument.get_action(), ArgAction::SetTrue);
        let word = |text: String| if flag { format!("--{key}") } else { format!("--{key}={text}") };
        let words = texts(argument, value).map_err(Some)?.into_iter().map(|text| word(text).into());
        let words: Vec<OsString> = words.collect();
        self.parse(&words).map_err(Some)?;
        Ok(words)
    }

    /// Parses all arguments of a VM together.
    ///
    /// # Errors
    ///
    /// The mistake.
    pub(super) fn parse(&self, arguments: &[OsString]) -> Result<ArgMatches, String> {
        let program = OsString::from("vhost-user-vulkan");
        let words = std::iter::once(&program).chain(arguments);
        let matches =
            self.command.clone().try_get_matches_from(words).map_err(|error| what_is_wrong(&error))?;
        against_movable(&matches).map_or(Ok(matches), Err)
    }
}

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

/// The value as it stands on a command line, several times for a list; nothing for a switch that is off.
fn texts(argument: &Arg, value: &Value) -> Result<Vec<String>, String> {
    let one = |value: &Value| text(argument, value).map(|text| text.into_iter().collect());
    let Value::Array(list) = value else { return one(value) };
    match argument.get_action() {
        // All such options are of GPUs.
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

/// One value as it stands on a command line; nothing for a switch that is off.
fn text(argument: &Arg, value: &Value) -> Result<Option<String>, String> {
    let wrong = |allowed: &str| Err(format!("{} is not {allowed}", shown(value)));
    match (kind(argument), value) {
        (Kind::Switch, Value::Boolean(on)) => Ok(on.then(String::new)),
        (Kind::Switch, _) => wrong("true or false"),
        (Kind::Number | Kind::WithUnit, Value::Integer(number)) if *number >= 0 => {
            Ok(Some(number.to_string()))
        }
        // No process can be started with one in its arguments.
        (_, Value::String(text)) if text.contains('\0') => wrong("text without a zero byte"),
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
