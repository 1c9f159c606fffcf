//! Framing: what stands in front of every command. A command has no length on the wire; it ends where its decoder stops.

use super::generated::{Command, CommandBuffer, CommandFlagsEXT};
use crate::cursor::Reader;
use crate::error::DecodeError;

/// Number and flags of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// `VkCommandTypeEXT`.
    pub number: i32,
    /// Flags; unknown ones are ignored.
    pub flags: CommandFlagsEXT,
}

impl Header {
    /// Reads number and flags.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let number = r.value("command number")?;
        let flags = r.value("command flags")?;
        Ok(Self { number, flags })
    }

    /// Returns whether the guest waits for a reply.
    pub fn wants_reply(self) -> bool {
        self.flags.contains(CommandFlagsEXT::GENERATE_REPLY)
    }
}

/// The start of a command whose first parameter is a command buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Number and flags.
    pub header: Header,
    /// The command buffer.
    pub command_buffer: CommandBuffer,
}

impl Recorded {
    /// Reads the first bytes of a command as such a start; none if the command has too few bytes.
    #[inline]
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        let head = u128::from_le_bytes(*bytes.first_chunk()?);
        let header = Header { number: head as i32, flags: CommandFlagsEXT((head >> 32) as u32) };
        Some(Self { header, command_buffer: CommandBuffer((head >> 64) as u64) })
    }
}

/// Reads the next command of a stream; `None` at its end.
pub fn next<'a>(r: &mut Reader<'a>) -> Result<Option<(Header, Command<'a>)>, DecodeError> {
    if r.remaining() == 0 {
        return Ok(None);
    }
    let header = Header::decode(r)?;
    let command = Command::decode(header.number, r)?;
    Ok(Some((header, command)))
}
