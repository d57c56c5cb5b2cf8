//! Run reports of several arms to one comparison.
