//! Words and tokenizers: text of an exact length in tokens.
