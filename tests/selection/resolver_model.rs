//! The resolver against a model of it that shares no code and sorts nothing.

use rand::Rng;
use rand::rngs::StdRng;
use sgl_edge::buckets::{BucketResolver, SloTargets};

use crate::resolver::{bucket, resolved};
use crate::support::seed::rng;

#[derive(Debug, Clone)]
struct Row {
    id: String,
    rank: u32,
    min: Option<u64>,
    max: Option<u64>,
    context: Option<u64>,
}

impl Row {
    /// `None` is "no end"; written out case by case, unlike the crate.
    fn capacity(&self) -> Option<u64> {
        match (self.max, self.context) {
            (Some(max), Some(context)) if max < context => Some(max),
            (_, Some(context)) => Some(context),
            (max, None) => max,
        }
    }

    fn takes(&self, input: u64, peak: Option<u64>) -> bool {
        let too_short = matches!(self.min, Some(min) if input < min);
        let too_long = matches!(self.max, Some(max) if input > max);
        let needed = if let Some(peak) = peak { peak } else { input };
        let too_deep = matches!(self.context, Some(context) if needed > context);
        !(too_short || too_long || too_deep)
    }

    /// Whether this row must come before `other`.
    fn precedes(&self, other: &Self) -> bool {
        let endless = |row: &Self| row.capacity().is_none_or(|capacity| capacity == u64::MAX);
        match (endless(self), endless(other)) {
            (false, true) => return true,
            (true, false) => return false,
            (false, false) if self.capacity() != other.capacity() => {
                return self.capacity() < other.capacity();
            }
            _ => {}
        }
        if self.rank != other.rank {
            return self.rank < other.rank;
        }
        self.id.as_bytes() < other.id.as_bytes()
    }
}

/// Few distinct values, so that bounds meet lengths and each other often.
fn number(rng: &mut StdRng) -> u64 {
    const EDGES: [u64; 9] = [0, 1, 2, 3, 10, 11, 4096, u64::MAX - 1, u64::MAX];
    EDGES[rng.random_range(0..EDGES.len())]
}

fn maybe(rng: &mut StdRng) -> Option<u64> {
    rng.random_bool(0.6).then(|| number(rng))
}

fn rows(rng: &mut StdRng) -> Vec<Row> {
    let count = rng.random_range(0..7_u32);
    let rows = (0..count).map(|index| {
        let (max, context) = (maybe(rng), maybe(rng));
        let row = Row {
            // "1…" before "b…" before "é…": not the order of creation.
            id: format!("{}{index}", ["b", "é", "1"][rng.random_range(0..3)]),
            rank: rng.random_range(0..3),
            min: None,
            max,
            context,
        };
        let reachable = row.capacity().unwrap_or(u64::MAX);
        let min = maybe(rng).filter(|min| *min <= reachable);
        Row { min, ..row }
    });
    rows.collect()
}

#[test]
fn any_buckets_resolve_as_the_model_says() {
    let mut rng = rng();
    let mut lists_with_two = 0;
    for _ in 0..20_000 {
        let rows = rows(&mut rng);
        let buckets = rows
            .iter()
            .map(|row| bucket(&row.id, row.rank, (row.min, row.max, row.context)));
        let resolver = BucketResolver::try_new(buckets.collect()).expect("reachable, distinct");
        let (input, peak) = (number(&mut rng), maybe(&mut rng));
        if matches!(peak, Some(peak) if peak < input) {
            assert!(
                resolver
                    .resolve(input, peak, SloTargets::default())
                    .is_err()
            );
            continue;
        }
        let found = resolved(&resolver, input, peak);
        let fitting: Vec<&Row> = rows.iter().filter(|row| row.takes(input, peak)).collect();
        assert_eq!(found.len(), fitting.len(), "{input} {peak:?} {rows:#?}");
        // The place of a bucket is the number of buckets that must come before it.
        for row in &fitting {
            let place = fitting.iter().filter(|other| other.precedes(row)).count();
            assert_eq!(found[place], row.id, "{input} {peak:?} {rows:#?}");
        }
        lists_with_two += u32::from(found.len() > 1);
    }
    assert!(lists_with_two > 1000, "the loop met orders to check");
}
