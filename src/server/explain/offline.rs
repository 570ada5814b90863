//! An explanation from files alone: no engine is contacted and cursors stand at 0.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::config;
use crate::ids::ModelId;
use crate::policies::PolicyServices;
use crate::server::chat_body;
use crate::server::explain::state_file::StateFile;
use crate::server::explain::{Explained, Subject, explain};
use crate::server::pool::WorkPool;
use crate::server::reload;
use crate::server::routing::Routing;
use crate::state::EngineLoadTable;

/// What `sgl-edge explain` is given.
#[derive(Debug)]
pub struct Files {
    /// The configuration.
    pub config: PathBuf,
    /// The chat body as a client would send it.
    pub body: Bytes,
    /// `NAME: VALUE`, each a request header.
    pub headers: Vec<String>,
    /// The assumed state of the fleet; an idle one without it.
    pub state: Option<PathBuf>,
    /// Whether to show the rendered prompt and its ids.
    pub show_prompt: bool,
}

/// Explains one request.
///
/// # Errors
/// Every problem of the configuration, the state file or the headers, one line each.
pub async fn explain_files(files: &Files) -> Result<Explained, Vec<String>> {
    let headers = headers(&files.headers);
    let state = files.state.as_deref().map_or_else(
        || Ok(StateFile::default()),
        |path| read_state(path).map_err(|problem| vec![problem]),
    );
    // Far from the start of the clock, so that a report can be of any age.
    let now = Instant::now() + Duration::from_secs(10 * 365 * 86_400);
    let services = PolicyServices {
        assumed_prefixes: Some(Arc::default()),
        ..PolicyServices::new(Arc::new(EngineLoadTable::frozen(now)))
    };
    let routing = config::load(&files.config)
        .map_err(|errors| errors.to_string().lines().map(str::to_owned).collect())
        .and_then(|config| {
            let prefixed = |problem: &String| format!("{}: {problem}", files.config.display());
            reload::build(config, &services, None)
                .map_err(|problems| problems.iter().map(prefixed).collect::<Vec<_>>())
        });
    let (headers, state, routing) = match (headers, state, routing) {
        (Ok(headers), Ok(state), Ok(routing)) => (headers, state, routing),
        (headers, state, routing) => {
            let lists = [headers.err(), state.err(), routing.err()];
            return Err(lists.into_iter().flatten().flatten().collect());
        }
    };
    let named = chat_body::parse(&files.body).ok();
    let model = named.and_then(|fields| Some(routing.model(&fields.model)?.0.id.clone()));
    found_only_live(&routing, model.as_ref())?;
    state
        .apply(&routing, &services, model.as_ref())
        .map_err(|problems| {
            let path = files.state.clone().unwrap_or_default();
            let prefixed = |problem: &String| format!("{}: {problem}", path.display());
            problems.iter().map(prefixed).collect::<Vec<_>>()
        })?;
    let subject = Subject {
        routing: &routing,
        loads: &services.loads,
        pool: &WorkPool::new(1),
        show_prompt: files.show_prompt,
    };
    Ok(explain(subject, &headers, files.body.clone()).await)
}

/// Refuses a model whose engines no file names.
fn found_only_live(routing: &Routing, model: Option<&ModelId>) -> Result<(), Vec<String>> {
    let mut models = routing.config.models.iter();
    let asked = models.find(|other| Some(&other.id) == model);
    match asked.and_then(|asked| asked.engines_kubernetes.as_ref()) {
        None => Ok(()),
        Some(source) => Err(vec![format!(
            "the engines of this model are looked for in Kubernetes ({source}) and no file names them: ask a running router, POST /admin/explain"
        )]),
    }
}

fn read_state(path: &Path) -> Result<StateFile, String> {
    let named = |problem: String| format!("{}: {problem}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
    StateFile::parse(&text).map_err(named)
}

/// Headers as a client would send them; of a repeated one all values, in order.
fn headers(lines: &[String]) -> Result<HeaderMap, Vec<String>> {
    let (mut headers, mut problems) = (HeaderMap::new(), Vec::new());
    for line in lines {
        let pair = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::try_from(name.trim()).ok()?;
            Some((name, HeaderValue::try_from(value.trim()).ok()?))
        });
        match pair {
            Some((name, value)) => {
                headers.append(name, value);
            }
            None => problems.push(format!("--header `{line}`: expected NAME: VALUE")),
        }
    }
    if problems.is_empty() {
        Ok(headers)
    } else {
        Err(problems)
    }
}
