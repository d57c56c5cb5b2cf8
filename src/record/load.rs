//! What the load loop says of a run as a whole, beside its turns.

use serde::{Deserialize, Serialize};

use crate::units::Micros;

/// The two instants between which the load was as high as asked for. Absent: not reached yet, or never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// Closed loop: every slot is taken for the first time. Open loop: the ramp-up is over.
    pub full: Option<Micros>,
    /// Closed loop: the plan's last session starts. Open loop: it is due. Or the end of sending, where that came first.
    pub last_start: Option<Micros>,
}

/// What ended a run; whichever came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// Every planned turn has ended.
    Plan,
    /// `load.duration`: turns under way were cut, and the rest of the plan was never sent.
    Duration,
    /// A signal.
    Interrupt,
}
