//! The warnings of `--check-config` about a valid file of VMs: the costs of its values, as far as they are known without a GPU.

use config::Amount;
use daemon::broker::{Settings, VmSettings};
use daemon::options::VmOptions;
use daemon::serve::small_window;

/// Returns a sentence for each VM whose window is smaller than the memory that its guests could map.
pub(crate) fn warnings(settings: &Settings) -> Vec<String> {
    let warning =
        |vm: &VmSettings| Some(format!("[{}] window-size: {}", vm.table(), warning(&settings.options(vm))?));
    settings.vms.iter().filter_map(warning).collect()
}

fn warning(options: &VmOptions) -> Option<String> {
    // The bytes of a percentage depend on the GPU.
    let (window, Amount::Bytes(memory)) = (options.window_size?, options.quotas.device_memory?) else {
        return None;
    };
    let is_small = options.maps_device_memory() && window <= memory;
    is_small.then(|| format!("on a GPU with memory of its own, {}", small_window(window, memory)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::broker::VmsFile;

    fn of(keys: &str) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            format!("device-memory = \"8GiB\"\n[vm.a]\nsocket-path = \"/a\"\n{keys}"),
        )
        .unwrap();
        let settings = VmsFile::new(file.path().to_owned(), log::LevelFilter::Info).read();
        warnings(&settings.unwrap())
    }

    #[test]
    fn a_window_that_holds_not_all_of_the_memory_is_told_with_both_figures() {
        let said = of("window-size = \"1GiB\"");
        let [said] = said.as_slice() else { panic!("{said:?}") };
        let begin = "[vm.a] window-size: on a GPU with memory of its own, the window of 1.0GiB does not hold the 8.0GiB ";
        assert!(said.starts_with(begin) && said.contains("; remedy: --window-size 16GiB or "), "{said}");
        let good = ["", "window-size = \"16GiB\"", "window-size = \"1GiB\"\nmap-device-memory = \"never\""];
        good.iter().for_each(|keys| assert_eq!(of(keys), [] as [&str; 0], "{keys}"));
        assert_eq!(of("window-size = \"8GiB\"\ndevice-memory = \"7GiB\""), [] as [&str; 0]);
    }
}
