//! Long work shows that it goes on where no terminal draws a bar, as in the log of a CI job.

use crate::bad_input::gspbench;
use crate::sweep::SMALL;

const ARMS: [&str; 3] = ["--arm=rr=sim:round_robin,ranks=2", "--arm=pa=sim:prefix_affinity,ranks=2", "--out"];

/// Standard output, and standard error, which is a pipe.
fn said(words: &[&str]) -> (String, Vec<String>) {
    let home = tempfile::tempdir().unwrap();
    let (code, shown, said) = gspbench(&[words, &SMALL].concat(), home.path());
    assert!(code == 0 || code == 4, "{code}: {said}");
    (shown, said.lines().map(str::to_owned).collect())
}

/// A block tells of itself when it begins and when it has ended; one that this busy host made void does so once more.
#[track_caller]
fn tells_of_its_blocks(words: &[&str], ahead: &str, blocks: &[&str]) {
    let (shown, lines) = said(words);
    let at = |wanted: &str| lines.iter().position(|line| line.starts_with(wanted));
    assert!(at("quick: ") <= at(ahead) && at("quick: ").is_some(), "{lines:#?}");
    let mut before = at(ahead);
    for block in blocks {
        let begins = at(&format!("{block}: begins, 8 turns"));
        let ended = lines.iter().position(|line| {
            line.starts_with(&format!("{block}: 8 of 8 turns complete in ")) && line.contains(" 0 failed, TTFT p50 ")
        });
        assert!(before < begins && begins < ended, "`{block}`: {lines:#?}");
        before = begins;
        assert!(!shown.contains(&format!("{block}: ")), "results alone are on standard output: {shown}");
    }
    let (_, quiet) = said(&[words, &["--disable-tqdm"]].concat());
    let is_progress = |line: &&String| blocks.iter().any(|block| line.starts_with(&format!("{block}: ")));
    assert_eq!(quiet.iter().find(is_progress), None, "--disable-tqdm");
}

#[test]
fn every_block_of_an_experiment_has_a_line_as_it_begins_and_as_it_ends() {
    let words = [&["ab", "--rounds=2", "--max-concurrency=2"], &ARMS[..], &["out"]].concat();
    let blocks = ["round 1/2 rr", "round 1/2 pa", "round 2/2 pa", "round 2/2 rr"];
    tells_of_its_blocks(&words, "to run: 4 blocks, of 2 rounds of rr, pa", &blocks);
}

#[test]
fn every_step_of_a_sweep_has_a_line_as_it_begins_and_as_it_ends() {
    let words = [&["sweep", "--concurrencies=1,4"], &ARMS[..], &["out"]].concat();
    let blocks = ["1 session in flight · rr", "1 session in flight · pa", "4 sessions in flight · pa"];
    tells_of_its_blocks(&words, "to run: rr, pa at 1, 4 sessions in flight, step by step", &blocks);
}

#[test]
fn a_run_has_a_line_as_it_begins_and_as_it_ends() {
    let words = ["run", "quick", "--target=sim:round_robin,ranks=2", "--max-concurrency=2", "--out=out"];
    tells_of_its_blocks(&words, "quick: 2 groups", &["sim:round_robin,ranks=2"]);
}

/// What is counted in the program's words.
const NOUNS: [&str; 14] = [
    "group", "session", "turn", "token", "prompt", "output", "distinct", "request", "rank", "round", "block", "step",
    "stream", "sample",
];

/// Counts that are not as all others: `1 groups`, `2048 turns`.
fn odd_counts(text: &str) -> Vec<String> {
    let words: Vec<&str> =
        text.split_whitespace().map(|word| word.trim_matches(&['(', ')', ',', '.', ':', ';'][..])).collect();
    let is_odd = |count: &str, noun: &str| {
        let single = noun.strip_suffix('s').filter(|noun| NOUNS.contains(noun));
        let is_long = count.len() > 3 && count.bytes().all(|byte| byte.is_ascii_digit());
        (count == "1" && single.is_some()) || (is_long && (single.is_some() || NOUNS.contains(&noun)))
    };
    let pairs = words.windows(2).filter(|pair| is_odd(pair[0], pair[1]));
    pairs.map(|pair| pair.join(" ")).collect()
}

#[test]
fn a_count_of_one_is_no_plural_and_a_long_one_has_its_thousands_apart() {
    assert_eq!(
        odd_counts("1 groups, 2048 turns: 2,048 turns, 1 group, 12 turns, (1 rounds), 4096 prompt tokens").len(),
        4
    );
    let one = ["--gsp-num-groups=1", "--gsp-prompts-per-group=1", "--gsp-num-turns=1", "--max-concurrency=1"];
    let tiny = ["--gsp-system-prompt-len=8", "--gsp-question-len=4", "--gsp-output-len=1", "--seed=1"];
    let many = ["--gsp-num-groups=2", "--gsp-prompts-per-group=2048", "--gsp-num-turns=2", "--max-concurrency=2000"];
    let gone = ["run", "--target=http://127.0.0.1:9", "--out=gone"];
    for (words, size) in [
        (&["plan"][..], one),
        (&["plan"], many),
        (&["run", "--target=sim:round_robin,ranks=1", "--out=out"], one),
        (
            &[
                "ab",
                "--rounds=1",
                "--arm=rr=sim:round_robin,ranks=1",
                "--arm=pa=sim:prefix_affinity,ranks=1",
                "--out=out",
            ],
            one,
        ),
        (&["sweep", "--concurrencies=1", "--arm=rr=sim:round_robin,ranks=1", "--out=out"], one),
        (&gone, one),
        (&gone, many),
    ] {
        let home = tempfile::tempdir().unwrap();
        let (_, shown, said) = gspbench(&[words, &size, &tiny].concat(), home.path());
        let all = shown + &said;
        assert_eq!(odd_counts(&all), Vec::<String>::new(), "{words:?}: {all}");
        assert!(all.len() > 100 && !all.contains("--help"), "{words:?} is a command: {all}");
    }
}
