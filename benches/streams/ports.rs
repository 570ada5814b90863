//! Ports for listeners, below those that the system hands out to clients.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 16_000;
const END: u16 = 32_000;

pub(crate) const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The first of `count` consecutive ports that nobody listens on, none of them given before.
///
/// # Errors
/// There are none left.
pub(crate) fn free(count: u16) -> Result<u16, String> {
    static NEXT: AtomicU16 = AtomicU16::new(FIRST);
    let taken = |port: &u16| TcpListener::bind(local(*port)).is_err();
    let mut first = NEXT.load(Ordering::Relaxed);
    while u32::from(first) + u32::from(count) <= u32::from(END) {
        let end = first + count;
        match (first..end).rev().find(taken) {
            Some(taken) => first = taken + 1,
            None => {
                NEXT.store(end, Ordering::Relaxed);
                return Ok(first);
            }
        }
    }
    Err(format!("no {count} consecutive free ports below {END}"))
}
