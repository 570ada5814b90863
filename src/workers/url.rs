//! The address of an engine as the operator wrote it, checked and in one spelling.
//!
//! Refuses everything that could make two engines of one or none of it: no scheme, a path, a
//! query, user information. Does not resolve names; that is the registry's work, because it needs
//! the network and may fail later.

use std::fmt;
use std::net::IpAddr;

use thiserror::Error;

/// Why an engine URL was refused. The text names what was found and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UrlError {
    /// Not `http://…`.
    #[error("engine url must start with http:// (found `{0}`)")]
    Scheme(String),
    /// TLS towards engines.
    #[error("https engines are not supported yet: use http://")]
    Https,
    /// The host part is missing or malformed.
    #[error("engine url has no valid host: `{0}`")]
    Host(String),
    /// The port is not 1..=65535.
    #[error("engine url has no valid port: `{0}`")]
    Port(String),
    /// A path, query, fragment or user information was given.
    #[error("engine url must be http://HOST:PORT without user, path or query: `{0}`")]
    Extra(String),
}

/// `http://HOST:PORT` of one engine, normalised: lower-case scheme and host, port always known,
/// no trailing slash. IPv6 hosts keep their brackets in every rendering.
///
/// Source: field-lessons L40, L78.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EngineUrl {
    host: String,
    port: u16,
}

impl EngineUrl {
    /// Parses and normalises `text`. A missing port is 80.
    ///
    /// # Errors
    /// [`UrlError`], one variant per broken rule.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let trimmed = text.trim();
        let Some((scheme, rest)) = trimmed.split_once("://") else {
            return Err(UrlError::Scheme(mask_user(trimmed)));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "http" => {}
            "https" => return Err(UrlError::Https),
            _ => return Err(UrlError::Scheme(mask_user(trimmed))),
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#', '@', '\\']) || authority.contains(char::is_whitespace)
        {
            return Err(UrlError::Extra(mask_user(trimmed)));
        }
        let (host, port) = split_port(authority)?;
        Ok(Self {
            host: checked_host(host)?,
            port,
        })
    }

    /// Host as it goes into a `bootstrap_host` or a `Host` header: IPv6 in brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `HOST:PORT`, the authority for the `Host` header.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The address when the host is a literal IP; `None` for a name.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.trim_matches(['[', ']']).parse().ok()
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

/// User information may hold a secret: never repeat it in an error.
fn mask_user(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => text.to_owned(),
    }
}

fn split_port(authority: &str) -> Result<(&str, u16), UrlError> {
    let after_brackets = authority.rfind(']').map_or(0, |end| end + 1);
    match authority[after_brackets..].rfind(':') {
        None => Ok((authority, 80)),
        Some(colon) => {
            let (host, port) = authority.split_at(after_brackets + colon);
            match port[1..].parse::<u16>() {
                Ok(port) if port > 0 => Ok((host, port)),
                _ => Err(UrlError::Port(authority.to_owned())),
            }
        }
    }
}

fn checked_host(host: &str) -> Result<String, UrlError> {
    let bad = || UrlError::Host(host.to_owned());
    if let Some(inner) = host.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or_else(bad)?;
        let address: std::net::Ipv6Addr = inner.parse().map_err(|_| bad())?;
        return Ok(format!("[{address}]"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.is_empty() || host.len() > 253 || !host.chars().all(plain) {
        return Err(bad());
    }
    Ok(host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_engine_become_one_url() {
        for text in [
            "http://b:8000",
            "http://b:8000/",
            "HTTP://B:8000",
            " http://b:8000 ",
        ] {
            let url = EngineUrl::parse(text).unwrap();
            assert_eq!(url.to_string(), "http://b:8000", "{text}");
        }
        assert_eq!(EngineUrl::parse("http://b").unwrap().port(), 80);
    }

    #[test]
    fn ipv6_keeps_its_brackets_everywhere() {
        let url = EngineUrl::parse("http://[::1]:30000").unwrap();
        assert_eq!(url.host(), "[::1]");
        assert_eq!(url.authority(), "[::1]:30000");
        assert_eq!(url.ip(), Some("::1".parse().unwrap()));
        assert_eq!(EngineUrl::parse("http://[::1]").unwrap().port(), 80);
    }

    #[test]
    fn each_malformed_url_is_refused_by_its_own_rule() {
        use UrlError::{Extra, Host, Https, Port, Scheme};
        type Check = fn(&UrlError) -> bool;
        let rows: [(&str, Check); 12] = [
            ("b:8000", |e| matches!(e, Scheme(_))),
            ("tcp://b:1", |e| matches!(e, Scheme(_))),
            ("https://b:1", |e| matches!(e, Https)),
            ("http://", |e| matches!(e, Host(_))),
            ("http://:80", |e| matches!(e, Host(_))),
            ("http://b:0", |e| matches!(e, Port(_))),
            ("http://b:70000", |e| matches!(e, Port(_))),
            ("http://::1:80", |e| matches!(e, Host(_))),
            ("http://[::1", |e| matches!(e, Host(_) | Port(_))),
            ("http://b:1/v1", |e| matches!(e, Extra(_))),
            ("http://b:1?x=1", |e| matches!(e, Extra(_))),
            ("http://u:secret@b:1", |e| matches!(e, Extra(_))),
        ];
        for (text, expected) in rows {
            let error = EngineUrl::parse(text).unwrap_err();
            assert!(expected(&error), "{text}: {error:?}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
