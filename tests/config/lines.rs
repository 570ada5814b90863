//! Problems point at the right line, wherever they are.

use sgl_edge::config::{load, parse};

use crate::{MINIMAL, only_problem, repository};

/// A line such as `    key: …` that starts an entry of a block map, and its indentation.
fn entry(line: &str) -> Option<usize> {
    let indent = line.len() - line.trim_start().len();
    let key = line.trim_start().split_once(':')?.0;
    let word = !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    word.then_some(indent)
}

#[test]
fn an_unknown_key_is_an_error_in_every_map_and_its_own_line_is_named() {
    let text = std::fs::read_to_string(repository("conf/full.yaml")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut tried = 0;
    for (index, indent) in lines
        .iter()
        .enumerate()
        .filter_map(|(i, l)| Some((i, entry(l)?)))
    {
        let extra = format!("{:indent$}zz_zz: 1", "");
        let mut changed = lines.clone();
        changed.insert(index, &extra);
        let problem = only_problem(&changed.join("\n"));
        assert!(
            problem.starts_with(&format!("t:{}: ", index + 1)),
            "{problem}"
        );
        assert!(
            problem.contains("zz_zz: unknown key `zz_zz`, expected "),
            "{problem}"
        );
        tried += 1;
    }
    assert!(tried > 60, "{tried}");
}

#[test]
fn a_wrong_type_is_named_on_its_own_line_in_every_block_entry() {
    let text = std::fs::read_to_string(repository("conf/full.yaml")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let code = line.split('#').next().unwrap_or_default().trim_end();
        let Some((key, value)) = code.split_once(": ").filter(|_| entry(line).is_some()) else {
            continue;
        };
        // A list where no list belongs, and a number where one does.
        let wrong = if value.starts_with('[') { "7" } else { "[7]" };
        let wrong = if key.trim() == "listen" {
            "{a: 1}"
        } else {
            wrong
        };
        let changed = format!("{key}: {wrong}");
        let mut text = lines.clone();
        text[index] = &changed;
        let errors = parse(&text.join("\n"), "t").expect_err(line);
        let found = errors
            .iter()
            .any(|problem| problem.line == Some(index + 1) && problem.path.contains(key.trim()));
        assert!(found, "{changed}\n{errors}");
    }
}

#[test]
fn a_missing_key_is_named_on_the_line_of_its_parent() {
    let text = "# one\n# two\nmodels:\n\n  - id: m\n    engines:\n      static:\n        - id: E1\n          url: \"http://127.0.0.1:1\"\n";
    let problem = only_problem(text);
    let wanted = "t:8: models[0].engines.static[0].role: missing: write plain, prefill or decode";
    assert_eq!(problem, wanted);
}

#[test]
fn a_problem_never_spans_two_lines() {
    let text = format!("log: {{level: \"a\\nb\"}}\n\"k\\ne\\ty\": 1\n{MINIMAL}");
    let errors = parse(&text, "t").unwrap_err();
    assert_eq!(errors.to_string().lines().count(), 2, "{errors}");
    assert_eq!(errors.iter().count(), 2, "{errors}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_without_a_line() {
    let path = repository("conf/no-such-file.yaml");
    let errors = load(&path).unwrap_err();
    let problem = errors.iter().next().unwrap();
    assert_eq!(problem.line, None);
    let start = format!("{}: .: cannot be read: ", path.display());
    assert!(errors.to_string().starts_with(&start), "{errors}");
}

#[test]
fn a_directory_is_no_configuration() {
    let errors = load(&repository("conf")).unwrap_err();
    assert!(
        errors.to_string().contains(": .: cannot be read: "),
        "{errors}"
    );
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_line() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("not-utf8.yaml");
    std::fs::write(&path, b"threads: 1\nlog: {level: \xff}\n").unwrap();
    let errors = load(&path).unwrap_err();
    let wanted = format!("{}:2: .: is not UTF-8 text", path.display());
    assert_eq!(errors.to_string(), wanted);
}

#[test]
fn a_problem_in_a_loaded_file_carries_the_path_that_was_given() {
    let path = repository("tests/fixtures/config/bad/threads_zero.yaml");
    let errors = load(&path).unwrap_err();
    let wanted = format!("{}:1: threads: 0 is too small: at least 1", path.display());
    assert_eq!(errors.to_string(), wanted);
}
