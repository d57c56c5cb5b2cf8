//! Secrets stay out of files that people attach to pull requests. What is shown is listed, and everything else hidden:
//! nobody can list the names that gateways give their keys.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::shape::Manifest;
use crate::profile::{ArmSpec, ExperimentSpec, RunSpec, Target};
use crate::units::public_address;

/// Stands where a secret was.
pub const HIDDEN: &str = "(hidden)";

/// Headers, in lower case, whose values are no secrets; `x-smg-` begins those of SMG.
const HARMLESS: [&str; 8] = [
    "accept",
    "accept-encoding",
    "content-type",
    "user-agent",
    "x-correlation-id",
    "x-data-parallel-rank",
    "x-request-id",
    "x-session-id",
];

/// A field with one of these in its name is hidden whatever it holds.
const ALWAYS: [&str; 5] = ["secret", "passw", "auth", "credential", "cookie"];

/// A field with one of these in its name is hidden where it holds text: `max_tokens` is a number.
const TEXT_OF: [&str; 2] = ["key", "token"];

/// Flags, with dashes, whose next argument is a header, a body, an assignment or a command.
const CARRIERS: [&str; 4] = ["--header", "--extra-request-body", "--set", "--flush-command"];

/// The manifest without secrets, in the command line, the specification and the addresses.
pub(super) fn redacted(mut manifest: Manifest) -> Manifest {
    hide_in_spec(&mut manifest.spec);
    manifest.target.iter_mut().for_each(hide_in_target);
    manifest.argv = public_arguments(&manifest.argv);
    manifest
}

/// An experiment's specification without secrets.
#[must_use]
pub fn public_experiment(mut spec: ExperimentSpec) -> ExperimentSpec {
    hide_in_spec(&mut spec.run);
    hide_in_arms(&mut spec.arms);
    spec
}

/// A sweep's specification without secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PublicSweep {
    pub run: RunSpec,
    pub arms: Vec<ArmSpec>,
}

/// A sweep's specification without secrets.
#[must_use]
pub fn public_sweep(mut run: RunSpec, mut arms: Vec<ArmSpec>) -> PublicSweep {
    hide_in_spec(&mut run);
    hide_in_arms(&mut arms);
    PublicSweep { run, arms }
}

fn hide_in_arms(arms: &mut [ArmSpec]) {
    for ArmSpec { target, metrics_urls, launch, name: _, control: _, keys: _, prompts: _ } in arms {
        hide_in_target(target);
        metrics_urls.iter_mut().for_each(|url| *url = url.public());
        launch.iter_mut().for_each(|launch| launch.command = public_command(&launch.command));
    }
}

/// Hides the values of fields that are named like secrets, at any depth: SGLang tells its own API key in `/server_info`.
pub fn hide_fields(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| hide_field(name, value)),
        Value::Array(items) => items.iter_mut().for_each(hide_fields),
        _ => {}
    }
}

fn hide_field(name: &str, value: &mut Value) {
    let name = name.to_ascii_lowercase().replace("tokenizer", "");
    let is_named = |words: &[&str]| words.iter().any(|word| name.contains(word));
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::String(_) if is_named(&TEXT_OF) || is_named(&ALWAYS) => *value = HIDDEN.into(),
        Value::Object(_) | Value::Array(_) if is_named(&TEXT_OF) => hide_text(value),
        _ if is_named(&ALWAYS) => *value = HIDDEN.into(),
        _ => hide_fields(value),
    }
}

/// Hides all text below.
fn hide_text(value: &mut Value) {
    match value {
        Value::String(text) => HIDDEN.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(hide_text),
        Value::Object(fields) => fields.values_mut().for_each(hide_text),
        _ => {}
    }
}

fn hide_in_spec(spec: &mut RunSpec) {
    for (name, value) in &mut spec.request.headers {
        if !is_harmless(name) {
            HIDDEN.clone_into(value);
        }
    }
    spec.request.extra_body.iter_mut().for_each(|(name, value)| hide_field(name, value));
    if let Some(command) = &mut spec.server.flush_command {
        HIDDEN.clone_into(command);
    }
    spec.server.metrics_urls.iter_mut().for_each(|url| *url = url.public());
}

fn hide_in_target(target: &mut Target) {
    match target {
        Target::Url(url) => *url = public_address(url),
        Target::Pin { urls, .. } => urls.iter_mut().for_each(|url| *url = public_address(url)),
        Target::Sim { .. } => {}
    }
}

/// A command without the values of flags and variables that are named like secrets, as in `--api-key` or `HF_TOKEN=`.
fn public_command(command: &str) -> String {
    let mut is_named = false;
    let words = command.split_whitespace().map(|word| {
        let was_named = std::mem::take(&mut is_named);
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        match value {
            _ if was_named && !word.starts_with('-') => HIDDEN.to_owned(),
            Some(value) if is_secret(name) && !is_number(value) => format!("{name}={HIDDEN}"),
            _ => {
                is_named = value.is_none() && word.starts_with('-') && is_secret(name);
                public_text(word)
            }
        }
    });
    // Only what hides something is set anew: spaces and line ends may have a meaning.
    let public = words.collect::<Vec<_>>().join(" ");
    if public.contains(HIDDEN) { public } else { command.to_owned() }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace("tokenizer", "");
    ALWAYS.iter().chain(&TEXT_OF).any(|word| name.contains(word)) && !name.ends_with("tokens")
}

