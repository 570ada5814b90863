//! Handing the router's token ids to the engine, so that it need not render and encode again.
//!
//! Off unless the model's `forward_input_ids` says otherwise, because what an engine was started with
//! (thinking switches, parsers, template stop strings) cannot be seen from a request. Messages stay in
//! the body; ids of the caller's are never touched. Source: http-and-operations §10.

use crate::server::tokenize::PromptFacts;
use crate::tokenizer::{Obstacle, TokenSource};

/// What is said about a request whose ids were passed on.
const FORWARDED: &str = "forwarded";

/// Whether the ids of `prompt` go to the engine, or the first reason against.
///
/// # Errors
/// The [`Obstacle`].
pub fn verdict(prompt: &PromptFacts) -> Result<&[u32], Obstacle> {
    match (prompt.obstacle, prompt.source, prompt.token_ids.as_deref()) {
        (Some(obstacle), _, _) => Err(obstacle),
        (None, TokenSource::Chat, Some(ids)) => Ok(ids),
        (None, _, _) => Err(Obstacle::NotRendered),
    }
}

/// The metric label of a verdict.
#[must_use]
pub fn outcome(verdict: Result<&[u32], Obstacle>) -> &'static str {
    verdict.map_or_else(Obstacle::label, |_| FORWARDED)
}

/// `"input_ids":[…]`, to be spliced into a body.
#[must_use]
pub fn field(ids: &[u32]) -> String {
    let mut digits = itoa::Buffer::new();
    let mut field = String::with_capacity(ids.len() * 7 + 16);
    field.push_str(r#""input_ids":["#);
    for (at, id) in ids.iter().enumerate() {
        if at > 0 {
            field.push(',');
        }
        field.push_str(digits.format(*id));
    }
    field.push(']');
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(source: TokenSource, obstacle: Option<Obstacle>) -> PromptFacts {
        PromptFacts {
            input_tokens: 2,
            source,
            token_ids: Some(vec![7, 4_294_967_295]),
            skipped: false,
            obstacle,
        }
    }

    #[test]
    fn ids_of_a_rendered_chat_without_an_obstacle_are_passed_on() {
        let prompt = facts(TokenSource::Chat, None);
        let verdict = verdict(&prompt);
        assert_eq!(outcome(verdict), "forwarded");
        let ids = verdict.expect("no obstacle");
        assert_eq!(field(ids), r#""input_ids":[7,4294967295]"#);
    }

    #[test]
    fn everything_else_is_told_why_not() {
        let table = [
            (
                TokenSource::InputIds,
                Some(Obstacle::CallerIds),
                "caller_ids",
            ),
            (TokenSource::Chat, Some(Obstacle::Tools), "tools"),
            (TokenSource::Text, None, "not_rendered"),
            (TokenSource::Estimate, None, "not_rendered"),
        ];
        for (source, obstacle, label) in table {
            let prompt = facts(source, obstacle);
            assert_eq!(outcome(verdict(&prompt)), label);
        }
    }
}
