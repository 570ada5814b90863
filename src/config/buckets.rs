//! The buckets of one model: ranges, rank and groups.
//!
//! Orders nothing and looks at no engine; a member that does not exist is a warning, not an error
//! (policy-semantics §4), so that engines may come and go. Source: design §3, §7.

use std::collections::{BTreeSet, HashMap};

use crate::config::policy;
use crate::config::reader::{At, Fields, Problems};
use crate::config::scalars::{name, positive, real, small, unsigned};
use crate::config::types::{Bucket, Group, Groups};
use crate::ids::{BucketId, Stage, WorkerId};

const KEYS: [&str; 7] = [
    "id",
    "rank",
    "limits",
    "max_context_tokens",
    "ttft_ms",
    "tokens_per_second",
    "groups",
];

/// The buckets. `None` if one could not be read.
pub(super) fn buckets(problems: &mut Problems, model: &Fields<'_>) -> Option<Vec<Bucket>> {
    let Some(at) = model.get("buckets") else {
        return Some(implicit().to_vec());
    };
    let items = problems.list(&at)?;
    if items.is_empty() {
        let problem =
            "no buckets: leave the key out for one catch-all `plain` and one catch-all `pd`";
        problems.add(&at.place, problem);
        return None;
    }
    let mut lines: HashMap<BucketId, usize> = HashMap::new();
    let buckets: Vec<Option<Bucket>> = items
        .iter()
        .map(|item| bucket(problems, item, &mut lines))
        .collect();
    buckets.into_iter().collect()
}

/// The pair that serves a model without buckets. `plain` ranks first: by id alone "pd" would.
/// Source: contract §2, policy-semantics §3 "Ties".
pub(super) fn implicit() -> [Bucket; 2] {
    let catch_all = |id: &str, rank, groups| Bucket {
        id: id.into(),
        rank,
        min_input_tokens: None,
        max_input_tokens: None,
        max_context_tokens: None,
        ttft_ms: None,
        tokens_per_second: None,
        groups,
    };
    let pd = Groups::Pd {
        prefill: Group::default(),
        decode: Group::default(),
    };
    [
        catch_all("plain", 0, Groups::Plain(Group::default())),
        catch_all("pd", 1, pd),
    ]
}

fn bucket(
    problems: &mut Problems,
    at: &At<'_>,
    lines: &mut HashMap<BucketId, usize>,
) -> Option<Bucket> {
    let fields = problems.map(at, &KEYS)?;
    let id = problems.required(&fields, "id", name, "a name that is unique in this model");
    let id = id.map(BucketId::from);
    if let Some(id) = &id {
        let place = fields.place_of("id");
        match lines.get(id) {
            Some(first) => {
                let problem = format!(
                    "bucket id `{id}` is already used on line {first}: ids are unique in a model"
                );
                problems.add(&place, problem);
            }
            None => {
                lines.insert(id.clone(), place.line);
            }
        }
    }
    let rank = problems.setting(&fields, "rank", small(0), 0);
    let ranges = ranges(problems, &fields);
    let mut estimate = |key| {
        let above_zero = real("it must be above zero", |number| number > 0.0);
        problems.optional(&fields, key, above_zero)
    };
    let ttft_ms = estimate("ttft_ms");
    let tokens_per_second = estimate("tokens_per_second");
    let groups = groups(problems, &fields);
    let (min_input_tokens, max_input_tokens, max_context_tokens) = ranges?;
    Some(Bucket {
        id: id?,
        rank: rank?,
        min_input_tokens,
        max_input_tokens,
        max_context_tokens,
        ttft_ms: ttft_ms?,
        tokens_per_second: tokens_per_second?,
        groups: groups?,
    })
}

type Ranges = (Option<u64>, Option<u64>, Option<u64>);

