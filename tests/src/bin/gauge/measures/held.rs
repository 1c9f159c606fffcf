//! Memory of the device that holds data for a while.

use super::Bench;
use crate::gpu::Fence;
use crate::kernel::Commands;
use crate::memory::{Buffer, Kind};
use anyhow::{Result, ensure};
use std::time::Duration;

/// Bytes of a buffer that has an allocation of its own.
const BUFFER: u64 = 1 << 30;
/// Bytes that are copied at once.
const PIECE: u64 = 64 << 20;

impl Bench<'_> {
    /// Fills `gibibytes` GiB of the device's own memory, does not use them for a while, and then reads all of them.
    pub(super) fn hold(&self, gibibytes: u64, time: Duration) -> Result<String> {
        let held =
            (0..gibibytes).map(|_| self.gpu.buffer(Kind::Device, BUFFER)).collect::<Result<Vec<_>>>()?;
        let (mut staging, fence) = (self.gpu.buffer(Kind::Host, PIECE)?, self.gpu.fence()?);
        for (number, buffer, at) in pieces(&held) {
            words(staging.bytes()).zip(0..).for_each(|(word, index)| *word = expected(number, index));
            self.run(&Commands::copy_part(self.gpu, (&staging, 0), (buffer, at), PIECE)?, &fence)?;
        }
        eprintln!("{gibibytes} GiB are held");
        std::thread::sleep(time);
        for (number, buffer, at) in pieces(&held) {
            self.run(&Commands::copy_part(self.gpu, (buffer, at), (&staging, 0), PIECE)?, &fence)?;
            let is_same =
                words(staging.bytes()).zip(0..).all(|(word, index)| *word == expected(number, index));
            ensure!(is_same, "piece {number} of {PIECE} bytes has changed");
        }
        Ok(serde_json::json!({ "gibibytes_as_they_were": gibibytes }).to_string())
    }

    fn run(&self, commands: &Commands<'_>, fence: &Fence<'_>) -> Result<()> {
        self.gpu.run(&commands.handles, fence)
    }
}

/// Returns all pieces: the number of each, its buffer and its place there.
fn pieces<'b, 'g>(held: &'b [Buffer<'g>]) -> impl Iterator<Item = (u32, &'b Buffer<'g>, u64)> {
    let parts = held.iter().flat_map(|buffer| (0..BUFFER / PIECE).map(move |at| (buffer, at * PIECE)));
    (0..).zip(parts).map(|(number, (buffer, at))| (number, buffer, at))
}

fn words(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8; 4]> {
    bytes.as_chunks_mut().0.iter_mut()
}

/// Returns a word of a piece: no two pieces are alike, and no two words of one.
fn expected(piece: u32, index: u32) -> [u8; 4] {
    (index.wrapping_mul(0x9e37_79b9) ^ piece.wrapping_mul(0x85eb_ca6b)).to_ne_bytes()
}
