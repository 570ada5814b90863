//! The root of the file: limits, timeouts, shutdown, health, breaker and log.
//!
//! Defaults and names: contract §2. Opens no file.

use std::time::Duration;

use crate::config::reader::{At, Fields, Problems, Read, found};
use crate::config::scalars::{
    between, boolean, duration, one_of, path, positive, size, small, string, time,
};
use crate::config::tree::Node;
use crate::config::types::{
    Auth, Config, Health, Limits, Log, LogFormat, LogLevel, Shutdown, Timeouts,
};
use crate::config::units::{show_duration, show_size};
use crate::config::{listeners, models};
use crate::workers::BreakerParams;

const KEYS: [&str; 13] = [
    "listen",
    "tls",
    "admin",
    "threads",
    "auth",
    "response_headers",
    "limits",
    "timeouts",
    "shutdown",
    "health",
    "circuit_breaker",
    "log",
    "models",
];

/// Largest `max_body`, bytes: a body is held in memory whole. Chosen.
const MOST_BODY: u64 = 1 << 30;
/// Longest drain. Source: policy-semantics §20, `--shutdown-drain-secs`.
const LONGEST_DRAIN: Duration = Duration::from_secs(1800);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The whole file without its warnings. Worth nothing if something was added to `problems`.
pub(super) fn config(problems: &mut Problems, root: &At<'_>) -> Option<Config> {
    let fields = problems.map(root, &KEYS)?;
    let listen = listeners::listen(problems, &fields);
    listeners::tls(problems, &fields);
    let admin = listeners::admin(problems, &fields, listen.as_deref().unwrap_or_default());
    let threads = problems.optional(&fields, "threads", |node| {
        let threads = between(1, 1024)(node)?;
        usize::try_from(threads).map_err(|error| error.to_string())
    });
    let auth = problems
        .section(&fields, "auth", &["api_keys_file"])
        .and_then(|auth| problems.optional(&auth, "api_keys_file", path))
        .map(|api_keys_file| Auth { api_keys_file });
    let response_headers = problems.setting(&fields, "response_headers", boolean, false);
    let limits = limits(problems, &fields);
    let timeouts = timeouts(problems, &fields);
    let shutdown = shutdown(problems, &fields);
    let health = health(problems, &fields);
    let circuit_breaker = circuit_breaker(problems, &fields);
    let log = log(problems, &fields);
    let models = models::models(problems, &fields);
    Some(Config {
        listen: listen?,
        admin: admin?,
        threads: threads?,
        auth: auth?,
        response_headers: response_headers?,
        limits: limits?,
        timeouts: timeouts?,
        shutdown: shutdown?,
        health: health?,
        circuit_breaker: circuit_breaker?,
        log: log?,
        models: models?,
        warnings: Vec::new(),
    })
}

fn limits(problems: &mut Problems, fields: &Fields<'_>) -> Option<Limits> {
    let known = [
        "max_body",
        "max_inflight_requests",
        "max_connections",
        "max_buffered_body",
    ];
    let limits = problems.section(fields, "limits", &known)?;
    let max_body = problems.setting(&limits, "max_body", body_size, 32 << 20);
    let max_inflight_requests = problems.optional(&limits, "max_inflight_requests", positive);
    let max_connections = problems.optional(&limits, "max_connections", positive);
    let max_buffered_body = problems.setting(&limits, "max_buffered_body", size, 2 << 30);
    let limits_place = limits.place_of("max_buffered_body");
    let limits = Limits {
        max_body: max_body?,
        max_inflight_requests: max_inflight_requests?,
        max_connections: max_connections?,
        max_buffered_body: max_buffered_body?,
    };
    if limits.max_buffered_body < limits.max_body {
        let problem = format!(
            "{} is below max_body {}: one body of that size could never be held",
            show_size(limits.max_buffered_body),
            show_size(limits.max_body)
        );
        problems.add(&limits_place, problem);
        return None;
    }
    Some(limits)
}

fn body_size(node: &Node) -> Read<u64> {
    match size(node)? {
        0 => Err("must be at least 1 byte".to_owned()),
        bytes if bytes > MOST_BODY => Err(format!(
            "{} is above 1GiB, the most allowed",
            show_size(bytes)
        )),
        bytes => Ok(bytes),
    }
}

