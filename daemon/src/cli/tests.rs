//! Tests of the command line as a whole.

use super::*;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let read = |words: &[&str]| {
        let words = std::iter::once(&"vhost-user-vulkan").chain(words);
        Cli::of(&Cli::command().try_get_matches_from(words).unwrap()).map_err(|error| error.to_string())
    };
    for option in ["--memory=dma-buf", "--map-device-memory=auto"] {
        let error = read(&["--movable", option]).unwrap_err();
        assert!(error.contains(option) && error.contains("leave one of them out"), "{error}");
        assert!(read(&[option]).is_ok());
    }
    let error = read(&["--config=a", "--max-maps=7"]).unwrap_err();
    assert!(error.contains("--max-maps cannot stand beside --config"), "{error}");
    assert!(read(&["--config=a", "--log-level=debug"]).is_ok());
}
