//! Where a turn was served, and who said so.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::Rank;

/// A rank, a node, or a (prefill, decode) pair of nodes. A rank of one of several nodes is a node called `NODE@RANK`, as
/// SMG writes it: each has a cache of its own. In JSON `{"rank":3}`, `{"node":"…"}` or
/// `{"prefill":"…","decode":"…"}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "FlatPlace", try_from = "FlatPlace")]
pub enum Place {
    Rank(Rank),
    Node(String),
    Pair { prefill: String, decode: String },
}

/// What told us the place of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceSource {
    /// `meta_info.dp_rank` of the native route.
    MetaInfo,
    /// The client itself chose it.
    Pin,
    /// A router's response header that names the worker.
    RouterHeader,
    /// The reply's id, into which vllm-router writes both nodes of a prefill/decode pair.
    ReplyId,
    /// Dynamo's `nvext.worker_id`.
    WorkerId,
    /// The reply's `model`, where each worker has a name of its own.
    Model,
    /// The server's own log of requests, joined after the run.
    ExportFile,
}

impl Place {
    /// A node, or one rank of it.
    #[must_use]
    pub fn node(name: String, rank: Option<u32>) -> Self {
        Self::Node(match rank {
            Some(rank) if !name.contains('@') => format!("{name}@{rank}"),
            _ => name,
        })
    }

    /// The same place, its names changed.
    #[must_use]
    pub fn renamed(self, rename: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Rank(rank) => Self::Rank(rank),
            Self::Node(name) => Self::Node(rename(&name)),
            Self::Pair { prefill, decode } => Self::Pair { prefill: rename(&prefill), decode: rename(&decode) },
        }
    }

    /// In as few characters as a sequence of places has room for.
    #[must_use]
    pub fn short(&self) -> String {
        match self {
            Self::Rank(rank) => rank.to_string(),
            Self::Node(name) => name.clone(),
            Self::Pair { prefill, decode } => format!("{prefill}→{decode}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Node(name) => f.write_str(name),
            Self::Pair { prefill, decode } => write!(f, "{prefill} → {decode}"),
        }
    }
}

/// The JSON shape of a [`Place`]: one flat object whose keys tell the kind.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlatPlace {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rank: Option<Rank>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefill: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decode: Option<String>,
}

impl From<Place> for FlatPlace {
    fn from(place: Place) -> Self {
        let none = Self { rank: None, node: None, prefill: None, decode: None };
        match place {
            Place::Rank(rank) => Self { rank: Some(rank), ..none },
            Place::Node(node) => Self { node: Some(node), ..none },
            Place::Pair { prefill, decode } => Self { prefill: Some(prefill), decode: Some(decode), ..none },
        }
    }
}

impl TryFrom<FlatPlace> for Place {
    type Error = &'static str;

    fn try_from(flat: FlatPlace) -> Result<Self, Self::Error> {
        match flat {
            FlatPlace { rank: Some(rank), node: None, prefill: None, decode: None } => Ok(Self::Rank(rank)),
            FlatPlace { rank: None, node: Some(node), prefill: None, decode: None } => Ok(Self::Node(node)),
            FlatPlace { rank: None, node: None, prefill: Some(prefill), decode: Some(decode) } => {
                Ok(Self::Pair { prefill, decode })
            }
            _ => Err("a place is a rank, a node, or a prefill and a decode node"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_one_flat_object_and_reads_back() {
        let places = [
            (Place::Rank(Rank(3)), r#"{"rank":3}"#),
            (Place::Node("w1".into()), r#"{"node":"w1"}"#),
            (Place::Pair { prefill: "p0".into(), decode: "d1".into() }, r#"{"prefill":"p0","decode":"d1"}"#),
        ];
        for (place, json) in places {
            assert_eq!(serde_json::to_string(&place).unwrap(), json);
            assert_eq!(serde_json::from_str::<Place>(json).unwrap(), place);
        }
        assert!(serde_json::from_str::<Place>(r#"{"prefill":"p0"}"#).is_err());
        assert!(serde_json::from_str::<Place>(r#"{"rank":1,"node":"a"}"#).is_err());
    }
}
