//! The admin listener: one call, and the metrics it gives.

use std::net::SocketAddr;

use super::client::{Answer, End};
use super::{SOON, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One request on a connection of its own. Addresses are allowed here, unlike on the data port.
pub(crate) async fn admin(address: SocketAddr, request: &str) -> Answer {
    let exchange = async {
        let mut socket = TcpStream::connect(address).await?;
        socket.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).await?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = within(SOON, "an admin call", exchange)
        .await
        .expect("the admin listener answers");
    let split = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let split = split.expect("a head");
    let head = String::from_utf8_lossy(&bytes[..split]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let headers = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    let answer = Answer {
        status: status.and_then(|s| s.parse().ok()).expect("a status"),
        headers: headers.collect(),
        body: bytes[split + 4..].to_vec(),
        end: End::Clean,
    };
    let length = answer.body.len().to_string();
    assert_eq!(answer.header("content-length"), Some(length.as_str()));
    answer
}

/// One series of a scrape.
#[derive(Debug, Clone)]
struct Series {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// A scrape.
#[derive(Debug, Clone)]
pub(crate) struct Gauges {
    pub(crate) text: String,
    series: Vec<Series>,
}

impl Gauges {
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self {
            text: text.to_owned(),
            series: lines.map(series).collect(),
        }
    }

    /// Sum of all series of `sgl_router_NAME`; 0 without any.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.sum_of(name, &[])
    }

    /// Sum of those with these labels.
    pub(crate) fn sum_of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|series| series.value).sum()
    }

    /// Whether there is a series.
    pub(crate) fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.matching(name, labels).next().is_some()
    }

    /// The label names of the first series of a name, sorted.
    pub(crate) fn label_names(&self, name: &str) -> Vec<String> {
        let first = self.matching(name, &[]).next();
        let labels = first.map(|series| series.labels.clone());
        let mut names: Vec<String> = labels.into_iter().flatten().map(|(key, _)| key).collect();
        names.sort();
        names
    }

    fn matching<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = &'a Series> {
        let has = |series: &Series, key: &str, value: &str| {
            let mut labels = series.labels.iter();
            labels.any(|(k, v)| k == key && v == value)
        };
        self.series.iter().filter(move |series| {
            series.name.strip_prefix("sgl_router_") == Some(name)
                && labels.iter().all(|(key, value)| has(series, key, value))
        })
    }
}

fn series(line: &str) -> Series {
    let (name, value) = line.rsplit_once(' ').expect("a sample");
    let (name, labels) = match name.split_once('{') {
        None => (name, ""),
        Some((name, labels)) => (name, labels.trim_end_matches('}')),
    };
    let labels = labels.split("\",").filter(|label| !label.is_empty());
    let labels = labels.map(|label| {
        let (key, value) = label.split_once("=\"").expect("a label");
        (key.to_owned(), value.trim_end_matches('"').to_owned())
    });
    Series {
        name: name.to_owned(),
        labels: labels.collect(),
        value: value.parse().expect("a number"),
    }
}
