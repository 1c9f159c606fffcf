//! Errors of the Venus codec. They name the value that was being read and its place, never the content of the guest's bytes.

use thiserror::Error;

/// The reason for which bytes from the guest could not be decoded. The decoder cannot go on with the stream, because a stream has no lengths by which
/// to skip a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what} at byte {offset}: {kind}")]
pub struct DecodeError {
    /// The member (`BufferCreateInfo.pQueueFamilyIndices`), struct or command that was being decoded.
    pub what: &'static str,
    /// Byte offset in the input.
    pub offset: usize,
    /// The rule that is broken.
    pub kind: DecodeErrorKind,
}

/// The ways in which input can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeErrorKind {
    /// The input ends inside the value.
    #[error("input ends early")]
    Truncated,
    /// The count on the wire differs from the one that the length member announced.
    #[error("count {found} instead of {expected}")]
    Count {
        /// Count on the wire.
        found: u64,
        /// Value of the length expression.
        expected: u64,
    },
    /// A length member that must be divisible is not (`codeSize` by 4).
    #[error("length {0} is not divisible")]
    Length(u64),
    /// A pointer's presence is neither 0 nor 1.
    #[error("presence {0}")]
    Presence(u64),
    /// A required pointer is null.
    #[error("required pointer is null")]
    Null,
    /// A pointer that has no wire form (allocation callbacks) is not null.
    #[error("pointer must be null")]
    NotNull,
    /// A struct's own `sType` is not the expected one.
    #[error("sType {found} instead of {expected}")]
    StructureType {
        /// sType on the wire.
        found: i32,
        /// sType of the struct.
        expected: i32,
    },
    /// A struct that may not appear in this chain, or is not known at all.
    #[error("struct with sType {0} is not accepted in this chain")]
    ChainStructure(i32),
    /// A chain is longer than [`Limits::max_chain`](crate::cursor::Limits::max_chain).
    #[error("chain is too long")]
    ChainLength,
    /// A union's tag names no member.
    #[error("union tag {0}")]
    UnionTag(u32),
    /// Text without a terminator, or with one inside.
    #[error("malformed string of {size} bytes")]
    String {
        /// Bytes on the wire, without padding.
        size: u64,
    },
    /// A command number that is not decodable.
    #[error("command {0} is not known")]
    Command(i32),
    /// More out elements or out bytes than [`Limits`](crate::cursor::Limits) allow.
    #[error("too much room for results")]
    OutBudget,
    /// The arena's limit is reached.
    #[error("decoded values exceed limit arena_bytes")]
    ArenaFull,
}

/// A reply does not fit into its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("output does not fit into {room} bytes")]
pub struct Overflow {
    /// Size of the window in bytes.
    pub room: usize,
}
