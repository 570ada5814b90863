use std::sync::Arc;

use super::*;
use crate::config;
use crate::ids::{Stage, WorkerId};
use crate::policies::PolicyServices;
use crate::server::reload;
use crate::workers::{Facts, Worker};

const PLAIN: &str = "{id: m, engines: {kubernetes: {selector: {app: engines}}}}";
const PD: &str =
    "{id: m, engines: {kubernetes: {prefill_selector: {role: p}, decode_selector: {role: d}}}}";

/// An application over the models of a file, and what is known of their sources.
struct Rig {
    app: App,
    discovered: Discovered,
}

impl Rig {
    fn new(models: &str) -> Self {
        let services = PolicyServices::new(Arc::default());
        let routing =
            reload::build(parsed(models), &services, None).expect("models that can be built");
        Self {
            app: App::new(routing, services, 1),
            discovered: Discovered::default(),
        }
    }

    /// What a reload does.
    fn reload(&self, models: &str) {
        let old = self.app.routing();
        let routing = reload::build(parsed(models), &self.app.services, Some(&old));
        let routing = routing.expect("models that can be built");
        self.app.activate(routing);
    }

    /// The source of the model at `index`.
    fn source(&self, index: usize) -> Kubernetes {
        sources(&self.app.routing().config)[index].clone()
    }

    fn tell(&mut self, changes: impl IntoIterator<Item = Change>) {
        let source = self.source(0);
        for change in changes {
            self.discovered.take(&source, change);
        }
        self.discovered.adopt(&self.app);
    }

    fn ids(&self) -> Vec<String> {
        let engines = self.app.routing().workers.members().all();
        engines
            .iter()
            .map(|engine| engine.id().to_string())
            .collect()
    }

    fn engine(&self, id: &str) -> Arc<Worker> {
        let members = self.app.routing().workers.members();
        Arc::clone(members.get(&WorkerId::from(id)).expect("a known engine"))
    }
}

fn parsed(models: &str) -> Config {
    config::parse(&format!("models: [{models}]\n"), "t").expect("a valid configuration")
}

fn key(name: &str) -> SliceKey {
    SliceKey {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
    }
}

/// A slice with a label `role` and one pod per letter, at an address of its own.
fn slice(role: &str, pods: &str) -> Slice {
    let endpoint = |pod: char| Endpoint {
        address: format!("127.0.0.{}", u32::from(pod) - 96),
        ready: Some(true),
        terminating: false,
        pod: Some(pod.to_string()),
    };
    Slice {
        labels: [("role".to_owned(), role.to_owned())].into(),
        port: Some(9),
        endpoints: pods.chars().map(endpoint).collect(),
    }
}

fn listed(slices: &[(&str, &str, &str)]) -> Vec<Change> {
    let mut list = vec![Change::ListBegins];
    let slices = slices.iter();
    list.extend(slices.map(|(name, role, pods)| Change::Listed(key(name), slice(role, pods))));
    list.push(Change::ListEnds);
    list
}

#[test]
fn engines_are_the_union_of_the_slices_and_a_list_states_all() {
    let mut rig = Rig::new(PLAIN);
    assert!(rig.app.unready().is_some());
    rig.tell(listed(&[("s1", "x", "ab"), ("s2", "x", "bc")]));
    assert_eq!(rig.ids(), ["ns/a", "ns/b", "ns/c"]);
    assert_eq!(rig.app.unready(), None);
    let a = rig.engine("ns/a");
    let guard = a.acquire(1);
    rig.tell([Change::Applied(key("s3"), slice("x", "d"))]);
    rig.tell([Change::Applied(key("s2"), slice("x", "b"))]);
    assert_eq!(rig.ids(), ["ns/a", "ns/b", "ns/d"]);
    rig.tell([Change::Deleted(key("s2"))]);
    assert_eq!(
        rig.ids(),
        ["ns/a", "ns/b", "ns/d"],
        "the other slice has it too"
    );
    assert!(
        Arc::ptr_eq(&a, &rig.engine("ns/a")),
        "unchanged handles stay"
    );
    // Events were missed: what the next list does not name is gone.
    rig.tell(listed(&[("s3", "x", "d")]));
    assert_eq!(rig.ids(), ["ns/d"]);
    drop(guard);
    rig.tell(listed(&[]));
    assert!(rig.ids().is_empty() && rig.app.unready().is_some());
}

