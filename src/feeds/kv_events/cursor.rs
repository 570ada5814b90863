//! Where one rank's stream stands: which message is next, repeated, missing, or of another life of
//! the publisher. Pure decisions. Source: engine-wire §1.4, §1.9.

/// Sequence of the end marker of a replay, and of a reset on the live socket.
pub(super) const END: u64 = u64::MAX;

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Apply it.
    Next,
    /// It has been applied before.
    Repeated,
    /// Messages `from..` up to this one are missing.
    Gap {
        /// The first missing one.
        from: u64,
    },
    /// The publisher has begun anew: forget what it had, then apply.
    Restart,
    /// The publisher says that it begins anew; nothing to apply.
    Reset,
}

/// Position in one rank's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cursor {
    applied: Option<u64>,
    /// The last one that came live; replays do not move it.
    live: Option<u64>,
}

impl Cursor {
    /// The last applied message.
    pub(super) const fn applied(self) -> Option<u64> {
        self.applied
    }

    /// Judges a live message. Moves nothing but the memory of what came live.
    ///
    /// On one socket numbers only grow: a smaller one than the last live one is another life. What
    /// a replay has already brought is merely repeated.
    pub(super) fn live(&mut self, sequence: u64) -> Step {
        if sequence == END {
            return Step::Reset;
        }
        let before = self.live.replace(sequence);
        match self.applied {
            None => Step::Next,
            Some(_) if sequence == 0 && before != Some(0) => Step::Restart,
            Some(_) if before.is_some_and(|before| sequence < before) => Step::Restart,
            Some(applied) if sequence <= applied => Step::Repeated,
            Some(applied) if sequence == applied + 1 => Step::Next,
            Some(applied) => Step::Gap { from: applied + 1 },
        }
    }

    /// `sequence` was applied.
    pub(super) const fn advance(&mut self, sequence: u64) {
        self.applied = Some(sequence);
    }

    /// Another life begins: nothing has been applied.
    pub(super) const fn forget(&mut self) {
        self.applied = None;
    }

    /// A new connection: the last life's numbers say nothing about what comes.
    pub(super) const fn reconnected(&mut self) {
        self.live = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds live numbers and applies what must be; gaps are taken as lost.
    fn steps(numbers: &[u64]) -> Vec<Step> {
        let mut cursor = Cursor::default();
        let step = |number: &u64| {
            let step = cursor.live(*number);
            match step {
                Step::Repeated => {}
                Step::Reset => cursor.forget(),
                Step::Next | Step::Gap { .. } | Step::Restart => cursor.advance(*number),
            }
            step
        };
        numbers.iter().map(step).collect()
    }

    #[test]
    fn numbers_are_judged_by_what_came_before() {
        use Step::{Gap, Next, Repeated, Reset, Restart};
        let rows: [(&[u64], &[Step]); 8] = [
            (&[0, 1, 2], &[Next, Next, Next]),
            (&[7, 8], &[Next, Next]),
            (
                &[0, 1, 2, 5, 5],
                &[Next, Next, Next, Gap { from: 3 }, Repeated],
            ),
            (&[0, 0, 1], &[Next, Repeated, Next]),
            (&[3, 4, 0, 1], &[Next, Next, Restart, Next]),
            (&[8, 9, 4, 5], &[Next, Next, Restart, Next]),
            (&[5, END, 3, 4], &[Next, Reset, Next, Next]),
            (&[END, 0], &[Reset, Next]),
        ];
        for (numbers, expected) in rows {
            assert_eq!(steps(numbers), expected, "{numbers:?}");
        }
    }

    #[test]
    fn what_a_replay_has_brought_is_repeated_when_it_comes_live() {
        let mut cursor = Cursor::default();
        assert_eq!(cursor.live(5), Step::Next);
        cursor.advance(5);
        for replayed in 6..=9 {
            cursor.advance(replayed);
        }
        for live in 6..=9 {
            assert_eq!(cursor.live(live), Step::Repeated, "{live}");
        }
        assert_eq!(cursor.live(10), Step::Next);
    }
}
