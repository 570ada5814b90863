//! What holds of every outcome, whatever the text was.

use std::collections::HashSet;

use sgl_edge::config::{Config, ConfigErrors, Groups, Model};
use sgl_edge::ids::Stage;

/// What every accepted configuration promises.
pub(crate) fn assert_promises(config: &Config, text: &str) {
    assert!(!config.listen.is_empty(), "{text}");
    assert!(!config.models.is_empty(), "{text}");
    let admin = &config.admin;
    assert!(
        admin.listen.ip().is_loopback() || admin.token_file.is_some(),
        "{text}"
    );
    assert!(
        config.limits.max_body <= config.limits.max_buffered_body,
        "{text}"
    );
    let mut names = HashSet::new();
    let mut engines = HashSet::new();
    for model in &config.models {
        assert!(names.insert(model.id.as_str()), "{text}");
        assert!(
            model.aliases.iter().all(|alias| names.insert(alias)),
            "{text}"
        );
        let listed = model.lists_engines();
        assert_eq!(!model.engines.is_empty(), listed, "{text}");
        assert!(
            model
                .engines
                .iter()
                .all(|engine| engines.insert(engine.id.clone())),
            "{text}"
        );
        let plain = model
            .engines
            .iter()
            .filter(|engine| engine.role == Stage::Plain)
            .count();
        assert!(plain == 0 || plain == model.engines.len(), "{text}");
        assert_buckets(model, text);
    }
}

fn assert_buckets(model: &Model, text: &str) {
    assert!(!model.buckets.is_empty(), "{text}");
    let mut ids = HashSet::new();
    for bucket in &model.buckets {
        assert!(ids.insert(bucket.id.as_str()), "{text}");
        assert!(!bucket.id.as_str().trim().is_empty(), "{text}");
        let min = bucket.min_input_tokens.unwrap_or(0);
        assert!(min <= bucket.input_capacity(), "{text}");
        let groups = match &bucket.groups {
            Groups::Plain(group) => vec![group],
            Groups::Pd { prefill, decode } => vec![prefill, decode],
        };
        assert!(
            groups
                .iter()
                .all(|group| group.admission.problems().is_empty()),
            "{text}"
        );
    }
}

/// What every refusal promises.
pub(crate) fn assert_usable(errors: &ConfigErrors, text: &str) {
    let lines = text.lines().count().max(1);
    assert!(errors.iter().count() > 0, "{text}");
    for problem in errors {
        assert!(
            problem.line.is_some_and(|line| (1..=lines).contains(&line)),
            "{problem}\n{text}"
        );
        assert!(
            !problem.path.is_empty() && !problem.problem.is_empty(),
            "{problem:?}\n{text}"
        );
        assert!(
            !problem.to_string().contains(char::is_control),
            "{problem:?}\n{text}"
        );
    }
}
