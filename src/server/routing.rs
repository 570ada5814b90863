//! Everything a request needs to be routed, as one immutable object.
//!
//! Built aside from a checked configuration and swapped in by one pointer; a request keeps the
//! object it started with. Counters, breakers and health of engines that stay are handed over.
//! Source: contract §6, style-and-architecture §6.

mod tokenizers;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::HeaderName;
use thiserror::Error;

use crate::buckets::{
    Bucket, BucketGroups, BucketResolver, EngineGroup, ResolverError, SloEstimates, SloOrder,
    SloPreference, TokenLimits,
};
use crate::config::{self, Config, ConfigErrors, KvEvents, SloMode};
use crate::feeds::Member;
use crate::ids::{ModelId, Stage};
use crate::indexer::{IndexerClient, IndexerParams, RemotePrefixes};
use crate::policies::{self, PolicyServices, Requirements};
use crate::server::header_facts::HeaderReader;
use crate::server::kubernetes;
use crate::server::names;
use crate::server::secrets::{Secrets, SecretsError};
use crate::state::prefix::{AssumedPrefixes, CacheSource};
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::workers::{Publishers, RegistryError, Worker, WorkerRegistry};
use tokenizers::{TokenizerKey, Tokenizers};

/// Why a checked configuration could not be put to work; one variant per kind of cause.
#[derive(Debug, Error)]
pub enum BuildError {
    /// A model's tokenizer does not load.
    #[error("models[{index}].tokenizer: {error}")]
    Tokenizer {
        /// Place of the model in the file, from 0.
        index: usize,
        /// Path and reason.
        error: TokenizerError,
    },
    /// The engines contradict each other.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The buckets contradict each other.
    #[error("model `{model}`: {error}")]
    Resolver {
        /// The model.
        model: ModelId,
        /// Which rule.
        error: ResolverError,
    },
    /// A file of engines is wrong.
    #[error(transparent)]
    Engines(#[from] ConfigErrors),
    /// Engines come from where this program cannot look.
    #[error(
        "models[{index}].engines.kubernetes: this program was built without it: build with `cargo build --features kubernetes`"
    )]
    NotBuilt {
        /// Place of the model in the file, from 0.
        index: usize,
    },
    /// A key or token file cannot be used.
    #[error(transparent)]
    Secrets(#[from] SecretsError),
}

/// One model's part of the routing.
#[derive(Debug)]
pub struct ModelRouting {
    /// The configured id.
    pub id: ModelId,
    /// Its buckets in resolution order.
    pub resolver: BucketResolver,
    /// Its tokenizer; `None` means that lengths are estimated.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The remote index that its policies ask; `None` is the local one.
    pub indexer: Option<Arc<IndexerClient>>,
    /// What its requests may ask of sampling.
    pub sampling: config::Sampling,
    /// What its requests must be prepared with: the needs of all its groups.
    pub requirements: Requirements,
    /// Whether the ids of a prompt go to the engine where that is safe.
    pub forward_input_ids: bool,
    /// The headers that its requests are asked for.
    pub headers: HeaderReader,
    /// Where events and reports of its engines come from.
    kv_events: KvEvents,
    /// How often engines without a load socket are asked.
    load_poll_interval: Option<Duration>,
    /// The configured path and the state of the files there when the tokenizer was loaded.
    tokenizer_key: Option<TokenizerKey>,
}

impl ModelRouting {
    /// Whether somebody reads the ids of its prompts: a policy, or the engine.
    #[must_use]
    pub const fn needs_ids(&self) -> bool {
        self.requirements.token_ids || self.forward_input_ids
    }

    /// Whether some bucket has an available engine in each of its groups. Changes nothing.
    ///
    /// Source: http-and-operations §15.1, contract §3 `/readyz`.
    #[must_use]
    pub fn servable(&self, workers: &WorkerRegistry) -> bool {
        let has = |group: &EngineGroup, stage| group.has_candidate(workers, &self.id, stage);
        self.resolver
            .buckets()
            .iter()
            .any(|bucket| match bucket.groups() {
                BucketGroups::Plain(group) => has(group, Stage::Plain),
                BucketGroups::Pd { prefill, decode } => {
                    has(prefill, Stage::Prefill) && has(decode, Stage::Decode)
                }
            })
    }
}

/// How a requested model name was matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameMatch {
    /// The configured id, or `base:adapter` with a configured base: passed on as sent.
    AsSent,
    /// An alias: the engine must be told the configured id.
    Alias,
}

/// One generation of routing.
#[derive(Debug)]
pub struct Routing {
    /// Counts up from 1 with every successful load.
    pub generation: u64,
    /// When it was put to work.
    pub loaded_at: SystemTime,
    /// The configuration it was built from.
    pub config: Arc<Config>,
    /// Live engines.
    pub workers: WorkerRegistry,
    /// Client API keys and the admin token.
    pub secrets: Secrets,
    /// The headers that some model is interested in.
    pub header_names: Vec<HeaderName>,
    models: HashMap<ModelId, Arc<ModelRouting>>,
    aliases: HashMap<String, ModelId>,
}

