//! A specification for the tests of all rooms that need one.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{
    Api, ChatLayout, Connections, History, KeyScope, KeySpec, Length, LoadSpec, Order, Pacing, Popularity, PromptAs,
    RequestSpec, RunSpec, ServerSpec, SimSpec, TimeoutSpec, WorkloadSpec,
};

/// Groups × sessions × turns, and the tokens of system prompt, question and output.
pub(crate) fn spec(groups: u32, sessions: u32, turns: u32, system: u32, question: u32, output: u32) -> RunSpec {
    let count = |n| NonZeroU32::new(n).unwrap();
    let length = |tokens| Length { min: tokens, max: tokens };
    RunSpec {
        name: "sample".into(),
        workload: WorkloadSpec {
            groups: count(groups),
            sessions_per_group: count(sessions),
            turns: count(turns),
            system_tokens: length(system),
            question_tokens: length(question),
            output_tokens: length(output),
            popularity: Popularity::Uniform,
            order: Order::Shuffled,
            history: History::Real,
            seed: 42,
        },
        key: KeySpec { by: KeyScope::Group, salt: 0, headers: vec![], body_field: None },
        request: RequestSpec {
            api: Api::Chat,
            chat_layout: ChatLayout::System,
            prompt_as: PromptAs::Text,
            tokenizer: None,
            model: None,
            temperature: 0.0,
            ignore_eos: true,
            extra_body: serde_json::Map::new(),
            headers: std::collections::BTreeMap::new(),
            ca_file: None,
            insecure: false,
            place_field: None,
            largest_event_mib: super::spec::largest_event(),
        },
        load: LoadSpec {
            pacing: Pacing::Closed { sessions: count(32) },
            connections: Connections::Kept,
            max_turns_in_flight: None,
            ramp_up: Duration::ZERO,
            duration: None,
            think: Duration::ZERO,
            warmup_sessions: 0,
        },
        timeout: TimeoutSpec {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(600),
            idle: Duration::from_secs(60),
        },
        server: ServerSpec {
            flush_command: None,
            isolate: None,
            sample_interval: Duration::from_secs(1),
            metrics_urls: vec![],
            flush: true,
            flush_timeout: Duration::from_secs(60),
            ranks: count(8),
            kv_tokens_per_rank: 1_050_000,
        },
        sim: SimSpec { preset: "generic-8xh100".into(), guard: "requests".into(), time_scale: 1.0 },
        slo: None,
    }
}
