//! Builders and fakes shared by the integration tests. No sockets, no fixed ports, no mutable
//! globals; everything goes through the public API of the crate.
//!
//! A test binary includes the folder once: `#[path = "../support/mod.rs"] mod support;`.

pub(crate) mod engines;
pub(crate) mod fakes;
pub(crate) mod loads;
pub(crate) mod picks;
pub(crate) mod routing;
pub(crate) mod seed;
pub(crate) mod simulation;
