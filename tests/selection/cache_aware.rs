//! The cache policy through the public API: policy-semantics §16 and §17.

mod fleet;
mod order;
mod signals;
mod worked;
