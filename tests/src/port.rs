//! Ports for servers that learn their port before they bind it.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};

/// The first port that is given out. These ports lie below those that Linux gives to a program that asks for any port, so no other program gets one
/// by chance before the server binds it.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;
/// Ports of one process, before those of the next process number.
const EACH: u32 = 16;

/// A port of this machine that is free, and that this process gives out once.
///
/// # Errors
/// None of the ports that are tried is free.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = std::process::id().wrapping_mul(EACH) % u32::from(COUNT);
    let mut ports = std::iter::repeat_with(|| {
        let next = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        FIRST + ((begin + next) % u32::from(COUNT)) as u16
    });
    let found = ports.by_ref().take(1000).find(|port| nobody_listens(*port));
    found.context("none of a thousand ports is free")
}

/// Returns whether a port is free, without binding it: a process that another thread is just starting would hold the socket for a while longer.
fn nobody_listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_is_given_out_once_and_not_while_it_is_used() {
        let first = free_port().unwrap();
        let (used, second) = (TcpListener::bind(("127.0.0.1", first)), free_port().unwrap());
        assert!(used.is_ok());
        assert_ne!(first, second);
    }
}
