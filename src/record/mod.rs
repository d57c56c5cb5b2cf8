//! Facts about turns and servers, nothing derived: latencies, rates and hit ratios are computed from these in `report`.
//! One [`TurnRecord`] is one line of `requests.jsonl`.

mod load;
mod oddity;
mod outcome;
mod place;
mod server;
mod times;
mod turn;

pub use load::{EndedBy, Marks};
pub use oddity::Oddity;
pub use outcome::{Failure, Outcome};
pub use place::{Place, PlaceSource};
pub use server::{CounterRole, HistogramRole, PlaceLoad, ServerCounter, ServerHistogram};
pub use times::ServerTimes;
pub use turn::{Gap, TurnId, TurnRecord};
