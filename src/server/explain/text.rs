//! An explanation in lines for a person: facts, buckets, attempts, outcome.

use std::fmt::{Display, Write};

use crate::server::explain::{
    AttemptView, BucketView, EngineView, Explained, GroupView, Outcome, ReportView, RequestView,
};

pub(super) fn render(explained: &Explained) -> String {
    let mut lines = Lines::default();
    let model = explained.model.as_ref();
    lines.add(0, format_args!("model: {}", or(model, "unknown")));
    match &explained.request {
        Some(request) => facts(&mut lines, request),
        None => lines.add(0, format_args!("request: refused before it was routed")),
    }
    if !explained.buckets.is_empty() {
        lines.add(
            0,
            format_args!("buckets, in the order in which they are tried:"),
        );
    }
    for bucket in &explained.buckets {
        lines.add(1, format_args!("{}", bucket_line(bucket)));
    }
    for attempt in &explained.attempts {
        attempt_lines(&mut lines, attempt);
    }
    lines.add(
        0,
        format_args!("outcome: {}", outcome_line(&explained.outcome)),
    );
    lines.text
}

#[derive(Default)]
struct Lines {
    text: String,
}

impl Lines {
    fn add(&mut self, depth: usize, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:indent$}{line}", "", indent = depth * 2);
    }
}

fn or<T: Display>(value: Option<T>, otherwise: &str) -> String {
    value.map_or_else(|| otherwise.to_owned(), |value| value.to_string())
}

fn facts(lines: &mut Lines, request: &RequestView) {
    lines.add(
        0,
        format_args!(
            "request: {} input tokens ({}), output {}, expected peak {}",
            request.input_tokens,
            request.token_source,
            or(request.output_tokens, "unknown"),
            or(request.expected_peak_tokens, "unknown"),
        ),
    );
    if request.tokenizing_skipped {
        lines.add(1, format_args!("sent for real it is not tokenized: its bytes decide every bucket and no policy needs ids"));
    }
    let keys = [
        ("session key", request.session_key.as_deref()),
        ("routing key", request.routing_key.as_deref()),
    ];
    for (name, key) in keys {
        if let Some(key) = key {
            lines.add(1, format_args!("{name}: {key}"));
        }
    }
    if let Some(target) = request.ttft_slo_ms {
        lines.add(1, format_args!("wanted: first token within {target} ms"));
    }
    if let Some(target) = request.tps_slo {
        lines.add(1, format_args!("wanted: {target} tokens/s"));
    }
    if let Some(Some(prompt)) = &request.prompt {
        lines.add(1, format_args!("prompt: {prompt:?}"));
    }
    if let Some(Some(ids)) = &request.ids {
        lines.add(1, format_args!("ids: {ids:?}"));
    }
}

fn bucket_line(bucket: &BucketView) -> String {
    let capacity = or(bucket.capacity, "unbounded");
    let verdict = match &bucket.why {
        None => "kept",
        Some(why) => why,
    };
    format!(
        "{} (capacity {capacity}, rank {}): {verdict}",
        bucket.id, bucket.rank
    )
}

fn attempt_lines(lines: &mut Lines, attempt: &AttemptView) {
    lines.add(
        0,
        format_args!("bucket {}: {}", attempt.bucket, attempt.outcome),
    );
    for group in &attempt.groups {
        group_lines(lines, group);
    }
}

fn group_lines(lines: &mut Lines, group: &GroupView) {
    lines.add(1, format_args!("{} by {}", group.stage, group.policy));
    for engine in &group.engines {
        lines.add(2, format_args!("{}", engine_line(engine)));
    }
    if let Some(compared) = &group.compared {
        // The shape of each policy's comparison is documented once, as JSON.
        let compared = serde_json::to_string(compared).unwrap_or_default();
        lines.add(2, format_args!("compared: {compared}"));
    }
    for check in &group.admission {
        let verdict = check.limit.map_or_else(
            || "allowed".to_owned(),
            |limit| format!("refused by {limit}"),
        );
        lines.add(2, format_args!("admission of {}: {verdict}", check.engine));
    }
    match (&group.engine, group.reason) {
        (Some(engine), Some(reason)) => lines.add(2, format_args!("picked {engine} ({reason})")),
        _ => lines.add(2, format_args!("{}", group.outcome)),
    }
}

fn engine_line(engine: &EngineView) -> String {
    let against = match engine.why {
        None => "candidate".to_owned(),
        Some(why) => serde_json::to_string(&why)
            .unwrap_or_default()
            .replace('"', ""),
    };
    let report = match &engine.report {
        None => "no report".to_owned(),
        Some(report) => report_line(report),
    };
    format!(
        "{}: {against}, in flight {}, {report}",
        engine.id, engine.inflight
    )
}

fn report_line(report: &ReportView) -> String {
    let mut line = format!(
        "report {} ms old: running {}, waiting {}, tokens {}/{}",
        report.age_ms, report.running, report.waiting, report.used_tokens, report.max_total_tokens
    );
    if let Some(tokens) = report.waiting_uncached_tokens {
        let _ = write!(line, ", waiting uncached tokens {tokens}");
    }
    if let Some(ms) = report.estimated_prefill_queue_ms {
        let _ = write!(line, ", prefill queue {ms} ms");
    }
    line
}

fn outcome_line(outcome: &Outcome) -> String {
    match (&outcome.engines, &outcome.bucket) {
        (Some(engines), Some(bucket)) => {
            let engines = engines.iter().map(|(stage, id)| format!("{stage} {id}"));
            let engines = engines.collect::<Vec<_>>().join(", ");
            format!("{}: bucket {bucket}, {engines}", outcome.status)
        }
        _ => format!(
            "{} {}: {}",
            outcome.status,
            outcome.code.unwrap_or_default(),
            outcome.message.as_deref().unwrap_or_default()
        ),
    }
}