#[test]
fn a_list_that_is_not_complete_changes_nothing() {
    let mut rig = Rig::new(PLAIN);
    rig.tell([
        Change::ListBegins,
        Change::Listed(key("s"), slice("x", "a")),
    ]);
    assert!(rig.ids().is_empty());
    rig.tell([Change::ListEnds]);
    assert_eq!(rig.ids(), ["ns/a"]);
    rig.tell([Change::ListBegins]);
    assert_eq!(rig.ids(), ["ns/a"]);
    // Broken off and begun anew.
    rig.tell([
        Change::Listed(key("t"), slice("x", "z")),
        Change::ListBegins,
    ]);
    rig.tell([Change::Listed(key("u"), slice("x", "b")), Change::ListEnds]);
    assert_eq!(rig.ids(), ["ns/b"]);
}

#[test]
fn slices_of_neither_role_are_not_kept_and_relabelled_ones_go() {
    let mut rig = Rig::new(PD);
    rig.tell(listed(&[
        ("s1", "p", "a"),
        ("s2", "d", "b"),
        ("s3", "other", "c"),
    ]));
    assert_eq!(rig.ids(), ["ns/a", "ns/b"]);
    assert_eq!(rig.engine("ns/a").role(), Stage::Prefill);
    assert_eq!(rig.engine("ns/b").role(), Stage::Decode);
    rig.tell([Change::Applied(key("s1"), slice("other", "a"))]);
    assert_eq!(rig.ids(), ["ns/b"]);
    rig.tell([Change::Applied(key("s3"), slice("p", "c"))]);
    assert_eq!(rig.ids(), ["ns/b", "ns/c"]);
}

#[test]
fn the_bootstrap_port_is_the_one_that_the_engine_tells() {
    let mut rig = Rig::new(PD);
    rig.tell(listed(&[("s1", "p", "a"), ("s2", "d", "b")]));
    let prefill = rig.engine("ns/a");
    assert_eq!(prefill.bootstrap_port(), None);
    assert!(
        rig.app.unready().is_some(),
        "not before it has told its port"
    );
    for port in [9001, 9002] {
        let facts = Facts {
            role: Some(Stage::Prefill),
            bootstrap_port: Some(port),
            ..Facts::default()
        };
        let now = tokio::time::Instant::now();
        prefill.introspection().resolved(facts, now);
        rig.app.learned();
        assert_eq!(rig.engine("ns/a").bootstrap_port(), Some(port));
        assert_eq!(rig.app.unready(), None);
    }
    rig.tell([Change::Applied(key("s2"), slice("d", "bc"))]);
    assert_eq!(rig.engine("ns/a").bootstrap_port(), Some(9002));
}

#[test]
fn a_reload_keeps_the_engines_of_the_same_source_and_their_counters() {
    let mut rig = Rig::new(PLAIN);
    rig.tell(listed(&[("s", "x", "ab")]));
    let guard = rig.engine("ns/a").acquire(1);
    rig.reload(PLAIN);
    assert_eq!(rig.ids(), ["ns/a", "ns/b"], "before anything was looked at");
    assert_eq!(rig.engine("ns/a").inflight(), 1);
    drop(guard);
    assert_eq!(rig.engine("ns/a").inflight(), 0);
    // Under another name, and beside a model that is new.
    rig.reload(&format!(
        "{}, {}",
        PLAIN.replace("id: m", "id: renamed"),
        PLAIN
            .replace("id: m", "id: other")
            .replace("engines}", "others}"),
    ));
    assert_eq!(rig.ids(), ["ns/a", "ns/b"]);
    assert_eq!(rig.engine("ns/a").model().as_str(), "renamed");
    rig.tell([Change::Applied(key("s"), slice("x", "b"))]);
    assert_eq!(rig.ids(), ["ns/b"]);
}

