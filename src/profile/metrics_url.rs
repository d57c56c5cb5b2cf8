//! Further addresses with counters, as they are given: `URL`, or `prefill=URL` and `decode=URL` where the node does not tell
//! its role itself.

use serde::{Deserialize, Serialize};

use super::ProfileError;
use super::resolve::http_url;
use crate::units::{NodeRole, public_address};

/// An address whose counters are read beside the target's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct MetricsUrl {
    /// What its node does, if the caller says so.
    pub role: Option<NodeRole>,
    pub url: String,
}

impl MetricsUrl {
    /// # Errors
    /// When it is no address; names `key`.
    pub(super) fn checked(key: &str, text: &str) -> Result<Self, ProfileError> {
        let parsed = Self::from(text.to_owned());
        http_url(key, &parsed.url).map(|()| parsed)
    }

    /// The same without what may be secret in it.
    #[must_use]
    pub fn public(&self) -> Self {
        Self { role: self.role, url: public_address(&self.url) }
    }
}

impl From<String> for MetricsUrl {
    fn from(text: String) -> Self {
        let told = text.split_once('=').and_then(|(word, url)| Some((NodeRole::named(word)?, url.to_owned())));
        told.map_or(Self { role: None, url: text }, |(role, url)| Self { role: Some(role), url })
    }
}

impl From<MetricsUrl> for String {
    fn from(given: MetricsUrl) -> Self {
        match given.role {
            Some(role) => format!("{}={}", role.name(), given.url),
            None => given.url,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_stands_before_the_address_and_reads_back() {
        let cases = [
            ("http://h:1", None, "http://h:1"),
            ("prefill=http://h:1/metrics", Some(NodeRole::Prefill), "http://h:1/metrics"),
            ("decode=https://u:p@h?a=b", Some(NodeRole::Decode), "https://u:p@h?a=b"),
            ("http://h:1?prefill=1", None, "http://h:1?prefill=1"),
        ];
        for (text, role, url) in cases {
            let read = MetricsUrl::checked("k", text).unwrap();
            assert_eq!((read.role, read.url.as_str()), (role, url));
            assert_eq!(String::from(read), text);
        }
        assert_eq!(String::from(MetricsUrl::from("decode=http://u:p@h".to_owned()).public()), "decode=http://h");
        for wrong in ["prefill=", "router=http://h", "prefill", "decode=h:1"] {
            assert!(MetricsUrl::checked("k", wrong).is_err(), "{wrong}");
        }
    }
}
