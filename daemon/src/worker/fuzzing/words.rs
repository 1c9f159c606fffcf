//! Commands of the transport made of arbitrary bytes: words as the driver writes them, mostly with ids and ranges that exist.

use super::{MEMORY, RESOURCES};
use arbitrary::{Result, Unstructured};
use protocol::venus::generated::{
    CreateRingMESA, DestroyRingMESA, EnumerateInstanceVersion, ExecuteCommandStreamsMESA, NotifyRingMESA,
    SeekReplyCommandStreamMESA, SetReplyCommandStreamMESA, SubmitVirtqueueSeqnoMESA, WaitRingSeqnoMESA,
    WaitVirtqueueSeqnoMESA, WriteRingExtraMESA,
};

/// The way that a command is sent: some commands may use only one of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Virtqueue,
    Ring,
}

/// Encodes one command; now and then a command that does not belong there, or random bytes.
pub(super) fn command(u: &mut Unstructured<'_>, place: Place) -> Result<Vec<u8>> {
    let choices: &[u8] = match place {
        _ if u.ratio(1, 64)? => &[3, 7, 8, 9, 10, 11, 12, 13, 15],
        Place::Virtqueue => &[0, 3, 4, 8, 8, 8, 9, 10, 11, 12, 13, 14],
        Place::Ring => &[0, 3, 4, 4, 4, 7, 14, 14],
    };
    let ring = |u: &mut Unstructured<'_>| u.int_in_range(0..=4u64);
    let mut words = Words(Vec::new());
    let (number, parameters): (i32, Vec<u64>) = match *u.choose(choices)? {
        0 => return set_reply(u),
        3 => (SeekReplyCommandStreamMESA::NUMBER, vec![number(u, MEMORY)?]),
        4 => return execute_streams(u),
        7 => (WaitVirtqueueSeqnoMESA::NUMBER, vec![number(u, 8)?]),
        8 => return create_ring(u),
        9 => (DestroyRingMESA::NUMBER, vec![ring(u)?]),
        // Seqno and flags are a word each.
        10 => (NotifyRingMESA::NUMBER, vec![ring(u)?, u.arbitrary::<u32>()?.into()]),
        11 => {
            words.head(WriteRingExtraMESA::NUMBER, u)?;
            words.longs(&[ring(u)?, number(u, 64)?]);
            words.0.push(u.arbitrary()?);
            return Ok(words.bytes());
        }
        12 => (SubmitVirtqueueSeqnoMESA::NUMBER, vec![ring(u)?, number(u, 8)?]),
        13 => (WaitRingSeqnoMESA::NUMBER, vec![ring(u)?, number(u, 128)?]),
        14 => {
            words.head(EnumerateInstanceVersion::NUMBER, u)?;
            words.longs(&[1]);
            return Ok(words.bytes());
        }
        _ => return u.arbitrary(),
    };
    words.head(number, u)?;
    words.longs(&parameters);
    Ok(words.bytes())
}

struct Words(Vec<u32>);

impl Words {
    /// Appends number and flags: a reply is wanted or not.
    fn head(&mut self, number: i32, u: &mut Unstructured<'_>) -> Result<()> {
        self.0.extend([number as u32, u32::from(u.arbitrary::<bool>()?)]);
        Ok(())
    }

    fn longs(&mut self, longs: &[u64]) {
        self.0.extend(longs.iter().flat_map(|long| [*long as u32, (*long >> 32) as u32]));
    }

    /// Appends resource, offset and size: mostly at the start of the first resource, where streams are, or in the second, where replies go.
    fn stream(&mut self, u: &mut Unstructured<'_>, usual: u32) -> Result<()> {
        if u.ratio(7, 8)? {
            self.0.push(usual);
            self.longs(&if usual == 1 { [0, 16 * u.int_in_range(0..=2)?] } else { [number(u, 1024)?, 1024] });
            return Ok(());
        }
        self.0.push(u.int_in_range(0..=*RESOURCES.end() + 1)?);
        let (offset, size) = (number(u, 1024)?, number(u, 1024)?);
        self.longs(&[offset, size]);
        Ok(())
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Returns a multiple of 4 below `bound`, or any number.
fn number(u: &mut Unstructured<'_>, bound: u64) -> Result<u64> {
    if u.ratio(1, 32)? {
        u.arbitrary()
    } else {
        Ok(u64::from(u.arbitrary::<u16>()?) % (bound / 4).max(1) * 4)
    }
}

fn set_reply(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut words = Words(Vec::new());
    words.head(SetReplyCommandStreamMESA::NUMBER, u)?;
    words.longs(&[1]);
    words.stream(u, 2)?;
    Ok(words.bytes())
}

/// Encodes indirect streams without reply positions and dependencies.
fn execute_streams(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut words = Words(Vec::new());
    words.head(ExecuteCommandStreamsMESA::NUMBER, u)?;
    let count = if u.ratio(1, 32)? { 0 } else { u.int_in_range(1..=3u32)? };
    words.0.push(count);
    words.longs(&[count.into()]);
    for _ in 0..count {
        words.stream(u, 1)?;
    }
    words.0.extend([0; 6]);
    Ok(words.bytes())
}

/// Encodes the creation of a ring, mostly of 1024 bytes in one of the resources, with a monitor.
fn create_ring(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    const CREATE_INFO: u32 = 1_000_384_000;
    const MONITOR_INFO: u32 = 1_000_384_006;
    let mut words = Words(Vec::new());
    words.head(CreateRingMESA::NUMBER, u)?;
    words.longs(&[u.int_in_range(0..=4)?, 1]);
    words.0.extend([CREATE_INFO, 1, 0, MONITOR_INFO, 0, 0, u.arbitrary()?, 0]);
    words.0.push(u.int_in_range(1..=*RESOURCES.end())?);
    let [mut offset, mut status, mut buffer] = [0, 128, 1024];
    if u.ratio(1, 8)? {
        (offset, status, buffer) = (number(u, MEMORY)?, number(u, 4096)?, number(u, 4096)?);
    }
    // Offset, size, idle timeout, head, tail, status, buffer, extra.
    words.longs(&[offset, 2048, 1000, 0, 64, status, 192, buffer, 1216, 64]);
    Ok(words.bytes())
}
