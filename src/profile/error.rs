//! What can be wrong with a profile or a flag; each message names the input and the way out.

use crate::units::public_address;

/// A profile, flag or arm that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("cannot read profile `{path}`: {why}; `gspbench profiles` lists the built-in ones")]
    Unreadable { path: String, why: String },
    #[error("profile `{name}`: {why}")]
    Syntax { name: String, why: String },
    #[error("`{key}`: {why}")]
    Value { key: String, why: String },
    #[error("`{flag}` (`{key}`): {why}")]
    Flag { flag: String, key: String, why: String },
    #[error("target `{text}`: {why}")]
    Target { text: String, why: String },
    #[error("arm `{text}`: {why}")]
    Arm { text: String, why: String },
    #[error("gate `{text}`: {why}; write {}", super::gate::GRAMMAR)]
    Gate { text: String, why: String },
    #[error("{what} is not built yet")]
    NotBuilt { what: String },
}

impl ProfileError {
    pub(crate) fn value(key: &str, why: impl Into<String>) -> Self {
        Self::Value { key: key.to_owned(), why: why.into() }
    }

    pub(super) fn target(text: &str, why: &str) -> Self {
        Self::Target { text: public_address(text), why: why.to_owned() }
    }

    pub(super) fn arm(text: &str, why: &str) -> Self {
        Self::Arm { text: text.to_owned(), why: why.to_owned() }
    }

    pub(super) fn not_built(what: impl Into<String>) -> Self {
        Self::NotBuilt { what: what.into() }
    }
}
