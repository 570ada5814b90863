//! One watch: list, follow, and begin again after every kind of failure.
//!
//! `kube`'s watcher does the protocol. Three things are done around it: pauses that grow while
//! nothing works, a limit for lists that hang, and a fresh list when the server answers a watch
//! with the status 410 and not with an event that says so: the watcher would ask the same for ever.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::Status;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config};
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;

use crate::config::{Kubernetes as Source, Select};
use crate::proxy::kubernetes::{Told, object};
use crate::server::kubernetes::Change;

/// After the first failure; twice as long after each further one, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// A failure this long after the last one counts as the first.
const FORGIVEN: Duration = Duration::from_secs(30);

/// For a connection, and for one step of a list.
const CONNECT: Duration = Duration::from_secs(5);
const LIST: Duration = Duration::from_secs(30);

/// How long one watch lasts, seconds, and the longest silence of the server. A connection that died
/// without a word is noticed after this long; a fresh watch goes on where the last one was.
const WATCH_SECS: u32 = 60;
const SILENCE: Duration = Duration::from_secs(90);

/// Failures in a row after which they are an error and no longer a warning, and from then on every
/// how many they are told.
const PATIENCE: u32 = 3;
const REMINDER: u32 = 20;

/// Watches `source` until it is dropped; `number` goes with everything that it tells.
pub(super) async fn run(source: Source, number: u64, tell: Sender<Told>) {
    let mut trouble = Trouble::default();
    loop {
        let end = match connect().await {
            Ok(client) => follow(&source, number, &tell, client, &mut trouble).await,
            Err(problem) => End::Failed(problem),
        };
        match end {
            End::Closed => return,
            End::Failed(problem) => trouble.wait(&source, &problem).await,
        }
    }
}

/// Why a watch has to begin anew, or not.
enum End {
    /// Nobody listens any more.
    Closed,
    Failed(String),
}

/// A client for the cluster that this program runs in, or that KUBECONFIG names.
async fn connect() -> Result<Client, String> {
    let mut config = Config::infer()
        .await
        .map_err(|error| format!("no cluster is configured: {}", causes(&error)))?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    Client::try_from(config).map_err(|error| causes(&error))
}

/// One watcher, until it cannot go on.
async fn follow(
    source: &Source,
    number: u64,
    tell: &Sender<Told>,
    client: Client,
    trouble: &mut Trouble,
) -> End {
    let slices: Api<EndpointSlice> = match &source.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let config = watcher::Config::default().timeout(WATCH_SECS);
    let config = match &source.select {
        Select::Plain(selector) => config.labels(selector),
        // "These labels or those" cannot be said in one selector: all come, few are kept.
        Select::Pd { .. } => config,
    };
    let mut events = pin!(watcher(slices, config));
    let mut listing = true;
    loop {
        let event = if listing {
            let limited = tokio::time::timeout(LIST, events.next()).await;
            limited.map_err(|_| format!("a list took longer than {} s", LIST.as_secs()))
        } else {
            Ok(events.next().await)
        };
        let event = match event {
            Ok(Some(Ok(event))) => event,
            Ok(Some(Err(error))) if forgotten(&error) => return End::Failed(explained(&error)),
            Ok(Some(Err(error))) => {
                trouble.wait(source, &explained(&error)).await;
                continue;
            }
            Ok(None) => return End::Failed("the watch ended".to_owned()),
            Err(problem) => return End::Failed(problem),
        };
        if !matches!(event, Event::Init) {
            trouble.over(source);
        }
        listing = matches!(event, Event::Init | Event::InitApply(_));
        let Some(change) = change(event) else {
            continue;
        };
        if tell.send((number, source.clone(), change)).await.is_err() {
            return End::Closed;
        }
    }
}

/// `None` for an object without a name.
fn change(event: Event<EndpointSlice>) -> Option<Change> {
    Some(match event {
        Event::Init => Change::ListBegins,
        Event::InitApply(slice) => Change::Listed(object::key(&slice)?, object::slice(slice)),
        Event::InitDone => Change::ListEnds,
        Event::Apply(slice) => Change::Applied(object::key(&slice)?, object::slice(slice)),
        Event::Delete(slice) => Change::Deleted(object::key(&slice)?),
    })
}

/// What the server answered in place of what was asked for.
fn refusal(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

/// Whether the server does not know the place any more from which the watch would go on.
fn forgotten(error: &watcher::Error) -> bool {
    refusal(error).is_some_and(|status| status.code == 410)
}

fn explained(error: &watcher::Error) -> String {
    let Some(status) = refusal(error) else {
        return causes(error);
    };
    let hint = match status.code {
        403 => {
            "the service account may not get, list and watch endpointslices (docker/kubernetes has the role): "
        }
        401 => "the credentials are not accepted: ",
        _ => "",
    };
    format!("{hint}{} ({})", status.message, status.code)
}

/// An error with its causes, each text once.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}

/// Failures in a row.
#[derive(Debug, Default)]
struct Trouble {
    failures: u32,
    last: Option<Instant>,
}

impl Trouble {
    /// Says what went wrong, and waits.
    async fn wait(&mut self, source: &Source, problem: &str) {
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now.duration_since(last) > FORGIVEN)
        {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            failures if failures < PATIENCE => {
                tracing::warn!(%source, problem, "Kubernetes: engines stay as they are");
            }
            failures if failures % REMINDER == PATIENCE => {
                tracing::error!(%source, problem, failures, "Kubernetes: engines stay as they are");
            }
            _ => {}
        }
        let doubled = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(10));
        // Routers that lost one server do not come back to it all at once.
        let pause = doubled
            .min(LONGEST_PAUSE)
            .mul_f64(rand::random_range(0.5..=1.0));
        tokio::time::sleep(pause).await;
        self.last = Some(Instant::now());
    }

    fn over(&mut self, source: &Source) {
        if std::mem::take(&mut self.failures) >= PATIENCE {
            tracing::info!(%source, "Kubernetes answers again");
        }
    }
}
