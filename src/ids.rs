//! Names of things. Knows nothing else and has no behaviour.
//!
//! Every id is a shared immutable string: cloning one costs a counter, not an allocation.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as written.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(value: &str) -> Self {
                Self(value.into())
            }
        }

        impl From<String> for $name {
            fn from(value: String) -> Self {
                Self(value.into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// A configured model. Compared exactly, case included.
    ModelId
);
id!(
    /// One engine. Ordered bytewise (`w10` before `w2`), so that cursors see a stable list.
    WorkerId
);
id!(
    /// One bucket of a model. Ordered bytewise.
    BucketId
);

/// Which part of a request an engine group serves; also the role label of an engine.
///
/// A group takes only engines whose role equals its stage. Source: design §2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Prefill and decode in one engine.
    Plain,
    /// The prefill half of a pair.
    Prefill,
    /// The decode half of a pair.
    Decode,
}

impl Stage {
    /// All stages, in the order in which metrics list them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Prefill, Self::Decode];

    /// The label used in files, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