impl Routing {
    /// Builds the successor of `previous` from a checked configuration. Reads tokenizer and key
    /// files and resolves host names (blocking); contacts no engine.
    ///
    /// A tokenizer whose files `previous` had loaded, unchanged since, is taken over.
    ///
    /// # Errors
    /// Every [`BuildError`], not only the first.
    pub fn build(
        config: Arc<Config>,
        services: &PolicyServices,
        previous: Option<&Self>,
    ) -> Result<Self, Vec<BuildError>> {
        let mut errors = Vec::new();
        let mut loaded = Tokenizers::of(previous);
        let before = previous
            .into_iter()
            .flat_map(|previous| previous.models.values());
        let mut indexers = before.filter_map(|model| model.indexer.clone()).collect();
        let mut models = HashMap::new();
        for (index, model) in config.models.iter().enumerate() {
            match build_model(index, model, services, &mut loaded, &mut indexers) {
                Ok(routing) => {
                    models.insert(model.id.clone(), Arc::new(routing));
                }
                Err(error) => errors.push(error),
            }
        }
        let not_built = kubernetes::not_built(&config, kubernetes::BUILT).into_iter();
        errors.extend(not_built.map(|index| BuildError::NotBuilt { index }));
        let mut specs = Vec::new();
        specs.extend(
            previous
                .into_iter()
                .flat_map(|old| kubernetes::carried(&config, old)),
        );
        for model in &config.models {
            specs.extend(model.engines.iter().cloned());
            let Some(file) = &model.engines_file else {
                continue;
            };
            match config::load_engines(file, &model.id) {
                Ok(engines) => specs.extend(engines),
                Err(problems) => errors.push(BuildError::Engines(problems)),
            }
        }
        let workers = WorkerRegistry::try_new(
            specs,
            config.circuit_breaker,
            previous.map(|previous| &previous.workers),
        )
        .map_err(|error| errors.push(error.into()))
        .unwrap_or_default();
        let secrets = Secrets::read(&config).unwrap_or_else(|found| {
            errors.extend(found.into_iter().map(BuildError::from));
            Secrets::default()
        });
        if !errors.is_empty() {
            return Err(errors);
        }
        workers.learn_roles();
        names::resolve(&workers.members());
        let aliases = config.models.iter().flat_map(|model| {
            model
                .aliases
                .iter()
                .map(|alias| (alias.clone(), model.id.clone()))
        });
        Ok(Self {
            generation: previous.map_or(0, |previous| previous.generation) + 1,
            loaded_at: SystemTime::now(),
            aliases: aliases.collect(),
            config,
            workers,
            secrets,
            header_names: header_names(&models),
            models,
        })
    }

    /// The model a request names: exact id, alias, or the base of `base:adapter`.
    ///
    /// Source: http-and-operations §5.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<(&Arc<ModelRouting>, NameMatch)> {
        if let Some(model) = self.models.get(name) {
            return Some((model, NameMatch::AsSent));
        }
        if let Some(id) = self.aliases.get(name) {
            return Some((self.models.get(id)?, NameMatch::Alias));
        }
        let (base, _adapter) = name.split_once(':')?;
        Some((self.models.get(base)?, NameMatch::AsSent))
    }

    /// All models in file order.
    pub fn models(&self) -> impl Iterator<Item = &Arc<ModelRouting>> {
        self.config
            .models
            .iter()
            .filter_map(|model| self.models.get(&model.id))
    }

    /// Every engine with what it publishes, as far as is known now.
    #[must_use]
    pub fn fleet(&self) -> Vec<Member> {
        let engines = self.workers.members().all().into_iter();
        let member = |engine: Arc<Worker>| Member {
            publishers: self.publishers(&engine),
            engine,
        };
        engines.map(member).collect()
    }

    fn publishers(&self, engine: &Worker) -> Option<Arc<Publishers>> {
        let model = self.models.get(engine.model())?;
        model.kv_events.publishers(engine)
    }

    /// Engines that are asked for their load over HTTP, with the pause between two questions: those
    /// without a load socket whose model reads reports.
    #[must_use]
    pub fn polled(&self) -> Vec<(Arc<Worker>, Duration)> {
        let engines = self.workers.members().all().into_iter();
        let polled = engines.filter_map(|engine| Some((self.poll_interval(&engine)?, engine)));
        polled
            .map(|(interval, engine)| (engine, interval))
            .collect()
    }

    /// Whether this very engine is one of them.
    #[must_use]
    pub fn polls(&self, engine: &Worker) -> bool {
        let members = self.workers.members();
        let present = members.get(engine.id());
        present.is_some_and(|present| present.same_engine(engine))
            && self.poll_interval(engine).is_some()
    }

    fn poll_interval(&self, engine: &Worker) -> Option<Duration> {
        let model = self.models.get(engine.model())?;
        let interval = model.load_poll_interval?;
        let publishers = self.publishers(engine);
        let silent = publishers.is_none_or(|publishers| publishers.load.is_none());
        (silent && model.requirements.loads).then_some(interval)
    }

    /// Whether some bucket of some model could be served now. Source: contract §3 `/readyz`.
    #[must_use]
    pub fn servable(&self) -> bool {
        self.models().any(|model| model.servable(&self.workers))
    }
}

