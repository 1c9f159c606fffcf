//! The vtest protocol as far as Mesa's Venus driver speaks it: requests to values, replies to bytes.
//!
//! Knows no device. A message is two little-endian u32 (length of the payload in dwords, command id) and the payload;
//! descriptors travel with one byte of their own behind a reply.

use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Read};

/// Highest vtest protocol version spoken.
pub const VERSION: u32 = 4;
const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// Numbers of the commands Venus uses.
pub mod id {
    #![allow(missing_docs)] // The names are the protocol's.
    pub const RESOURCE_UNREF: u32 = 3;
    pub const RESOURCE_BUSY_WAIT: u32 = 7;
    pub const CREATE_RENDERER: u32 = 8;
    pub const PING_PROTOCOL_VERSION: u32 = 10;
    pub const PROTOCOL_VERSION: u32 = 11;
    pub const GET_PARAM: u32 = 15;
    pub const GET_CAPSET: u32 = 16;
    pub const CONTEXT_INIT: u32 = 17;
    pub const RESOURCE_CREATE_BLOB: u32 = 18;
    pub const SYNC_CREATE: u32 = 19;
    pub const SYNC_UNREF: u32 = 20;
    pub const SYNC_READ: u32 = 21;
    pub const SYNC_WRITE: u32 = 22;
    pub const SYNC_WAIT: u32 = 23;
    pub const SUBMIT_CMD2: u32 = 24;
}

/// A sync object and a value of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPoint {
    /// The sync object.
    pub sync_id: u32,
    /// The value it is set to, or waited for.
    pub value: u64,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields are the protocol's.
pub enum Request {
    CreateRenderer { name: String },
    PingProtocolVersion,
    ResourceBusyWait,
    ProtocolVersion { version: u32 },
    GetParam { param: u32 },
    GetCapset { capset_id: u32 },
    ContextInit { capset_id: u32 },
    CreateBlob { blob_type: u32, flags: u32, size: u64, blob_id: u64 },
    ResourceUnref { resource_id: u32 },
    SyncCreate { value: u64 },
    SyncUnref { sync_id: u32 },
    SyncRead { sync_id: u32 },
    SyncWrite(SyncPoint),
    SyncWait { any: bool, timeout_ms: u32, points: Vec<SyncPoint> },
    Submit(Submit),
}

/// One batch of SUBMIT_CMD2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submit {
    /// The timeline the syncs follow.
    pub ring_idx: u8,
    /// A Venus command stream, possibly empty.
    pub commands: Vec<u8>,
    /// The sync objects to set, and their values, when the timeline passes this point.
    pub syncs: Vec<SyncPoint>,
}

/// Reads one request; `None` when the client closed the connection between requests.
pub fn read_request(stream: &mut impl Read) -> Result<Option<Request>> {
    let mut header = [0; 8];
    match stream.read(&mut header)? {
        0 => return Ok(None),
        n => stream.read_exact(&mut header[n..])?,
    }
    let (length, command) = (dword(&header, 0)?, dword(&header, 1)?);
    // CREATE_RENDERER is the only command whose length counts bytes.
    let unit = if command == id::CREATE_RENDERER { 1 } else { 4 };
    let bytes = length as usize * unit;
    ensure!(bytes <= PAYLOAD_BYTES_MAX, "command {command} of {bytes} bytes");
    let mut payload = vec![0; bytes];
    stream.read_exact(&mut payload)?;
    decode(command, payload).with_context(|| format!("vtest command {command} of {bytes} bytes")).map(Some)
}

/// Returns whether an error only means that the client closed the connection in the middle of a request.
pub fn is_hang_up(error: &anyhow::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| matches!(e.kind(), UnexpectedEof | ConnectionReset | BrokenPipe))
}

/// A reply: header and payload of dwords.
pub fn reply(command: u32, payload: &[u32]) -> Vec<u8> {
    let length = payload.len() as u32;
    [length, command].iter().chain(payload).flat_map(|dword| dword.to_le_bytes()).collect()
}

