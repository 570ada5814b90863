//! Load reports as engines send them: `LoadStat` over ZMQ, rows of `/v1/loads` over HTTP.
//!
//! A report is taken whole or not at all: a wrong tag, a negative or too large number, a missing
//! field, half an extension make it malformed. Source: engine-wire §2.2, §2.4, §2.5.

use rmp::decode::{self, RmpRead};
use serde::Deserialize;
use thiserror::Error;

use crate::state::{NativeReport, Report};

/// Elements after the tag of a report without extension, rank excluded.
const BASIC: usize = 4;
/// Elements of a whole report, tag and rank included.
const NATIVE: u32 = 11;

/// Why a frame is no report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Not three frames: topic, sequence number, payload.
    #[error("not three frames")]
    Frames,
    /// Not an array that starts with `LoadStat` and four counts.
    #[error("not a LoadStat")]
    Shape,
    /// A count that is negative, not an integer, or above 64 bits.
    #[error("not a count")]
    Count,
    /// Some of the extension, but not all of it.
    #[error("half an extension")]
    Extension,
    /// A rank twice, or a rank that is no rank.
    #[error("not a rank")]
    Rank,
}

/// Reads the payload of a load message. The rank inside is informational and skipped.
///
/// # Errors
/// [`Malformed`].
pub fn load_stat(payload: &[u8]) -> Result<Report, Malformed> {
    let mut bytes = payload;
    let length = decode::read_array_len(&mut bytes).map_err(|_| Malformed::Shape)?;
    let tag = decode::read_str_from_slice(bytes).map_err(|_| Malformed::Shape)?;
    bytes = tag.1;
    if tag.0 != "LoadStat" || length < 1 + BASIC as u32 {
        return Err(Malformed::Shape);
    }
    let [running, waiting, used, capacity] = counts(&mut bytes)?;
    let mut native = None;
    if length > 5 {
        rank(&mut bytes)?;
    }
    if length > 6 {
        if length < NATIVE {
            return Err(Malformed::Extension);
        }
        let [uncached, total, most, tokens, busy_us] = counts(&mut bytes)?;
        native = Some(NativeReport {
            waiting_uncached_tokens: uncached,
            total_tokens: total,
            max_running_requests: most,
            prefilled_tokens: tokens,
            prefill_busy_us: busy_us,
        });
    }
    Ok(Report {
        running_requests: running,
        waiting_requests: waiting,
        used_tokens: used,
        max_total_tokens: capacity,
        native,
    })
}

fn counts<const N: usize>(bytes: &mut &[u8]) -> Result<[u64; N], Malformed> {
    let mut counts = [0; N];
    for count in &mut counts {
        *count = decode::read_int(bytes).map_err(|_| Malformed::Count)?;
    }
    Ok(counts)
}

/// An integer or nil.
fn rank(bytes: &mut &[u8]) -> Result<(), Malformed> {
    if bytes.first() == Some(&0xc0) {
        bytes.read_u8().map_err(|_| Malformed::Rank)?;
        return Ok(());
    }
    let rank = decode::read_int::<i64, _>(bytes);
    rank.map(|_| ()).map_err(|_| Malformed::Rank)
}

/// The answer of `/v1/loads`; other keys are not read.
#[derive(Debug, Deserialize)]
struct Loads {
    loads: Vec<Row>,
}

/// One rank. Field names of the engine.
#[derive(Debug, Deserialize)]
struct Row {
    dp_rank: u32,
    num_running_reqs: u64,
    num_waiting_reqs: u64,
    num_used_tokens: u64,
    max_total_num_tokens: u64,
    num_waiting_uncached_tokens: Option<u64>,
    num_total_tokens: Option<u64>,
    max_running_requests: Option<u64>,
    total_prefill_uncached_tokens: Option<u64>,
    total_prefill_busy_us: Option<u64>,
}

/// Reads the body of `GET /v1/loads`: one report per rank.
///
/// # Errors
/// [`Malformed`]; one bad row spoils the answer, because a partial one looks less loaded.
pub fn loads_answer(body: &[u8]) -> Result<Vec<(u32, Report)>, Malformed> {
    let answer: Loads = serde_json::from_slice(body).map_err(|_| Malformed::Shape)?;
    let mut reports: Vec<(u32, Report)> = Vec::with_capacity(answer.loads.len());
    for row in answer.loads {
        if reports.iter().any(|(rank, _)| *rank == row.dp_rank) {
            return Err(Malformed::Rank);
        }
        reports.push((row.dp_rank, row.report()?));
    }
    Ok(reports)
}

impl Row {
    fn report(self) -> Result<Report, Malformed> {
        let extension = [
            self.num_waiting_uncached_tokens,
            self.num_total_tokens,
            self.max_running_requests,
            self.total_prefill_uncached_tokens,
            self.total_prefill_busy_us,
        ];
        let native = match extension {
            [None, None, None, None, None] => None,
            [
                Some(uncached),
                Some(total),
                Some(most),
                Some(tokens),
                Some(busy_us),
            ] => Some(NativeReport {
                waiting_uncached_tokens: uncached,
                total_tokens: total,
                max_running_requests: most,
                prefilled_tokens: tokens,
                prefill_busy_us: busy_us,
            }),
            _ => return Err(Malformed::Extension),
        };
        Ok(Report {
            running_requests: self.num_running_reqs,
            waiting_requests: self.num_waiting_reqs,
            used_tokens: self.num_used_tokens,
            max_total_tokens: self.max_total_num_tokens,
            native,
        })
    }
}

#[cfg(test)]
mod tests;
