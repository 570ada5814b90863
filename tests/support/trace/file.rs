//! Reads the conversation trace: when a prompt came and which blocks it is made of.

use std::time::Duration;

/// Tokens of a block of the trace.
const BLOCK: usize = 512;
/// The trace knows the time of a request to this much.
const TICK: Duration = Duration::from_secs(3);

const TRACE: &str = include_str!("../../fixtures/traces/mooncake_conversation.csv");

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// Since the start of the trace.
    pub(crate) at: Duration,
    /// Prompt tokens.
    pub(crate) input: usize,
    /// Tokens of the answer.
    pub(crate) output: u32,
    blocks: Vec<u32>,
}

impl Request {
    /// Token ids made up from the blocks: equal blocks are equal tokens.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let block = |id: &u32| {
            let first = id.wrapping_mul(BLOCK as u32);
            (0..BLOCK as u32).map(move |offset| first.wrapping_add(offset))
        };
        let mut ids: Vec<u32> = self.blocks.iter().flat_map(block).collect();
        ids.truncate(self.input);
        ids
    }
}

/// The first `count` requests. Those of one tick are spread over it evenly.
pub(crate) fn requests(count: usize) -> Vec<Request> {
    let mut requests: Vec<Request> = TRACE.lines().skip(1).take(count).map(request).collect();
    for tick in requests.chunk_by_mut(|one, other| one.at.as_secs() / 3 == other.at.as_secs() / 3) {
        let gap = TICK / u32::try_from(tick.len()).expect("few in a tick");
        let mut at = Duration::from_secs(tick[0].at.as_secs() / 3 * 3);
        for request in tick {
            request.at = at;
            at += gap;
        }
    }
    requests
}

fn request(line: &str) -> Request {
    let mut fields = line.split(',');
    let mut next = || fields.next().expect("four fields");
    let mut number = || next().parse::<u64>().expect("a number");
    let (at, input, output) = (number(), number(), number());
    Request {
        at: Duration::from_millis(at),
        input: usize::try_from(input).expect("a length"),
        output: u32::try_from(output).expect("a length"),
        blocks: next().split(' ').flat_map(run).collect(),
    }
}

/// `7` or `3-9`.
fn run(text: &str) -> std::ops::RangeInclusive<u32> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse().expect("a block id");
    number(first)..=number(last)
}