fn decode(command: u32, payload: Vec<u8>) -> Result<Request> {
    let at = |i| dword(&payload, i);
    let wide = |i| {
        Ok::<u64, anyhow::Error>(u64::from(dword(&payload, i)?) | u64::from(dword(&payload, i + 1)?) << 32)
    };
    Ok(match command {
        id::CREATE_RENDERER => {
            let name = payload.split(|&byte| byte == 0).next().unwrap_or_default();
            Request::CreateRenderer { name: String::from_utf8_lossy(name).into_owned() }
        }
        id::PING_PROTOCOL_VERSION => Request::PingProtocolVersion,
        id::RESOURCE_BUSY_WAIT => Request::ResourceBusyWait,
        id::PROTOCOL_VERSION => Request::ProtocolVersion { version: at(0)? },
        id::GET_PARAM => Request::GetParam { param: at(0)? },
        id::GET_CAPSET => Request::GetCapset { capset_id: at(0)? },
        id::CONTEXT_INIT => Request::ContextInit { capset_id: at(0)? },
        id::RESOURCE_CREATE_BLOB => {
            Request::CreateBlob { blob_type: at(0)?, flags: at(1)?, size: wide(2)?, blob_id: wide(4)? }
        }
        id::RESOURCE_UNREF => Request::ResourceUnref { resource_id: at(0)? },
        id::SYNC_CREATE => Request::SyncCreate { value: wide(0)? },
        id::SYNC_UNREF => Request::SyncUnref { sync_id: at(0)? },
        id::SYNC_READ => Request::SyncRead { sync_id: at(0)? },
        id::SYNC_WRITE => Request::SyncWrite(SyncPoint { sync_id: at(0)?, value: wide(1)? }),
        id::SYNC_WAIT => {
            ensure!(payload.len() >= 8 && (payload.len() - 8).is_multiple_of(12), "a list of id and value");
            let points = sync_points(&payload[8..]);
            Request::SyncWait { any: at(0)? & 1 != 0, timeout_ms: at(1)?, points }
        }
        id::SUBMIT_CMD2 => Request::Submit(decode_submit(payload)?),
        _ => bail!("a command Venus does not send"),
    })
}

/// Decodes by the offsets in the batch header, since its size differs between versions of the protocol.
fn decode_submit(payload: Vec<u8>) -> Result<Submit> {
    let at = |i| dword(&payload, i).map(|dword| dword as usize);
    match at(0)? {
        0 => return Ok(Submit { ring_idx: 0, commands: Vec::new(), syncs: Vec::new() }),
        1 => {}
        count => bail!("{count} batches in one submission"),
    }
    let (flags, ring_idx) = (at(1)?, at(6)?);
    let ring_idx = if flags & 1 != 0 { u8::try_from(ring_idx).context("ring_idx")? } else { 0 };
    let part = |offset: usize, dwords: usize| {
        let start = offset.checked_mul(4)?;
        payload.get(start..start.checked_add(dwords.checked_mul(4)?)?)
    };
    let commands = part(at(2)?, at(3)?).context("commands outside the payload")?.to_vec();
    let syncs = at(5)?
        .checked_mul(3)
        .and_then(|dwords| part(at(4).ok()?, dwords))
        .context("syncs outside the payload")?;
    let syncs = sync_points(syncs);
    Ok(Submit { ring_idx, commands, syncs })
}

fn sync_points(bytes: &[u8]) -> Vec<SyncPoint> {
    let (triples, _) = bytes.as_chunks::<12>();
    triples
        .iter()
        .map(|&[a, b, c, d, e, f, g, h, i, j, k, l]| SyncPoint {
            sync_id: u32::from_le_bytes([a, b, c, d]),
            value: u64::from_le_bytes([e, f, g, h, i, j, k, l]),
        })
        .collect()
}

fn dword(bytes: &[u8], index: usize) -> Result<u32> {
    let (dwords, _) = bytes.as_chunks::<4>();
    dwords.get(index).map(|&dword| u32::from_le_bytes(dword)).context("the payload is too short")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(command: u32, dwords: &[u32]) -> Result<Option<Request>> {
        read_request(&mut reply(command, dwords).as_slice())
    }

    #[test]
    fn renderer_name_is_counted_in_bytes() {
        let bytes = [&[6, 0, 0, 0, 8, 0, 0, 0][..], b"llama\0"].concat();
        let request = read_request(&mut bytes.as_slice()).unwrap();
        assert_eq!(request, Some(Request::CreateRenderer { name: "llama".into() }));
    }

    #[test]
    fn submit_is_read_by_offsets_with_either_header_size() {
        let expected = Submit {
            ring_idx: 3,
            commands: vec![0xaa, 0, 0, 0, 0xbb, 0, 0, 0],
            syncs: vec![SyncPoint { sync_id: 9, value: 0x2_0000_0001 }],
        };
        for header in [7, 9] {
            let mut dwords = vec![1, 1, header, 2, header + 2, 1, 3];
            dwords.resize(header as usize, 0);
            dwords.extend([0xaa, 0xbb, 9, 1, 2]);
            assert_eq!(read(id::SUBMIT_CMD2, &dwords).unwrap(), Some(Request::Submit(expected.clone())));
        }
    }

    #[test]
    fn offsets_outside_the_payload_are_errors() {
        for dwords in [[1, 1, 7, 9, 7, 0, 0], [1, 1, 7, 0, 7, 0x5555_5556, 0], [1, 1, u32::MAX, 1, 7, 0, 0]] {
            assert!(read(id::SUBMIT_CMD2, &dwords).is_err());
        }
    }

    #[test]
    fn closing_between_requests_is_no_error() {
        assert!(read_request(&mut [].as_slice()).unwrap().is_none());
        assert!(is_hang_up(&read_request(&mut [1, 0, 0].as_slice()).unwrap_err()));
    }
}
