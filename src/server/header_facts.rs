//! What routing reads from request headers: session and routing keys, latency targets.
//!
//! Only headers that something configured uses are looked at. Of a repeated header the first value
//! counts. Keys are taken byte for byte, and one that is empty or not visible ASCII is as good as
//! none; a target is refused when it is no number. Source: policy-semantics §2, §19.

use http::HeaderMap;
use http::header::HeaderName;

use crate::buckets::SloTargets;
use crate::config::{Model, SloMode};
use crate::server::ApiError;

/// Longest time to first token asked for, milliseconds.
static TTFT: HeaderName = HeaderName::from_static("x-sgl-ttft-slo-ms");
/// Lowest generation speed asked for, tokens per second.
static TPS: HeaderName = HeaderName::from_static("x-sgl-tps-slo");

/// Which headers the requests of a model are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderReader {
    session: Option<HeaderName>,
    routing: Option<HeaderName>,
    ttft: bool,
    tps: bool,
}

/// The first value of each of `names`. A copy, because a request's own headers cannot be held while
/// its client is watched; values are shared, not copied.
#[must_use]
pub fn first_values(names: &[HeaderName], headers: &HeaderMap) -> HeaderMap {
    let mut values = HeaderMap::new();
    for name in names {
        if let Some(value) = headers.get(name) {
            values.insert(name, value.clone());
        }
    }
    values
}

/// What they said.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HeaderFacts {
    /// Value of the session header, not empty.
    pub session_key: Option<Box<str>>,
    /// Value of the routing-key header, not empty.
    pub routing_key: Option<Box<str>>,
    /// The enabled targets that were given.
    pub slo: SloTargets,
}

impl HeaderReader {
    /// The headers that the groups and targets of `model` use.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let needs = model.requirements();
        // The configuration holds valid names only.
        let name = |needed: bool, name: &str| HeaderName::try_from(name).ok().filter(|_| needed);
        Self {
            session: name(needs.session_key, &model.affinity.session.header),
            routing: name(needs.routing_key, &model.affinity.sticky.header),
            ttft: model.slo.ttft != SloMode::Disabled,
            tps: model.slo.tps != SloMode::Disabled,
        }
    }

    /// The names of the headers that are read.
    pub fn names(&self) -> impl Iterator<Item = &HeaderName> {
        let keys = self.session.iter().chain(&self.routing);
        let ttft = self.ttft.then_some(&TTFT);
        keys.chain(ttft).chain(self.tps.then_some(&TPS))
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`ApiError::BadRequest`] for an enabled target that is no number above zero; whole
    /// milliseconds for the time to first token.
    pub fn read(&self, headers: &HeaderMap) -> Result<HeaderFacts, ApiError> {
        Ok(HeaderFacts {
            session_key: key(headers, self.session.as_ref()),
            routing_key: key(headers, self.routing.as_ref()),
            slo: SloTargets {
                ttft_ms: target(headers, self.ttft.then_some(&TTFT), milliseconds)?,
                tokens_per_second: target(headers, self.tps.then_some(&TPS), speed)?,
            },
        })
    }
}

fn key(headers: &HeaderMap, name: Option<&HeaderName>) -> Option<Box<str>> {
    let key = headers.get(name?)?.to_str().ok()?;
    (!key.is_empty()).then(|| key.into())
}

fn target(
    headers: &HeaderMap,
    name: Option<&HeaderName>,
    read: fn(&str) -> Result<f64, &'static str>,
) -> Result<Option<f64>, ApiError> {
    let Some((name, value)) = name.and_then(|name| Some((name, headers.get(name)?))) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    read(text.trim()).map(Some).map_err(|rule| {
        ApiError::bad_request(format!("invalid request: header {name} must be {rule}"))
    })
}

fn milliseconds(text: &str) -> Result<f64, &'static str> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse::<u64>().ok().filter(|ms| digits && *ms > 0);
    // Targets beyond 2^53 ms are not told apart; no engine is that slow.
    number
        .map(|ms| ms as f64)
        .ok_or("a whole number of milliseconds above zero")
}

