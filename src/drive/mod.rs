//! The one load loop: a plan's turns are sent when they are due; pacing and stopping are values.