fn is_number(value: &str) -> bool {
    value.parse::<f64>().is_ok()
}

fn is_harmless(header: &str) -> bool {
    let name = header.trim().to_ascii_lowercase();
    HARMLESS.contains(&name.as_str()) || name.starts_with("x-smg-")
}

/// A command line whose headers, bodies and addresses tell no secret.
fn public_arguments(arguments: &[String]) -> Vec<String> {
    let mut carrier = None;
    let mut public = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let own = carrier_of(argument);
        public.push(match (carrier.take(), argument.split_once('=')) {
            (Some(flag), _) => public_value(flag, argument),
            (None, Some((name, value))) => match own {
                Some(flag) => format!("{name}={}", public_value(flag, value)),
                None => public_text(argument),
            },
            (None, None) => {
                carrier = own;
                public_text(argument)
            }
        });
    }
    public
}

/// The flag of [`CARRIERS`] that an argument is or begins with, in either spelling.
fn carrier_of(argument: &str) -> Option<&'static str> {
    let name = argument.split('=').next().unwrap_or_default().replace('_', "-");
    CARRIERS.into_iter().find(|flag| *flag == name)
}

fn public_value(flag: &str, value: &str) -> String {
    let kept = |upto: usize| format!("{}{HIDDEN}", &value[..upto]);
    match flag {
        "--header" => match value.find(['=', ':']) {
            Some(at) if is_harmless(&value[..at]) => value.to_owned(),
            Some(at) => kept(at + 1),
            None => HIDDEN.to_owned(),
        },
        "--extra-request-body" | "--flush-command" => HIDDEN.to_owned(),
        _ => {
            let key = value.split('=').next().unwrap_or_default().trim();
            let secret = ["request.headers", "request.extra_body", "server.flush_command"];
            let hides = matches!(key, "request" | "server")
                || key.starts_with("arm")
                || secret.iter().any(|at| key.starts_with(at));
            match value.find('=') {
                Some(at) if hides => kept(at + 1),
                _ => public_text(value),
            }
        }
    }
}

/// Any other argument: only an address in it can hold a secret.
fn public_text(argument: &str) -> String {
    let starts = ["http://", "https://"].iter().filter_map(|scheme| argument.find(scheme)).min();
    starts.map_or_else(|| argument.to_owned(), |at| format!("{}{}", &argument[..at], public_address(&argument[at..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spelling_of_a_flag_lets_a_secret_through() {
        let lines = [
            &["--header", "Authorization: Bearer S3CRET"][..],
            &["--header=authorization=Bearer S3CRET"],
            &["--header", "X-Auth-Token=S3CRET"],
            &["--header", "S3CRET"],
            &["--set", "request.headers.Authorization=\"Bearer S3CRET\""],
            &["--set=request.headers={ a = \"S3CRET\" }"],
            &["--set", " request.extra_body.api_key=S3CRET"],
            &["--set", "request={ headers = { a = \"S3CRET\" } }"],
            &["--extra-request-body", "{\"api_key\":\"S3CRET\"}"],
            &["--extra_request_body={\"api_key\":\"S3CRET\"}"],
            &["--target", "http://user:S3CRET@h:1/v1?key=S3CRET"],
            &["--arm", "a=https://S3CRET@h?key=S3CRET;control"],
            &["--flush-command", "curl -H 'Authorization: Bearer S3CRET' http://h"],
            &["--set", "server.flush_command=\"x S3CRET\""],
            &["--set", "server={ flush_command = \"x S3CRET\" }"],
            &["--set", "server.metrics_urls=[\"http://u:S3CRET@h/\"]"],
        ];
        for line in lines {
            let line: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
            let public = public_arguments(&line);
            assert!(!public.concat().contains("S3CRET"), "{public:?}");
            assert_eq!(public.len(), line.len());
        }
    }

    #[test]
    fn a_command_shows_no_value_of_a_flag_or_variable_that_is_named_like_a_secret() {
        let secret = "HF_TOKEN=S3CRET serve --api-key S3CRET --admin-api-key=S3CRET --url http://u:S3CRET@h/?k=S3CRET";
        let public = public_command(secret);
        assert!(
            !public.contains("S3CRET") && public.contains("--api-key (hidden) --admin-api-key=(hidden)"),
            "{public}"
        );
        let plain = "serve  --tokenizer-path /m\n --max-total-tokens 9 --chunk-tokens=7 http://h:1";
        assert_eq!(public_command(plain), plain);
    }

    #[test]
    fn what_is_no_secret_is_kept() {
        let line = "run --header X-SMG-Target-Worker=1 --header X-Data-Parallel-Rank=1 --set workload.groups=16 \
                    --target http://h:1/v1";
        let line: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        assert_eq!(public_arguments(&line), line);
        let mut info = serde_json::json!({
            "max_tokens": 5, "tokenizer_path": "/m", "api_key": "S", "admin_api_key": null, "deep": [{"hf_token": "S"}],
            "password": 5, "stop_token_ids": [1, 2], "tokens": ["S"], "enable_auth": false,
        });
        hide_fields(&mut info);
        let shown = serde_json::json!({
            "max_tokens": 5, "tokenizer_path": "/m", "api_key": HIDDEN, "admin_api_key": null,
            "deep": [{"hf_token": HIDDEN}], "password": HIDDEN, "stop_token_ids": [1, 2], "tokens": [HIDDEN],
            "enable_auth": false,
        });
        assert_eq!(info, shown);
    }
}
