//! The flags of sgl-router, for operators who move over: flags in, the file that means the same out.
//!
//! ```text
//!   command line ── table ── values ── rules ── document ── to_yaml ── parse
//!                  (names)  (ranges)  (needs)  (+ bucket file)
//! ```
//!
//! A flag keeps its name, default, unit and range. What is wrong with values is said before what
//! does not fit together, all of it in one go; a flag that nothing uses is an error; one that was
//! dropped is refused with its replacement. The file goes through the same parser as any other, so
//! there is one product behind both. Reads the bucket file and nothing else. Source: design §7,
//! policy-semantics §20 and §21.

mod bucket_file;
mod document;
mod dropped;
mod rules;
mod table;
mod values;

use std::collections::BTreeMap;

use crate::config::flags::table::{FLAGS, Takes};
use crate::config::{Config, ConfigError, ConfigErrors, parse, to_yaml};
use clap::{Arg, ArgAction, ArgMatches, Command};

/// What stands for a file's name in problems.
const COMMAND_LINE: &str = "command line";

/// The flags of one command line, as given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    given: BTreeMap<&'static str, Vec<String>>,
    dropped: Vec<&'static str>,
}

/// What flags mean.
#[derive(Debug, Clone, PartialEq)]
pub struct Translated {
    /// The file that means the same.
    pub yaml: String,
    /// What that file says.
    pub config: Config,
    /// What an operator should know, although nothing is wrong.
    pub notes: Vec<String>,
}

/// The problems of a command line so far.
#[derive(Debug, Default)]
struct Complaints(Vec<ConfigError>);

impl Complaints {
    /// About `--flag`.
    fn add(&mut self, flag: &str, problem: impl Into<String>) {
        self.put(COMMAND_LINE, format!("--{flag}"), problem.into());
    }

    /// About a setting of a file.
    fn put(&mut self, file: &str, path: String, problem: String) {
        let complaint = ConfigError {
            file: file.to_owned(),
            line: None,
            path,
            problem,
        };
        if !self.0.contains(&complaint) {
            self.0.push(complaint);
        }
    }

    /// Stops here if there are any.
    fn check(self) -> Result<Self, ConfigErrors> {
        if self.0.is_empty() {
            Ok(self)
        } else {
            Err(ConfigErrors::from(self.0))
        }
    }
}

// === impl Flags ===

impl Flags {
    /// Whether no flag was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.given.is_empty() && self.dropped.is_empty()
    }

    /// The given flags, each with its dashes.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let names = self.given.keys().chain(&self.dropped);
        names.map(|name| format!("--{name}")).collect()
    }

    /// The file that means the same, checked. Reads the file named by `--bucket-config`.
    ///
    /// # Errors
    /// Everything that is wrong: first dropped flags and values out of range; without those, what
    /// is missing or does not fit together; without those, what the file's own check finds.
    pub fn translate(&self) -> Result<Translated, ConfigErrors> {
        let mut complaints = Complaints::default();
        for name in &self.dropped {
            complaints.add(name, dropped::advice(name));
        }
        let values = values::read(self, &mut complaints);
        let buckets = bucket_file::read(self, &mut complaints);
        let complaints = complaints.check()?;
        let document = document::groups(&values, buckets);
        let complaints = rules::check(self, &values, &document, complaints).check()?;
        let yaml = to_yaml(&document::document(&values, document));
        match parse(&yaml, COMMAND_LINE) {
            Ok(mut config) => {
                let mut notes = rules::notes(self, &values);
                // Roles of addresses are learnt later, so an empty bucket of ours means nothing.
                let ours = !self.has("bucket-config");
                let warnings = config.warnings.drain(..);
                let told = warnings.filter(|warning| !ours || !warning.path.contains(".buckets["));
                notes.extend(
                    told.map(|warning| format!("{}: {}", name_of(&warning.path), warning.problem)),
                );
                Ok(Translated {
                    yaml,
                    config,
                    notes,
                })
            }
            Err(errors) => Err(self.blame(&errors, complaints)),
        }
    }

    /// Problems of the file, by the flags that wrote it.
    fn blame(&self, errors: &ConfigErrors, mut complaints: Complaints) -> ConfigErrors {
        let bucket_file = self.one("bucket-config");
        for error in errors {
            let bucket = error
                .path
                .strip_prefix("models[0].")
                .filter(|path| path.starts_with("buckets") && !table::is_policy(&error.path));
            match (bucket_file, bucket) {
                (Some(file), Some(path)) => {
                    complaints.put(file, path.to_owned(), error.problem.clone());
                }
                _ => {
                    let name = name_of(&error.path);
                    complaints.put(COMMAND_LINE, name, error.problem.clone());
                }
            }
        }
        ConfigErrors::from(complaints.0)
    }

    /// The value of a flag that takes one.
    fn one(&self, name: &str) -> Option<&str> {
        self.given.get(name)?.first().map(String::as_str)
    }

    fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }
}

/// The flag that writes the setting at `path`, or the path itself.
fn name_of(path: &str) -> String {
    table::by_path(path).map_or_else(|| path.to_owned(), |flag| format!("--{}", flag.name))
}

// === clap ===

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for flag in FLAGS {
            let values = match flag.takes {
                Takes::Nothing if matches.get_flag(flag.name) => Vec::new(),
                Takes::Nothing => continue,
                Takes::One(_) | Takes::Many(_) => match matches.get_many::<String>(flag.name) {
                    Some(values) => values.cloned().collect(),
                    None => continue,
                },
            };
            self.given.insert(flag.name, values);
        }
        let given = dropped::NAMES
            .iter()
            .filter(|name| matches.contains_id(name));
        self.dropped.extend(given);
        Ok(())
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let flags = FLAGS.iter().map(|flag| {
            let arg = Arg::new(flag.name)
                .long(flag.name)
                .help(flag.help)
                .help_heading("Flags of sgl-router, instead of a file");
            match flag.takes {
                Takes::Nothing => arg.action(ArgAction::SetTrue),
                Takes::One(value) => arg.value_name(value).allow_negative_numbers(true),
                Takes::Many(value) => arg
                    .value_name(value)
                    .num_args(1..)
                    .value_delimiter(',')
                    .action(ArgAction::Append),
            }
        });
        // They parse with or without values, so that the refusal names each of them.
        let dropped = dropped::NAMES.iter().map(|name| {
            Arg::new(*name)
                .long(*name)
                .hide(true)
                .num_args(0..)
                .action(ArgAction::Append)
        });
        command.args(flags).args(dropped)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
