//! One request's life outside the wire: prepare, select, account, map errors; and the services
//! around it.
//!
//! Everything here compiles and tests without Pingora and without a socket. It refuses to know
//! how bytes travel; `proxy` does.

pub mod app;
pub mod bootstrap;
pub mod budget;
pub mod cached;
pub mod chat_body;
pub mod discovery;
pub mod dispatch;
mod error;
pub mod explain;
pub mod follow;
pub mod forward_ids;
pub mod header_facts;
pub mod heads;
pub mod json_end;
pub mod kubernetes;
pub mod live;
pub mod metrics;
pub mod models;
pub mod names;
pub mod pool;
pub mod prepare;
pub mod reload;
pub mod rid;
pub mod routing;
pub mod sampling;
pub mod secrets;
pub mod select;
pub mod skip;
pub mod splice;
pub mod sse;
pub mod state_view;
pub mod token_routes;
pub mod tokenize;

pub use error::ApiError;
