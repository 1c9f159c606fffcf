//! The sources themselves: the house rules, the modules that code may use, and cycles. The tests read files and start no programs.

mod documents;
mod errors;
mod gate;
mod layering;
mod modules;
mod readme;
mod texts;
mod tidy;
