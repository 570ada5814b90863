//! Where the program listens: data listeners, their TLS, and the admin listener.
//!
//! Refuses addresses that the system would refuse together, before anything is opened, and an admin
//! listener that other hosts reach without a token. Opens no socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::config::reader::{Fields, Problems};
use crate::config::scalars::{path, socket};
use crate::config::tree::Value;
use crate::config::types::Admin;

/// Most data listeners. Chosen.
const MOST_LISTENERS: usize = 64;

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// One address or a list of them.
pub(super) fn listen(problems: &mut Problems, fields: &Fields<'_>) -> Option<Vec<SocketAddr>> {
    let Some(at) = fields.get("listen") else {
        return Some(vec![loopback(8080)]);
    };
    let items = match at.node.value {
        Value::Scalar { .. } => vec![at.clone()],
        Value::List(_) | Value::Map(_) => problems.list(&at)?,
    };
    if items.is_empty() {
        problems.add(&at.place, "is empty: at least one address is needed");
        return None;
    }
    if items.len() > MOST_LISTENERS {
        let problem = format!(
            "has {} addresses: at most {MOST_LISTENERS} are allowed",
            items.len()
        );
        problems.add(&at.place, problem);
        return None;
    }
    let mut addresses: Vec<SocketAddr> = Vec::with_capacity(items.len());
    let before = problems.count();
    for item in items {
        let Some(address) = problems.value(&item, socket) else {
            continue;
        };
        match addresses.iter().find(|other| overlap(**other, address)) {
            Some(other) if *other == address => {
                problems.add(&item.place, format_args!("{address} is listed twice"));
            }
            Some(other) => {
                let problem =
                    format!("{address} cannot be used beside {other}, which covers the same port");
                problems.add(&item.place, problem);
            }
            None => addresses.push(address),
        }
    }
    (problems.count() == before).then_some(addresses)
}

/// Whether the system would refuse to listen on both. Port 0 is a different port every time.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let (x, y) = (a.ip(), b.ip());
    let same_address =
        x == y || (x.is_ipv4() == y.is_ipv4() && (x.is_unspecified() || y.is_unspecified()));
    same_address && a.port() == b.port() && a.port() != 0
}

/// A certificate is checked and then refused: there is no TLS yet.
pub(super) fn tls(problems: &mut Problems, fields: &Fields<'_>) {
    let Some(at) = fields.get("tls") else {
        return;
    };
    let before = problems.count();
    if let Some(tls) = problems.map(&at, &["cert", "key"]) {
        problems.required(
            &tls,
            "cert",
            path,
            "the file with the certificate chain (PEM)",
        );
        problems.required(&tls, "key", path, "the file with the private key (PEM)");
    }
    if problems.count() == before {
        problems.unsupported(&at.place, "TLS on the data listeners");
    }
}

/// The admin listener; `data` are the data listeners it must not collide with.
pub(super) fn admin(
    problems: &mut Problems,
    fields: &Fields<'_>,
    data: &[SocketAddr],
) -> Option<Admin> {
    let admin = problems.section(fields, "admin", &["listen", "token_file"])?;
    let listen = problems.setting(&admin, "listen", socket, loopback(9090));
    let token_file = problems.optional(&admin, "token_file", path);
    let before = problems.count();
    if let Some(address) = listen {
        if let Some(other) = data.iter().find(|other| overlap(**other, address)) {
            let problem =
                format!("{address} is taken by the data listener {other}: choose another port");
            problems.add(&admin.place_of("listen"), problem);
        }
        if !address.ip().is_loopback() && matches!(token_file, Some(None)) {
            let problem = format!(
                "{address} can be reached from other hosts: set `token_file`, or listen on 127.0.0.1"
            );
            problems.add(&admin.place_of("listen"), problem);
        }
    }
    let admin = Admin {
        listen: listen?,
        token_file: token_file?,
    };
    (problems.count() == before).then_some(admin)
}
