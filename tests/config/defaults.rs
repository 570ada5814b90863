//! What a file means that says as little as possible, and what `null` means.

use std::time::Duration;

use sgl_edge::config::{
    Admin, Affinity, AffinityKeys, Auth, Bucket, Config, Group, Groups, Health, KvEvents, Limits,
    Log, LogFormat, LogLevel, Model, Sampling, Shutdown, Slo, SloMode, Timeouts, parse,
};
use sgl_edge::ids::Stage;
use sgl_edge::policies::{AdmissionLimits, PolicyParams, PowerOfTwoParams};
use sgl_edge::workers::{BreakerParams, EngineUrl, Publishers, TcpEndpoint, WorkerSpec};

use crate::{MINIMAL, parse_file, repository};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn bucket(id: &str, rank: u32, groups: Groups) -> Bucket {
    Bucket {
        id: id.into(),
        rank,
        min_input_tokens: None,
        max_input_tokens: None,
        max_context_tokens: None,
        ttft_ms: None,
        tokens_per_second: None,
        groups,
    }
}

fn group() -> Group {
    Group {
        worker_ids: None,
        policy: PolicyParams::PowerOfTwo(PowerOfTwoParams::try_new(2).unwrap()),
        admission: AdmissionLimits::default(),
    }
}

fn keys(header: &str) -> AffinityKeys {
    AffinityKeys {
        header: header.to_owned(),
        idle: secs(600),
        eviction_interval: secs(60),
    }
}

fn model() -> Model {
    let pd = Groups::Pd {
        prefill: group(),
        decode: group(),
    };
    Model {
        id: "m".into(),
        aliases: Vec::new(),
        tokenizer: None,
        forward_input_ids: false,
        sampling: Sampling::default(),
        engine_api_key_file: None,
        affinity: Affinity {
            session: keys("x-session-id"),
            sticky: keys("x-sgl-routing-key"),
        },
        slo: Slo {
            ttft: SloMode::Disabled,
            tps: SloMode::Disabled,
        },
        engines: vec![WorkerSpec {
            id: "E1".into(),
            url: EngineUrl::parse("http://127.0.0.1:30001").unwrap(),
            model: "m".into(),
            role: Stage::Plain,
            bootstrap_port: None,
        }],
        engines_file: None,
        engines_kubernetes: None,
        cache: sgl_edge::config::Cache::RadixTree,
        kv_events: KvEvents::Auto,
        load_poll_interval: Some(secs(1)),
        buckets: vec![
            bucket("plain", 0, Groups::Plain(group())),
            bucket("pd", 1, pd),
        ],
    }
}

/// Contract §2, value by value.
fn minimal() -> Config {
    Config {
        listen: vec!["127.0.0.1:8080".parse().unwrap()],
        admin: Admin {
            listen: "127.0.0.1:9090".parse().unwrap(),
            token_file: None,
        },
        threads: None,
        auth: Auth {
            api_keys_file: None,
        },
        response_headers: false,
        limits: Limits {
            max_body: 33_554_432,
            max_inflight_requests: None,
            max_connections: None,
            max_buffered_body: 2_147_483_648,
        },
        timeouts: Timeouts {
            client_header: secs(10),
            client_body_idle: secs(30),
            client_write: secs(120),
            connect: secs(5),
            first_byte: secs(300),
            request: secs(300),
            stream_idle: secs(180),
            lifetime: secs(600),
        },
        shutdown: Shutdown {
            drain: secs(30),
            grace: secs(60),
        },
        health: Some(Health {
            path: "/health".to_owned(),
            interval: secs(15),
            timeout: secs(25),
            healthy_after: 1,
            unhealthy_after: 3,
        }),
        circuit_breaker: Some(BreakerParams {
            failures: 3,
            cool_down: secs(30),
        }),
        log: Log {
            level: LogLevel::Info,
            format: LogFormat::Text,
            access: true,
        },
        models: vec![model()],
        warnings: Vec::new(),
    }
}

#[test]
fn what_is_left_out_has_the_defaults_of_the_contract() {
    assert_eq!(parse(MINIMAL, "t"), Ok(minimal()));
}

#[test]
fn null_means_unset_everywhere_else_than_health_and_breaker() {
    let path = repository("tests/fixtures/config/good/null_is_unset.yaml");
    assert_eq!(parse_file(&path), Ok(minimal()));
}

#[test]
fn null_switches_health_checks_and_breakers_off_and_zero_is_allowed_after_sigterm() {
    let path = repository("tests/fixtures/config/good/switched_off.yaml");
    let mut wanted = minimal();
    wanted.health = None;
    wanted.circuit_breaker = None;
    wanted.shutdown = Shutdown {
        drain: Duration::ZERO,
        grace: Duration::ZERO,
    };
    wanted.models[0].kv_events = KvEvents::Off;
    assert_eq!(parse_file(&path), Ok(wanted));
}

