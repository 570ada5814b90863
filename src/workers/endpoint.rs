//! Where an engine publishes: `tcp://HOST:PORT`, one port per rank.

use std::fmt;

use thiserror::Error;

/// What was written is not `tcp://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not tcp://HOST:PORT")]
pub struct EndpointError;

/// Address of a publishing socket; of several ranks, the first. IPv6 hosts keep their brackets.
///
/// Source: engine-wire §1.2, §1.3.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TcpEndpoint {
    host: String,
    port: u16,
}

impl TcpEndpoint {
    /// `host` as in a URL, IPv6 in brackets; `port` from 1.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_owned(),
            port,
        }
    }

    /// Reads `tcp://HOST:PORT`.
    ///
    /// # Errors
    /// [`EndpointError`] for any other text, an empty host, a port that is not 1..=65535.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let (host, port) = text
            .strip_prefix("tcp://")
            .and_then(|rest| rest.rsplit_once(':'))
            .ok_or(EndpointError)?;
        let inner = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let sound = match inner {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
                !host.is_empty() && host.chars().all(plain)
            }
        };
        match port.parse() {
            Ok(port @ 1..) if sound => Ok(Self::new(host, port)),
            Ok(_) | Err(_) => Err(EndpointError),
        }
    }

    /// The address of `rank`: ranks listen on consecutive ports. `None` above port 65535.
    #[must_use]
    pub fn of_rank(&self, rank: u32) -> Option<Self> {
        let port = u32::from(self.port).checked_add(rank)?;
        Some(Self::new(&self.host, u16::try_from(port).ok()?))
    }

    /// Host and port as a resolver takes them: IPv6 without brackets.
    #[must_use]
    pub fn host_and_port(&self) -> (&str, u16) {
        (self.host.trim_matches(['[', ']']), self.port)
    }
}

impl fmt::Display for TcpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_reads_back_as_it_was_written() {
        for text in [
            "tcp://10.0.0.1:5557",
            "tcp://[::1]:1",
            "tcp://pod-1.ns:65535",
        ] {
            assert_eq!(TcpEndpoint::parse(text).unwrap().to_string(), text);
        }
        let six = TcpEndpoint::parse("tcp://[::1]:7").unwrap();
        assert_eq!(six.host_and_port(), ("::1", 7));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "10.0.0.1:5557",
            "ipc:///tmp/x",
            "tcp://:5557",
            "tcp://*:5557",
            "tcp://a",
            "tcp://a:0",
            "tcp://a:65536",
            "tcp://::1:5",
            "tcp://[::1:5",
            "tcp://a b:5",
            "tcp://a:-1",
        ] {
            assert_eq!(TcpEndpoint::parse(text), Err(EndpointError), "{text}");
        }
    }

    #[test]
    fn ranks_take_consecutive_ports_up_to_the_last_port() {
        let base = TcpEndpoint::new("h", 65_534);
        assert_eq!(base.of_rank(0), Some(base.clone()));
        assert_eq!(base.of_rank(1), Some(TcpEndpoint::new("h", 65_535)));
        assert_eq!(base.of_rank(2), None);
        assert_eq!(base.of_rank(u32::MAX), None);
    }
}
