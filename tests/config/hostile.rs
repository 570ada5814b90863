//! Texts that were cut, mutated or built to hurt.
//!
//! Random loops print their seed; `CONFIG_FUZZ_SEED=N` repeats one, `CONFIG_FUZZ_ROUNDS=N` makes
//! them longer.

use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sgl_edge::config::{MAX_FILE_BYTES, load, parse};

use crate::promises::{assert_promises, assert_usable};
use crate::{MINIMAL, files, only_problem, repository};

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect(variable))
}

fn seeded() -> StdRng {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number_from("CONFIG_FUZZ_SEED").unwrap_or_else(|| u64::from(since.subsec_nanos()));
    println!("CONFIG_FUZZ_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

fn rounds(usual: u64) -> u64 {
    number_from("CONFIG_FUZZ_ROUNDS").unwrap_or(usual)
}

fn sources() -> Vec<String> {
    let mut paths = files("conf", "yaml");
    paths.extend(files("tests/fixtures/config/good", "yaml"));
    paths
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

fn check(text: &str) {
    match parse(text, "t") {
        Ok(config) => assert_promises(&config, text),
        Err(errors) => assert_usable(&errors, text),
    }
}

fn boundary(text: &str, rng: &mut StdRng) -> usize {
    let at = rng.random_range(0..=text.len());
    (at..=text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap()
}

/// One random change.
fn mutate(text: &str, rng: &mut StdRng) -> String {
    const PIECES: [&str; 32] = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "-",
        "\n",
        " ",
        "\t",
        "&a ",
        "*a",
        "!!int ",
        "|\n",
        ">-\n",
        "\"",
        "'",
        "#",
        "? ",
        "<<: ",
        "null",
        "~",
        "-1",
        "1e999",
        ".nan",
        "0x10",
        "é",
        "\u{0}",
        "\r",
        "---\n",
        "%YAML 1.2\n",
        "99999999999999999999",
    ];
    let (a, b) = (boundary(text, rng), boundary(text, rng));
    let (a, b) = (a.min(b), a.max(b));
    match rng.random_range(0..5) {
        0 => format!("{}{}", &text[..a], &text[b..]),
        1 => format!("{}{}{}", &text[..b], &text[a..b], &text[b..]),
        2 => text[..a].to_owned(),
        _ => {
            let piece = PIECES[rng.random_range(0..PIECES.len())];
            format!("{}{piece}{}", &text[..a], &text[a..])
        }
    }
}

#[test]
fn mutated_files_never_panic_and_both_outcomes_keep_their_promises() {
    let mut rng = seeded();
    let sources = sources();
    for _ in 0..rounds(3000) {
        let mut text = sources[rng.random_range(0..sources.len())].clone();
        for _ in 0..rng.random_range(1..4) {
            text = mutate(&text, &mut rng);
        }
        check(&text);
    }
}

#[test]
fn soups_of_yaml_punctuation_never_panic() {
    let mut rng = seeded();
    for _ in 0..rounds(3000) {
        let mut text = String::new();
        for _ in 0..rng.random_range(0..40) {
            text = mutate(&text, &mut rng);
        }
        check(&text);
    }
}

#[test]
fn a_cut_file_never_loses_or_changes_anything_but_its_last_entry() {
    let mut rng = seeded();
    for path in files("conf", "yaml") {
        let text = std::fs::read_to_string(&path).unwrap();
        let whole = parse(&text, "t").unwrap();
        for _ in 0..rounds(200) {
            let cut = &text[..boundary(&text, &mut rng)];
            let Ok(config) = parse(cut, "t") else {
                continue;
            };
            // A text that ends between two entries is a file of its own; whatever it says must
            // be what the whole file says, save for the value that was cut.
            let last = config.models.len() - 1;
            assert_eq!(config.models[..last], whole.models[..last], "{cut}");
            let (cut_model, model) = (&config.models[last], &whole.models[last]);
            let sure = cut_model.engines.len() - 1;
            assert_eq!(cut_model.engines[..sure], model.engines[..sure], "{cut}");
            let of_model = cut.rsplit("\n  - id: ").next().unwrap();
            if of_model.contains("        groups:\n") {
                let sure = cut_model.buckets.len() - 1;
                assert_eq!(cut_model.buckets[..sure], model.buckets[..sure], "{cut}");
            }
        }
    }
}

#[test]
fn a_cut_file_in_braces_is_never_accepted() {
    let path = repository("tests/fixtures/config/good/json.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let whole = text.trim_end();
    assert!(parse(whole, "t").is_ok());
    for cut in 0..whole.len() {
        let errors = parse(&whole[..cut], "t").expect_err(&whole[..cut]);
        assert_usable(&errors, &whole[..cut]);
    }
}

#[test]
fn a_cut_file_on_disk_is_refused() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("cut.yaml");
    for text in [
        "",
        "\n",
        "models:",
        "models:\n  - id: m\n    engines: {static: [{id: E1, url",
    ] {
        std::fs::write(&path, text).unwrap();
        let errors = load(&path).unwrap_err();
        assert!(errors.to_string().contains("cut.yaml:"), "{errors}");
    }
}

#[test]
fn nested_aliases_do_not_multiply() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..30 {
        let alias = format!("*a{}", level - 1);
        let items = [alias.as_str(); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    let problem = only_problem(&format!("{text}{MINIMAL}"));
    assert!(
        problem.contains("too large: with every alias written out"),
        "{problem}"
    );
}

#[test]
fn one_large_value_cannot_be_copied_without_end() {
    let large = "x".repeat(1 << 20);
    let copies = vec!["*a"; 10_000].join(", ");
    let problem = only_problem(&format!("a: &a {large}\nb: [{copies}]\n"));
    assert!(problem.starts_with("t:2: b["), "{problem}");
    assert!(
        problem.contains("too large: with every alias written out"),
        "{problem}"
    );
}

#[test]
fn aliases_that_stay_small_are_followed() {
    let path = repository("tests/fixtures/config/good/aliases_of_values.yaml");
    let config = load(&path).unwrap();
    let buckets = &config.models[0].buckets;
    assert_eq!(buckets[0].groups, buckets[1].groups);
}

#[test]
fn nesting_in_blocks_and_in_braces_is_bounded() {
    let mut blocks = String::new();
    for depth in 0..2000 {
        blocks.push_str(&format!("{:depth$}a:\n", ""));
    }
    let open = |text: &str| text.repeat(100_000);
    for text in [blocks, open("["), open("{a: "), open("- "), open("? ")] {
        let errors = parse(&text, "t").unwrap_err();
        assert_usable(&errors, &text);
    }
}

#[test]
fn a_text_above_the_limit_is_refused_and_one_at_the_limit_is_read() {
    let filled = |size: usize| format!("{MINIMAL}#{}", "x".repeat(size - MINIMAL.len() - 1));
    assert!(parse(&filled(MAX_FILE_BYTES), "t").is_ok());
    let problem = only_problem(&filled(MAX_FILE_BYTES + 1));
    assert_eq!(problem, "t:1: .: is larger than 4MiB");
}

#[test]
fn a_large_fleet_fits_and_a_large_mess_is_still_reported_in_full() {
    let mut text = String::from("models:\n  - id: m\n    engines:\n      static:\n");
    for port in 1..=10_000 {
        text.push_str(&format!(
            "        - {{id: \"E{port}\", url: \"http://10.0.0.1:{port}\", role: plain}}\n"
        ));
    }
    assert_eq!(parse(&text, "t").unwrap().models[0].engines.len(), 10_000);
    let errors = parse(&text.replace("role: plain", "rule: plain"), "t").unwrap_err();
    assert_eq!(errors.iter().count(), 20_000);
}
