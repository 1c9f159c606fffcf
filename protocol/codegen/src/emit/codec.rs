//! The codec of Venus: its files, and the content of each.

use anyhow::Result;
use proc_macro2::TokenStream;
use quote::quote;

use super::output::{Output, Rows, file, file_with};
use super::{chain, commands, dispatch, numbers, structs, tables};
use crate::ir::Protocol;

/// All files of `protocol/src/venus/generated/`.
pub fn protocol(protocol: &Protocol) -> Result<Vec<Output>> {
    let mut outputs = vec![
        file("enums", "Enumerations and flags.", numbers::enums_and_flags(protocol))?,
        file("handles", "Handles: object ids of the guest.", numbers::handles(protocol))?,
        file("chain_struct", "Structs that may appear in a chain.", chain::emit(protocol))?,
        file("dispatch", "All commands.", dispatch::emit(protocol))?,
        file("extensions", "Decodable extensions.", tables::extensions(protocol))?,
    ];
    if !protocol.formats.is_empty() {
        outputs.push(file("formats", "Sizes of image formats.", tables::formats(protocol))?);
    }
    let mut modules = vec![
        ("types".to_owned(), "Structs used by several objects.".to_owned()),
        ("features".to_owned(), "Feature structs.".to_owned()),
        ("properties".to_owned(), "Property structs.".to_owned()),
    ];
    modules.extend(protocol.groups.iter().map(|g| (g.name.clone(), g.doc.clone())));
    for (name, doc) in &modules {
        let mut rows = Rows::default();
        let structs = structs::emit_all(protocol, protocol.structs_of(name), &mut rows);
        let unions =
            protocol.unions.values().filter(|_| name == "types").map(|u| structs::emit_union(protocol, u));
        let commands = protocol.commands_of(name).map(|c| commands::emit(protocol, c));
        let body: TokenStream = unions.chain(commands).collect();
        outputs.push(file_with(&rows, name, doc, quote! { use super::prelude::*; #structs #body })?);
    }
    let names: Vec<&str> = outputs.iter().map(|o| o.name.trim_end_matches(".rs")).collect();
    let root = tables::root(protocol, &names);
    outputs.push(file("mod", "The generated part of the Venus codec.", root)?);
    outputs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(outputs)
}
