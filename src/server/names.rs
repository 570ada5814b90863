//! Host names of engines, resolved when a routing is built.

use std::net::ToSocketAddrs;

use crate::workers::Members;

/// Resolves every engine whose URL holds a name (blocking). A name that does not resolve leaves
/// the engine without an address: it is refused at dispatch and looked up again later.
pub fn resolve(members: &Members) {
    for engine in members.all() {
        if engine.address().is_some() {
            continue;
        }
        let found = (engine.url().host(), engine.url().port()).to_socket_addrs();
        match found.map(|mut addresses| addresses.next()) {
            Ok(Some(address)) => engine.set_address(address),
            Ok(None) => tracing::warn!(engine = %engine.id(), "name has no address"),
            Err(error) => tracing::warn!(engine = %engine.id(), %error, "name does not resolve"),
        }
    }
}
