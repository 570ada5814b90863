//! The program from outside: the real binary between mock engines and clients that speak raw HTTP.

mod affinity;
mod bad_input;
mod cache;
mod explain;
mod flags;
mod loads;
mod metrics;
mod outcomes;
mod pd;
mod reload;
mod shutdown;
mod sizes;
mod streaming;
mod support;
