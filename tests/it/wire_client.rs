//! The client alone, against a scripted server: one turn, one record, no program around it.

use std::collections::BTreeMap;
use std::time::Duration;

use gspbench::client::{Asks, Client, Dials, Settings, Shape, Trust};
use gspbench::clock::Clock;
use gspbench::lanes::Lanes;
use gspbench::profile::{self, Context};
use gspbench::record::{TurnId, TurnRecord};
use gspbench::units::Micros;
use gspbench::workload::{Api, Connections, Prompt};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// A client under construction.
pub(crate) struct Sender {
    pub(crate) settings: Settings,
    pub(crate) lanes: Lanes,
}

/// A client and its runtime.
pub(crate) struct Bench {
    client: Client,
    pub(crate) clock: Clock,
    pub(crate) runtime: Runtime,
    pub(crate) cancel: CancellationToken,
}

impl Sender {
    /// A client of `api` at `base`, with timeouts that no test waits for.
    pub(crate) fn new(api: Api, base: &str) -> Self {
        let raw = profile::load("flags", "", &[]).unwrap();
        let context = Context { name: "test".into(), drawn_seed: 1, compares_arms: false };
        let spec = profile::run_spec(&raw, &context).unwrap();
        let route = match api {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Generate => "/generate",
        };
        let request = profile::RequestSpec { api, ..spec.request };
        let minute = Duration::from_secs(60);
        let settings = Settings {
            url: gspbench::target::join(base, route),
            shape: Shape {
                request,
                model: None,
                key_field: Some("routing_key".into()),
                continuous_usage: true,
                asks: Asks::default(),
            },
            key_headers: vec!["x-session-id".into()],
            headers: BTreeMap::new(),
            api_key: None,
            trust: Trust::Host,
            connections: Connections::Kept,
            connect_timeout: minute,
            first_byte_timeout: minute,
            idle_timeout: minute,
        };
        Self { settings, lanes: Lanes::default() }
    }

    pub(crate) fn build(self) -> Bench {
        let cancel = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let clock = Clock::wall();
        let client = Client::new(self.settings, &self.lanes, clock.clone(), cancel.clone()).unwrap();
        Bench { client, clock, runtime, cancel }
    }
}

impl Bench {
    /// The connections so far.
    pub(crate) fn dials(&self) -> Dials {
        self.client.dials()
    }

    /// Sends one turn, the `number`th of a session.
    pub(crate) fn turn(&self, number: u32) -> (TurnRecord, String) {
        self.runtime.block_on(self.send(number))
    }

    /// The same; it owns its parts, so that it can run on a lane.
    pub(crate) fn send(&self, number: u32) -> impl Future<Output = (TurnRecord, String)> + Send + use<> {
        let id = TurnId { group: 0, session: 0, turn: number };
        let turn = TurnRecord::planned(format!("run-{id}"), id, Some("g1".into()), Micros(0), 8);
        let body = self.client.prepare(&turn, &Prompt { messages: vec![] });
        self.client.send(turn, body, gspbench::client::Aim::default())
    }
}

/// One turn by a chat client of its own.
pub(crate) fn chat_turn(base: &str) -> (TurnRecord, String) {
    Sender::new(Api::Chat, base).build().turn(0)
}
