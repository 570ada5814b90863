//! Every fixture against its `.expected`.

use std::path::Path;

use sgl_edge::config::describe;

use crate::{files, parse_file};

fn expected(path: &Path) -> String {
    let path = path.with_extension("expected");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares all cases before failing, so that one run shows every difference.
fn compare(directory: &str, outcome: impl Fn(&Path) -> String) {
    let mut differences = Vec::new();
    for path in files(directory, "yaml") {
        let (found, wanted) = (outcome(&path), expected(&path));
        if found != wanted {
            let name = path.display();
            differences.push(format!("{name}\n--- expected\n{wanted}--- found\n{found}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn every_bad_file_yields_exactly_its_expected_lines() {
    compare("tests/fixtures/config/bad", |path| match parse_file(path) {
        Ok(config) => format!("accepted:\n{}", describe(&config)),
        Err(errors) => format!("{errors}\n"),
    });
}

#[test]
fn every_good_file_is_described_as_expected() {
    compare("tests/fixtures/config/good", |path| {
        match parse_file(path) {
            Ok(config) => describe(&config),
            Err(errors) => format!("refused:\n{errors}\n"),
        }
    });
}

#[test]
fn no_expectation_is_left_without_its_file() {
    for directory in ["tests/fixtures/config/bad", "tests/fixtures/config/good"] {
        for path in files(directory, "expected") {
            assert!(path.with_extension("yaml").exists(), "{}", path.display());
        }
    }
}

#[test]
fn every_expected_line_names_file_line_and_path_and_the_line_exists() {
    for path in files("tests/fixtures/config/bad", "yaml") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let lines = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .count()
            .max(1);
        for problem in expected(&path).lines() {
            let rest = problem
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix(':'));
            let (line, rest) = rest.and_then(|rest| rest.split_once(": ")).expect(problem);
            let line: usize = line.parse().expect(problem);
            assert!((1..=lines).contains(&line), "{problem}");
            assert!(
                rest.split_once(": ")
                    .is_some_and(|(path, _)| !path.is_empty()),
                "{problem}"
            );
        }
    }
}

#[test]
fn one_file_with_many_problems_reports_more_than_ten_in_the_order_of_its_lines() {
    let path = crate::repository("tests/fixtures/config/bad/many_at_once.yaml");
    let errors = parse_file(&path).unwrap_err();
    let lines: Vec<_> = errors.iter().map(|problem| problem.line).collect();
    assert!(lines.len() > 10, "{errors}");
    assert!(lines.is_sorted(), "{errors}");
}

#[test]
fn the_example_of_the_contract_has_one_problem_the_mix_of_roles() {
    let bad = crate::repository("tests/fixtures/config/bad/contract_example.yaml");
    let errors = parse_file(&bad).unwrap_err();
    assert_eq!(errors.iter().count(), 1, "{errors}");
    let problem = errors.iter().next().unwrap();
    assert_eq!(problem.path, "models[0].engines.static[1].role");
    assert!(
        problem.problem.contains("`P1` is prefill, but `E1`"),
        "{errors}"
    );

    let text = std::fs::read_to_string(bad).unwrap();
    let without: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("id: P1"))
        .collect();
    let config = sgl_edge::config::parse(&without.join("\n"), "t").unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}
