//! Where session ids and routing keys are read, and how long their bindings last.
//!
//! A setting other than its default needs a group that uses it. Names, units and defaults:
//! contract §2; domains: policy-semantics §20.

use std::time::Duration;

use crate::config::reader::{Fields, Problems, Read, short};
use crate::config::scalars::{string, time};
use crate::config::tree::Node;
use crate::config::types::{Affinity, AffinityKeys, Bucket};
use crate::policies::PolicyKind;

/// The settings of one kind, in the order header, idle, eviction interval.
const SESSION: [&str; 3] = [
    "session_id_header",
    "session_idle",
    "session_eviction_interval",
];
const STICKY: [&str; 3] = [
    "routing_key_header",
    "sticky_idle",
    "sticky_eviction_interval",
];

/// The affinity settings of a model. `buckets` is `None` where they are not known.
pub(super) fn affinity(
    problems: &mut Problems,
    model: &Fields<'_>,
    buckets: Option<&[Bucket]>,
) -> Option<Affinity> {
    let known = [SESSION, STICKY].concat();
    let fields = problems.section(model, "affinity", &known)?;
    let default = Affinity::default();
    let session = keys(problems, &fields, SESSION, default.session);
    let sticky = keys(problems, &fields, STICKY, default.sticky);
    let affinity = Affinity {
        session: session?,
        sticky: sticky?,
    };
    if let Some(buckets) = buckets {
        let default = Affinity::default();
        let rows = [
            (
                SESSION,
                PolicyKind::SessionAware,
                &affinity.session,
                default.session,
            ),
            (STICKY, PolicyKind::Sticky, &affinity.sticky, default.sticky),
        ];
        for (names, kind, keys, default) in rows {
            unused(
                problems,
                &fields,
                names,
                kind,
                &changed(keys, &default),
                buckets,
            );
        }
    }
    Some(affinity)
}

fn keys(
    problems: &mut Problems,
    fields: &Fields<'_>,
    names: [&str; 3],
    default: AffinityKeys,
) -> Option<AffinityKeys> {
    let header = problems.setting(fields, names[0], header, default.header);
    let idle = problems.setting(fields, names[1], time, default.idle);
    let interval = problems.setting(fields, names[2], time, default.eviction_interval);
    Some(AffinityKeys {
        header: header?,
        idle: idle?,
        eviction_interval: interval?,
    })
}

/// The name of a header, in lower case.
pub(super) fn header(node: &Node) -> Read<String> {
    let text = string(node)?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(token) {
        return Err(format!("`{}` is not the name of a header", short(&text)));
    }
    Ok(text.to_ascii_lowercase())
}

fn changed(keys: &AffinityKeys, default: &AffinityKeys) -> [bool; 3] {
    [
        keys.header != default.header,
        keys.idle != default.idle,
        keys.eviction_interval != default.eviction_interval,
    ]
}

/// Refuses what was changed although nothing reads it.
fn unused(
    problems: &mut Problems,
    fields: &Fields<'_>,
    names: [&str; 3],
    kind: PolicyKind,
    changed: &[bool; 3],
    buckets: &[Bucket],
) {
    let mut groups = buckets.iter().flat_map(|bucket| bucket.groups.iter());
    if groups.any(|group| group.policy.kind() == kind) {
        return;
    }
    for (name, changed) in names.into_iter().zip(changed) {
        if *changed {
            let problem = format!("`{name}` applies to {kind}, which no group of this model uses");
            problems.add(&fields.place_of(name), problem);
        }
    }
}

impl Default for Affinity {
    fn default() -> Self {
        let keys = |header: &str| AffinityKeys {
            header: header.to_owned(),
            idle: Duration::from_secs(600),
            eviction_interval: Duration::from_secs(60),
        };
        Self {
            session: keys("x-session-id"),
            sticky: keys("x-sgl-routing-key"),
        }
    }
}
