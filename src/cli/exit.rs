//! Exit codes are a contract with scripts and CI.

use std::process::ExitCode;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Ok,
    Internal,
    /// Usage or profile.
    Usage,
    /// Target unreachable, or it refused the probe.
    Target,
    /// Ran, but void or not comparable.
    Void,
    /// A threshold or gate failed.
    Gate,
    /// By a signal; the report is written and marked so.
    Interrupted,
}

impl Exit {
    /// The number that the shell sees.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Target => 3,
            Self::Void => 4,
            Self::Gate => 5,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
