//! The sources themselves: the house rules, which code may use which, and cycles. They read files and start nothing.

mod documents;
mod gate;
mod layering;
mod modules;
mod readme;
mod texts;
mod tidy;
