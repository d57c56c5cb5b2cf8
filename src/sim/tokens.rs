//! The simulator's own counting of text, and the words of its replies.
//!
//! Without a tokenizer a word is a token: whitespace separates, and the pieces of a chat never merge. The id of a word is a
//! hash of it, so a reply that comes back as history matches what the cache holds. Replies depend on the prompt alone, as
//! greedy sampling would have it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Words or a `tokenizer.json`, with the vocabulary of replies.
pub struct Tokens {
    tokenizer: Option<tokenizers::Tokenizer>,
    /// Text with its leading space, and id; each is one token wherever it follows another.
    replies: Vec<(String, u32)>,
}

/// A tokenizer that the simulator cannot use.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    #[error("tokenizer `{path}`: {cause}: give a tokenizer.json")]
    Unreadable { path: PathBuf, cause: String },
    #[error("tokenizer `{0}`: no lower-case words that are single tokens: replies could not be counted")]
    NoWords(PathBuf),
    #[error("the tokenizer could not encode the prompt: {0}")]
    Encode(String),
}

/// The reply to a prompt: its ids, and for each the entry in the vocabulary.
#[derive(Debug, Clone)]
pub struct Reply {
    pub ids: Arc<[u32]>,
    entries: Vec<u16>,
}

/// More words than this make no reply more random.
const MOST_WORDS: usize = 4096;

impl Tokens {
    /// Words, one token each.
    #[must_use]
    pub fn words() -> Self {
        let syllables: Vec<String> = "bdfghjklmnprstvz"
            .chars()
            .flat_map(|head| "aeio".chars().map(move |tail| format!("{head}{tail}")))
            .collect();
        let replies = syllables.iter().flat_map(|a| syllables.iter().map(move |b| format!("{a}{b}")));
        Self { tokenizer: None, replies: replies.map(|word| (format!(" {word}"), word_id(&word))).collect() }
    }

    /// The tokenizer in a `tokenizer.json`.
    ///
    /// # Errors
    /// When the file is none, or no words of its vocabulary could make a reply of known length.
    pub fn from_file(path: &Path) -> Result<Self, TokensError> {
        let tokenizer = tokenizers::Tokenizer::from_file(path)
            .map_err(|cause| TokensError::Unreadable { path: path.into(), cause: cause.to_string() })?;
        let mut words: Vec<(u32, String)> = tokenizer.get_vocab(false).into_iter().filter_map(as_word).collect();
        words.sort_unstable();
        let single = |(id, word): (u32, String)| {
            let text = format!(" {word}");
            let encoded = tokenizer.encode_fast(text.as_str(), false).ok()?;
            (encoded.get_ids() == [id]).then_some((text, id))
        };
        let replies: Vec<_> = words.into_iter().filter_map(single).take(MOST_WORDS).collect();
        if replies.is_empty() {
            return Err(TokensError::NoWords(path.into()));
        }
        Ok(Self { tokenizer: Some(tokenizer), replies })
    }

    /// Ids are below this; none where any number will do.
    #[must_use]
    pub fn vocabulary(&self) -> Option<u32> {
        self.tokenizer.as_ref().map(|tokenizer| u32::try_from(tokenizer.get_vocab_size(true)).unwrap_or(u32::MAX))
    }

    /// The ids of the pieces, in order.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn encode<'a>(&self, pieces: impl IntoIterator<Item = &'a str>) -> Result<Vec<u32>, TokensError> {
        let pieces = pieces.into_iter();
        let Some(tokenizer) = &self.tokenizer else {
            return Ok(pieces.flat_map(str::split_whitespace).map(word_id).collect());
        };
        let mut ids = vec![];
        for piece in pieces {
            let encoded =
                tokenizer.encode_fast(piece, false).map_err(|cause| TokensError::Encode(cause.to_string()))?;
            ids.extend_from_slice(encoded.get_ids());
        }
        Ok(ids)
    }

    /// A reply of `length` tokens to this prompt.
    #[must_use]
    pub fn reply(&self, prompt: &[u32], length: u32) -> Reply {
        let bytes: Vec<u8> = prompt.iter().flat_map(|id| id.to_le_bytes()).collect();
        let seed = xxh3_64(&bytes);
        let count = self.replies.len() as u64;
        let entry = |index: u32| u16::try_from(xxh3_64_with_seed(&index.to_le_bytes(), seed) % count).unwrap_or(0);
        let entries: Vec<u16> = (0..length).map(entry).collect();
        Reply { ids: entries.iter().map(|&entry| self.replies[usize::from(entry)].1).collect(), entries }
    }

    /// The text of a reply's token, with its leading space; letters only otherwise, so that JSON needs no escapes.
    #[must_use]
    pub fn text(&self, reply: &Reply, index: usize) -> &str {
        &self.replies[usize::from(reply.entries[index])].0
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.tokenizer.is_some() { "tokenizer" } else { "words" };
        f.debug_struct("Tokens").field("kind", &kind).field("replies", &self.replies.len()).finish()
    }
}

fn word_id(word: &str) -> u32 {
    u32::try_from(xxh3_64(word.as_bytes()) >> 32).unwrap_or(0)
}

/// A vocabulary entry that is a lower-case word after a space, in the spelling of byte-level or sentencepiece vocabularies.
fn as_word((token, id): (String, u32)) -> Option<(u32, String)> {
    let word = token.strip_prefix('Ġ').or_else(|| token.strip_prefix('▁'))?;
    (word.len() >= 2 && word.bytes().all(|byte| byte.is_ascii_lowercase())).then(|| (id, word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_neighbouring_pieces_never_merge() {
        let tokens = Tokens::words();
        let ids = tokens.encode(["one two", "three\n\nfour "]).unwrap();
        assert_eq!(ids, tokens.encode(["one two three four"]).unwrap());
        assert_eq!(ids.len(), 4);
    }

    #[test]
    fn a_reply_that_comes_back_as_text_has_the_ids_that_were_cached() {
        let tokens = Tokens::words();
        let reply = tokens.reply(&[1, 2, 3], 300);
        let text: String = (0..300).map(|index| tokens.text(&reply, index)).collect();
        assert_eq!(tokens.encode([text.as_str()]).unwrap(), *reply.ids);
        assert!(text.chars().all(|letter| letter == ' ' || letter.is_ascii_lowercase()));
        assert_eq!(tokens.reply(&[1, 2, 3], 4).ids[..], reply.ids[..4], "the prompt alone decides");
        assert_ne!(tokens.reply(&[1, 2, 4], 4).ids, tokens.reply(&[1, 2, 3], 4).ids);
    }

    #[test]
    fn ids_of_different_words_differ() {
        let tokens = Tokens::words();
        let ids: std::collections::BTreeSet<u32> = tokens.replies.iter().map(|(_, id)| *id).collect();
        assert_eq!(ids.len(), tokens.replies.len());
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_named() {
        let told = Tokens::from_file(Path::new("no/such.json")).unwrap_err().to_string();
        assert!(told.contains("no/such.json") && told.contains("tokenizer.json"), "{told}");
    }
}
