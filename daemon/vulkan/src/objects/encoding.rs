//! The encodings of the commands that made objects, and how many bytes of them are kept.
//!
//! One command can make thousands of objects, and name each. If each object kept its own copy, the bytes would grow with the square of their number.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter of the bytes of encodings that are kept. Clones are one counter.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<AtomicU64>);

/// The encoding of one command, which counts as kept for as long as it lives.
#[derive(Debug)]
pub struct Encoding {
    bytes: Bytes,
    kept: Kept,
}

/// The encoding of a command that makes several objects, which share it.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Encoding>);

#[derive(Debug)]
enum Bytes {
    Own(Box<[u8]>),
    Shared(Shared),
}

impl Kept {
    /// Returns the number of bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Keeps the encoding of a command that makes one object.
    pub fn keep(&self, bytes: &[u8]) -> Encoding {
        self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Encoding { bytes: Bytes::Own(bytes.into()), kept: self.clone() }
    }

    /// Keeps the encoding of a command that makes several objects.
    pub fn share(&self, bytes: &[u8]) -> Shared {
        Shared(Arc::new(self.keep(bytes)))
    }
}

impl Encoding {
    /// Returns the identity of a command that made several objects: the same value for all objects of one command, none for a command that made only
    /// one.
    pub fn command(&self) -> Option<usize> {
        match &self.bytes {
            Bytes::Own(_) => None,
            Bytes::Shared(shared) => Some(Arc::as_ptr(&shared.0).addr()),
        }
    }
}

impl Shared {
    /// Returns the encoding for one of the objects.
    pub fn encoding(&self) -> Encoding {
        Encoding { bytes: Bytes::Shared(self.clone()), kept: self.0.kept.clone() }
    }
}

impl Deref for Encoding {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(shared) => &shared.0,
        }
    }
}

impl Drop for Encoding {
    fn drop(&mut self) {
        if let Bytes::Own(bytes) = &self.bytes {
            self.kept.0.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_objects_share_counts_once_and_until_the_last_is_gone() {
        let kept = Kept::default();
        let alone = kept.keep(&[1; 10]);
        let shared = kept.share(&[2; 100]);
        let all: Vec<_> = (0..1000).map(|_| shared.encoding()).collect();
        drop(shared);
        assert_eq!(kept.bytes(), 110);
        assert!(all.iter().all(|encoding| **encoding == [2; 100]));
        let last = all.into_iter().last();
        assert_eq!(kept.bytes(), 110);
        drop((last, alone));
        assert_eq!(kept.bytes(), 0);
    }
}
