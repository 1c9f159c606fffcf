//! Output for the mini registry, file by file. `UPDATE_GOLDENS=1 cargo test -p codegen` rewrites the expected files.

mod mini;

use std::path::Path;

use codegen::emit;
use codegen::target::Target;

#[test]
fn output_for_the_mini_registry_is_as_recorded() {
    let protocol = mini::inputs().resolve().expect("the mini registry resolves");
    let outputs = emit::protocol(&protocol).expect("the mini registry emits");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let target = Target { folder, outputs };
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        target.write().expect("goldens are writable");
    }
    let differences = target.differences().expect("goldens are readable");
    for path in &differences {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let found = target.outputs.iter().find(|o| o.name == name).map_or("", |o| o.text.as_str());
        let recorded = std::fs::read_to_string(path).unwrap_or_default();
        let line = recorded.lines().zip(found.lines()).position(|(a, b)| a != b).unwrap_or_default();
        eprintln!(
            "{name}:{}: recorded {:?}, found {:?}",
            line + 1,
            recorded.lines().nth(line),
            found.lines().nth(line)
        );
    }
    assert!(differences.is_empty(), "review the change, then run with UPDATE_GOLDENS=1: {differences:?}");
}

#[test]
fn output_does_not_depend_on_the_order_of_the_registry() {
    let recorded = emit::protocol(&mini::inputs().resolve().expect("resolves")).expect("emits");
    let mut inputs = mini::inputs();
    let command = r#"<command name="vkGetKettlePropertiesKHR" alias="vkGetKettleProperties"/>"#;
    let xml =
        inputs.registries[0].replace(command, "").replace("<commands>", &format!("<commands>{command}"));
    inputs.registries[0] = xml;
    assert_eq!(emit::protocol(&inputs.resolve().expect("resolves")).expect("emits"), recorded);
}
