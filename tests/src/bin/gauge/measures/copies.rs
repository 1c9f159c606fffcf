//! Copies between the host's memory and the device's, and access to mapped memory. Times are of the whole copy.

use super::{Bench, missing};
use crate::kernel::Commands;
use crate::memory::Kind;
use crate::samples::Samples;
use anyhow::Result;
use std::hint::black_box;
use std::time::Duration;

/// The part of a heap that one copy may take.
const HEAP_PART: u64 = 3;

impl Bench<'_> {
    /// A copy to the device: submitted and waited for; the bytes are in the mapped buffer, or the program copies them there each time.
    pub(super) fn upload(&self, bytes: u64, from_memory: bool, time: Duration) -> Result<String> {
        if let Some(why) = self.too_large(bytes) {
            return missing(&why);
        }
        let mut staging = self.gpu.buffer(Kind::Host, bytes)?;
        let target = self.gpu.buffer(Kind::Device, bytes)?;
        staging.bytes().fill(0x5a);
        let commands = Commands::copy(self.gpu, &staging, &target, bytes)?;
        let own = vec![0xa5; if from_memory { bytes as usize } else { 0 }];
        let fence = self.gpu.fence()?;
        // The first copy makes sure that both buffers have pages.
        self.gpu.run(&commands.handles, &fence)?;
        let once = || {
            if from_memory {
                staging.bytes().copy_from_slice(&own);
            }
            self.gpu.run(&commands.handles, &fence)
        };
        Ok(Samples::new(time).repeat(once)?.to_json(1))
    }

    /// A copy from the device: submitted and waited for; the bytes stay in the mapped buffer, or are fetched each time.
    pub(super) fn download(&self, bytes: u64, to_memory: bool, time: Duration) -> Result<String> {
        if let Some(why) = self.too_large(bytes) {
            return missing(&why);
        }
        let mut staging = self.gpu.buffer(Kind::Host, bytes)?;
        let source = self.gpu.buffer(Kind::Device, bytes)?;
        staging.bytes().fill(0x5a);
        let commands = Commands::copy(self.gpu, &source, &staging, bytes)?;
        let mut own = vec![0xa5; if to_memory { bytes as usize } else { 0 }];
        let fence = self.gpu.fence()?;
        // As above.
        self.gpu.run(&commands.handles, &fence)?;
        let once = || {
            self.gpu.run(&commands.handles, &fence)?;
            if to_memory {
                own.copy_from_slice(staging.bytes());
            }
            Ok(())
        };
        Ok(Samples::new(time).repeat(once)?.to_json(1))
    }

    fn too_large(&self, bytes: u64) -> Option<String> {
        let heap = self.gpu.heap(Kind::Host).min(self.gpu.heap(Kind::Device));
        (bytes > heap / HEAP_PART).then(|| format!("memory for it: a heap has {} MiB", heap >> 20))
    }

    /// A copy into mapped memory.
    pub(super) fn write(&self, kind: Kind, bytes: u64, time: Duration) -> Result<String> {
        let Some(_) = self.gpu.memory_type(kind) else { return missing("memory of this kind") };
        let mut mapped = self.gpu.buffer(kind, bytes)?;
        let own = vec![0xa5; bytes as usize];
        mapped.bytes().fill(0x5a);
        let once = || {
            mapped.bytes().copy_from_slice(black_box(&own));
            Ok(())
        };
        Ok(Samples::new(time).repeat(once)?.to_json(1))
    }

    /// A copy out of mapped memory.
    pub(super) fn read(&self, kind: Kind, bytes: u64, time: Duration) -> Result<String> {
        let Some(_) = self.gpu.memory_type(kind) else { return missing("memory of this kind") };
        let mut mapped = self.gpu.buffer(kind, bytes)?;
        let mut own = vec![0xa5; bytes as usize];
        mapped.bytes().fill(0x5a);
        let once = || {
            own.copy_from_slice(mapped.bytes());
            black_box(&own);
            Ok(())
        };
        Ok(Samples::new(time).repeat(once)?.to_json(1))
    }
}
