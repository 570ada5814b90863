//! What must fit together, once every value is right. Source: policy-semantics §20.

use std::collections::BTreeSet;

use crate::config::flags::document::Groups;
use crate::config::flags::table::{FLAGS, Needs};
use crate::config::flags::values::Values;
use crate::config::flags::{Complaints, Flags};
use crate::policies::PolicyKind;

/// When nobody says otherwise, a platform kills after this many seconds.
const ASSUMED_GRACE_SECS: u64 = 30;

/// Everything that is missing or has no use.
pub(super) fn check(
    flags: &Flags,
    values: &Values,
    groups: &Groups,
    mut complaints: Complaints,
) -> Complaints {
    if !flags.has("model-id") {
        complaints.add(
            "model-id",
            "missing: give the name that requests send as `model`",
        );
    }
    sources(flags, &mut complaints);
    let kinds = groups.kinds();
    for flag in FLAGS.iter().filter(|flag| flags.has(flag.name)) {
        match flag.needs {
            Needs::Nothing => {}
            Needs::Flag(other) if flags.has(other) => {}
            Needs::Flag(other) => complaints.add(flag.name, format!("needs --{other}")),
            Needs::Policy(kind) if kinds.contains(kind.as_str()) => {}
            Needs::Policy(kind) => complaints.add(flag.name, unused(kind, &kinds)),
        }
    }
    cache(flags, values, &mut complaints);
    complaints
}

fn unused(kind: PolicyKind, kinds: &BTreeSet<&str>) -> String {
    let found: Vec<&str> = kinds.iter().copied().collect();
    format!(
        "applies to {kind}, which no group uses (found {}): give --policy {kind}, or remove the flag",
        found.join(", ")
    )
}

/// Exactly one place that engines come from, and labels that tell roles apart.
fn sources(flags: &Flags, complaints: &mut Complaints) {
    match (flags.has("worker-urls"), flags.has("service-discovery")) {
        (true, true) => complaints.add(
            "service-discovery",
            "excludes --worker-urls: choose one source of engines",
        ),
        (false, false) => complaints.add(
            "worker-urls",
            "missing: give the engines' addresses, or --service-discovery",
        ),
        (true, false) | (false, true) => {}
    }
    let (prefill, decode) = (flags.has("prefill-selector"), flags.has("decode-selector"));
    if flags.has("selector") && (prefill || decode) {
        complaints.add(
            "selector",
            "excludes --prefill-selector and --decode-selector",
        );
    }
    match (prefill, decode) {
        (true, false) => complaints.add("prefill-selector", "needs --decode-selector"),
        (false, true) => complaints.add("decode-selector", "needs --prefill-selector"),
        (true, true) | (false, false) => {}
    }
}

fn cache(flags: &Flags, values: &Values, complaints: &mut Complaints) {
    let endpoint = flags.has("kv-indexer-endpoint");
    match values.word("cache-prefix-provider", "") {
        "indexer" if !endpoint => {
            complaints.add(
                "cache-prefix-provider",
                "indexer needs --kv-indexer-endpoint",
            );
        }
        "radix_tree" if endpoint => complaints.add(
            "kv-indexer-endpoint",
            "applies to --cache-prefix-provider indexer, not to radix_tree",
        ),
        _ => {}
    }
}

/// What is right but may surprise.
pub(super) fn notes(flags: &Flags, values: &Values) -> Vec<String> {
    let mut notes = Vec::new();
    if !flags.has("tokenizer-path") {
        notes.push(
            "no --tokenizer-path: prompt lengths are estimated from bytes (nothing is downloaded by model id)"
                .to_owned(),
        );
    }
    let seconds = |name: &str, default: u64| {
        let text = values.word(name, "");
        let digits = text
            .strip_suffix('s')
            .and_then(|digits| digits.parse().ok());
        digits.unwrap_or(default)
    };
    let asked = flags.has("shutdown-drain-secs") || flags.has("termination-grace-secs");
    let drain = seconds("shutdown-drain-secs", 30);
    let grace = seconds("termination-grace-secs", ASSUMED_GRACE_SECS);
    if asked && drain >= grace {
        notes.push(format!(
            "--shutdown-drain-secs {drain} is not below the platform's grace of {grace}s (--termination-grace-secs): requests may be killed while draining"
        ));
    }
    notes
}
