//! Which words of a tokenizer are one token each, alone and in company: found by asking the tokenizer, never by knowing
//! its family. Byte-level BPE, Metaspace and WordPiece spell a word's start differently; the tests here do not care.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use tokenizers::Tokenizer;

use super::JOINT;

/// Most words that are kept; more would only make the load slower.
const MOST_WORDS: usize = 4096;
/// Fewer words than this make texts that are too much alike.
pub(super) const LEAST_WORDS: usize = 64;
/// Words of one random join.
const JOIN_WORDS: usize = 256;
/// Rounds of joins without an offender after which the pool is trusted.
const CLEAN_ROUNDS: u32 = 3;
/// Rounds after which a pool that still has offenders is given up.
const MOST_ROUNDS: u32 = 64;

/// How vocabularies write the space before a word: byte-level BPE, SentencePiece, and as it is.
const MARKS: [char; 3] = ['Ġ', '▁', ' '];

/// Why a tokenizer file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The file cannot be read.
    #[error("cannot read the tokenizer `{}`: {source}: give the path of a model's tokenizer.json", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The file is not what the `tokenizers` library writes.
    #[error("`{}` is no tokenizer ({reason}): give the path of a model's tokenizer.json", path.display())]
    NotATokenizer { path: PathBuf, reason: String },
    /// Lengths would not be exact.
    #[error(
        "the tokenizer `{}` has {found} plain lower-case words that are one token each and at least {LEAST_WORDS} are \
         needed: leave the tokenizer out to use the built-in words",
        path.display()
    )]
    TooFewWords { path: PathBuf, found: usize },
}

/// A word that is one token wherever it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: Box<str>,
    /// Its id at the start of a text, and its id after a space; only with a tokenizer.
    pub(super) ids: Option<WordIds>,
}

/// The two ids of a word; equal in many vocabularies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WordIds {
    pub(super) start: u32,
    pub(super) inner: u32,
}

/// Reads a `tokenizer.json`, or that file in a model's directory. Truncation and padding that the file asks for are off.
pub(super) fn load(path: &Path) -> Result<Tokenizer, TextError> {
    let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
    let bytes = std::fs::read(&path).map_err(|source| TextError::Read { path: path.clone(), source })?;
    let bad = |reason: tokenizers::Error| TextError::NotATokenizer { path: path.clone(), reason: reason.to_string() };
    let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(bad)?;
    tokenizer.with_padding(None).with_truncation(None).map_err(bad)?;
    Ok(tokenizer)
}

/// The ids of `text` without any that the post-processor adds; `None` where the tokenizer refuses it.
pub(super) fn encode(tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
    Some(tokenizer.encode_fast(text, false).ok()?.get_ids().to_vec())
}

/// The words of a tokenizer that are one token each and merge with no neighbour, in the order of their ids.
pub(super) fn words_of(tokenizer: &Tokenizer) -> Vec<Word> {
    let mut tokens: Vec<(u32, String)> = tokenizer.get_vocab(false).into_iter().map(|(text, id)| (id, text)).collect();
    tokens.sort_unstable();
    let added: BTreeSet<u32> = tokenizer.get_added_tokens_decoder().into_keys().collect();
    let mut pool: Vec<Word> = candidates(&tokens)
        .into_iter()
        .filter_map(|text| {
            let ids = ids_in_context(tokenizer, text)?;
            let own = !added.contains(&ids.start) && !added.contains(&ids.inner);
            own.then(|| Word { text: text.into(), ids: Some(ids) })
        })
        .take(MOST_WORDS)
        .collect();
    for (before, after) in seams(&tokens) {
        drop_seam(&mut pool, before, after);
    }
    let mut clean = 0;
    for round in 0..MOST_ROUNDS {
        let offenders = offenders(tokenizer, &pool, round);
        clean = if offenders.is_empty() { clean + 1 } else { 0 };
        if clean == CLEAN_ROUNDS {
            return pool;
        }
        let mut at = 0..;
        pool.retain(|_| at.next().is_some_and(|at| !offenders.contains(&at)));
    }
    Vec::new()
}

/// Plain words of the vocabulary, without the mark that a family puts before a word; frequent ones (low ids) first.
fn candidates(tokens: &[(u32, String)]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let words = tokens.iter().map(|(_, token)| token.strip_prefix(MARKS).unwrap_or(token));
    words.filter(|word| (2..=12).contains(&word.len()) && is_plain(word) && seen.insert(*word)).collect()
}

/// Tokens that reach over a space, as what they hold of the words on its two sides. Few vocabularies have any, and random
/// joins would hardly ever meet the pair of words that makes one.
fn seams(tokens: &[(u32, String)]) -> BTreeSet<(&str, &str)> {
    let parts = tokens.iter().map(|(_, token)| {
        let inner = token.strip_prefix(MARKS).unwrap_or(token);
        inner.split(MARKS).collect::<Vec<&str>>()
    });
    parts
        .flat_map(|parts| parts.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>())
        // Nothing before the space: two spaces in a row, which no join has.
        .filter(|(before, after)| !before.is_empty() && is_plain(before) && is_plain(after))
        .collect()
}

/// Takes away the words on one side of a seam, the side that costs fewer.
fn drop_seam(pool: &mut Vec<Word>, before: &str, after: &str) {
    let (ending, starting) = pool.iter().fold((0, 0), |(ending, starting), word| {
        let (ends, starts) = (word.text.ends_with(before), word.text.starts_with(after));
        (ending + usize::from(ends), starting + usize::from(starts))
    });
    if ending == 0 || starting == 0 {
        return;
    }
    pool.retain(|word| if ending <= starting { !word.text.ends_with(before) } else { !word.text.starts_with(after) });
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_lowercase())
}

/// The ids of a word at the start and after a space, when it is one token in both places.
fn ids_in_context(tokenizer: &Tokenizer, word: &str) -> Option<WordIds> {
    let [start] = encode(tokenizer, word)?[..] else { return None };
    let [first, inner, last] = encode(tokenizer, &[word; 3].join(JOINT))?[..] else { return None };
    (first == start && inner == last).then_some(WordIds { start, inner })
}

/// The indices of words that merged with a neighbour when the whole pool was joined in a random order.
fn offenders(tokenizer: &Tokenizer, pool: &[Word], round: u32) -> BTreeSet<usize> {
    let mut order: Vec<usize> = (0..pool.len()).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(round.into()));
    let mut found = BTreeSet::new();
    for chunk in order.chunks(JOIN_WORDS).filter(|chunk| !joins(tokenizer, pool, chunk)) {
        let pairs: Vec<&[usize]> = chunk.windows(2).filter(|pair| !joins(tokenizer, pool, pair)).collect();
        // A join that fails though its pairs hold has a reason that spans more words: none of them can be trusted.
        let suspects: Vec<usize> = if pairs.is_empty() { chunk.to_vec() } else { pairs.concat() };
        found.extend(suspects);
    }
    found
}

/// Whether these words, joined, are exactly their own tokens.
fn joins(tokenizer: &Tokenizer, pool: &[Word], chunk: &[usize]) -> bool {
    let text: Vec<&str> = chunk.iter().map(|&at| &*pool[at].text).collect();
    let ids = chunk.iter().enumerate().map(|(place, &at)| {
        let ids = pool[at].ids?;
        Some(if place == 0 { ids.start } else { ids.inner })
    });
    encode(tokenizer, &text.join(JOINT)) == ids.collect()
}
