//! Counting prompts, and leaving it out where no count can change the decision.

use std::sync::{Arc, LazyLock, mpsc};
use std::task::Poll;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use rand::Rng;
use serde_json::json;
use sgl_edge::buckets::TokenLimits;
use sgl_edge::config;
use sgl_edge::policies::PolicyServices;
use sgl_edge::server::metrics::Metrics;
use sgl_edge::server::pool::{Cost, NotDone, WorkPool};
use sgl_edge::server::prepare::{Counting, Prepared, prepare};
use sgl_edge::server::routing::Routing;
use sgl_edge::state::EngineLoadTable;
use sgl_edge::state::prefix::PrefixMemo;
use sgl_edge::tokenizer::TokenSource;

use crate::support::routing::value;
use crate::support::seed::rng;

/// Takes its tokenizer over into every other routing: loading one takes seconds. Only a proved one says
/// how long a prompt can be.
static LOADED: LazyLock<Routing> = LazyLock::new(|| {
    let routing = build("[{id: all, groups: {plain: {}}}]", None);
    let (model, _) = routing.model("m").expect("configured");
    model.tokenizer.as_ref().expect("configured").settle();
    routing
});

fn build(buckets: &str, previous: Option<&Routing>) -> Routing {
    let tokenizer = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/tokenizers/demo");
    let yaml = format!(
        "models:\n  - id: m\n    tokenizer: \"{tokenizer}\"\n    engines: {{static: [{{id: e, \
         url: \"http://127.0.0.1:1\", role: plain}}]}}\n    buckets: {buckets}\n"
    );
    let config = config::parse(&yaml, "test.yaml").unwrap_or_else(|errors| panic!("{errors}"));
    let services = PolicyServices::new(Arc::new(EngineLoadTable::default()));
    Routing::build(Arc::new(config), &services, previous).expect("it can be built")
}

fn routing(buckets: &str) -> Routing {
    build(buckets, Some(&LOADED))
}

struct Counter {
    routing: Routing,
    pool: WorkPool,
    metrics: Arc<Metrics>,
}

impl Counter {
    fn of(buckets: &str) -> Self {
        Self {
            routing: routing(buckets),
            pool: WorkPool::new(1),
            metrics: Arc::default(),
        }
    }

    async fn prepare(&self, body: &str) -> Prepared {
        self.prepare_counting(body, Counting::AsNeeded).await
    }

    async fn prepare_counting(&self, body: &str, counting: Counting) -> Prepared {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let (headers, metrics) = (HeaderMap::new(), &self.metrics);
        let prepared = prepare(&self.routing, &self.pool, metrics, &headers, body, counting);
        prepared.await.expect("a good body")
    }

    fn series(&self, series: &str) -> u64 {
        value(&self.metrics, series)
    }
}

fn chat(content: &str, max_tokens: Option<u64>) -> String {
    let messages = [json!({"role": "user", "content": content})];
    match max_tokens {
        Some(max) => json!({"model": "m", "messages": messages, "max_tokens": max}).to_string(),
        None => json!({"model": "m", "messages": messages}).to_string(),
    }
}

/// Ids of the buckets that a request fits, in the order in which they are tried.
fn fitting(routing: &Routing, input_tokens: u64, output: Option<u64>) -> Vec<String> {
    let (model, _) = routing.model("m").expect("configured");
    let peak = output.map(|output| input_tokens + output);
    let kept = model
        .resolver
        .resolve(input_tokens, peak, Default::default());
    let kept = kept.expect("a valid signal");
    kept.map(|bucket| bucket.id().to_string()).collect()
}

#[test]
fn a_bucket_is_indifferent_when_it_takes_every_or_no_count() {
    let bounds = [None, Some(0), Some(1), Some(3), Some(5), Some(u64::MAX)];
    for (min, max, context) in triples(&bounds) {
        let limits = TokenLimits {
            min_input_tokens: min,
            max_input_tokens: max,
            max_context_tokens: context,
        };
        for output in [None, Some(0), Some(2), Some(9)] {
            for least in 1..7 {
                for most in least..7 {
                    let fits = |input| limits.admit(input, output.map(|output| input + output));
                    let taken = (least..=most).filter(|input| fits(*input)).count() as u64;
                    let same = taken == 0 || taken == most - least + 1;
                    let said = limits.indifferent(least, most, output);
                    assert_eq!(said, same, "{limits:?} {least}..={most} {output:?}");
                }
            }
        }
    }
}

type Bounds = (Option<u64>, Option<u64>, Option<u64>);

fn triples(bounds: &[Option<u64>]) -> impl Iterator<Item = Bounds> {
    let pairs = bounds
        .iter()
        .flat_map(|min| bounds.iter().map(|max| (*min, *max)));
    pairs.flat_map(|(min, max)| bounds.iter().map(move |context| (min, max, *context)))
}

