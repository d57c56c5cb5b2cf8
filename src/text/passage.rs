//! A piece of a prompt whose length in tokens is known.

use std::sync::Arc;

/// Text of a known length. Cheap to clone: the parts of a group are shared by all its turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    pub text: Arc<str>,
    /// The ids of `text` as it stands alone; only with a tokenizer.
    pub ids: Option<Arc<[u32]>>,
    /// The id of the first token where the passage follows another part: many vocabularies tell `the` from ` the`.
    pub first_after_joint: Option<u32>,
}

impl Passage {
    /// Text from elsewhere, such as a server's reply; it has no ids.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self { text: Arc::from(text), ids: None, first_after_joint: None }
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}
