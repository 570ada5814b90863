//! Every answer the router can give, with status, code, envelope, headers and honest keep-alive.
//!
//! Rows: policy-semantics §6. One file per place where the answer is decided.

mod engines;
mod headers;
mod limits;
mod requests;
mod routes;
mod selection;
mod timeouts;
mod tokens;