fn timeouts(problems: &mut Problems, fields: &Fields<'_>) -> Option<Timeouts> {
    let known = [
        "client_header",
        "client_body_idle",
        "client_write",
        "connect",
        "first_byte",
        "request",
        "stream_idle",
        "lifetime",
    ];
    let timeouts = problems.section(fields, "timeouts", &known)?;
    let mut read = |key, default| problems.setting(&timeouts, key, time, secs(default));
    let client_header = read("client_header", 10);
    let client_body_idle = read("client_body_idle", 30);
    let client_write = read("client_write", 120);
    let connect = read("connect", 5);
    let first_byte = read("first_byte", 300);
    let request = read("request", 300);
    let stream_idle = read("stream_idle", 180);
    let lifetime = read("lifetime", 600);
    Some(Timeouts {
        client_header: client_header?,
        client_body_idle: client_body_idle?,
        client_write: client_write?,
        connect: connect?,
        first_byte: first_byte?,
        request: request?,
        stream_idle: stream_idle?,
        lifetime: lifetime?,
    })
}

fn shutdown(problems: &mut Problems, fields: &Fields<'_>) -> Option<Shutdown> {
    let shutdown = problems.section(fields, "shutdown", &["drain", "grace"])?;
    let drain = problems.setting(&shutdown, "drain", drain, secs(30));
    let grace = problems.setting(&shutdown, "grace", duration, secs(60));
    Some(Shutdown {
        drain: drain?,
        grace: grace?,
    })
}

/// A pause after SIGTERM.
pub(super) fn drain(node: &Node) -> Read<Duration> {
    match duration(node)? {
        drain if drain > LONGEST_DRAIN => Err(format!(
            "{} is above 1800s, the longest drain allowed",
            show_duration(drain)
        )),
        drain => Ok(drain),
    }
}

fn health(problems: &mut Problems, fields: &Fields<'_>) -> Option<Option<Health>> {
    if fields.is_null("health") {
        return Some(None);
    }
    let known = [
        "path",
        "interval",
        "timeout",
        "healthy_after",
        "unhealthy_after",
    ];
    let health = problems.section(fields, "health", &known)?;
    let path = problems.setting(&health, "path", url_path, "/health".to_owned());
    let interval = problems.setting(&health, "interval", time, secs(15));
    let timeout = problems.setting(&health, "timeout", time, secs(25));
    let healthy_after = problems.setting(&health, "healthy_after", small(1), 1);
    let unhealthy_after = problems.setting(&health, "unhealthy_after", small(1), 3);
    Some(Some(Health {
        path: path?,
        interval: interval?,
        timeout: timeout?,
        healthy_after: healthy_after?,
        unhealthy_after: unhealthy_after?,
    }))
}

/// What may stand in a request line.
fn url_path(node: &Node) -> Read<String> {
    let text = string(node)?;
    if !text.starts_with('/') {
        return Err(format!(
            "{} is not a path: it must start with /",
            found(node)
        ));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains('#') {
        return Err(format!(
            "{} holds characters that a path must not hold",
            found(node)
        ));
    }
    Ok(text)
}

fn circuit_breaker(problems: &mut Problems, fields: &Fields<'_>) -> Option<Option<BreakerParams>> {
    if fields.is_null("circuit_breaker") {
        return Some(None);
    }
    let default = BreakerParams::default();
    let breaker = problems.section(fields, "circuit_breaker", &["failures", "cool_down"])?;
    let failures = problems.setting(&breaker, "failures", small(1), default.failures);
    let cool_down = problems.setting(&breaker, "cool_down", time, default.cool_down);
    Some(Some(BreakerParams {
        failures: failures?,
        cool_down: cool_down?,
    }))
}

fn log(problems: &mut Problems, fields: &Fields<'_>) -> Option<Log> {
    let log = problems.section(fields, "log", &["level", "format", "access"])?;
    let level = one_of(&LogLevel::ALL, LogLevel::as_str);
    let level = problems.setting(&log, "level", level, LogLevel::Info);
    let format = one_of(&LogFormat::ALL, LogFormat::as_str);
    let format = problems.setting(&log, "format", format, LogFormat::Text);
    let access = problems.setting(&log, "access", boolean, true);
    Some(Log {
        level: level?,
        format: format?,
        access: access?,
    })
}
