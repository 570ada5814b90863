//! The manifests of docker/kubernetes: that they fit together, and that the configuration inside is
//! right. Source: http-and-operations §22.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;
use sgl_edge::config::{Config, Kubernetes, Labels, Select, load};

use crate::{files, repository};

const SETS: [&str; 2] = ["plain", "pd"];

fn folder(set: &str) -> String {
    format!("docker/kubernetes/{set}")
}

/// Every document of every manifest of a set.
fn documents(set: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for path in files(&folder(set), "yaml") {
        if path.ends_with("edge.yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for document in serde_yaml::Deserializer::from_str(&text) {
            let value = Value::deserialize(document);
            let value = value.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(value["kind"].is_string(), "{}: {value}", path.display());
            found.push(value);
        }
    }
    found
}

fn of<'a>(documents: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    documents
        .iter()
        .filter(move |document| document["kind"] == kind)
}

fn named<'a>(documents: &'a [Value], kind: &'a str, name: &str) -> &'a Value {
    let found: Vec<&Value> = of(documents, kind)
        .filter(|document| document["metadata"]["name"] == name)
        .collect();
    assert_eq!(found.len(), 1, "{kind} {name}");
    found[0]
}

fn edge(set: &str) -> Config {
    let config = load(&repository(&folder(set)).join("edge.yaml"));
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    config
}

fn source(config: &Config) -> &Kubernetes {
    config.models[0].engines_kubernetes.as_ref().unwrap()
}

fn labels(value: &Value) -> Labels {
    let entries = value.as_object().unwrap().iter();
    entries
        .map(|(label, value)| (label.clone(), value.as_str().unwrap().to_owned()))
        .collect()
}

fn has(all: &Labels, wanted: &Labels) -> bool {
    wanted
        .iter()
        .all(|(label, value)| all.get(label) == Some(value))
}

#[test]
fn every_file_of_a_set_is_a_resource_of_it() {
    for set in SETS.iter().chain(&["all-namespaces"]) {
        let documents = documents(set);
        let kustomization = of(&documents, "Kustomization").next().unwrap();
        let resources = kustomization["resources"].as_array().unwrap().iter();
        let mut listed: BTreeSet<String> = resources
            .map(|file| file.as_str().unwrap().to_owned())
            .collect();
        for file in &listed {
            assert!(
                repository(&folder(set)).join(file).exists(),
                "{set}: {file}"
            );
        }
        listed.insert("kustomization.yaml".to_owned());
        listed.insert("edge.yaml".to_owned());
        let present: BTreeSet<String> = files(&folder(set), "yaml")
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert!(present.is_subset(&listed), "{set}: {present:?}");
        let maps = kustomization["configMapGenerator"].as_array().unwrap();
        assert_eq!(maps[0]["files"][0], "edge.yaml");
    }
}

#[test]
fn the_router_is_probed_and_ended_as_its_configuration_needs() {
    for set in SETS {
        let (documents, config) = (documents(set), edge(set));
        let pod = &named(&documents, "Deployment", "sgl-edge")["spec"]["template"]["spec"];
        let grace = Duration::from_secs(pod["terminationGracePeriodSeconds"].as_u64().unwrap());
        assert_eq!(grace, Duration::from_secs(120));
        assert!(config.shutdown.drain + config.shutdown.grace < grace);
        let router = &pod["containers"][0];
        let probe = |kind: &str| {
            let probe = &router[kind];
            let path = probe["httpGet"]["path"].as_str().unwrap().to_owned();
            assert_eq!(probe["httpGet"]["port"], router["ports"][0]["name"]);
            (path, probe["periodSeconds"].as_u64().unwrap())
        };
        assert_eq!(probe("readinessProbe"), ("/readyz".to_owned(), 5));
        let (path, period) = probe("livenessProbe");
        assert!(path == "/healthz" && (10..=30).contains(&period));
        let port = u64::from(config.listen[0].port());
        assert_eq!(router["ports"][0]["containerPort"].as_u64(), Some(port));
        let mount = router["volumeMounts"][0]["mountPath"].as_str().unwrap();
        let arguments = router["args"].as_array().unwrap();
        assert_eq!(arguments[2], format!("{mount}/edge.yaml"));
        let map = &pod["volumes"][0]["configMap"]["name"];
        let kustomization = of(&documents, "Kustomization").next().unwrap();
        assert_eq!(&kustomization["configMapGenerator"][0]["name"], map);
        // Readiness has to turn before listeners close.
        let turns = 5 * router["readinessProbe"]["failureThreshold"]
            .as_u64()
            .unwrap();
        assert!(config.shutdown.drain > Duration::from_secs(turns));
    }
}

