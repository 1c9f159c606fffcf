//! Output for `vulkan`, by the folder it goes to: C layouts and function tables, handles, lowering and raising, and the commands'
//! execution.
//!
//! Lowering turns a decoded value into the form that the host's driver takes; raising turns the driver's output into a value that the codec can
//! encode. This module emits the C layouts and does not take them from ash, because ash follows an older registry and may lack a struct; a test in
//! the daemon compares every layout that both know.

mod c_types;
mod commands;
mod replay;
mod structs;
mod sys;
mod tables;

use super::output::{Output, Rows, file, file_with};
use crate::ir::Protocol;
use anyhow::Result;
use quote::{format_ident, quote};

/// C layouts and function pointers, for `driver/generated/`.
pub fn driver(protocol: &Protocol) -> Result<Vec<Output>> {
    let root = quote! {
        pub(crate) mod sys;
        mod table;

        pub(crate) use table::{DeviceTable, InstanceTable};
    };
    let mut rows = Rows::default();
    let layouts = sys::emit(protocol, &mut rows);
    Ok(vec![
        file_with(
            &rows,
            "sys",
            "C layouts of the structs and unions the host's driver reads and writes.",
            layouts,
        )?,
        file("table", "Function pointers of the host's driver, by level.", tables::emit(protocol))?,
        file("mod", "The host's driver as the registry declares it.", root)?,
    ])
}

/// Handles as the object table sees them, for `objects/generated/`.
pub fn objects(protocol: &Protocol) -> Result<Vec<Output>> {
    Ok(vec![file("mod", "Handles as the object table sees them.", tables::handles(protocol))?])
}

/// Lowering and raising of structs, for `lowering/generated/`.
pub fn lowering(protocol: &Protocol) -> Result<Vec<Output>> {
    let chain = structs::emit_chain(protocol);
    let mut outputs = vec![file("chain", "pNext chains: which struct is lowered and raised how.", chain)?];
    let mut names = vec![];
    for module in modules(protocol) {
        let mut rows = Rows::default();
        let structs = structs::emit(protocol, module, &mut rows);
        if structs.is_empty() {
            continue;
        }
        let body = quote! {
            use crate::lowering::prelude::*;
            #structs
        };
        outputs.push(file_with(&rows, module, &format!("Lowering and raising: `{module}`."), body)?);
        names.push(format_ident!("{module}"));
    }
    let root = quote! {
        #(mod #names;)*
        mod chain;

        pub(super) use chain::{lower_chain_struct, raise_chain_struct};
    };
    outputs.push(file("mod", "Values of the protocol to C structs, and back.", root)?);
    Ok(outputs)
}

/// Execution of commands, for `dispatch/generated/`.
pub fn dispatch(protocol: &Protocol) -> Result<Vec<Output>> {
    let every = commands::emit_dispatch(protocol);
    let classes = replay::emit(protocol);
    let mut outputs = vec![
        file("every", "The function that executes each command.", every)?,
        file("replay", "The class of each command in a journal.", classes)?,
    ];
    let mut names = vec![];
    for module in modules(protocol) {
        let commands = commands::emit(protocol, module);
        if commands.is_empty() {
            continue;
        }
        let body = quote! {
            use crate::dispatch::prelude::*;
            #commands
        };
        outputs.push(file(module, &format!("Execution: `{module}`."), body)?);
        names.push(format_ident!("{module}"));
    }
    let root = quote! {
        #(mod #names;)*
        mod every;
        mod replay;

        pub(crate) use every::{execute, is_graphics, record};
        pub(crate) use replay::{CLASSES, private_class};
    };
    outputs.push(file("mod", "Execution of the Venus protocol on the host's driver.", root)?);
    Ok(outputs)
}

/// Names of the files that structs and commands go into.
fn modules(protocol: &Protocol) -> Vec<&str> {
    let mut modules: Vec<&str> = protocol.structs.values().map(|s| s.module.as_str()).collect();
    modules.extend(protocol.commands.values().map(|c| c.module.as_str()));
    modules.sort_unstable();
    modules.dedup();
    modules
}
