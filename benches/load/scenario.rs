//! The loads: what the bodies are and what answer they ask for.

use std::fmt::Write as _;

/// One kind of load.
#[derive(Debug)]
pub(crate) struct Scenario {
    /// Its name in options and tables.
    pub(crate) name: &'static str,
    /// What a table says of it.
    pub(crate) title: &'static str,
    /// Size of every body, bytes.
    pub(crate) bytes: usize,
    /// Events of the answer; 0 is one JSON document.
    events: u32,
    /// Whether sgl-edge runs with a tokenizer and `cache_aware`. Then no two requests are alike.
    pub(crate) tokenized: bool,
}

/// All of them.
pub(crate) static SCENARIOS: [Scenario; 5] = [
    Scenario {
        name: "300b",
        title: "300 B",
        bytes: 300,
        events: 0,
        tokenized: false,
    },
    Scenario {
        name: "8k",
        title: "8 KiB",
        bytes: 8 << 10,
        events: 0,
        tokenized: false,
    },
    Scenario {
        name: "64k",
        title: "64 KiB",
        bytes: 64 << 10,
        events: 0,
        tokenized: false,
    },
    Scenario {
        name: "sse",
        title: "SSE, 32 events",
        bytes: 300,
        events: 32,
        tokenized: false,
    },
    Scenario {
        name: "tokenized",
        title: "8 KiB, tokenized",
        bytes: 8 << 10,
        events: 0,
        tokenized: true,
    },
];

/// Different bodies of one scenario.
const BODIES: usize = 64;

/// What stands where the number of the request goes, in bodies that must all be different.
pub(crate) const PLACE: &str = "########";

/// English with some technical words: the text that prompts are cut from.
const TEXT: &str = include_str!("../../README.md");

impl Scenario {
    /// Bodies of exactly [`bytes`](Self::bytes), one JSON object a line each; the prompts are runs of
    /// words of a real text in another order each.
    pub(crate) fn bodies(&self) -> Vec<String> {
        let words: Vec<&str> = TEXT
            .split_ascii_whitespace()
            .filter(|word| {
                word.bytes()
                    .all(|b| b.is_ascii_graphic() && !b"\"\\#|`".contains(&b))
            })
            .collect();
        let mut draws = Draws(0x5EED);
        (0..BODIES).map(|_| self.body(&words, &mut draws)).collect()
    }

    fn body(&self, words: &[&str], draws: &mut Draws) -> String {
        // A stream opens with the role and ends with the reason and `[DONE]`.
        let (stream, tokens) = match self.events {
            0 => (false, 1),
            events => (true, events.saturating_sub(3)),
        };
        let mut body = format!(
            r#"{{"model":"demo","stream":{stream},"max_tokens":{tokens},"messages":[{{"role":"user","content":"{PLACE}"#
        );
        let tail = "\"}]}";
        let end = self.bytes - tail.len();
        while body.len() < end {
            let start = draws.below(words.len());
            let run = 6 + draws.below(18);
            for word in words.iter().cycle().skip(start).take(run) {
                let _ = write!(body, " {word}");
            }
        }
        body.truncate(end);
        body + tail
    }
}

/// The same draws in every run (splitmix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % bound.max(1) as u64).unwrap_or(0)
    }
}
