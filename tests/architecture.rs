//! Who may import whom, read from `src/`: the picture in `src/lib.rs`, with its refusals.
//!
//! Works on words, not on text: comments and literals do not import anything and are skipped. A
//! module without a row here fails, so a new one has to be placed on the map first.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "support/words.rs"]
mod words;

use words::{Word, words};

/// Each module of the crate and the modules that it may name through `crate::`.
const MAY_NAME: [(&str, &[&str]); 17] = [
    ("ids", &[]),
    ("kv", &[]),
    ("series", &[]),
    ("recent", &[]),
    ("workers", &["ids"]),
    ("state", &["ids", "kv", "recent"]),
    ("feeds", &["ids", "kv", "workers", "state"]),
    ("indexer", &["kv", "state"]),
    ("tokenizer", &["recent"]),
    ("mock", &["kv"]),
    ("policies", &["ids", "workers", "state", "series"]),
    ("buckets", &["ids", "workers", "state", "policies"]),
    ("config", &["ids", "workers", "policies"]),
    (
        "server",
        &[
            "ids",
            "workers",
            "state",
            "feeds",
            "policies",
            "buckets",
            "config",
            "tokenizer",
            "kv",
            "feeds",
            "indexer",
            "series",
        ],
    ),
    (
        "proxy",
        &["ids", "workers", "feeds", "buckets", "config", "server"],
    ),
    ("logging", &["config"]),
    (
        "demo",
        &["config", "mock", "policies", "server", "tokenizer"],
    ),
];

/// Roots of programs; they may name every module of the library.
const ROOTS: [&str; 3] = ["lib", "main", "bin"];

/// Outside crates that belong to one place, by the start of their name.
const AT_HOME: [(&str, &[&str]); 4] = [
    ("k8s_openapi", &["proxy"]),
    ("pingora", &["proxy", "main"]),
    ("serde_yaml", &["config"]),
    ("saphyr_parser", &["config"]),
];

/// Files that may mention an outside crate in text although it is not at home there.
const MENTIONS: [(&str, &str); 1] = [("pingora", "src/logging.rs")];

