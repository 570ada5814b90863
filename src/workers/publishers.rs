//! What an engine publishes over ZMQ, and where.
//!
//! Learned from the `kv_events` block of its `/server_info`, or written by hand in the file. Knows
//! addresses only: what is sent there is the business of `feeds`. Source: engine-wire §1.3, §2.1.

use serde::Deserialize;

use crate::workers::TcpEndpoint;

/// Topic of load reports where nothing else is said. Source: engine-wire §2.1.
pub const LOAD_TOPIC: &str = "load";

/// Most ranks that are followed; a larger number is taken for a broken answer.
const MAX_RANKS: u32 = 4096;

/// The publishers of one engine: one socket per rank and kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publishers {
    /// KV events of rank 0; rank r is r ports higher.
    pub events: TcpEndpoint,
    /// Replay of KV events of rank 0, if offered.
    pub replay: Option<TcpEndpoint>,
    /// Topic prefix of KV events; empty means everything.
    pub topic: String,
    /// Tokens per block, above zero; `None` when a file does not say.
    pub block_size: Option<u32>,
    /// Ranks, at least 1; every one of them publishes.
    pub ranks: u32,
    /// Load reports of rank 0, if offered.
    pub load: Option<TcpEndpoint>,
    /// Topic of load reports.
    pub load_topic: String,
}

/// The block as an engine writes it. Unknown keys are ignored.
#[derive(Debug, Deserialize)]
struct Block {
    publisher: String,
    endpoint_host: String,
    endpoint_port_base: u16,
    #[serde(default)]
    topic: String,
    block_size: u32,
    dp_size: u32,
    load_endpoint_port_base: Option<u16>,
    load_topic: Option<String>,
    replay_endpoint_port_base: Option<u16>,
}

impl Publishers {
    /// Reads the block of an engine at `engine_host` (IPv6 in brackets), which takes the place of
    /// a wildcard. Load reports need both of their keys. Port 0 is no port.
    ///
    /// # Errors
    /// A sentence about what is wrong with the block.
    pub fn from_server_info(block: &serde_json::Value, engine_host: &str) -> Result<Self, String> {
        let block = Block::deserialize(block).map_err(|error| error.to_string())?;
        if block.publisher != "zmq" {
            return Err(format!("unknown publisher `{}`", block.publisher));
        }
        if block.block_size == 0 || block.endpoint_port_base == 0 {
            return Err("block_size and endpoint_port_base must be above 0".to_owned());
        }
        if !(1..=MAX_RANKS).contains(&block.dp_size) {
            return Err(format!("dp_size must be from 1 to {MAX_RANKS}"));
        }
        let host = match block.endpoint_host.as_str() {
            "" | "*" | "0.0.0.0" | "::" | "[::]" => engine_host,
            host => host,
        };
        let at = |port: Option<u16>| {
            port.filter(|port| *port > 0)
                .map(|port| TcpEndpoint::new(host, port))
        };
        let load = block
            .load_topic
            .is_some()
            .then_some(block.load_endpoint_port_base);
        Ok(Self {
            events: TcpEndpoint::new(host, block.endpoint_port_base),
            replay: at(block.replay_endpoint_port_base),
            topic: block.topic,
            block_size: Some(block.block_size),
            ranks: block.dp_size,
            load: at(load.flatten()),
            load_topic: block.load_topic.unwrap_or_else(|| LOAD_TOPIC.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn full() -> serde_json::Value {
        json!({
            "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv",
            "block_size": 64, "dp_size": 4, "load_endpoint_port_base": 5561, "load_topic": "load",
            "replay_endpoint_port_base": 6000, "something_new": [1],
        })
    }

    #[test]
    fn a_full_block_is_read_with_the_engines_host_for_a_wildcard() {
        for wildcard in ["*", "0.0.0.0", "::", "[::]"] {
            let mut block = full();
            block["endpoint_host"] = wildcard.into();
            let found = Publishers::from_server_info(&block, "[fe80::1]").unwrap();
            let at = |port| TcpEndpoint::new("[fe80::1]", port);
            assert_eq!(
                found,
                Publishers {
                    events: at(5557),
                    replay: Some(at(6000)),
                    topic: "kv".to_owned(),
                    block_size: Some(64),
                    ranks: 4,
                    load: Some(at(5561)),
                    load_topic: "load".to_owned(),
                }
            );
        }
        let mut block = full();
        block["endpoint_host"] = "10.0.0.9".into();
        let found = Publishers::from_server_info(&block, "10.0.0.1").unwrap();
        assert_eq!(found.events.to_string(), "tcp://10.0.0.9:5557");
    }

    #[test]
    fn load_reports_need_both_of_their_keys() {
        for key in ["load_endpoint_port_base", "load_topic"] {
            let mut block = full();
            block.as_object_mut().unwrap().remove(key);
            let found = Publishers::from_server_info(&block, "h").unwrap();
            assert_eq!(found.load, None, "{key}");
        }
        let mut block = full();
        block["replay_endpoint_port_base"] = json!(null);
        assert_eq!(
            Publishers::from_server_info(&block, "h").unwrap().replay,
            None
        );
    }

    #[test]
    fn a_broken_block_is_refused_with_its_reason() {
        let rows = [
            ("publisher", json!("null"), "unknown publisher"),
            ("block_size", json!(0), "above 0"),
            ("block_size", json!(-1), "invalid value"),
            ("endpoint_port_base", json!(0), "above 0"),
            ("endpoint_port_base", json!(65_536), "invalid value"),
            ("dp_size", json!(0), "dp_size"),
            ("dp_size", json!(5000), "dp_size"),
            ("topic", json!(3), "invalid type"),
            ("load_endpoint_port_base", json!("x"), "invalid type"),
        ];
        for (key, value, expected) in rows {
            let mut block = full();
            block[key] = value;
            let error = Publishers::from_server_info(&block, "h").unwrap_err();
            assert!(error.contains(expected), "{key}: {error}");
        }
        assert!(Publishers::from_server_info(&json!([]), "h").is_err());
    }
}
