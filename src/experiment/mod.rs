//! Rounds and their order: the pure next block, given the results so far.
