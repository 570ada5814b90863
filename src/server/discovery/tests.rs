use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::ids::Stage;
use crate::policies::PolicyServices;
use crate::server::reload;
use crate::workers::{Facts, Worker};

/// A folder of its own with a file of engines, and an application that reads it.
struct Rig {
    folder: PathBuf,
    app: App,
    watch: FileWatch,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

const TWO: &str = "- {id: a, url: \"http://127.0.0.1:1\", role: plain}\n\
                   - {id: b, url: \"http://127.0.0.1:2\", role: plain}\n";

impl Rig {
    fn new(list: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sgl-edge-discovery-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("engines.yaml");
        fs::write(&file, list).unwrap();
        let text = format!("models: [{{id: m, engines: {{file: {:?}}}}}]\n", file);
        let services = PolicyServices::new(Arc::default());
        let config = config::parse(&text, "t").unwrap();
        let routing = reload::build(config, &services, None).unwrap();
        Self {
            folder,
            app: App::new(routing, services, 1),
            watch: FileWatch::default(),
        }
    }

    /// Replaces the file in one step, as an orchestrator does, and looks.
    fn write(&mut self, list: &str) {
        let next = self.folder.join("next");
        fs::write(&next, list).unwrap();
        fs::rename(next, self.folder.join("engines.yaml")).unwrap();
        self.watch.look(&self.app);
    }

    fn of(&self, role: Stage) -> Vec<Arc<Worker>> {
        let members = self.app.routing().workers.members();
        members.of(&"m".into(), role).to_vec()
    }

    fn ids(&self) -> String {
        let engines = self.app.routing().workers.members().all();
        engines.iter().map(|engine| engine.id().as_str()).collect()
    }
}

#[test]
fn engines_of_a_file_serve_come_and_go() {
    let mut rig = Rig::new(TWO);
    assert_eq!(rig.ids(), "ab");
    let (a, b) = (
        rig.of(Stage::Plain)[0].clone(),
        rig.of(Stage::Plain)[1].clone(),
    );
    let guard = b.acquire(1);
    rig.write("- {id: a, url: \"http://127.0.0.1:1\", role: plain}\n- {id: c, url: \"http://127.0.0.1:3\", role: plain}\n");
    assert_eq!(rig.ids(), "ac");
    assert!(Arc::ptr_eq(&rig.of(Stage::Plain)[0], &a));
    drop(guard);
    rig.write("[]");
    assert_eq!(rig.ids(), "");
    assert!(rig.app.unready().is_some());
    rig.write(TWO);
    assert_eq!(rig.ids(), "ab");
    assert!(!rig.of(Stage::Plain)[0].same_engine(&a), "another life");
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing() {
    let mut rig = Rig::new(TWO);
    let before = rig.app.routing().workers.members();
    for broken in [
        "- {id: a",
        "engines: 3",
        "- {id: a, url: \"http://127.0.0.1:1\"}",
        "- {id: a, url: \"http://x:1\", role: plain}\n- {id: a, url: \"http://y:1\", role: plain}",
        "- {url: \"http://x:1\", role: plain}\n- {url: \"http://y:1\", role: decode}",
        "",
    ] {
        rig.write(broken);
        assert!(
            Arc::ptr_eq(&before, &rig.app.routing().workers.members()),
            "{broken}"
        );
    }
    fs::remove_file(rig.folder.join("engines.yaml")).unwrap();
    rig.watch.look(&rig.app);
    assert_eq!(rig.ids(), "ab");
    rig.write("- {id: z, url: \"http://127.0.0.1:9\", role: plain}");
    assert_eq!(rig.ids(), "z");
}

#[test]
fn an_unchanged_file_is_not_read_again() {
    let mut rig = Rig::new(TWO);
    rig.watch.look(&rig.app);
    let before = rig.app.routing().workers.members();
    rig.watch.look(&rig.app);
    assert!(Arc::ptr_eq(&before, &rig.app.routing().workers.members()));
}

#[test]
fn what_an_engine_told_of_its_role_outlives_a_change_of_the_file() {
    let mut rig = Rig::new(
        "- {id: p, url: \"http://127.0.0.1:1\", role: decode}\n- {id: d, url: \"http://127.0.0.1:2\", role: decode}\n",
    );
    let facts = Facts {
        role: Some(Stage::Prefill),
        bootstrap_port: Some(8998),
        ..Facts::default()
    };
    let p = rig.of(Stage::Decode)[1].clone();
    p.introspection()
        .resolved(facts, tokio::time::Instant::now());
    rig.app.learned();
    assert_eq!(rig.of(Stage::Prefill).len(), 1);
    rig.write("- {id: p, url: \"http://127.0.0.1:1\", role: decode}\n- {id: e, url: \"http://127.0.0.1:3\", role: decode}\n");
    let prefill = rig.of(Stage::Prefill);
    assert_eq!(
        (prefill.len(), prefill[0].bootstrap_port()),
        (1, Some(8998))
    );
    assert_eq!(rig.of(Stage::Decode)[0].id().as_str(), "e");
}

#[test]
fn a_start_with_a_broken_file_is_refused_with_file_and_line() {
    let rig = Rig::new(TWO);
    let file = rig.folder.join("broken.yaml");
    fs::write(
        &file,
        "- {id: a, url: \"http://x:1\", role: plain}\n- {role: both}\n",
    )
    .unwrap();
    let text = format!("models: [{{id: m, engines: {{file: {:?}}}}}]\n", file);
    let config = config::parse(&text, "t").unwrap();
    let services = PolicyServices::new(Arc::default());
    let errors = reload::build(config, &services, None)
        .unwrap_err()
        .join("\n");
    assert!(
        errors.contains("broken.yaml:2: [1].url: missing"),
        "{errors}"
    );
    assert!(errors.contains("broken.yaml:2: [1].role:"), "{errors}");
}
