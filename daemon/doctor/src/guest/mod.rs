//! Checks inside a VM: from the kernel's driver to a program's environment. `facts` looks at the system once, `checks` judges these facts, and
//! `virtgpu` asks the kernel's driver.

mod checks;
mod facts;
#[cfg(test)]
mod tests;
mod virtgpu;

pub use checks::check;
pub use facts::{Device, Facts, Module, Node, Opened};
