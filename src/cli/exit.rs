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

/// An error that says how the program ends.
#[derive(Debug)]
pub(super) struct Ended {
    pub exit: Exit,
    cause: anyhow::Error,
}

impl Ended {
    /// An error in these words.
    #[must_use]
    pub(super) fn new(exit: Exit, words: &'static str) -> Self {
        Self { exit, cause: anyhow::Error::msg(words) }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&super::say::words(&self.cause))
    }
}

impl std::error::Error for Ended {}

/// Gives an error its exit code where it arises.
pub(super) trait ExitWith<T> {
    /// The same result, whose error ends the program with `exit`.
    ///
    /// # Errors
    /// That of the result.
    fn exit_with(self, exit: Exit) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> ExitWith<T> for Result<T, E> {
    fn exit_with(self, exit: Exit) -> anyhow::Result<T> {
        self.map_err(|cause| Ended { exit, cause: cause.into() }.into())
    }
}

impl Exit {
    /// The exit code of an error: its own, or by its kind, or internal.
    #[must_use]
    pub fn of(error: &anyhow::Error) -> Self {
        match error.downcast_ref::<Ended>() {
            Some(ended) => ended.exit,
            None if error.is::<crate::profile::ProfileError>() => Self::Usage,
            None => Self::Internal,
        }
    }
}
