//! Commands that a document names: cargo's, the daemon's, and those of the programs of this package.

use super::known::Known;

/// The program whose options a document explains.
const DAEMON: &str = "vhost-user-vulkan";
/// The doctor without a daemon.
const DOCTOR: &str = "vhost-user-vulkan-doctor";
/// Cargo's own commands, and those of tools that a document says how to install.
const CARGO: &[&str] =
    &["build", "clippy", "cyclonedx", "deny", "doc", "fmt", "fuzz", "install", "run", "rustc", "test"];
/// Programs whose name is followed by the command of another program.
const RUNNERS: &[&str] = &["mesa", "vm"];
/// Options of cargo that are followed by a name in this repository.
const NAMING: &[&str] = &["--bin", "--example", "--package", "--test", "-p"];

/// The stale names in a line of code, which may have several commands.
pub(super) fn in_line(line: &str, known: &Known) -> Vec<String> {
    let parts = line.split(['|', ';', '(', ')']).flat_map(|part| part.split("&&"));
    parts.flat_map(|part| in_command(&words(part), known)).collect()
}

/// The stale names in the words of a command; none if this repository does not have the program.
fn in_command(words: &[&str], known: &Known) -> Vec<String> {
    // A prompt, variables, and programs that run a command.
    let is_before = |word: &&&str| ["$", "exec", "sudo"].contains(*word) || is_assignment(word);
    let words: Vec<_> = words.iter().skip_while(is_before).copied().collect();
    let Some((first, rest)) = words.split_first() else { return Vec::new() };
    match first.rsplit('/').next().unwrap_or(first) {
        "cargo" => in_cargo(rest, known),
        DAEMON | DOCTOR => unknown_options(rest, |option| known.options.contains(option)),
        program if known.programs.contains(program) => in_tool(rest, known),
        _ => Vec::new(),
    }
}

/// The stale names in a code span that is a command: also one of the daemon's subcommands, whose name may stand for the whole.
pub(super) fn in_span(span: &str, known: &Known) -> Vec<String> {
    let parts = words(span);
    match parts.first() {
        Some(first) if known.subcommands.contains(*first) => {
            unknown_options(&parts, |option| known.options.contains(option))
        }
        _ => in_line(span, known),
    }
}

/// The names of tests, programs, packages and commands behind `cargo` that do not exist, and the options of the program that is run.
fn in_cargo(words: &[&str], known: &Known) -> Vec<String> {
    let Some((command, rest)) = words.split_first() else { return Vec::new() };
    let is_alias = known.aliases.contains(*command);
    if !is_alias && !CARGO.contains(command) && !is_placeholder(command) {
        return vec![format!("cargo {command}")];
    }
    if is_alias {
        return in_tool(rest, known);
    }
    let own = rest.iter().position(|word| *word == "--").unwrap_or(rest.len());
    let mut stale = Vec::new();
    let mut program = None;
    for pair in rest[..own].windows(2).filter(|pair| NAMING.contains(&pair[0]) && !is_placeholder(pair[1])) {
        let names = match pair[0] {
            "--bin" => &known.programs,
            "--example" => &known.examples,
            "--test" => &known.tests,
            _ => &known.packages,
        };
        if !names.contains(pair[1]) {
            stale.push(format!("{} {}", pair[0], pair[1]));
        }
        program = Some(pair[1]).filter(|_| pair[0] == "--bin").or(program);
    }
    if *command == "run" && program.is_some_and(|program| !RUNNERS.contains(&program)) {
        stale.extend(in_tool(&rest[own..], known));
    }
    stale
}

/// The options that no program of this package has; some pass options on to the daemon.
fn in_tool(words: &[&str], known: &Known) -> Vec<String> {
    unknown_options(words, |option| known.tool_options.contains(option) || known.options.contains(option))
}

/// The options among words that are not known.
pub(super) fn unknown_options(words: &[&str], is_known: impl Fn(&str) -> bool) -> Vec<String> {
    let options = words.iter().filter_map(|word| option(word));
    options.filter(|option| !is_known(option)).map(str::to_owned).collect()
}

/// The option that a word is, without its value.
fn option(word: &str) -> Option<&str> {
    let name = word.split('=').next()?;
    let letters = name.strip_prefix("--")?;
    let is_option = letters.starts_with(|c: char| c.is_ascii_lowercase())
        && letters.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    is_option.then_some(name)
}

/// The words of a command, without brackets, quotes and commas around them.
pub(super) fn words(text: &str) -> Vec<&str> {
    let words = text.split_whitespace().map(|word| word.trim_matches(['[', ']', '"', '\'', ',', '…', '`']));
    words.filter(|word| !word.is_empty()).collect()
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    })
}

/// A word such as `<crate>` or `NAME` stands for other words.
fn is_placeholder(word: &str) -> bool {
    word.starts_with('<') || word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Known {
            tests: set(&["sandbox"]),
            programs: set(&["mesa", "bench-gpu"]),
            packages: set(&["tests"]),
            aliases: set(&["soak"]),
            options: set(&["--gpu", "--help"]),
            tool_options: set(&["--hours", "--list"]),
            subcommands: set(&["move"]),
            ..Known::default()
        }
    }

    #[test]
    fn commands_that_exist_are_not_stale_and_those_of_others_are_not_looked_at() {
        for line in [
            "cargo soak --hours 4   # more: --list",
            "cargo test -p tests --test sandbox -- --exact",
            "cargo test -p <crate>",
            "A=1 cargo run -p tests --bin mesa -- native x --summary",
            "qemu --nodefaults $(vhost-user-vulkan recipe [--gpu GPU]) --daemonize",
            "$ bench-gpu --list | jq --raw",
            "virsh define --validate",
        ] {
            assert_eq!(in_line(line, &known()), [""; 0], "{line}");
        }
        assert_eq!(in_span("move VM/CONTEXT --gpu GPU", &known()), [""; 0]);
    }

    #[test]
    fn stale_commands_are_found() {
        for (line, stale) in [
            ("cargo churn --hours 4", "cargo churn"),
            ("cargo soak --days 4", "--days"),
            ("cargo test -p tests --test sandboxes", "--test sandboxes"),
            ("cargo test -p guests", "-p guests"),
            ("cd x && cargo run -p tests --bin mess -- x", "--bin mess"),
            ("cargo run --bin bench-gpu -- --lists", "--lists"),
            ("qemu $(target/debug/vhost-user-vulkan --gpus GPU)", "--gpus"),
            ("bench-gpu --hour", "--hour"),
        ] {
            assert_eq!(in_line(line, &known()), [stale], "{line}");
        }
        assert_eq!(in_span("move VM/CONTEXT --from=GPU", &known()), ["--from"]);
    }
}
