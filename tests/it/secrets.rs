//! Keys reach every route of a server, and no file, table or message of a run.

use std::path::Path;

use assert_cmd::Command;

use crate::bad_input::ended_well;
use crate::scripted::{Answer, Scripted, Seen, chat_stream};

const SMALL: [&str; 9] = [
    "--gsp-num-groups=1",
    "--gsp-prompts-per-group=2",
    "--gsp-system-prompt-len=8",
    "--gsp-question-len=4",
    "--gsp-output-len=3",
    "--max-concurrency=1",
    "--warmup-requests=1",
    "--seed=1",
    "--out=out",
];

/// Runs gspbench with a key in its environment; exit code and all that it printed.
fn gspbench(args: &[&str], key: &str, dir: &Path) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gspbench"));
    command.args(args).current_dir(dir).env("OPENAI_API_KEY", key).timeout(std::time::Duration::from_secs(120));
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&printed).into_owned())
}

/// A server that answers 401 to whatever lacks the key, on every route, and tells its key in `/server_info`.
fn locked() -> Scripted {
    Scripted::start(|seen| {
        if seen.header("authorization") != Some("Bearer S3CRET") {
            return Answer::Whole(401, "application/json", "{\"error\":\"Unauthorized\"}".to_owned());
        }
        match seen.path.split('?').next().unwrap_or_default() {
            "/v1/models" => Answer::Whole(200, "application/json", "{\"data\":[{\"id\":\"m\"}]}".to_owned()),
            "/server_info" => {
                Answer::Whole(200, "application/json", "{\"dp_size\":2,\"api_key\":\"S3CRET\"}".to_owned())
            }
            "/metrics" => Answer::Whole(200, "text/plain", "sglang:num_requests_total 5\n".to_owned()),
            "/flush_cache" => Answer::Whole(200, "text/plain", "Cache flushed.\n".to_owned()),
            "/v1/chat/completions" => Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12)),
            _ => Answer::Whole(404, "application/json", "{}".to_owned()),
        }
    })
}

fn files_with(word: &str, dir: &Path) -> Vec<String> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(word, &path));
        } else if String::from_utf8_lossy(&std::fs::read(&path).unwrap()).contains(word) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn is_let_in(seen: &Seen) -> bool {
    seen.header("authorization") == Some("Bearer S3CRET")
}

#[test]
fn a_locked_server_is_measured_whole_with_a_key_of_the_environment_or_of_the_profile() {
    for (more, environment) in [
        (&["--header", "X-Team=a"][..], "S3CRET"),
        // The profile's own header beats the environment.
        (&["--header", "Authorization=Bearer S3CRET", "--header", "X-Team=a"], "another"),
        (&["--set", "request.headers.Authorization=\"Bearer S3CRET\"", "--header", "X-Team=a"], ""),
    ] {
        let server = locked();
        let dir = tempfile::tempdir().unwrap();
        let (exit, printed) =
            gspbench(&[&["run", "--target", &server.url], &SMALL[..], more].concat(), environment, dir.path());
        assert!(ended_well(exit, &[&dir.path().join("out")]), "{more:?}: {printed}");
        let seen = server.seen();
        for route in ["/v1/models", "/server_info", "/metrics", "/flush_cache", "/v1/chat/completions"] {
            let asked: Vec<_> = seen.iter().filter(|seen| seen.path.starts_with(route)).collect();
            assert!(!asked.is_empty(), "{route}");
            assert!(
                asked.iter().all(|seen| is_let_in(seen) && seen.header("x-team") == Some("a")),
                "{route}: {asked:?}"
            );
        }
        assert!(!printed.contains("S3CRET"), "{printed}");
        assert_eq!(files_with("S3CRET", dir.path()), Vec::<String>::new(), "{more:?}");
    }
}

#[test]
fn a_server_that_repeats_the_key_in_its_description_and_labels_tells_no_file() {
    const KEY: &str = "sk-S3CRETKEY";
    let json = |text: String| Answer::Whole(200, "application/json", text);
    let server = Scripted::start(move |seen| match seen.path.split('?').next().unwrap_or_default() {
        "/v1/models" => json(format!("{{\"data\":[{{\"id\":\"m\",\"owned_by\":\"{KEY}\"}}]}}")),
        "/server_info" => json(format!(
            "{{\"dp_size\":2,\"version\":\"1 {KEY}\",\"cmd\":\"serve --api-key {KEY}\",\"{KEY}\":[\"{KEY}\"]}}"
        )),
        "/metrics" => Answer::Whole(200, "text/plain", format!("sglang:num_requests_total{{key=\"{KEY}\"}} 5\n")),
        "/flush_cache" => Answer::Whole(200, "text/plain", format!("Flushed for {KEY}.\n")),
        "/v1/chat/completions" => Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12)),
        _ => Answer::Whole(404, "application/json", format!("{{\"error\":\"{KEY}\"}}")),
    });
    let dir = tempfile::tempdir().unwrap();
    let (exit, printed) = gspbench(&[&["run", "--target", &server.url], &SMALL[..]].concat(), KEY, dir.path());
    assert!(matches!(exit, 0 | 4), "{printed}");
    assert!(!printed.contains("S3CRET"), "{printed}");
    assert_eq!(files_with("S3CRET", dir.path()), Vec::<String>::new());
    assert!(!files_with("(hidden)", dir.path()).is_empty(), "it was said, and hidden");
}

#[test]
fn no_file_of_an_experiment_holds_a_secret_wherever_it_was_given() {
    let server = locked();
    let dir = tempfile::tempdir().unwrap();
    let address = server.url.replace("http://", "http://user:S3CRETPW@") + "?key=S3CRETQ";
    let [a, b] = ["a", "b"].map(|arm| format!("{arm}={address}"));
    let more = ["--arm", &a, "--arm", &b, "--rounds=1", "--header", "X-Auth-Token=S3CRETH", "--metrics-url", &address];
    let body = ["--extra-request-body", "{\"api_key\":\"S3CRETB\",\"nested\":{\"token\":\"S3CRETB\"}}"];
    let header = ["--api=chat", "--header", "Authorization=Bearer S3CRET"];
    let (exit, printed) = gspbench(&[&["ab"], &SMALL[..], &more, &body, &header].concat(), "", dir.path());
    assert!(matches!(exit, 0 | 4), "{printed}");
    assert!(!printed.contains("S3CRET"), "{printed}");
    assert_eq!(files_with("S3CRET", dir.path()), Vec::<String>::new());
    let (_, compared) = gspbench(&["compare", "out"], "", dir.path());
    assert!(compared.contains("b against baseline a"), "{compared}");
    let turn = &server.turns()[0];
    assert_eq!((turn.header("x-auth-token"), &turn.json()["api_key"]), (Some("S3CRETH"), &"S3CRETB".into()));
}
