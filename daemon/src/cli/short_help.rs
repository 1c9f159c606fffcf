//! The short help (`-h`): the options that most users need.

use clap::Arg;

/// The options that the short help shows.
const SHORT: &[&str] =
    &["socket_path", "socket_group", "gpu", "queues", "device_memory", "list_gpus", "help", "config"];

/// Leaves an option out of the short help unless most users need it.
pub(super) fn shown(option: Arg) -> Arg {
    let is_short = SHORT.contains(&option.get_id().as_str());
    option.hide_short_help(!is_short)
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use clap::CommandFactory;

    /// The lines and the columns of a terminal.
    const SCREEN: (usize, usize) = (41, 100);

    /// The headings in the order of the help.
    const HEADINGS: &[&str] = &[
        "Socket",
        "GPU",
        "Speed",
        "Time limits",
        "Quotas",
        "Sandbox and protection",
        "Information",
        "Several VMs",
    ];

    #[test]
    fn each_option_stands_below_a_heading() {
        let command = Cli::command();
        let mut headings: Vec<&str> = Vec::new();
        for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
            let heading = option.get_help_heading();
            let heading = heading.unwrap_or_else(|| panic!("{} is below no heading", option.get_id()));
            if !headings.contains(&heading) {
                headings.push(heading);
            }
        }
        assert_eq!(headings, HEADINGS);
    }

    #[test]
    fn the_short_help_is_one_screen_with_what_most_users_need() {
        let help = Cli::command().render_help().to_string();
        let (lines, columns) = SCREEN;
        assert!(help.lines().count() <= lines, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= columns), "{help}");
        let shown: Vec<_> = help.lines().filter(|line| line.trim_start().starts_with('-')).collect();
        assert_eq!(shown.len(), SHORT.len(), "{help}");
        for id in SHORT {
            let name = format!("--{}", id.replace('_', "-"));
            assert!(
                shown.iter().any(|line| line.split([' ', ',']).any(|word| word == name)),
                "{name}: {help}"
            );
        }
        assert!(help.contains("--help lists all"), "{help}");
    }

    #[test]
    fn the_long_help_has_each_option_and_its_heading() {
        let help = Cli::command().render_long_help().to_string();
        let command = Cli::command();
        let all = command.get_arguments().filter(|option| !option.is_hide_set());
        for name in all.map(|option| format!("--{}", option.get_id().as_str().replace('_', "-"))) {
            assert!(
                help.lines().any(|line| line.split([' ', ',']).any(|word| word == name)),
                "{name}: {help}"
            );
        }
        let heads: Vec<_> = help.lines().filter_map(|line| line.strip_suffix(':')).collect();
        assert!(HEADINGS.iter().all(|heading| heads.contains(heading)), "{heads:?}");
        assert!(help.contains("Exit status: 0 on success, 1 "), "{help}");
    }
}
