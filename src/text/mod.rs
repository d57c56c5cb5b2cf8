//! Text of an exact length in tokens, from the built-in words or from the vocabulary of a `tokenizer.json`.
//!
//! Every passage is a row of plain lower-case words that are one token each, whatever stands beside them; so lengths add
//! up when passages are joined by one space, and nothing has to be encoded while a run is under way.

mod passage;
mod pool;
mod vocabulary;

#[cfg(test)]
mod tests;

pub use passage::Passage;
pub use pool::TextError;
pub use vocabulary::Vocabulary;

/// What stands between the parts of a prompt: it adds no token and merges with none.
pub const JOINT: &str = " ";
