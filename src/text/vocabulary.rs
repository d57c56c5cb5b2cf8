//! The words that passages are made of, and what a text of them counts.

use std::path::Path;
use std::sync::Arc;

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};
use tokenizers::Tokenizer;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::pool::{self, LEAST_WORDS, TextError, Word};
use super::{JOINT, Passage};

/// Common short English words; nearly every large vocabulary holds each of them as one token, at the start of a text and
/// after a space, so that lengths planned in words come out right on a real server too.
const WORDS: &str = include_str!("words.txt");

/// Words of one token each, from which texts of an exact length are made.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    words: Vec<Word>,
    tokenizer: Option<Arc<Tokenizer>>,
    /// The largest prime that is no more than the number of words: the base in which ordinals are spelled. A prime,
    /// because then every step but 0 permutes the digits.
    radix: u64,
}

impl Vocabulary {
    /// The built-in words, counted one token each.
    #[must_use]
    pub fn words() -> Self {
        Self::new(WORDS.lines().map(|word| Word { text: word.into(), ids: None }).collect(), None)
    }

    /// The words of a `tokenizer.json` (or of that file in a model's directory).
    ///
    /// # Errors
    /// When the file cannot be read, is no tokenizer, or has too few words that are one token each.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let tokenizer = pool::load(path)?;
        let words = pool::words_of(&tokenizer);
        if words.len() < LEAST_WORDS {
            return Err(TextError::TooFewWords { path: path.to_owned(), found: words.len() });
        }
        Ok(Self::new(words, Some(Arc::new(tokenizer))))
    }

    fn new(words: Vec<Word>, tokenizer: Option<Arc<Tokenizer>>) -> Self {
        let radix = (2..=words.len() as u64).rev().find(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0));
        Self { words, tokenizer, radix: radix.expect("a vocabulary has at least two words") }
    }

    /// How many words there are to choose from.
    #[must_use]
    pub fn size(&self) -> usize {
        self.words.len()
    }

    /// Whether passages carry token ids.
    #[must_use]
    pub fn has_ids(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Tokens of any text, without those that a server's template adds: by the tokenizer, or one a word.
    #[must_use]
    pub fn count(&self, text: &str) -> u32 {
        let tokens = match &self.tokenizer {
            // A tokenizer that refuses a text has no count for it; words are the next best.
            Some(tokenizer) => pool::encode(tokenizer, text).map_or_else(|| words_in(text), |ids| ids.len()),
            None => words_in(text),
        };
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// How many different passages of `tokens` tokens one family holds for sure: two ordinals give the same passage only
    /// if they are equal modulo this.
    #[must_use]
    pub fn distinct(&self, tokens: u32) -> u64 {
        self.radix.saturating_pow(tokens)
    }

    /// The text number `ordinal` of the family `seed`, exactly `tokens` tokens long, always the same.
    ///
    /// It opens by spelling the ordinal in words, in base [`Vocabulary::distinct`]`(1)`, lowest digit first, each digit
    /// permuted by the seed; so two passages of a family differ at their very first token unless their ordinals are equal
    /// modulo that base. The rest is drawn at random.
    #[must_use]
    pub fn passage(&self, seed: u64, ordinal: u64, tokens: u32) -> Passage {
        let mut text = String::with_capacity(tokens as usize * 7);
        self.write(&mut text, seed, ordinal, tokens);
        let ids = self.spell(seed, ordinal, tokens).enumerate().filter_map(|(place, word)| {
            let ids = word.ids?;
            Some(if place == 0 { ids.start } else { ids.inner })
        });
        Passage {
            text: text.into(),
            ids: self.has_ids().then(|| ids.collect()),
            first_after_joint: self.spell(seed, ordinal, tokens).next().and_then(|word| Some(word.ids?.inner)),
        }
    }

    /// Appends the text of that [`Vocabulary::passage`].
    pub fn write(&self, text: &mut String, seed: u64, ordinal: u64, tokens: u32) {
        for (place, word) in self.spell(seed, ordinal, tokens).enumerate() {
            if place > 0 {
                text.push_str(JOINT);
            }
            text.push_str(&word.text);
        }
    }

    fn spell(&self, seed: u64, ordinal: u64, tokens: u32) -> impl Iterator<Item = &Word> {
        let mut rng = ChaCha8Rng::seed_from_u64(xxh3_64_with_seed(&ordinal.to_le_bytes(), seed));
        let digits = (0u64..).scan(u64::MAX, |span, place| {
            // As many digits as the largest ordinal needs, so that equal openings mean equal ordinals.
            let digit = (*span > 0).then_some(place);
            *span /= self.radix;
            digit
        });
        let opening = digits.scan(ordinal, move |left, place| {
            let word = self.digit(seed, place, *left);
            *left /= self.radix;
            Some(word)
        });
        let rest = std::iter::repeat_with(move || pick(rng.next_u32(), self.words.len()));
        opening.chain(rest).take(tokens as usize).map(|at| &self.words[at])
    }

    /// The word for the lowest digit of `number`, at that place of the opening.
    fn digit(&self, seed: u64, place: u64, number: u64) -> usize {
        let bits = xxh3_64_with_seed(&place.to_le_bytes(), !seed);
        let (step, shift) = (1 + (bits >> 32) % (self.radix - 1), bits & 0xFFFF_FFFF);
        usize::try_from((number % self.radix * step + shift) % self.radix).expect("a radix is a number of words")
    }
}

/// An index below `size` from 32 random bits; uneven by less than `size` in 2^32.
fn pick(bits: u32, size: usize) -> usize {
    ((u64::from(bits) * size as u64) >> 32) as usize
}

fn words_in(text: &str) -> usize {
    text.split_ascii_whitespace().count()
}
