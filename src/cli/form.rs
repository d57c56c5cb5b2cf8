//! How what goes on is shown on standard error: a bar, lines, or nothing.

use std::io::IsTerminal as _;
use std::time::Duration;

/// Redraws a second: more would cost the run time on its own cores.
pub(crate) const REDRAWS: u8 = 10;
/// Between two lines of a block under way.
const BETWEEN_LINES: Duration = Duration::from_secs(30);

/// How the run under way is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Bar,
    Lines,
    Nothing,
}

impl Form {
    /// What standard error can show, where anything is wanted.
    #[must_use]
    pub(crate) fn of_stderr(is_wanted: bool) -> Self {
        match (is_wanted, std::io::stderr().is_terminal()) {
            (false, _) => Self::Nothing,
            (true, true) => Self::Bar,
            (true, false) => Self::Lines,
        }
    }

    /// Between two lines, where there are lines.
    pub(crate) fn between_lines(self) -> Option<Duration> {
        match self {
            Self::Lines => Some(BETWEEN_LINES),
            Self::Bar | Self::Nothing => None,
        }
    }

    /// Whether the run is to be shown again so long after it was.
    pub(crate) fn is_due(self, after: Duration) -> bool {
        match self {
            Self::Bar => after >= Duration::from_millis(1000 / u64::from(REDRAWS)),
            Self::Lines => after >= BETWEEN_LINES,
            Self::Nothing => false,
        }
    }
}
