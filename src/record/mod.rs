//! Facts about turns and servers, nothing derived: latencies, rates and hit ratios are computed from these in `report`.
//! One [`TurnRecord`] is one line of `requests.jsonl`.

mod oddity;
mod outcome;
mod place;
mod turn;

pub use oddity::Oddity;
pub use outcome::{Failure, Outcome};
pub use place::{Place, PlaceSource};
pub use turn::{Gap, TurnId, TurnRecord};
