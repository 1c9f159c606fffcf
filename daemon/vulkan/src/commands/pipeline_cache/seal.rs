//! The seal of the data of pipeline caches. Their data lives in a guest's files, and the host's driver trusts any data that it gets as its own: so
//! data leaves with a tag that only this daemon can make, and is accepted back only with that tag.
//!
//! The tag is the 32 bytes behind the driver's data: a keyed hash of the data, of the device and of the driver's version.

use crate::driver::physical_device::CacheOrigin;
use config::CacheKey;

/// Bytes behind the driver's data.
pub(crate) const TAG_BYTES: usize = blake3::OUT_LEN;

/// Returns the tag of the driver's data.
pub(super) fn tag(key: &CacheKey, origin: &CacheOrigin, data: &[u8]) -> blake3::Hash {
    blake3::Hasher::new_keyed(&key.0).update(origin).update(data).finalize()
}

/// Returns the driver's data with its tag; only a worker of the same VM on the same GPU and driver accepts it.
pub(crate) fn sealed(key: &CacheKey, origin: &CacheOrigin, mut data: Vec<u8>) -> Vec<u8> {
    let tag = tag(key, origin, &data);
    data.extend_from_slice(tag.as_bytes());
    data
}

/// Returns the driver's data out of bytes that [`sealed`] has made for this origin; none for any other bytes.
pub(crate) fn opened<'a>(key: &CacheKey, origin: &CacheOrigin, sealed: &'a [u8]) -> Option<&'a [u8]> {
    let (data, found) = sealed.split_last_chunk::<TAG_BYTES>()?;
    // Hashes are compared in constant time.
    (tag(key, origin, data) == blake3::Hash::from_bytes(*found)).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: CacheKey = CacheKey([7; 32]);
    const ORIGIN: CacheOrigin = [9; 44];

    #[test]
    fn data_comes_back_as_it_left() {
        for data in [&b"code"[..], b"", &[0; 4096]] {
            assert_eq!(opened(&KEY, &ORIGIN, &sealed(&KEY, &ORIGIN, data.to_vec())), Some(data));
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_drops_the_data() {
        let sealed = sealed(&KEY, &ORIGIN, b"what a driver compiled".to_vec());
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&KEY, &ORIGIN, &changed), None, "bit {bit}");
        }
    }

    #[test]
    fn data_that_is_cut_grown_or_never_had_a_tag_is_dropped() {
        let sealed = sealed(&KEY, &ORIGIN, b"what a driver compiled".to_vec());
        for length in 0..sealed.len() {
            assert_eq!(opened(&KEY, &ORIGIN, &sealed[..length]), None, "{length} bytes");
        }
        assert_eq!(opened(&KEY, &ORIGIN, &[&sealed[..], &[0]].concat()), None);
        assert_eq!(opened(&KEY, &ORIGIN, &[0; 64]), None);
    }

    #[test]
    fn data_of_another_key_device_or_driver_is_dropped() {
        let (data, mut other) = (b"code".to_vec(), ORIGIN);
        assert_eq!(opened(&KEY, &ORIGIN, &sealed(&CacheKey([8; 32]), &ORIGIN, data.clone())), None);
        for byte in 0..ORIGIN.len() {
            other[byte] ^= 1;
            assert_eq!(opened(&KEY, &ORIGIN, &sealed(&KEY, &other, data.clone())), None, "byte {byte}");
            other = ORIGIN;
        }
    }
}
