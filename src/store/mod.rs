//! Run and experiment directories: created before the first request, never overwritten, valid at every instant.