/// `limits.min`, `limits.max` and `max_context_tokens`.
fn ranges(problems: &mut Problems, fields: &Fields<'_>) -> Option<Ranges> {
    let limits = problems.section(fields, "limits", &["min", "max"]);
    let mut range = |key| {
        let limits = limits.as_ref()?;
        problems.optional(limits, key, unsigned)
    };
    let (min, max) = (range("min"), range("max"));
    let context = problems.optional(fields, "max_context_tokens", positive);
    if let (Some(Some(min)), Some(Some(max))) = (min, max)
        && min > max
    {
        let problem = format!("min {min} is above max {max}");
        problems.add(&fields.place_of("limits"), problem);
    }
    if let (Some(Some(min)), Some(Some(context))) = (min, context)
        && min > context
    {
        let problem = format!(
            "the bucket is unreachable: limits.min {min} is above max_context_tokens {context}"
        );
        problems.add(&fields.place_of("max_context_tokens"), problem);
    }
    Some((min?, max?, context?))
}

const WANTED: &str = "write `plain`, or `pd: {prefill: {…}, decode: {…}}`";

fn groups(problems: &mut Problems, bucket: &Fields<'_>) -> Option<Groups> {
    let Some(at) = bucket.get("groups") else {
        problems.add(
            &bucket.place_of("groups"),
            format_args!("missing: {WANTED}"),
        );
        return None;
    };
    let fields = problems.map(&at, &["plain", "pd"])?;
    // `plain:` without a value is a plain group with its defaults, as is `plain: {}`.
    let has = |key| fields.get(key).is_some() || fields.is_null(key);
    let plain = if has("plain") {
        group(problems, &fields, Stage::Plain)
    } else {
        None
    };
    let pd = if has("pd") {
        pd(problems, &fields)
    } else {
        None
    };
    match (has("plain"), has("pd")) {
        (true, true) => {
            problems.add(
                &at.place,
                "has plain and pd: a bucket serves one kind, make two buckets of it",
            );
            None
        }
        (false, false) => {
            if fields.is_empty() {
                problems.add(&at.place, format_args!("no group: {WANTED}"));
            }
            None
        }
        (true, false) => plain.map(Groups::Plain),
        (false, true) => pd,
    }
}

fn pd(problems: &mut Problems, groups: &Fields<'_>) -> Option<Groups> {
    let fields = problems.section(groups, "pd", &["prefill", "decode"])?;
    let mut half = |stage: Stage| {
        let key = stage.as_str();
        if fields.get(key).is_none() && !fields.is_null(key) {
            let problem = format!(
                "missing: a pd bucket needs prefill and decode; write `{key}: {{}}` for every {key} engine of the model"
            );
            problems.add(&fields.place_of(key), problem);
            return None;
        }
        group(problems, &fields, stage)
    };
    let (prefill, decode) = (half(Stage::Prefill), half(Stage::Decode));
    Some(Groups::Pd {
        prefill: prefill?,
        decode: decode?,
    })
}

fn group(problems: &mut Problems, parent: &Fields<'_>, stage: Stage) -> Option<Group> {
    let fields = problems.section(parent, stage.as_str(), &["worker_ids", "policy"])?;
    let worker_ids = members(problems, &fields);
    let policy = policy::policy(problems, &fields, stage);
    let (policy, admission) = policy?;
    Some(Group {
        worker_ids: worker_ids?,
        policy,
        admission,
    })
}

fn members(problems: &mut Problems, group: &Fields<'_>) -> Option<Option<BTreeSet<WorkerId>>> {
    let Some(at) = group.get("worker_ids") else {
        return Some(None);
    };
    let items = problems.list(&at)?;
    let before = problems.count();
    let mut ids = BTreeSet::new();
    for item in &items {
        let Some(id) = problems.value(item, name) else {
            continue;
        };
        if !ids.insert(WorkerId::from(id.as_str())) {
            problems.add(&item.place, format_args!("engine `{id}` is listed twice"));
        }
    }
    (problems.count() == before).then_some(Some(ids))
}
