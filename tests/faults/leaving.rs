//! The client goes away, in every phase of a request: the engine is let go within a second, told by
//! id where this router made the id and nowhere else, and nobody is blamed.
//!
//! As in the matrix all cells share a proxy, and each leaves three times, which is more often than a
//! breaker forgives.

mod connecting;
mod phases;
mod prefill;
mod tokenizing;
mod visit;
