//! What can be said of such a configuration without a cluster.

use std::process::{Command, Output};

fn program(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sgl-edge"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("KUBECONFIG", "/nowhere/kubeconfig")
        .output()
        .expect("the program of this package")
}

#[test]
fn check_says_where_engines_are_looked_for() {
    let rows = [
        ("plain", "namespace sgl-edge, plain by app=engines"),
        (
            "pd",
            "namespace sgl-edge, prefill by app=engines,role=prefill, decode by app=engines,role=decode",
        ),
        ("all-namespaces", "all namespaces, plain by app=engines"),
    ];
    for (set, wanted) in rows {
        let file = format!("docker/kubernetes/{set}/edge.yaml");
        let output = program(&["check", "-c", &file]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            text.contains(&format!("engines from Kubernetes: {wanted}\n")),
            "{text}"
        );
    }
}

#[test]
fn explain_says_who_knows_the_engines() {
    let body = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes-body.json");
    std::fs::write(
        &body,
        r#"{"model":"demo","messages":[{"role":"user","content":"hi"}]}"#,
    )
    .expect("a writable target directory");
    let file = "docker/kubernetes/plain/edge.yaml";
    let output = program(&[
        "explain",
        "-c",
        file,
        "--body",
        body.to_str().expect("a plain path"),
    ]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("Kubernetes (namespace sgl-edge, plain by app=engines)"),
        "{text}"
    );
    assert!(text.contains("POST /admin/explain"), "{text}");
}
