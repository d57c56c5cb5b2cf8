//! What is known only at the end of a run, beside its turns.

use super::latency::millis;
use super::server::{CounterDelta, Cut, FlushFacts, HistogramDelta, KeySeen, ServerFacts, Unread};
use super::shape::{Client, InFlight, ObservedOracle, State};
use crate::record::{EndedBy, PlaceLoad};
use crate::stats::Distribution;

/// The end of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Closing {
    pub state: State,
    /// Absent when it is not known, as of a run that was killed.
    pub ended_by: Option<EndedBy>,
    /// Reuse that the places seen in this run allow.
    pub observed: Option<ObservedOracle>,
    /// Turns that this program itself, which placed them all, sent past the rank that they preferred.
    pub spilled: Option<u64>,
    pub server: ServerSide,
    pub client: ClientSide,
}

/// What the server said before and after the turns, and meanwhile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerSide {
    pub counters: Vec<CounterDelta>,
    pub histograms: Vec<HistogramDelta>,
    pub unread: Vec<Unread>,
    pub cut: Vec<Cut>,
    pub series: Vec<PlaceLoad>,
    pub flush: Option<FlushFacts>,
    pub restarted: Vec<String>,
    pub key_seen: KeySeen,
}

/// How this program did, beside what its turns tell.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientSide {
    /// Most turns in flight at once, as the load loop counted.
    pub in_flight_max: Option<u64>,
    /// Opened for the turns, before the first or later.
    pub connections: Option<u64>,
    /// Of these, beyond the most that were in use at once; none where each turn is to open its own.
    pub redials: Option<u64>,
    /// How long each connection took to open, in µs.
    pub connect: Distribution,
    /// How late this program's own runtime was, asked every 10 ms.
    pub runtime_lag: Distribution,
    pub cpu_cores: Option<f64>,
    /// CPU time over wall time of the busiest of the threads that carry streams, 0…1.
    pub busiest_lane: Option<f64>,
}

impl Closing {
    /// The end of a run of which nothing but its turns is known.
    #[must_use]
    pub fn plain(state: State) -> Self {
        let (server, client) = (ServerSide::default(), ClientSide::default());
        Self { state, ended_by: None, observed: None, spilled: None, server, client }
    }
}

impl ServerSide {
    /// The server with what it has said since the probe.
    pub(super) fn beside(self, probed: ServerFacts) -> ServerFacts {
        let Self { counters, histograms, unread, cut, series, flush, restarted, key_seen } = self;
        ServerFacts { counters, histograms, unread, cut, series, flush, restarted, key_seen, ..probed }
    }
}

impl ClientSide {
    /// The client with what its turns do not tell.
    pub(super) fn beside(self, told: Client) -> Client {
        let Self { in_flight_max, connections, redials, connect, runtime_lag, cpu_cores, busiest_lane } = self;
        let in_flight = InFlight { max: in_flight_max, ..told.in_flight };
        let (runtime_lag_ms, connect_ms) = (millis(&runtime_lag), millis(&connect));
        Client { runtime_lag_ms, cpu_cores, busiest_lane, connections, redials, connect_ms, in_flight, ..told }
    }
}
