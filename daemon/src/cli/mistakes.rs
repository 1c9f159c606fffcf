//! The one-line message for a mistake on the command line, with the word that was probably meant, or the usage of the subcommand.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Returns the parser's message, in one line with the remedy that it knows.
pub(crate) fn one_line(error: &clap::Error) -> String {
    choice(error).unwrap_or_else(|| {
        let what = first_paragraph(&error.to_string());
        let remedy = usage(error).or_else(|| suggestion(error));
        remedy.map_or_else(|| what.clone(), |remedy| format!("{what}; {remedy}"))
    })
}

/// Returns the subcommands of a command that cannot stand alone, if the subcommand is missing.
fn choice(error: &clap::Error) -> Option<String> {
    let (ContextValue::String(command), ContextValue::Strings(all)) =
        (error.get(ContextKind::InvalidSubcommand)?, error.get(ContextKind::ValidSubcommand)?)
    else {
        return None;
    };
    // The command's name comes after that of the program's file.
    let command = command.rsplit(' ').next()?;
    let all: Vec<_> = all.iter().map(String::as_str).filter(|name| *name != "help").collect();
    Some(format!("{command}: one of {}", all.join(", ")))
}

/// Returns the usage of a subcommand that lacks a required part. A command that can be used in several ways has more than one line of usage.
fn usage(error: &clap::Error) -> Option<String> {
    let ContextValue::StyledStr(usage) = error.get(ContextKind::Usage)? else { return None };
    let usage = usage.to_string();
    let line = usage.strip_prefix("Usage: ").filter(|usage| !usage.contains('\n'));
    line.filter(|_| error.kind() == ErrorKind::MissingRequiredArgument).map(|line| format!("usage: {line}"))
}

/// Returns the option, subcommand or value that is most like the unknown one.
fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let here = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        // The most similar one comes last.
        ContextValue::Strings(all) => all.last().cloned(),
        _ => None,
    });
    here.or_else(|| elsewhere(error)).map(|meant| format!("did you mean {meant}?"))
}

/// Returns the subcommand that has the option which this command lacks: the parser says that `'status --json' exists`.
fn elsewhere(error: &clap::Error) -> Option<String> {
    let ContextValue::StyledStrs(tips) = error.get(ContextKind::Suggested)? else { return None };
    tips.iter().find_map(|tip| Some(tip.to_string().strip_prefix('\'')?.strip_suffix("' exists")?.to_owned()))
}

fn first_paragraph(message: &str) -> String {
    let lines: Vec<_> = message.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use clap::Parser;

    fn said(words: &[&str]) -> String {
        let words = std::iter::once(&"vhost-user-vulkan").chain(words);
        one_line(&Cli::try_parse_from(words).expect_err("it is taken"))
    }

    #[test]
    fn a_command_that_cannot_stand_alone_names_its_parts() {
        assert_eq!(said(&["recipe"]), "recipe: one of qemu, libvirt, crosvm");
        assert_eq!(said(&["recipe", "qmeu"]), "unrecognized subcommand 'qmeu'; did you mean qemu?");
    }

    #[test]
    fn what_is_missing_is_said_with_the_usage() {
        let missing = "the following required arguments were not provided: ";
        for (words, what, usage) in [
            (&["kill"][..], "<VM/CONTEXT>", "kill <VM/CONTEXT>"),
            (&["drain"], "<GPU>", "drain <GPU>"),
            (&["trace"], "<VM>", "trace <VM>"),
            (&["set", "web"], "<KEY=VALUE>...", "set <VM> <KEY=VALUE>..."),
            (&["move", "web/1"], "--gpu <GPU>", "move --gpu <GPU> <VM/CONTEXT>"),
            (
                &["recipe", "qemu"],
                "<--vm <NAME>|--socket-path <PATH>>",
                "recipe qemu <--vm <NAME>|--socket-path <PATH>>",
            ),
        ] {
            assert_eq!(said(words), format!("{missing}{what}; usage: vhost-user-vulkan {usage}"));
        }
        assert_eq!(said(&["--check-config"]), format!("{missing}--config <FILE>"));
    }

    #[test]
    fn what_was_meant_is_suggested() {
        for (words, meant) in [
            (&["stauts"][..], "did you mean status?"),
            (&["--windowsize", "8GiB"], "did you mean --window-size?"),
            (&["status", "--jsno"], "did you mean --json?"),
            (&["--queues", "computee"], "did you mean compute?"),
            (&["--json", "status"], "did you mean status --json?"),
        ] {
            let said = said(words);
            assert!(said.ends_with(&format!("; {meant}")) && !said.contains('\n'), "{said}");
        }
        assert_eq!(said(&["--colour"]), "unexpected argument '--colour' found");
    }
}
