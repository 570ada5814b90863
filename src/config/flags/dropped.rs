//! Flags that no longer exist, and what to do instead. Source: design §7, policy-semantics §21, §23.

const SCORES: &str =
    "score composition was removed: choose cache_aware, load_based or power_of_two as --policy";
const ZMQ: &str = "it belonged to cache_aware_zmq, which was removed: use --policy cache_aware, whose pressure guard is tuned by --cache-switch-margin-tokens and the --pressure-… flags";

const DROPPED: &[(&str, &str)] = &[
    ("fuse", SCORES),
    ("fuse-weights", SCORES),
    ("weights", SCORES),
    (
        "stable-pair",
        "primary and backup pairs were removed, every policy returns one engine: remove the flag",
    ),
    (
        "prefix-cache-min-share",
        "the prefix_cache filter was removed, and the minimum-hit gate of cache_aware (--cache-affinity-min-matched-tokens) is not the same: remove the flag",
    ),
    ("cache-threshold", ZMQ),
    ("balance-abs-threshold", ZMQ),
    ("balance-rel-threshold", ZMQ),
    (
        "chat-routing",
        "there is one way of routing, bucket first: remove the flag",
    ),
    (
        "power-of-n-choices",
        "write `choices` of power_of_two in a file (`sgl-edge config` prints one to start from)",
    ),
];

/// Their names.
pub(super) const NAMES: &[&str] = &names();

const fn names() -> [&'static str; DROPPED.len()] {
    let mut names = [""; DROPPED.len()];
    let mut index = 0;
    while index < DROPPED.len() {
        names[index] = DROPPED[index].0;
        index += 1;
    }
    names
}

/// What to do instead of a dropped flag.
pub(super) fn advice(name: &str) -> &'static str {
    let row = DROPPED.iter().find(|(dropped, _)| *dropped == name);
    row.map_or("it was removed", |(_, advice)| advice)
}
