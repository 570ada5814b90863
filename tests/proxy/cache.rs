//! Cache-aware routing through HTTP, over engines that hold real caches and announce them.

mod follow;
mod indexer;
mod streams;
mod worked;