/// First names after `path ::`, a group in braces included.
fn named_after(words: &[Word]) -> Vec<&Word> {
    if words.first().is_none_or(|word| word.text != "{") {
        return words.first().into_iter().collect();
    }
    let (mut depth, mut names, mut fresh) = (0, Vec::new(), false);
    for word in words {
        match word.text.as_str() {
            "{" => (depth, fresh) = (depth + 1, depth == 0),
            "}" => depth -= 1,
            "," => fresh = depth == 1,
            _ if fresh && depth == 1 => {
                names.push(word);
                fresh = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// The module that a file below `src/` belongs to.
fn module_of(path: &str) -> &str {
    let inside = path.strip_prefix("src/").expect("a path below src/");
    let first = inside.split('/').next().expect("at least one part");
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Everything in one file that breaks a rule.
fn problems(path: &str, text: &str) -> Vec<String> {
    let module = module_of(path);
    let row = MAY_NAME.iter().find(|(name, _)| *name == module);
    let root = ROOTS.contains(&module);
    if row.is_none() && !root {
        return vec![format!("{path}: module `{module}` is not on the map")];
    }
    let allowed = row.map_or(&[][..], |(_, allowed)| allowed);
    let is_module = |name: &str| MAY_NAME.iter().any(|(module, _)| *module == name);
    // In the first file of a module, `super` is the crate.
    let top = path == format!("src/{module}.rs") || path == format!("src/{module}/mod.rs");
    let words = words(text);
    let mut found = Vec::new();
    let mut report = |word: &Word, text: String| {
        found.push(format!("{path}:{}: {text}", word.line));
    };
    for (at, word) in words.iter().enumerate() {
        let follows =
            |index: usize, text: &str| words.get(at + index).is_some_and(|word| word.text == text);
        let path_from = |names: &str| word.text == names && follows(1, "::");
        if path_from("crate") || (top && path_from("super")) {
            for name in named_after(&words[at + 2..]) {
                let own = name.text == module || name.text == "self";
                let inner = word.text == "super" && !is_module(&name.text);
                if !own && !inner && !root && !allowed.contains(&name.text.as_str()) {
                    report(name, format!("`{module}` must not name `{}`", name.text));
                }
            }
        }
        if path_from("super") && follows(2, "super") {
            report(word, "`super::super`: write `crate::`".to_owned());
        }
        if word.text == "crate" && (follows(1, "as") || follows(1, ";")) {
            report(word, "the crate root under another name".to_owned());
        }
        if word.text == "unsafe" {
            report(word, "`unsafe`".to_owned());
        }
        for (outside, homes) in AT_HOME {
            if word.text.starts_with(outside) && !homes.contains(&module) {
                report(word, format!("`{}` belongs to {homes:?}", word.text));
            }
        }
    }
    for (outside, homes) in AT_HOME {
        let excused = MENTIONS.contains(&(outside, path)) || homes.contains(&module);
        for (index, line) in text.lines().enumerate() {
            if !excused && line.contains(outside) {
                found.push(format!("{path}:{}: mentions `{outside}`", index + 1));
            }
        }
    }
    found
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_sources_keep_to_the_map() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    files.sort();
    let mut broken = Vec::new();
    let mut met = BTreeSet::new();
    for file in &files {
        let path = file.strip_prefix(root).expect("below the root");
        let path = path.to_str().expect("a plain name").replace('\\', "/");
        let text = fs::read_to_string(file).expect("a readable source");
        met.insert(module_of(&path).to_owned());
        broken.extend(problems(&path, &text));
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
    let rows = MAY_NAME.iter().map(|(module, _)| *module);
    let unseen: Vec<_> = rows.filter(|module| !met.contains(*module)).collect();
    assert!(unseen.is_empty(), "rows without a module: {unseen:?}");
}

#[test]
fn the_map_has_no_circle() {
    // Every module may name only modules that come before it in some order: peel them off.
    let mut left: Vec<_> = MAY_NAME.to_vec();
    while !left.is_empty() {
        let names: Vec<_> = left.iter().map(|(module, _)| *module).collect();
        let before = left.len();
        left.retain(|(_, allowed)| allowed.iter().any(|module| names.contains(module)));
        assert!(left.len() < before, "a circle among {names:?}");
    }
}

/// Path, code, and what must be said of it.
const BROKEN: &str = r####"
src/state/x.rs     | use crate::policies::Pick;                | name `policies`
src/state/x.rs     | fn f(_: &crate::workers::Worker) {}       | name `workers`
src/workers/x.rs   | use crate::{ids::{A, B}, state::X};       | name `state`
src/workers.rs     | use crate::{buckets::X, ids};             | name `buckets`
src/policies/mod.rs | use super::buckets::Bucket;              | name `buckets`
src/policies/x.rs  | pub(crate) use crate::server;             | name `server`
src/buckets.rs     | use crate::config;                        | name `config`
src/config/x.rs    | use crate::buckets::*;                    | name `buckets`
src/tokenizer.rs   | use crate::ids::ModelId;                  | name `ids`
src/mock/x.rs      | use crate::ids::ModelId;                  | name `ids`
src/ids.rs         | use crate::workers::Worker;               | name `workers`
src/server/x.rs    | use crate::proxy::Ctx;                    | name `proxy`
src/proxy/x.rs     | use crate::policies::Pick;                | name `policies`
src/ids.rs         | use crate::*;                             | name `*`
src/ids.rs         | use crate as root;                        | under another name
src/newcomer.rs    |                                           | not on the map
src/newcomer/mod.rs |                                          | not on the map
src/server/x.rs    | use pingora::Result;                      | `pingora` belongs
src/server/x.rs    | use pingora_proxy::Session;               | `pingora_proxy` belongs
src/server/x.rs    | // as in pingora                          | mentions `pingora`
src/logging.rs     | use pingora_core as core;                 | `pingora_core` belongs
src/server/x.rs    | use serde_yaml::Value;                    | `serde_yaml` belongs
src/proxy/x.rs     | serde_yaml::from_str(x)                   | `serde_yaml` belongs
src/main.rs        | use serde_yaml::Value;                    | `serde_yaml` belongs
src/server/x.rs    | saphyr_parser::Parser                     | `saphyr_parser` belongs
src/server/x.rs    | use k8s_openapi::api::discovery::v1;       | `k8s_openapi` belongs
src/mock/x.rs      | let c = '"'; unsafe { f() }               | `unsafe`
src/mock/a/b.rs    | use super::super::x;                      | `super::super`
src/mock/x.rs      | let a = r#"""#; use crate::server::X;     | name `server`
src/mock/x.rs      | /* /* */ */ use crate::server::X;         | name `server`
src/mock/x.rs      | fn f<'a>(x: &'a A) -> crate::server::X {} | name `server`
"####;

/// Path, and code of which nothing must be said.
const SOUND: &str = r####"
src/state/x.rs     | use crate::ids::WorkerId; use crate::state::Y;
src/policies/x.rs  | use crate::{ids::A, workers::{B, buckets}, state};
src/policies/x.rs  | use super::Reason; use self::x::Y;
src/buckets.rs     | #[cfg(test)] mod tests { use super::*; }
src/server/x.rs    | //! Knows no Pingora. use crate::proxy::X;
src/server/x.rs    | /* use crate::proxy::X; */ let s = "crate::proxy::X";
src/server/x.rs    | let s = "a \" use crate::proxy::X;";
src/server/x.rs    | let s = br##""# use crate::proxy::X; "##;
src/server/x.rs    | let unsafely = 'u'; // unsafe
src/mock/conn.rs   | use super::config::EngineConfig;
src/logging.rs     | let filter = "pingora=warn";
src/main.rs        | use pingora::server::Server; use sgl_edge::proxy;
src/lib.rs         | pub mod proxy;
src/bin/mock.rs    | use sgl_edge::mock;
src/config/x.rs    | serde_yaml::to_string(x)
"####;

fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    let lines = table.lines().filter(|line| !line.is_empty());
    lines.map(|line| {
        let mut cells = line.split('|').map(str::trim);
        let row = [(); N].map(|()| cells.next().expect("as many cells as columns"));
        assert_eq!(cells.next(), None, "{line}");
        row
    })
}

#[test]
fn every_broken_rule_is_reported() {
    for [path, text, expected] in rows(BROKEN) {
        let found = problems(path, text).join("\n");
        assert!(found.contains(expected), "{path} {text}: {found:?}");
    }
}

#[test]
fn what_is_allowed_is_not_reported() {
    for [path, text] in rows(SOUND) {
        let found = problems(path, text);
        assert!(found.is_empty(), "{path} {text}: {found:?}");
    }
}

#[test]
fn a_problem_says_where() {
    let text = "/* one\n two */\nuse crate::{\n    ids,\n    server,\n};\n";
    let found = problems("src/state/x.rs", text);
    assert_eq!(found, ["src/state/x.rs:5: `state` must not name `server`"]);
}