/// Every header that some model reads, once.
fn header_names(models: &HashMap<ModelId, Arc<ModelRouting>>) -> Vec<HeaderName> {
    let mut names = Vec::new();
    for name in models.values().flat_map(|model| model.headers.names()) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn build_model(
    index: usize,
    model: &config::Model,
    services: &PolicyServices,
    loaded: &mut Tokenizers,
    indexers: &mut Vec<Arc<IndexerClient>>,
) -> Result<ModelRouting, BuildError> {
    let tokenizer = model
        .tokenizer
        .as_deref()
        .map(|path| loaded.load(path))
        .transpose()
        .map_err(|error| BuildError::Tokenizer { index, error })?;
    let (services, indexer) = prefix_services(model, services, indexers);
    let buckets = model
        .buckets
        .iter()
        .map(|bucket| build_bucket(&model.id, bucket, &services));
    let resolver =
        BucketResolver::try_new(buckets.collect()).map_err(|error| BuildError::Resolver {
            model: model.id.clone(),
            error,
        })?;
    let (tokenizer, tokenizer_key) = tokenizer.unzip();
    Ok(ModelRouting {
        id: model.id.clone(),
        resolver: resolver.with_slo(SloOrder {
            ttft: preference(model.slo.ttft),
            tps: preference(model.slo.tps),
        }),
        tokenizer,
        indexer,
        sampling: model.sampling.clone(),
        requirements: model.requirements(),
        kv_events: model.kv_events.clone(),
        load_poll_interval: model.load_poll_interval,
        forward_input_ids: model.forward_input_ids,
        headers: HeaderReader::new(model),
        tokenizer_key,
    })
}

const fn preference(mode: SloMode) -> SloPreference {
    match mode {
        SloMode::Disabled => SloPreference::Disabled,
        SloMode::SloFirst => SloPreference::SloFirst,
        SloMode::BestEffort => SloPreference::BestEffort,
    }
}

/// The services of one model's policies: they look prefixes up in its own index, or ask its
/// indexer, whose client is made once per indexer and process.
fn prefix_services(
    model: &config::Model,
    services: &PolicyServices,
    indexers: &mut Vec<Arc<IndexerClient>>,
) -> (PolicyServices, Option<Arc<IndexerClient>>) {
    let local = services.prefixes.of(&model.id);
    let indexer = match &model.cache {
        config::Cache::RadixTree => None,
        config::Cache::Indexer(indexer) => {
            let params = IndexerParams {
                endpoint: indexer.endpoint.to_string(),
                query_timeout: indexer.query_timeout,
                query_max_inflight: indexer.query_max_inflight,
            };
            let known = indexers.iter().find(|client| *client.params() == params);
            let client = known.cloned().unwrap_or_else(|| {
                let client = Arc::new(IndexerClient::new(params));
                indexers.push(Arc::clone(&client));
                client
            });
            Some(client)
        }
    };
    let source: Arc<dyn CacheSource> = match (&services.assumed_prefixes, &indexer) {
        (Some(assumed), _) => Arc::<AssumedPrefixes>::clone(assumed),
        (None, Some(client)) => Arc::new(RemotePrefixes::new(Arc::clone(client), local)),
        (None, None) => local,
    };
    (services.with_prefix_source(source), indexer)
}

fn build_bucket(model: &ModelId, bucket: &config::Bucket, services: &PolicyServices) -> Bucket {
    let limits = TokenLimits {
        min_input_tokens: bucket.min_input_tokens,
        max_input_tokens: bucket.max_input_tokens,
        max_context_tokens: bucket.max_context_tokens,
    };
    let groups = match &bucket.groups {
        config::Groups::Plain(group) => BucketGroups::Plain(build_group(model, group, services)),
        config::Groups::Pd { prefill, decode } => BucketGroups::Pd {
            prefill: build_group(model, prefill, services),
            decode: build_group(model, decode, services),
        },
    };
    let estimates = SloEstimates {
        ttft_ms: bucket.ttft_ms,
        tokens_per_second: bucket.tokens_per_second,
    };
    Bucket::new(bucket.id.clone(), bucket.rank, limits, groups).with_estimates(estimates)
}

fn build_group(model: &ModelId, group: &config::Group, services: &PolicyServices) -> EngineGroup {
    let policy = policies::build(&group.policy, group.admission, model, services);
    let built = EngineGroup::new(policy);
    match &group.worker_ids {
        Some(ids) => built.with_worker_ids(ids.iter().cloned()),
        None => built,
    }
}

#[cfg(test)]
mod tests;
