//! Why a shader module is refused. Says where and what, never what the guest's words contained.

use thiserror::Error;

/// A module that no driver gets to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("word {at}: {kind}")]
pub struct Error {
    /// Index of the first word of the instruction, 0 for the module as a whole.
    pub at: usize,
    /// What is wrong with it.
    pub kind: ErrorKind,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ErrorKind {
    /// Shorter than a header, another magic number, a schema, or a version that was not offered.
    #[error("not a header of an offered version")]
    Header,
    /// More of something than its limit allows.
    #[error("more {0} than the limit")]
    Limit(&'static str),
    /// An instruction that ends outside the module or has no words, or operands that do not fill it.
    #[error("operands and length disagree")]
    Length,
    /// An instruction, enumerant or extended instruction that does not exist or is not served.
    #[error("unknown {0}")]
    Unknown(&'static str),
    /// A capability or extension that the device does not offer.
    #[error("{0} that is not offered")]
    NotOffered(&'static str),
    /// Text without end.
    #[error("text without end")]
    Text,
    /// An id that is 0 or not below the bound.
    #[error("id out of bounds")]
    IdRange,
    /// An id that is defined twice.
    #[error("id defined twice")]
    IdTwice,
    /// An id that is not defined, or not where it is used.
    #[error("id not defined here")]
    IdMissing,
    /// An id of the wrong kind.
    #[error("id that is no {0}")]
    IdKind(&'static str),
    /// An instruction where none of its kind may be.
    #[error("misplaced {0}")]
    Order(&'static str),
    /// A value that is outside its range.
    #[error("{0} out of range")]
    Range(&'static str),
    /// Types that do not fit together.
    #[error("types of {0} differ")]
    Mismatch(&'static str),
    /// A function that calls itself, directly or not.
    #[error("recursion")]
    Recursion,
}

impl ErrorKind {
    /// At this word.
    pub fn at(self, at: usize) -> Error {
        Error { at, kind: self }
    }
}