#[test]
fn a_change_during_a_reload_is_made_good() {
    let mut rig = Rig::new(PLAIN);
    rig.tell(listed(&[("s", "x", "ab")]));
    let old = rig.app.routing();
    let next = reload::build(parsed(PLAIN), &rig.app.services, Some(&old)).unwrap();
    rig.tell([Change::Applied(key("s"), slice("x", "b"))]);
    rig.app.activate(next);
    assert_eq!(rig.ids(), ["ns/a", "ns/b"], "built before the change");
    assert!(rig.discovered.due(&rig.app));
    rig.discovered.adopt(&rig.app);
    assert_eq!(rig.ids(), ["ns/b"]);
    assert!(!rig.discovered.due(&rig.app));
}

#[test]
fn another_selector_takes_over_when_its_first_list_is_complete() {
    let mut rig = Rig::new(PLAIN);
    rig.tell(listed(&[("s", "x", "ab")]));
    let first = rig.source(0);
    rig.reload(&PLAIN.replace("app: engines", "app: next"));
    rig.discovered.keep(&sources(&rig.app.routing().config));
    rig.discovered.adopt(&rig.app);
    assert_eq!(rig.ids(), ["ns/a", "ns/b"], "until the new source is known");
    rig.tell([
        Change::ListBegins,
        Change::Listed(key("t"), slice("x", "c")),
    ]);
    assert_eq!(rig.ids(), ["ns/a", "ns/b"]);
    rig.tell([Change::ListEnds]);
    assert_eq!(rig.ids(), ["ns/c"]);
    assert_ne!(first, rig.source(0));
    // From elsewhere altogether: nothing of Kubernetes is left.
    rig.reload("{id: m, engines: {static: [{id: E1, url: \"http://127.0.0.1:1\", role: plain}]}}");
    assert_eq!(rig.ids(), ["E1"]);
}

#[test]
fn two_models_that_swap_their_sources_swap_their_engines() {
    let other = PLAIN
        .replace("id: m", "id: n")
        .replace("engines}", "others}");
    let mut rig = Rig::new(&format!("{PLAIN}, {other}"));
    rig.tell(listed(&[("s", "x", "a")]));
    let second = rig.source(1);
    for change in listed(&[("t", "x", "b")]) {
        rig.discovered.take(&second, change);
    }
    rig.discovered.adopt(&rig.app);
    let models = |rig: &Rig| ["ns/a", "ns/b"].map(|id| rig.engine(id).model().to_string());
    assert_eq!(models(&rig), ["m", "n"]);
    let swapped = [
        PLAIN.replace("id: m", "id: n"),
        other.replace("id: n", "id: m"),
    ];
    rig.reload(&swapped.join(", "));
    assert_eq!(models(&rig), ["n", "m"]);
    rig.discovered.adopt(&rig.app);
    assert_eq!(models(&rig), ["n", "m"]);
}

#[test]
fn an_engine_of_two_models_stays_where_it_is_until_it_is_let_go() {
    let other = PLAIN
        .replace("id: m", "id: n")
        .replace("engines}", "others}");
    let mut rig = Rig::new(&format!("{PLAIN}, {other}"));
    rig.tell(listed(&[("s", "x", "a")]));
    let second = rig.source(1);
    for change in listed(&[("t", "x", "ab")]) {
        rig.discovered.take(&second, change);
    }
    rig.discovered.adopt(&rig.app);
    assert_eq!(rig.ids(), ["ns/a"]);
    assert!(rig.discovered.due(&rig.app), "tried again");
    rig.tell([Change::Deleted(key("s"))]);
    assert_eq!(rig.ids(), ["ns/a", "ns/b"]);
    assert_eq!(rig.engine("ns/a").model().as_str(), "n");
}

#[test]
fn a_program_without_it_names_every_model_that_needs_it() {
    let other = "{id: n, engines: {static: [{id: E1, url: \"http://127.0.0.1:1\", role: plain}]}}";
    let config = parsed(&format!("{other}, {PLAIN}"));
    assert_eq!(not_built(&config, false), [1]);
    assert!(not_built(&config, true).is_empty());
}
