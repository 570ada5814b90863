//! No answer of any test may show an engine's address.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use parking_lot::Mutex;

static ENGINES: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// From now on no answer may hold this address.
pub(crate) fn guard(engine: SocketAddr) {
    ENGINES.lock().insert(engine.port());
}

/// Looks through one answer of the data listener.
pub(crate) fn check(head: &[u8], body: &[u8]) {
    for part in [head, &body[..body.len().min(64 * 1024)]] {
        let text = String::from_utf8_lossy(part);
        assert!(
            !text.contains("127.0.0.1"),
            "an answer shows an address: {text}"
        );
        for (at, _) in text.match_indices(':') {
            let digits: String = text[at + 1..]
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            let port = digits.parse().ok().filter(|port| *port > 1024);
            let is_engine = port.is_some_and(|port| ENGINES.lock().contains(&port));
            assert!(!is_engine, "an answer shows the port of an engine: {text}");
        }
    }
}
