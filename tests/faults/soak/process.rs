//! What a process holds, as the system sees it.

use std::fs;

/// Descriptors and threads that may come and go by themselves.
const FEW: usize = 6;

/// What memory may grow by after the first third, KiB: fragments, no leak.
const GROWTH: u64 = 24 * 1024;

/// Counts of one process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Footprint {
    descriptors: usize,
    threads: usize,
    resident_kib: u64,
}

impl Footprint {
    pub(super) fn of(pid: u32) -> Self {
        let count = |what: &str| {
            let entries = fs::read_dir(format!("/proc/{pid}/{what}"));
            entries.expect("a running process").count()
        };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|line| line.split_whitespace().next()?.parse().ok());
        Self {
            descriptors: count("fd"),
            threads: count("task"),
            resident_kib: resident.expect("a size"),
        }
    }

    /// Whether descriptors and threads are what they were.
    pub(super) const fn is_no_more_than(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors + FEW && self.threads <= before.threads + FEW
    }

    #[track_caller]
    pub(super) fn assert_no_larger_than(&self, before: &Self) {
        let allowed = before.resident_kib + GROWTH;
        assert!(self.resident_kib <= allowed, "{before:?} became {self:?}");
    }
}
