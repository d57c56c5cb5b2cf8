//! The one table of flags: our names and bench_serving's, each mapped to a profile key. Every flag also answers to its name
//! with underscores, since command lines of both spellings are pasted in.

use std::num::IntErrorKind;

use toml::Value;

use crate::profile::Override;

/// One flag.
pub(crate) struct Flag {
    pub name: &'static str,
    /// The name of its value in the help; none for a switch.
    pub value: Option<&'static str>,
    pub heading: &'static str,
    pub help: &'static str,
    pub effect: Effect,
}

/// What a flag does.
pub(crate) enum Effect {
    /// Sets a key to the value, which must be a whole number, a number or text.
    Int(&'static str),
    Float(&'static str),
    Text(&'static str),
    /// Sets a key to a fixed TOML value.
    Fixed(&'static str, &'static str),
    /// Changes that need a look at the value.
    Custom(fn(&str) -> Result<Vec<Override>, String>),
    /// Accepted because it changes nothing here; the note says why.
    Moot(&'static str),
}

use Effect::{Custom, Fixed, Float, Int, Moot, Text};

const WORKLOAD: &str = "Workload";
const KEYS: &str = "Routing key";
const REQUEST: &str = "Request";
const LOAD: &str = "Load";
const SERVER: &str = "Server";

const fn flag(
    name: &'static str,
    value: Option<&'static str>,
    heading: &'static str,
    effect: Effect,
    help: &'static str,
) -> Flag {
    Flag { name, value, heading, help, effect }
}

/// Every flag that lays a value over the profile.
#[rustfmt::skip]
pub(crate) const FLAGS: &[Flag] = &[
    flag("dataset-name", Some("NAME"), WORKLOAD, Custom(dataset), "Only generated-shared-prefix, which is the default"),
    flag("gsp-num-groups", Some("N"), WORKLOAD, Int("workload.groups"), "Groups, each with a system prompt of its own"),
    flag("gsp-prompts-per-group", Some("N"), WORKLOAD, Int("workload.sessions_per_group"), "Sessions (conversations) in each group"),
    flag("gsp-system-prompt-len", Some("TOKENS"), WORKLOAD, Int("workload.system_tokens"), "Length of the shared system prompt"),
    flag("gsp-question-len", Some("TOKENS"), WORKLOAD, Int("workload.question_tokens"), "Length of each question"),
    flag("gsp-output-len", Some("TOKENS"), WORKLOAD, Int("workload.output_tokens"), "Output asked for in each turn"),
    flag("gsp-range-ratio", Some("R"), WORKLOAD, Float("workload.range_ratio"), "Draw lengths uniformly from [max(1, floor(N·R)), N]"),
    flag("gsp-num-turns", Some("N"), WORKLOAD, Int("workload.turns"), "Turns in each session"),
    flag("gsp-ordered", None, WORKLOAD, Fixed("workload.order", "\"grouped\""), "Send group by group instead of shuffled"),
    flag("gsp-group-distribution", Some("NAME"), WORKLOAD, Custom(distribution), "How sessions choose their group: uniform or zipf (then give --gsp-zipf-alpha)"),
    flag("gsp-zipf-alpha", Some("A"), WORKLOAD, Custom(zipf), "Popularity of group g proportional to (g+1)^-A"),
    flag("gsp-fast-prepare", None, WORKLOAD, Moot("lengths are exact without encoding prompts again"), "Accepted for bench_serving's command lines; preparing is always fast"),
    flag("num-prompts", Some("N"), WORKLOAD, Moot("the number of sessions is groups × prompts per group, as in bench_serving"), "Accepted for bench_serving's command lines"),
    flag("seed", Some("N"), WORKLOAD, Int("workload.seed"), "Seed of all prompts, keys and arrivals; drawn and printed when absent"),
    flag("history", Some("KIND"), WORKLOAD, Text("workload.history"), "Assistant text in later turns: real (the server's replies), synthetic, or recorded (of the baseline, before `ab` measures)"),
    flag("gsp-send-routing-key", None, KEYS, Fixed("key.by", "\"group\""), "One routing key per group, as bench_serving's flag of this name"),
    flag("key-by", Some("SCOPE"), KEYS, Text("key.by"), "Scope of a routing key: group, session, turn or none"),
    flag("key-salt", Some("N"), KEYS, Int("key.salt"), "Other keys, and so another placement, for the same prompts"),
    flag("key-header", Some("NAMES"), KEYS, Custom(key_headers), "Headers that carry the key, one or several by commas [default: x-smg-routing-key,x-session-id]"),
    flag("api", Some("API"), REQUEST, Text("request.api"), "Route: chat, completions or generate (SGLang's own)"),
    flag("backend", Some("NAME"), REQUEST, Custom(backend), "bench_serving's name of the route: sglang, sglang-oai, sglang-oai-chat, vllm, vllm-chat"),
    flag("model", Some("NAME"), REQUEST, Text("request.model"), "Model to ask for; asked of the server when absent"),
    flag("served-model-name", Some("NAME"), REQUEST, Text("request.model"), "The name that the server answers to; beats --model"),
    flag("tokenizer", Some("PATH"), REQUEST, Custom(tokenizer), "A tokenizer.json, or a folder that holds one; without it prompts are common words"),
    flag("prompt-as", Some("FORM"), REQUEST, Text("request.prompt_as"), "text, or ids of the tokenizer"),
    flag("tokenize-prompt", None, REQUEST, Fixed("request.prompt_as", "\"ids\""), "As --prompt-as ids"),
    flag("temperature", Some("T"), REQUEST, Float("request.temperature"), "Sampling temperature [default: 0]"),
    flag("disable-ignore-eos", None, REQUEST, Fixed("request.ignore_eos", "false"), "Let replies end before the length asked for"),
    flag("extra-request-body", Some("JSON"), REQUEST, Custom(extra_body), "Fields to lay over every request body"),
    flag("header", Some("K=V"), REQUEST, Custom(header), "A header of every request; several may follow, and it may be given several times"),
    flag("place-field", Some("FIELD"), REQUEST, Text("request.place_field"), "A field of each reply that names its worker: model, where each worker serves under a name of its own"),
    flag("largest-event-mib", Some("MIB"), REQUEST, Int("request.largest_event_mib"), "A turn fails once a line or an event of its reply is longer [default: 64]"),
    flag("ca-file", Some("PEM"), REQUEST, Text("request.ca_file"), "Trust these certificates, as those of a server that signed its own"),
    flag("insecure", None, REQUEST, Fixed("request.insecure", "true"), "Trust any TLS certificate"),
    flag("max-concurrency", Some("N"), LOAD, Int("load.max_concurrency"), "Most sessions in flight, as bench_serving counts [default: 32 without a rate]"),
    flag("max-turns-in-flight", Some("N"), LOAD, Int("load.max_turns_in_flight"), "Most turns in flight"),
    flag("connections", Some("HOW"), LOAD, Text("load.connections"), "kept: turns use open connections again; per_turn: each opens its own, so that a balancer that places connections places every turn; its connect time lies before sent [default: kept]"),
    flag("request-rate", Some("R"), LOAD, Custom(rate), "Sessions a second; inf: a session starts when another ends"),
    flag("burstiness", Some("B"), LOAD, Float("load.burstiness"), "Shape of the gamma-distributed gaps; 1 is Poisson, inf is evenly spaced"),
    flag("ramp-up", Some("SPAN"), LOAD, Text("load.ramp_up"), "Time until the load is at its height, as in 10s"),
    flag("duration", Some("SPAN"), LOAD, Text("load.duration"), "Stop after this time, as in 60s, if the plan has not ended before"),
    flag("think", Some("SPAN"), LOAD, Text("load.think"), "Pause before the next turn of a session, as in 2s"),
    flag("warmup-requests", Some("N"), LOAD, Int("load.warmup_sessions"), "Sessions that run first, with prompts and keys of their own [default: 8]"),
    flag("goodput", Some("NAME:MS"), LOAD, Custom(goodput), "Limits that a good turn meets, in ms: ttft, tpot, e2el, as in --goodput ttft:200 tpot:50; goodput is good turns a second"),
    flag("flush-cache", None, SERVER, Fixed("server.flush", "true"), "Empty the server's prefix cache before measuring (the default)"),
    flag("no-flush-cache", None, SERVER, Fixed("server.flush", "false"), "Leave the server's prefix cache as it is"),
    flag("flush-command", Some("COMMAND"), SERVER, Text("server.flush_command"), "A shell command that empties the cache, run before each block with the address in GSPBENCH_TARGET"),
    flag("isolate", Some("HOW"), SERVER, Text("server.isolate"), "cache_salt: a fresh salt in every request, for a server whose cache cannot be emptied (SGLang, vLLM)"),
    flag("metrics-url", Some("URL"), SERVER, Custom(metrics_url), "A further address whose /metrics are read before and after; prefill=URL, decode=URL say what its node does"),
    flag("sample-interval", Some("SPAN"), SERVER, Text("server.sample_interval"), "Between two looks at the load of each rank while turns run [default: 1s]; 0: none"),
    flag("time-scale", Some("X"), SERVER, Float("sim.time_scale"), "Run simulated servers X times faster than real time"),
    flag("cache-report", None, SERVER, Moot("cached tokens are always reported where the server tells them"), "Accepted for bench_serving's command lines"),
];

fn set(flag: &str, key: &str, value: impl Into<Value>) -> Override {
    Override::Set { flag: format!("--{flag}"), key: key.to_owned(), value: value.into() }
}

impl Flag {
    /// The changes of the profile that this flag asks for with `value`.
    ///
    /// # Errors
    /// One sentence, without the flag's name.
    pub(crate) fn overrides(&self, value: &str) -> Result<Vec<Override>, String> {
        let number = |what: &str| format!("`{value}` is no {what}");
        Ok(match &self.effect {
            Int(key) => vec![set(self.name, key, whole(value)?)],
            Float(key) => vec![set(self.name, key, value.parse::<f64>().map_err(|_| number("number"))?)],
            Text(key) => vec![set(self.name, key, value)],
            Fixed(key, literal) => {
                let mut table: toml::Table = format!("v = {literal}").parse().map_err(|_| number("value"))?;
                vec![set(self.name, key, table.remove("v").unwrap_or_else(|| value.into()))]
            }
            Custom(read) => read(value)?,
            Moot(_) => vec![],
        })
    }
}

/// A whole number as TOML can hold it.
fn whole(value: &str) -> Result<i64, String> {
    value.parse::<i64>().map_err(|why| match why.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
            format!("`{value}` is out of range: the largest is {}", i64::MAX)
        }
        _ => format!("`{value}` is no whole number"),
    })
}

fn dataset(name: &str) -> Result<Vec<Override>, String> {
    match name {
        "generated-shared-prefix" | "gsp" => Ok(vec![set("dataset-name", "workload.kind", "gsp")]),
        _ => Err(format!("`{name}` is not built yet: this version generates generated-shared-prefix only")),
    }
}

fn distribution(name: &str) -> Result<Vec<Override>, String> {
    match name {
        "uniform" => Ok(vec![set("gsp-group-distribution", "workload.popularity", "uniform")]),
        // --gsp-zipf-alpha, read after this one, says the exponent; bench_serving's default is 1.
        "zipf" => zipf("1.0"),
        _ => Err(format!("`{name}` is no distribution: give uniform or zipf")),
    }
}

fn zipf(alpha: &str) -> Result<Vec<Override>, String> {
    let exponent: f64 = alpha.parse().map_err(|_| format!("`{alpha}` is no number"))?;
    let table = toml::Table::from_iter([("zipf".to_owned(), Value::Float(exponent))]);
    Ok(vec![set("gsp-zipf-alpha", "workload.popularity", table)])
}

fn key_headers(names: &str) -> Result<Vec<Override>, String> {
    let names: Vec<Value> = names.split(',').map(|name| name.trim().into()).collect();
    Ok(vec![set("key-header", "key.headers", names)])
}

fn backend(name: &str) -> Result<Vec<Override>, String> {
    let api = match name {
        "sglang" | "sglang-native" => "generate",
        "sglang-oai" | "vllm" | "lmdeploy" => "completions",
        "sglang-oai-chat" | "vllm-chat" | "lmdeploy-chat" => "chat",
        _ => {
            return Err(format!(
                "`{name}` is no backend of this version: give sglang, sglang-oai, sglang-oai-chat, vllm or vllm-chat"
            ));
        }
    };
    Ok(vec![set("backend", "request.api", api)])
}

fn tokenizer(path: &str) -> Result<Vec<Override>, String> {
    let file = std::path::Path::new(path).join("tokenizer.json");
    let path = if file.is_file() { file.to_string_lossy().into_owned() } else { path.to_owned() };
    Ok(vec![set("tokenizer", "request.tokenizer", path)])
}

fn rate(value: &str) -> Result<Vec<Override>, String> {
    match value.parse::<f64>() {
        Ok(rate) if rate.is_infinite() && rate > 0.0 => {
            // What shapes the gaps of a rate goes with it.
            Ok(["load.rate", "load.burstiness"].map(|key| Override::Unset { key: key.to_owned() }).to_vec())
        }
        Ok(rate) => Ok(vec![set("request-rate", "load.rate", rate)]),
        Err(_) => Err(format!("`{value}` is no number: give sessions a second, or inf")),
    }
}

fn extra_body(json: &str) -> Result<Vec<Override>, String> {
    let fields: toml::Table = serde_json::from_str(json).map_err(|why| format!("`{json}` is no JSON object: {why}"))?;
    Ok(fields
        .into_iter()
        .map(|(name, value)| set("extra-request-body", &format!("request.extra_body.{name}"), value))
        .collect())
}

fn header(text: &str) -> Result<Vec<Override>, String> {
    let (name, value) = text
        .split_once('=')
        .or_else(|| text.split_once(": "))
        .ok_or_else(|| format!("`{text}` is no header: give NAME=VALUE"))?;
    Ok(vec![set("header", &format!("request.headers.{}", name.trim().to_lowercase()), value.trim())])
}

/// `ttft:200`, or several by spaces or commas.
fn goodput(text: &str) -> Result<Vec<Override>, String> {
    let limit = |limit: &str| {
        let wrong = || format!("`{limit}` is no limit: give NAME:MS with NAME one of ttft, tpot, e2el, as in ttft:200");
        let (name, ms) = limit.split_once(':').ok_or_else(wrong)?;
        let is_known = matches!(name, "ttft" | "tpot" | "e2el");
        let ms = ms.parse::<f64>().ok().filter(|_| is_known).ok_or_else(wrong)?;
        Ok(set("goodput", &format!("slo.{name}_ms"), ms))
    };
    text.split([' ', ',']).filter(|part| !part.is_empty()).map(limit).collect()
}

fn metrics_url(url: &str) -> Result<Vec<Override>, String> {
    Ok(vec![Override::Push {
        flag: "--metrics-url".to_owned(),
        key: "server.metrics_urls".to_owned(),
        value: url.into(),
    }])
}
