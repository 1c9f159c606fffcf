//! The groups of options in the help and in the manual page, and the options that the short help (`-h`) shows.

use clap::Arg;

/// The headings in the order of the help, and the options below each by their ids.
const HEADINGS: &[(&str, &[&str])] = &[
    (
        "Socket",
        &[
            "socket_path",
            "socket_mode",
            "socket_group",
            "fd",
            "control_socket",
            "control_socket_group",
            "metrics",
            "exit_on_disconnect",
        ],
    ),
    ("GPU", &["gpu", "spare_gpu", "movable", "queues", "memory", "scanouts"]),
    ("Speed", &["window_size", "map_device_memory", "state_dir"]),
    (
        "Time limits",
        &[
            "max_submit_time",
            "max_submit_time_contended",
            "strikes",
            "strike_hold",
            "frontend_timeout",
            "swap_after",
            "max_pipeline_time",
        ],
    ),
    (
        "Quotas",
        &[
            "device_memory",
            "context_device_memory",
            "host_memory",
            "context_host_memory",
            "ring_memory",
            "shader_memory",
            "max_shader_cost",
            "max_contexts",
            "max_rings",
            "max_vm_rings",
            "max_objects",
            "max_resources",
            "worker_memory",
            "max_worker_data",
            "max_tasks",
            "max_maps",
            "max_log_lines",
        ],
    ),
    (
        "Sandbox and protection",
        &["sandbox", "seccomp", "zero_memory", "zero_workgroup_memory", "robustness", "cgroup"],
    ),
    (
        "Information",
        &["log_level", "list_gpus", "print_capabilities", "print_seccomp", "vm_name", "help", "version"],
    ),
    ("Several VMs", &["config", "check_config"]),
];

/// The options that the short help shows.
const SHORT: &[&str] =
    &["socket_path", "socket_group", "gpu", "queues", "device_memory", "list_gpus", "help", "config"];

/// Puts an option below its heading, and leaves it out of the short help unless most users need it.
pub(super) fn placed(option: Arg) -> Arg {
    let id = option.get_id().as_str();
    let heading = HEADINGS.iter().find(|(_, options)| options.contains(&id));
    let is_short = SHORT.contains(&id);
    let option = option.hide_short_help(!is_short);
    match heading {
        Some((heading, _)) => option.help_heading(*heading),
        None => option,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use clap::CommandFactory;

    /// Lines of a terminal, and its columns.
    const SCREEN: (usize, usize) = (41, 100);

    #[test]
    fn each_option_stands_below_the_heading_that_lists_it() {
        let command = Cli::command();
        let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
        for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
            let heading = option.get_help_heading();
            let heading = heading.unwrap_or_else(|| panic!("{} is below no heading", option.get_id()));
            match found.iter_mut().find(|(known, _)| *known == heading) {
                Some((_, options)) => options.push(option.get_id().as_str()),
                None => found.push((heading, vec![option.get_id().as_str()])),
            }
        }
        let listed: Vec<_> = HEADINGS.iter().map(|(heading, options)| (*heading, options.to_vec())).collect();
        assert_eq!(found, listed);
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
        let all = HEADINGS.iter().flat_map(|(_, options)| options.iter());
        for name in all.map(|id| format!("--{}", id.replace('_', "-"))) {
            assert!(
                help.lines().any(|line| line.split([' ', ',']).any(|word| word == name)),
                "{name}: {help}"
            );
        }
        let heads: Vec<_> = help.lines().filter_map(|line| line.strip_suffix(':')).collect();
        assert!(HEADINGS.iter().all(|(heading, _)| heads.contains(heading)), "{heads:?}");
        assert!(help.contains("Exit status: 0 on success, 1 "), "{help}");
    }
}
