//! The list of the program's contents, for tools that look for known vulnerabilities: CycloneDX 1.5 in JSON.
//!
//! The list has no time and no serial number, so that the same sources give the same list.

use anyhow::Result;
use serde_json::{Value, json};

use super::crates::{Crate, Crates};
use super::names::{Architecture, NAME};

/// The list's text.
pub(super) fn text(crates: &Crates, architecture: Architecture) -> Result<String> {
    let components: Vec<Value> = crates.all.iter().filter(|it| it.name != "daemon").map(component).collect();
    let dependencies: Vec<Value> = crates
        .all
        .iter()
        .map(|it| {
            let uses: Vec<String> = it.uses.iter().map(|&number| address(&crates.all[number])).collect();
            json!({ "ref": address(it), "dependsOn": uses })
        })
        .collect();
    let program = crates.all.iter().find(|it| it.name == "daemon").map(address);
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": program,
                "name": NAME,
                "version": crates.version,
                "licenses": [{ "expression": "Apache-2.0 OR MIT" }],
                "properties": [{ "name": "debian:architecture", "value": architecture.debian() }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}

fn component(it: &Crate) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": address(it),
        "name": it.name,
        "version": it.version,
        "licenses": [{ "expression": it.licence }],
    });
    if let Some(checksum) = &it.checksum {
        component["purl"] = address(it).into();
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// The name by which tools know a crate.
fn address(it: &Crate) -> String {
    format!("pkg:cargo/{}@{}", it.name, it.version)
}