#[tokio::test]
async fn without_length_limits_nothing_is_read_let_alone_counted() {
    let counter = Counter::of("[{id: all, groups: {plain: {}}}]");
    let body = r#"{"model":"m","messages":"not even a list","max_tokens":7}"#;
    let prepared = counter.prepare(body).await;
    assert!(prepared.prompt.skipped);
    assert_eq!(prepared.prompt.source, TokenSource::Estimate);
    assert_eq!(prepared.prompt.input_tokens, body.len() as u64 / 4);
    assert_eq!(counter.series("tokenize_skipped_total{model_id=\"m\"}"), 1);
    assert_eq!(counter.series("tokenize_seconds_count"), 0);
    assert_eq!(
        counter.series("ingress_tokenize_errors_total{model_id=\"m\"}"),
        0
    );
}

#[tokio::test]
async fn a_budget_that_overflows_is_counted_exactly() {
    let counter = Counter::of("[{id: all, groups: {plain: {}}}]");
    let prepared = counter.prepare(&chat("Hi", Some(u64::MAX - 100))).await;
    assert!(!prepared.prompt.skipped);
    assert_eq!(prepared.prompt.source, TokenSource::Chat);
}

#[tokio::test]
async fn a_short_prompt_is_not_counted_when_its_bytes_fit_the_smallest_bucket() {
    let counter = Counter::of(
        "[{id: short, limits: {min: 0, max: 4096}, groups: {plain: {}}}, \
          {id: long, groups: {plain: {}}}]",
    );
    let prepared = counter.prepare(&chat("Hello there", None)).await;
    assert!(prepared.prompt.skipped, "{:?}", prepared.prompt);
    let prepared = counter.prepare(&chat(&"word ".repeat(1_500), None)).await;
    assert!(!prepared.prompt.skipped);
    assert_eq!(prepared.prompt.source, TokenSource::Chat);
    assert_eq!(counter.series("tokenize_seconds_count"), 1);
}

/// Both paths, for buckets that lie around the counts: what is skipped would have been decided alike.
#[tokio::test]
async fn a_skipped_count_never_changes_the_decision() {
    let mut random = rng();
    let (model, _) = LOADED.model("m").expect("configured");
    let tokenizer = model.tokenizer.as_ref().expect("configured");
    let (mut skipped, mut counted) = (0, 0);
    for _ in 0..400 {
        let unit = [
            "a",
            "word ",
            "\u{958}",
            "\u{1d160}",
            "e\u{301}",
            "\u{212a}",
            "人",
            "<|im_end|>",
            "\n",
        ];
        let unit = unit[random.random_range(0..unit.len())];
        let content = unit.repeat(random.random_range(0..300));
        let output = [None, Some(0), Some(random.random_range(0..600))][random.random_range(0..3)];
        let body = chat(&content, output);
        let count = tokenizer
            .encode_chat(body.as_bytes())
            .expect("ids")
            .ids
            .len() as u64;
        let mut bound = |from: u64, to: u64| match random.random_range(0..5) {
            0 | 1 => "null".to_owned(),
            2 => count
                .saturating_add_signed([-1, 0, 1][random.random_range(0..3)])
                .to_string(),
            3 => (count * 40 + to).to_string(),
            _ => random.random_range(from..to).to_string(),
        };
        let buckets = (0..3).map(|id| {
            // The last one has a floor alone; a floor above a ceiling would be refused.
            let (min, max, context) = match id {
                2 => (bound(0, 400), "null".to_owned(), "null".to_owned()),
                _ => ("0".to_owned(), bound(9, 4_000), bound(9, 5_000)),
            };
            format!(
                "{{id: b{id}, limits: {{min: {min}, max: {max}}}, max_context_tokens: {context}, \
                 groups: {{plain: {{}}}}}}"
            )
        });
        let buckets = format!("[{}]", buckets.collect::<Vec<_>>().join(", "));
        let counter = Counter::of(&buckets);
        let prepared = counter.prepare(&body).await;
        let prompt = &prepared.prompt;
        let explained = counter
            .prepare_counting(&body, Counting::Always)
            .await
            .prompt;
        assert_eq!(explained.input_tokens, count, "{buckets} {body}");
        assert_eq!(explained.skipped, prompt.skipped, "{buckets} {body}");
        if prompt.skipped {
            skipped += 1;
            let live = fitting(&counter.routing, prompt.input_tokens, output);
            assert_eq!(
                live,
                fitting(&counter.routing, count, output),
                "{buckets} {body}"
            );
        } else {
            counted += 1;
            assert_eq!(prompt.input_tokens, count, "{buckets} {body}");
        }
    }
    assert!(
        skipped > 20 && counted > 20,
        "{skipped} skipped, {counted} counted"
    );
}

