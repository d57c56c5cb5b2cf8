//! `gspbench selftest` in small: the shape of what it prints, not how fast this machine is.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use assert_cmd::Command;
use rustix::process::{Pid, Signal, kill_process};

fn selftest(flags: &str) -> String {
    let mut command = Command::cargo_bin("gspbench").unwrap();
    let output = command.arg("selftest").args(flags.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_step_has_a_line_of_figures_and_the_last_line_a_verdict() {
    let printed = selftest("--streams 2,5 --rate 50 --duration 100ms");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 4, "{printed}");
    assert!(lines[0].contains("TTFT err") && lines[0].contains("ITL err"), "{printed}");
    for (line, streams) in lines[1..3].iter().zip(["2", "5"]) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[0], streams, "{printed}");
        assert!(cells[1].replace(',', "").parse::<f64>().unwrap() > 0.0, "{printed}");
        let errors = cells.iter().filter(|cell| cell.contains('/')).flat_map(|pair| pair.split('/'));
        assert_eq!(
            errors.map(|error| error.parse::<f64>().unwrap()).filter(|error| *error >= 0.0).count(),
            4,
            "{printed}"
        );
    }
    assert!(lines[3].starts_with("this host drives ") && lines[3].contains("50 tok/s"), "{printed}");
}

#[test]
fn a_signal_ends_it_with_what_the_steps_before_have_shown() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_gspbench"))
        .args(["selftest", "--streams=2,3,4,5,6,7,8", "--rate=50", "--duration=300ms"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    let mut table = String::new();
    // The head, and the first step.
    for _ in 0..2 {
        assert!(printed.read_line(&mut table).unwrap() > 0, "{table}");
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    printed.read_to_string(&mut table).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{table}");
    let last = table.lines().last().unwrap();
    let cut = last.strip_prefix("INTERRUPTED at ").and_then(|rest| rest.split(' ').next()).unwrap();
    let measured: Vec<_> = table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(!measured[..measured.len() - 1].contains(&cut), "{table}");
    assert!(
        last.contains("so far, this host drives ") || last.contains("no step before it was within 1 ms"),
        "{table}"
    );
}
