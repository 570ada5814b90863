//! The fault matrix: what an engine does × which leg it plays × JSON and stream × HTTP/1.1 and
//! HTTP/2 clients; in every cell the right answer, outcome, breaker state, and zero gauges.
//!
//! All cells of one leg share one proxy. Each has a model and engines of its own, named after the
//! cell, so that cells run at the same time and their series do not mix. A cell meets its fault
//! three times, which is what opens a breaker if anything does, then heals and must serve again.

mod broken;
pub(crate) mod cell;
mod decode;
mod plain;
mod prefill;
mod reuse;
pub(crate) mod run;
pub(crate) mod watched;