/// That the binding gives the router's account what a watch needs.
fn assert_may_watch(documents: &[Value], role: &str, account: &Value) {
    let rules = &named(documents, role, "sgl-edge")["rules"];
    assert_eq!(rules.as_array().unwrap().len(), 1);
    assert_eq!(
        rules[0]["apiGroups"],
        serde_json::json!(["discovery.k8s.io"])
    );
    assert_eq!(rules[0]["resources"], serde_json::json!(["endpointslices"]));
    assert_eq!(
        rules[0]["verbs"],
        serde_json::json!(["get", "list", "watch"])
    );
    let binding = named(documents, &format!("{role}Binding"), "sgl-edge").clone();
    assert_eq!(binding["roleRef"]["kind"], role);
    assert_eq!(binding["roleRef"]["name"], "sgl-edge");
    assert_eq!(&binding["subjects"][0]["name"], account);
    assert_eq!(binding["subjects"][0]["namespace"], "sgl-edge");
}

#[test]
fn the_role_lets_the_router_watch_where_its_configuration_looks() {
    for set in SETS {
        let (documents, config) = (documents(set), edge(set));
        let pod = &named(&documents, "Deployment", "sgl-edge")["spec"]["template"]["spec"];
        let account = &pod["serviceAccountName"];
        named(&documents, "ServiceAccount", account.as_str().unwrap());
        assert_may_watch(&documents, "Role", account);
        let kustomization = of(&documents, "Kustomization").next().unwrap();
        let namespace = kustomization["namespace"].as_str();
        assert_eq!(source(&config).namespace.as_deref(), namespace);
        named(&documents, "Namespace", namespace.unwrap());
    }
    let documents = documents("all-namespaces");
    assert_may_watch(&documents, "ClusterRole", &Value::from("sgl-edge"));
    assert_eq!(source(&edge("all-namespaces")).namespace, None);
}

#[test]
fn the_services_of_engines_are_found_and_lead_to_their_pods() {
    for set in SETS {
        let (documents, config) = (documents(set), edge(set));
        let mut roles = BTreeSet::new();
        for service in of(&documents, "Service") {
            let spec = &service["spec"];
            let selector = labels(&spec["selector"]);
            let pods: Vec<&Value> = of(&documents, "Deployment")
                .map(|deployment| &deployment["spec"]["template"])
                .filter(|pod| has(&labels(&pod["metadata"]["labels"]), &selector))
                .collect();
            assert_eq!(pods.len(), 1, "{set}: {selector:?}");
            let container = &pods[0]["spec"]["containers"][0];
            assert_eq!(spec["ports"][0]["name"], "http");
            assert_eq!(
                spec["ports"][0]["targetPort"],
                container["ports"][0]["name"]
            );
            if service["metadata"]["name"] == "sgl-edge" {
                continue;
            }
            assert_eq!(spec["clusterIP"], "None");
            let port = &spec["ports"][0]["port"];
            assert_eq!(port, &container["ports"][0]["containerPort"]);
            // Slices carry the labels of their Service.
            let carried = labels(&service["metadata"]["labels"]);
            let role = match &source(&config).select {
                Select::Plain(selector) => {
                    let (label, value) = selector.split_once('=').unwrap();
                    assert_eq!(carried.get(label).map(String::as_str), Some(value));
                    "plain"
                }
                select @ Select::Pd { .. } => {
                    let role = select.role(&carried).unwrap();
                    let arguments = container["args"].as_array().unwrap();
                    assert!(arguments.contains(&Value::from(role.as_str())));
                    role.as_str()
                }
            };
            roles.insert(role);
        }
        let wanted: &[&str] = if set == "pd" {
            &["decode", "prefill"]
        } else {
            &["plain"]
        };
        assert!(roles.iter().eq(wanted), "{set}: {roles:?}");
    }
}
