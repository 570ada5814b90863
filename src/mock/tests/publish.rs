//! What an engine says about its publishers; what it publishes is tested with the router's own
//! client in `tests/loads`.

use serde_json::json;

use super::client::get;
use crate::mock::{EngineConfig, start};

#[tokio::test]
async fn publishers_are_announced_where_they_listen() {
    let config = EngineConfig {
        kv_port: Some(0),
        load_port: Some(0),
        kv_ranks: 2,
        ..EngineConfig::default()
    };
    let engine = start(config).await.unwrap();
    let (kv_port, load_port) = (engine.kv_port().unwrap(), engine.load_port().unwrap());
    let info = get(&engine, "/server_info").await.json();
    let block = json!({
        "publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": kv_port,
        "topic": "", "block_size": 64, "dp_size": 2,
        "load_endpoint_port_base": load_port, "load_topic": "load",
    });
    assert_eq!(info["kv_events"], block);
    assert_eq!(info["dp_size"], 2);
    let loads = get(&engine, "/v1/loads").await.json();
    let ranks: Vec<_> = loads["loads"].as_array().unwrap().iter().collect();
    assert_eq!(ranks.len(), 2);
    let one = get(&engine, "/v1/loads?dp_rank=1").await.json();
    assert_eq!(one["loads"][0]["dp_rank"], 1);
    for port in [kv_port, load_port] {
        for port in port..port + 2 {
            let address = (engine.addr().ip(), port);
            assert!(
                tokio::net::TcpStream::connect(address).await.is_ok(),
                "{port}"
            );
        }
    }
}