#[tokio::test]
async fn long_prompts_are_encoded_on_the_pool_with_the_same_ids() {
    let counter = Counter::of("[{id: b, limits: {min: 0, max: 900}, groups: {plain: {}}}]");
    let (model, _) = LOADED.model("m").expect("configured");
    let tokenizer = model.tokenizer.as_ref().expect("configured");
    for words in [700, 30_000] {
        let body = chat(&"word one ".repeat(words), None);
        let prepared = counter.prepare(&body).await;
        let right = tokenizer.encode_chat(body.as_bytes()).expect("ids");
        assert_eq!(prepared.prompt.input_tokens, right.ids.len() as u64);
    }
}

#[tokio::test]
async fn raw_text_has_a_length_but_no_ids() {
    let counter = Counter::of("[{id: b, limits: {min: 0, max: 2}, groups: {plain: {}}}]");
    let body = r#"{"model":"m","messages":[{"role":"nobody","content":"one two three"}]}"#;
    let prepared = counter.prepare(body).await;
    assert_eq!(prepared.prompt.source, TokenSource::Text);
    assert_eq!(
        (
            prepared.prompt.input_tokens,
            prepared.bucket_request(&PrefixMemo::none()).token_ids
        ),
        (3, None)
    );
    let fell = "tokenize_fallbacks_total{model_id=\"m\",reason=\"shape\"}";
    assert_eq!(counter.series(fell), 1);
    assert_eq!(
        counter.series("ingress_tokenize_errors_total{model_id=\"m\"}"),
        1
    );
}

/// Work that holds the only thread of a pool until the sender is dropped.
fn holding(pool: &WorkPool) -> (mpsc::Sender<()>, BoxFuture<'_, Result<(), NotDone>>) {
    let (release, wait) = mpsc::channel::<()>();
    let work = move || wait.recv().unwrap_or_default();
    (release, pool.run(Cost { bytes: 1 }, work, || ()).boxed())
}

#[tokio::test]
async fn while_the_pool_is_busy_short_prompts_are_counted_and_a_full_queue_means_an_estimate() {
    let counter = Counter::of("[{id: b, limits: {min: 0, max: 900}, groups: {plain: {}}}]");
    let long = chat(&"word ".repeat(5_000), None);
    let (release, mut held) = holding(&counter.pool);
    assert!(futures_util::poll!(&mut held).is_pending());

    let short = counter.prepare(&chat(&"word ".repeat(300), None)).await;
    assert_eq!(short.prompt.source, TokenSource::Chat);

    // A hundred others that wait are no reason to guess; all that may wait are.
    let mut queue = Vec::new();
    let mut behind = Vec::new();
    for _ in 0..100 {
        let mut waiting = counter.prepare(&long).boxed();
        assert!(futures_util::poll!(&mut waiting).is_pending());
        behind.push(waiting);
    }
    loop {
        let cost = Cost { bytes: long.len() };
        let mut waiting = counter.pool.run(cost, || (), || ()).boxed();
        match futures_util::poll!(&mut waiting) {
            Poll::Pending => queue.push(waiting),
            Poll::Ready(done) => {
                assert_eq!(done, Err(NotDone::QueueFull));
                break;
            }
        }
    }
    let estimated = counter.prepare(&long).await;
    assert_eq!(estimated.prompt.source, TokenSource::Estimate);
    assert_eq!(estimated.prompt.input_tokens, long.len() as u64 / 4);
    let full = "tokenize_fallbacks_total{model_id=\"m\",reason=\"queue_full\"}";
    assert_eq!(counter.series(full), 1);

    drop(release);
    held.await.expect("done");
    for waiting in queue {
        waiting.await.expect("done");
    }
    for waiting in behind {
        assert_eq!(waiting.await.prompt.source, TokenSource::Chat);
    }
    while counter.pool.taken() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        counter.prepare(&long).await.prompt.source,
        TokenSource::Chat
    );
    assert_eq!(counter.series(full), 1);
}

#[tokio::test]
async fn a_prompt_whose_client_left_the_queue_is_not_encoded() {
    let counter = Counter::of("[{id: b, limits: {min: 0, max: 900}, groups: {plain: {}}}]");
    let long = chat(&"word ".repeat(5_000), None);
    let (release, mut held) = holding(&counter.pool);
    assert!(futures_util::poll!(&mut held).is_pending());
    let mut left = counter.prepare(&long).boxed();
    assert!(futures_util::poll!(&mut left).is_pending());
    drop(left);
    drop(release);
    held.await.expect("done");
    counter
        .pool
        .run(Cost { bytes: 1 }, || (), || ())
        .await
        .expect("its turn comes after");
    assert_eq!(
        counter.series("tokenize_abandoned_total{model_id=\"m\"}"),
        1
    );
    assert_eq!(counter.series("tokenize_seconds_count"), 0);
}
