use std::path::Path;

use super::*;

fn config(edit: impl Fn(&str) -> String) -> Arc<Config> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tokenizers/demo");
    let yaml = format!(
        r#"
models:
  - id: m
    aliases: [other]
    tokenizer: "{}"
    engines: {{static: [{{id: E1, url: "http://127.0.0.1:1", role: plain}}]}}
"#,
        folder.display()
    );
    Arc::new(config::parse(&edit(&yaml), "test").expect("a valid file"))
}

fn build(config: Arc<Config>, previous: Option<&Routing>) -> Routing {
    let services = PolicyServices::new(Arc::default());
    Routing::build(config, &services, previous).expect("a routing")
}

#[test]
fn a_reload_takes_over_an_unchanged_tokenizer_and_the_counters_of_engines_that_stay() {
    let first = build(config(str::to_owned), None);
    let old = first.workers.members();
    let guard = old.all()[0].acquire(1);
    let second = build(config(str::to_owned), Some(&first));
    let tokenizer = |routing: &Routing| {
        let (model, _) = routing.model("m").expect("configured");
        model.tokenizer.clone().expect("configured")
    };
    assert!(Arc::ptr_eq(&tokenizer(&first), &tokenizer(&second)));
    assert_eq!(second.generation, 2);
    assert_eq!(second.workers.members().all()[0].inflight(), 1);
    drop(guard);
    assert_eq!(second.workers.members().all()[0].inflight(), 0);
}

#[test]
fn names_match_exactly_then_by_alias_then_by_the_base_of_an_adapter() {
    let routing = build(
        config(|yaml| yaml.replace("tokenizer:", "tokenizer: null #")),
        None,
    );
    let matched = |name: &str| routing.model(name).map(|(_, matched)| matched);
    let rows = [
        ("m", Some(NameMatch::AsSent)),
        ("other", Some(NameMatch::Alias)),
        ("m:adapter", Some(NameMatch::AsSent)),
        ("M", None),
        ("other:adapter", None),
        ("n:m", None),
        ("", None),
    ];
    for (name, expected) in rows {
        assert_eq!(matched(name), expected, "{name}");
    }
}

#[test]
fn every_problem_of_building_is_reported_at_once() {
    let broken = config(|yaml| {
        let twice = yaml.replace("conf/tokenizers/demo", "conf/tokenizers/none");
        format!("{twice}auth: {{api_keys_file: /nowhere/keys}}\n")
    });
    let services = PolicyServices::new(Arc::default());
    let errors = Routing::build(broken, &services, None).expect_err("two faults");
    assert_eq!(errors.len(), 2, "{errors:?}");
}
