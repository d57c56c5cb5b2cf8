//! `gspbench selftest` in small: the shape of what it prints, not how fast this machine is.

use assert_cmd::Command;

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
        assert!(cells[1].parse::<f64>().unwrap() > 0.0, "{printed}");
        let errors = cells.iter().filter(|cell| cell.contains('/')).flat_map(|pair| pair.split('/'));
        assert_eq!(
            errors.map(|error| error.parse::<f64>().unwrap()).filter(|error| *error >= 0.0).count(),
            4,
            "{printed}"
        );
    }
    assert!(lines[3].starts_with("this host drives ") && lines[3].contains("50 tok/s"), "{printed}");
}