#[test]
fn an_empty_section_is_a_section_of_defaults() {
    let text = format!(
        "admin: {{}}\nauth: {{}}\nlimits: {{}}\ntimeouts: {{}}\nshutdown: {{}}\nhealth: {{}}\ncircuit_breaker: {{}}\nlog: {{}}\n{MINIMAL}"
    );
    assert_eq!(parse(&text, "t"), Ok(minimal()));
}

#[test]
fn windows_line_ends_and_a_byte_order_mark_change_nothing() {
    for name in ["windows_line_ends", "byte_order_mark"] {
        let path = repository(&format!("tests/fixtures/config/good/{name}.yaml"));
        assert_eq!(parse_file(&path), Ok(minimal()), "{name}");
    }
}

#[test]
fn every_setting_reaches_its_field() {
    let path = repository("tests/fixtures/config/good/everything_else.yaml");
    let config = parse_file(&path).unwrap();
    assert_eq!(config.listen.len(), 3);
    assert_eq!(config.admin.listen, "0.0.0.0:9090".parse().unwrap());
    assert_eq!(config.admin.token_file, Some("conf/token".into()));
    assert_eq!(config.threads, Some(1024));
    assert_eq!(config.auth.api_keys_file, Some("conf/keys".into()));
    assert!(config.response_headers);
    let limits = Limits {
        max_body: 1 << 30,
        max_inflight_requests: Some(1),
        max_connections: Some(2),
        max_buffered_body: 1 << 30,
    };
    assert_eq!(config.limits, limits);
    let timeouts = Timeouts {
        client_header: Duration::from_millis(1),
        client_body_idle: secs(2),
        client_write: secs(180),
        connect: secs(4),
        first_byte: secs(5),
        request: secs(6),
        stream_idle: secs(7),
        lifetime: secs(720 * 3600),
    };
    assert_eq!(config.timeouts, timeouts);
    assert_eq!(config.shutdown.drain, secs(1800));
    assert_eq!(config.shutdown.grace, secs(3600));
    let health = Health {
        path: "/v1/models".to_owned(),
        interval: secs(1),
        timeout: secs(2),
        healthy_after: 3,
        unhealthy_after: 4,
    };
    assert_eq!(config.health, Some(health));
    let breaker = BreakerParams {
        failures: 5,
        cool_down: secs(6),
    };
    assert_eq!(config.circuit_breaker, Some(breaker));
    let log = Log {
        level: LogLevel::Off,
        format: LogFormat::Json,
        access: false,
    };
    assert_eq!(config.log, log);
    assert_eq!(config.models[0].aliases, ["b", "c"]);
}

#[test]
fn publishers_named_by_hand_reach_their_engines() {
    let path = repository("tests/fixtures/config/good/kv_events_by_hand.yaml");
    let config = parse_file(&path).unwrap();
    let KvEvents::Explicit(named) = &config.models[0].kv_events else {
        panic!("{:?}", config.models[0].kv_events);
    };
    let full = Publishers {
        events: TcpEndpoint::new("[::1]", 5557),
        replay: Some(TcpEndpoint::new("10.0.0.1", 6000)),
        topic: "kv".to_owned(),
        block_size: Some(64),
        ranks: 4,
        load: Some(TcpEndpoint::new("10.0.0.1", 5561)),
        load_topic: "load".to_owned(),
    };
    let bare = Publishers {
        events: TcpEndpoint::new("a", 5557),
        replay: None,
        topic: String::new(),
        block_size: None,
        ranks: 1,
        load: None,
        load_topic: "load".to_owned(),
    };
    let found: Vec<_> = named
        .iter()
        .map(|(id, found)| (id.as_str(), &**found))
        .collect();
    assert_eq!(found, [("E1", &full), ("E2", &bare)]);
}

#[test]
fn engines_without_an_id_are_named_by_their_normalised_url() {
    let path = repository("tests/fixtures/config/good/everything_else.yaml");
    let engines = parse_file(&path).unwrap().models.remove(0).engines;
    let rows: Vec<_> = engines
        .iter()
        .map(|engine| (engine.id.as_str(), engine.role, engine.bootstrap_port))
        .collect();
    let wanted = [
        ("http://host-a:30001", Stage::Prefill, Some(65535)),
        ("http://[::1]:30002", Stage::Prefill, None),
        ("D1", Stage::Decode, None),
    ];
    assert_eq!(rows, wanted);
    assert!(engines.iter().all(|engine| engine.model.as_str() == "a"));
}