fn speed(text: &str) -> Result<f64, &'static str> {
    let usable = |value: &f64| value.is_finite() && *value > 0.0;
    let number = text.parse::<f64>().ok().filter(usable);
    number.ok_or("a number of tokens per second above zero")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(rows: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in rows {
            let value = HeaderValue::from_bytes(value).expect("a header value");
            headers.append(*name, value);
        }
        headers
    }

    fn all() -> HeaderReader {
        HeaderReader {
            session: Some(HeaderName::from_static("x-session-id")),
            routing: Some(HeaderName::from_static("x-sgl-routing-key")),
            ttft: true,
            tps: true,
        }
    }

    #[test]
    fn the_first_value_counts_and_is_taken_byte_for_byte() {
        let given = headers(&[
            ("x-session-id", b"Alice, Bob"),
            ("x-session-id", b"carol"),
            ("x-sgl-routing-key", b"  tenant/7 "),
        ]);
        let facts = all().read(&given).unwrap();
        assert_eq!(facts.session_key.as_deref(), Some("Alice, Bob"));
        assert_eq!(facts.routing_key.as_deref(), Some("  tenant/7 "));
    }

    #[test]
    fn a_key_that_is_missing_empty_or_not_visible_ascii_is_none() {
        let rows: [&[(&'static str, &[u8])]; 4] = [
            &[],
            &[("x-session-id", b"")],
            &[("x-session-id", b"caf\xc3\xa9")],
            // The first value counts, even if it is none.
            &[("x-session-id", b""), ("x-session-id", b"bob")],
        ];
        for row in rows {
            let facts = all().read(&headers(row)).unwrap();
            assert_eq!(facts.session_key, None, "{row:?}");
        }
    }

    #[test]
    fn what_nobody_uses_is_not_read_not_even_when_it_is_malformed() {
        let given = headers(&[
            ("x-session-id", b"alice"),
            ("x-sgl-routing-key", b"tenant"),
            ("x-sgl-ttft-slo-ms", b"soon"),
            ("x-sgl-tps-slo", b"fast"),
        ]);
        let facts = HeaderReader::default().read(&given).unwrap();
        assert_eq!(facts, HeaderFacts::default());
    }

    #[test]
    fn targets_are_numbers_above_zero() {
        let rows: [(&str, Option<f64>, Option<f64>); 16] = [
            ("100", Some(100.0), Some(100.0)),
            (" 100 ", Some(100.0), Some(100.0)),
            ("1", Some(1.0), Some(1.0)),
            ("0", None, None),
            ("-1", None, None),
            ("+5", None, Some(5.0)),
            ("1.5", None, Some(1.5)),
            ("1e3", None, Some(1000.0)),
            ("0.0", None, None),
            ("", None, None),
            ("NaN", None, None),
            ("inf", None, None),
            ("1e999", None, None),
            ("100ms", None, None),
            (
                "18446744073709551616",
                None,
                Some(18_446_744_073_709_551_616.0),
            ),
            ("0x10", None, None),
        ];
        for (text, ttft, tps) in rows {
            let read = |name| {
                let facts = all().read(&headers(&[(name, text.as_bytes())]));
                facts.map(|facts| facts.slo)
            };
            let (by_time, by_speed) = (read("x-sgl-ttft-slo-ms"), read("x-sgl-tps-slo"));
            assert_eq!(
                by_time.map(|slo| slo.ttft_ms).ok(),
                ttft.map(Some),
                "{text}"
            );
            assert_eq!(
                by_speed.map(|slo| slo.tokens_per_second).ok(),
                tps.map(Some),
                "{text}"
            );
        }
    }

    #[test]
    fn a_refused_target_names_its_header_and_the_rule() {
        let error = all()
            .read(&headers(&[("x-sgl-tps-slo", b"\xff")]))
            .unwrap_err();
        let ApiError::BadRequest(text) = error else {
            panic!("{error:?}")
        };
        assert_eq!(
            text,
            "invalid request: header x-sgl-tps-slo must be a number of tokens per second above zero"
        );
    }
}
