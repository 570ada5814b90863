//! Engines from Kubernetes: the program itself, with KUBECONFIG pointing to a stand-in of the API
//! server ([`api`]) and mock engines on loopback.

mod api;
mod failures;
mod fleet;
mod life;
mod offline;
mod reload;
#[path = "../proxy/support/mod.rs"]
#[expect(dead_code, reason = "shared with tests/proxy, which uses the rest")]
mod support;
