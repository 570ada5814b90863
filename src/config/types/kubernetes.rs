//! Engines that are found by label.

use std::collections::BTreeMap;
use std::fmt;

use crate::ids::Stage;

/// Label → value.
pub type Labels = BTreeMap<String, String>;

/// Where engines are looked for in Kubernetes. Source: http-and-operations §15.2.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kubernetes {
    /// The namespace; `None` is all of them.
    pub namespace: Option<String>,
    /// By which labels of their EndpointSlices, which are those of the Service.
    pub select: Select,
}

/// Which slices hold engines, and of which role.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Select {
    /// Plain engines, by a label selector as the API server reads it.
    Plain(String),
    /// Prefill and decode engines, by equal labels.
    Pd {
        /// Labels of prefill slices, at least one.
        prefill: Labels,
        /// Labels of decode slices, at least one; not the same.
        decode: Labels,
    },
}

impl Select {
    /// The role of the engines in a slice with these labels; `None` if they are not meant. A slice
    /// that both selectors match counts as prefill. A plain selector leaves the choice to the
    /// server: whatever came is meant.
    #[must_use]
    pub fn role(&self, labels: &Labels) -> Option<Stage> {
        let has = |wanted: &Labels| {
            wanted
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
        };
        match self {
            Self::Plain(_) => Some(Stage::Plain),
            Self::Pd { prefill, .. } if has(prefill) => Some(Stage::Prefill),
            Self::Pd { decode, .. } if has(decode) => Some(Stage::Decode),
            Self::Pd { .. } => None,
        }
    }
}

impl fmt::Display for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "namespace {namespace}")?,
            None => f.write_str("all namespaces")?,
        }
        match &self.select {
            Select::Plain(selector) => write!(f, ", plain by {selector}"),
            Select::Pd { prefill, decode } => {
                write!(
                    f,
                    ", prefill by {}, decode by {}",
                    terms(prefill),
                    terms(decode)
                )
            }
        }
    }
}

/// The labels as terms of a selector.
#[must_use]
pub(crate) fn terms(labels: &Labels) -> String {
    let terms: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}={value}"))
        .collect();
    terms.join(",")
}
