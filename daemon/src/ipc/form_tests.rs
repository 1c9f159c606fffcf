//! This file shows how messages look on the wire, for tests that bind that form to a version.

use super::channel::{decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Returns the bytes of all these messages, and checks that each can be read again.
pub(super) fn form<M: Serialize + DeserializeOwned + PartialEq + Debug>(messages: &[M]) -> String {
    let encoded = messages.iter().map(|message| {
        let bytes = encode(message).unwrap();
        assert_eq!(&decode::<M>(&bytes).unwrap(), message);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    encoded.collect::<Vec<_>>().join(" ")
}

/// Returns the number of kinds of a message, which a new kind changes.
pub(super) fn variants<M: DeserializeOwned>() -> u8 {
    // A known kind is read, or bytes are missing after it.
    let is_unknown = |kind: &u8| {
        let read = postcard::from_bytes::<M>(&[*kind]);
        read.is_err_and(|error| error != postcard::Error::DeserializeUnexpectedEnd)
    };
    (0..0x80).find(is_unknown).unwrap()
}
