//! What EndpointSlices say of engines: slices in, specs out.
//!
//! A function of the slices only: no cluster, no clock. Source: http-and-operations §15.1, §15.2.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv6Addr};

use crate::config::{Labels, Select};
use crate::ids::{ModelId, Stage, WorkerId};
use crate::workers::{EngineUrl, WorkerSpec};

/// The port of an engine whose slice names none; SGLang's own default.
const DEFAULT_PORT: u16 = 30000;

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceKey {
    /// The namespace.
    pub namespace: String,
    /// Unique in it.
    pub name: String,
}

/// A part of the endpoints of one Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slice {
    /// Those of the Service, mostly.
    pub labels: Labels,
    /// The first port, if it has a number.
    pub port: Option<u16>,
    /// In any order.
    pub endpoints: Vec<Endpoint>,
}

/// One endpoint of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its first address: an IP or a name.
    pub address: String,
    /// Whether it takes requests; `None` counts as yes.
    pub ready: Option<bool>,
    /// Whether it is about to end.
    pub terminating: bool,
    /// The uid of its pod, if it is one.
    pub pod: Option<String>,
}

/// The engines in `slices`, sorted by id. An endpoint that several slices list is one engine.
///
/// Ready in one slice is ready, because slices change one after the other; a pod that terminates
/// in one has no way back, whatever the others still say.
#[must_use]
pub(super) fn engines(
    slices: &BTreeMap<SliceKey, Slice>,
    select: &Select,
    model: &ModelId,
) -> Vec<WorkerSpec> {
    let mut found: BTreeMap<WorkerId, WorkerSpec> = BTreeMap::new();
    let mut leaving = BTreeSet::new();
    for (key, slice) in slices {
        let Some(role) = select.role(&slice.labels) else {
            continue;
        };
        for endpoint in &slice.endpoints {
            let Some(spec) = spec(key, slice, endpoint, role, model) else {
                continue;
            };
            if endpoint.terminating {
                leaving.insert(spec.id);
            } else if endpoint.ready.unwrap_or(true) {
                let best = found.entry(spec.id.clone()).or_insert_with(|| spec.clone());
                if rank(&spec) < rank(best) {
                    *best = spec;
                }
            }
        }
    }
    found.retain(|id, _| !leaving.contains(id));
    let mut urls = HashSet::new();
    found
        .into_values()
        .filter(|spec| urls.insert(spec.url.clone()))
        .collect()
}

/// `None` for an address that is none; an API server lets none in.
fn spec(
    key: &SliceKey,
    slice: &Slice,
    endpoint: &Endpoint,
    role: Stage,
    model: &ModelId,
) -> Option<WorkerSpec> {
    let port = slice.port.unwrap_or(DEFAULT_PORT);
    let host = match endpoint.address.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => endpoint.address.clone(),
    };
    let url = EngineUrl::parse(&format!("http://{host}:{port}")).ok()?;
    let namespace = &key.namespace;
    let id = match &endpoint.pod {
        Some(pod) => format!("{namespace}/{pod}"),
        None => format!("{namespace}/{}/{host}:{port}", key.name),
    };
    Some(WorkerSpec {
        id: id.into(),
        url,
        model: model.clone(),
        role,
        bootstrap_port: None,
    })
}

/// Which of several entries of one pod counts, lowest first: prefill before decode, IPv4 before
/// IPv6 before names, then by text. Not by slice, so that a pod that moves to another slice of its
/// Service stays the same engine.
fn rank(spec: &WorkerSpec) -> (Stage, u8, String) {
    let family = match spec.url.ip() {
        Some(IpAddr::V4(_)) => 0,
        Some(IpAddr::V6(_)) => 1,
        None => 2,
    };
    (spec.role, family, spec.url.to_string())
}

#[cfg(test)]
mod tests;
