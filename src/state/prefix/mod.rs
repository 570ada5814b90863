//! Prefix ownership: which engine holds the beginning of which prompt.

mod assumed;
mod formats;
pub mod index;
mod local;
mod memo;
mod names;
mod source;

pub use assumed::{AssumedPrefixes, Assumption};
pub use formats::{Announced, Formats};
pub use index::{Applied, EngineDepths, Found, Holder, IndexSize, PrefixIndex};
pub use local::{LocalPrefixes, PrefixIndexes};
pub use memo::PrefixMemo;
pub use names::BlockNames;
pub use source::{
    BoxFuture, CacheSource, LookupRejected, PrefixAnswer, PrefixMatches, PrefixQuery, Unavailable,
};
