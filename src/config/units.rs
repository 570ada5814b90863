//! Durations and sizes as written in a file.
//!
//! A duration is a whole number with a unit, `150ms`, `300s`, `5m` or `1h`, and at most 720h; a
//! bare number is refused, because nobody can tell which unit was meant. A size is a whole number
//! of bytes, or one with `KiB`, `MiB` or `GiB` (1024-based). `KB`, `MB` and `GB` are refused: some
//! tools read them as 1000-based and some as 1024-based.

use std::time::Duration;

/// Longest duration of any setting; keeps every deadline far from overflow. Chosen.
const MAX_DURATION: Duration = Duration::from_secs(720 * 3600);

/// Reads a duration.
///
/// # Errors
/// What was written and what would be right.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let millis_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" if !number.is_empty() => {
            return Err(format!(
                "`{number}` has no unit: write {number}s, or {number}ms"
            ));
        }
        _ => return Err(not_a_duration(text)),
    };
    if number.is_empty() {
        return Err(not_a_duration(text));
    }
    let millis = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(millis_per_unit));
    match millis.map(Duration::from_millis) {
        Some(duration) if duration <= MAX_DURATION => Ok(duration),
        Some(_) | None => Err(format!(
            "`{text}` is above 720h, the longest duration allowed"
        )),
    }
}

fn not_a_duration(text: &str) -> String {
    format!(
        "`{text}` is not a duration: write a whole number and a unit, such as 300s, 150ms, 5m or 1h"
    )
}

/// Reads a size, in bytes.
///
/// # Errors
/// What was written and what would be right.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let bytes_per_unit: u64 = match unit {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "KB" | "MB" | "GB" if !number.is_empty() => {
            let binary = unit.replace('B', "iB");
            return Err(format!(
                "`{text}` is ambiguous: write {number}{binary} (1024-based), or bytes"
            ));
        }
        _ => return Err(not_a_size(text)),
    };
    if number.is_empty() {
        return Err(not_a_size(text));
    }
    let bytes = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(bytes_per_unit));
    bytes.ok_or_else(|| format!("`{text}` is too large for a size"))
}

fn not_a_size(text: &str) -> String {
    format!(
        "`{text}` is not a size: write bytes, or a whole number with KiB, MiB or GiB, such as 32MiB"
    )
}

/// The leading digits and the rest.
fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// A size for people: the largest unit that divides it.
pub(super) fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A duration in the spelling that [`duration`] reads.
pub(super) fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis.is_multiple_of(1000) {
        format!("{}s", millis / 1000)
    } else {
        format!("{millis}ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_whole_number_and_one_of_four_units() {
        let rows = [
            ("300s", 300_000),
            ("150ms", 150),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("0s", 0),
            ("007s", 7_000),
            ("720h", 2_592_000_000),
        ];
        for (text, millis) in rows {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn a_bare_number_is_no_duration_and_says_which_unit_to_add() {
        let problem = duration("300").unwrap_err();
        assert_eq!(problem, "`300` has no unit: write 300s, or 300ms");
    }

    #[test]
    fn everything_else_is_no_duration() {
        let texts = [
            "",
            "s",
            "ms",
            "-1s",
            "+1s",
            "1.5s",
            "1 s",
            " 1s",
            "1s ",
            "1S",
            "1d",
            "1m30s",
            "1e3s",
            "721h",
            "18446744073709551615h",
            "99999999999999999999s",
            "١s",
        ];
        for text in texts {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_binary_units() {
        let rows = [
            ("0", 0),
            ("100", 100),
            ("1KiB", 1024),
            ("32MiB", 32 << 20),
            ("1GiB", 1 << 30),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in rows {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn decimal_units_are_refused_and_the_binary_spelling_is_named() {
        let problem = size("100KB").unwrap_err();
        assert_eq!(
            problem,
            "`100KB` is ambiguous: write 100KiB (1024-based), or bytes"
        );
    }

    #[test]
    fn everything_else_is_no_size() {
        let texts = [
            "",
            "MiB",
            "-1",
            "1.5MiB",
            "32 MiB",
            "32M",
            "32mib",
            "32Mib",
            "1TiB",
            "0x10",
            "1_000",
            "18446744073709551616",
            "17179869184GiB",
        ];
        for text in texts {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for millis in [0, 1, 999, 1000, 90_000] {
            let wanted = Duration::from_millis(millis);
            assert_eq!(duration(&show_duration(wanted)), Ok(wanted));
        }
        for bytes in [0, 1, 1023, 1024, 1025, 3 << 20, 2 << 30] {
            assert_eq!(size(&show_size(bytes)), Ok(bytes));
        }
    }
}
