//! The engines of one model: a static list, or a source that is watched.
//!
//! Resolves no name and asks no engine. A model has plain engines, or prefill and decode engines,
//! never both: the registry would refuse the mix (design §7), so the file is refused first.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::config::kubernetes::kubernetes;
use crate::config::models::Taken;
use crate::config::reader::{At, Fields, Place, Problems, Read, short};
use crate::config::scalars::{between, name, one_of, path, string};
use crate::config::tree::Node;
use crate::config::types::Kubernetes;
use crate::ids::{ModelId, Stage, WorkerId};
use crate::workers::{EngineUrl, WorkerSpec};

const SOURCES: [&str; 3] = ["static", "file", "kubernetes"];
const KEYS: [&str; 4] = ["static", "file", "kubernetes", "api_key_file"];

/// What the `engines` section says.
pub(super) struct Engines {
    /// The engines by name; none when they come from elsewhere.
    pub(super) list: Vec<WorkerSpec>,
    /// The watched file with the list.
    pub(super) file: Option<PathBuf>,
    /// Where in Kubernetes they are looked for.
    pub(super) kubernetes: Option<Kubernetes>,
    /// Where the key stands that they demand of the router's own calls.
    pub(super) api_key_file: Option<PathBuf>,
}

/// What the engines of one model must not share or mix.
#[derive(Default)]
struct Seen {
    /// As written, with the place.
    urls: HashMap<EngineUrl, (String, Place)>,
    /// The first engine, with its role, and whether another one of the other kind was reported.
    first: Option<(WorkerId, Stage, Place)>,
    mixed: bool,
}

impl Engines {
    /// The engines, if the configuration itself says which they are.
    pub(super) fn listed(&self) -> Option<&[WorkerSpec]> {
        let listed = self.file.is_none() && self.kubernetes.is_none();
        listed.then_some(&self.list)
    }
}

/// The engines. `None` if one could not be read.
pub(super) fn engines(
    problems: &mut Problems,
    model: &Fields<'_>,
    model_id: &ModelId,
    taken: &mut Taken,
) -> Option<Engines> {
    let fields = problems.section(model, "engines", &KEYS)?;
    let before = problems.count();
    let api_key_file = problems.optional(&fields, "api_key_file", path);
    let set: Vec<&str> = SOURCES
        .into_iter()
        .filter(|key| fields.get(key).is_some())
        .collect();
    if set.len() > 1 {
        let problem = format!("has {}: choose one source of engines", set.join(" and "));
        problems.add(&fields.place, problem);
    }
    let file = problems.optional(&fields, "file", path);
    let kubernetes = fields.get("kubernetes").and_then(|at| {
        let source = kubernetes(problems, &at)?;
        taken.source(problems, &at.place, &source);
        Some(source)
    });
    if fields.get("static").is_none() && !set.is_empty() {
        return (problems.count() == before).then_some(Engines {
            list: Vec::new(),
            file: file?,
            kubernetes,
            api_key_file: api_key_file?,
        });
    }
    let Some(at) = fields.get("static") else {
        let problem =
            "no engines: write `engines: {static: [{url: \"http://HOST:PORT\", role: plain}]}`";
        problems.add(&fields.place, problem);
        return None;
    };
    let items = problems.list(&at)?;
    if items.is_empty() {
        problems.add(&at.place, "no engines: at least one is needed");
    }
    let list = list(problems, &items, model_id, taken);
    if problems.count() > before {
        return None;
    }
    Some(Engines {
        list: list?,
        file: None,
        kubernetes: None,
        api_key_file: api_key_file?,
    })
}

fn list(
    problems: &mut Problems,
    items: &[At<'_>],
    model: &ModelId,
    taken: &mut Taken,
) -> Option<Vec<WorkerSpec>> {
    let mut seen = Seen::default();
    let engines: Vec<Option<WorkerSpec>> = items
        .iter()
        .map(|item| engine(problems, item, model, &mut seen, taken))
        .collect();
    engines.into_iter().collect()
}

/// The engines of `model` in a file of their own: the same list, which may be empty.
pub(super) fn file(
    problems: &mut Problems,
    root: &At<'_>,
    model: &ModelId,
) -> Option<Vec<WorkerSpec>> {
    let items = problems.list(root)?;
    list(problems, &items, model, &mut Taken::default())
}

fn engine(
    problems: &mut Problems,
    at: &At<'_>,
    model: &ModelId,
    seen: &mut Seen,
    taken: &mut Taken,
) -> Option<WorkerSpec> {
    let fields = problems.map(at, &["id", "url", "role", "bootstrap_port"])?;
    let id = problems.optional(&fields, "id", name);
    let url = problems.required(
        &fields,
        "url",
        string,
        "the address, such as \"http://10.0.0.1:30000\"",
    );
    let url = url.and_then(|text| seen.url(problems, &fields.place_of("url"), &text));
    let role = one_of(&Stage::ALL, Stage::as_str);
    let role = problems.required(&fields, "role", role, "plain, prefill or decode");
    let port = problems.optional(&fields, "bootstrap_port", port);
    if let (Some(role @ (Stage::Plain | Stage::Decode)), Some(_)) =
        (role, fields.get("bootstrap_port"))
    {
        let problem = format!("applies to prefill engines, this one is {role}: remove it");
        problems.add(&fields.place_of("bootstrap_port"), problem);
    }
    let (explicit, id) = match id? {
        Some(id) => (true, WorkerId::from(id)),
        None => (false, WorkerId::from(url.as_ref()?.to_string())),
    };
    let place = if explicit {
        fields.place_of("id")
    } else {
        fields.place_of("url")
    };
    taken.engine(problems, &place, &id);
    if let Some(role) = role {
        seen.role(problems, &fields.place_of("role"), &id, role);
    }
    Some(WorkerSpec {
        id,
        url: url?,
        model: model.clone(),
        role: role?,
        bootstrap_port: port?,
    })
}

fn port(node: &Node) -> Read<u16> {
    let port = between(1, u64::from(u16::MAX))(node)?;
    u16::try_from(port).map_err(|error| error.to_string())
}

// === impl Seen ===

impl Seen {
    fn url(&mut self, problems: &mut Problems, place: &Place, text: &str) -> Option<EngineUrl> {
        let url = match EngineUrl::parse(text) {
            Ok(url) => url,
            Err(error) => {
                problems.add(place, short_line(&error.to_string()));
                return None;
            }
        };
        if let Some((other, first)) = self.urls.get(&url) {
            let problem = format!(
                "`{}` is the same engine as `{}` at {} (line {}): both are {url}",
                short(text),
                short(other),
                first.path,
                first.line
            );
            problems.add(place, problem);
            return None;
        }
        self.urls
            .insert(url.clone(), (text.to_owned(), place.clone()));
        Some(url)
    }

    /// Reports the first engine of the other kind only: the mix is one problem.
    fn role(&mut self, problems: &mut Problems, place: &Place, id: &WorkerId, role: Stage) {
        let (other, stage, first) = self
            .first
            .get_or_insert_with(|| (id.clone(), role, place.clone()));
        let differs = (role == Stage::Plain) != (*stage == Stage::Plain);
        if differs && !self.mixed {
            let problem = format!(
                "engine `{id}` is {role}, but `{other}` (line {}) is {stage}: a model has plain engines, or prefill and decode engines, never both; make two models of it",
                first.line
            );
            problems.add(place, problem);
            self.mixed = true;
        }
    }
}

/// Errors of other modules repeat what was written, which may hold line breaks.
fn short_line(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).collect()
}
