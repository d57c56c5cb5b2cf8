//! Reports and comparisons as terminal tables, markdown and JSON text. Text out, no files.
