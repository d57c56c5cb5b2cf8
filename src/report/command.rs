//! The command line that would measure the same once more.

use super::shape::RunReport;

/// Flags whose value is a place for results, which exists by now.
const OUT: &str = "--out";

impl RunReport {
    /// How to run it again: the words of the command line, without the directory that holds the results already, and with the
    /// seed where it was drawn. Absent where another program wrote the result.
    #[must_use]
    pub fn command(&self) -> Option<String> {
        self.command_of(self.manifest.round.unwrap_or(1))
    }

    /// The same of a run that was the `nth` of its experiment or sweep, from 1: each has a seed one above that of the one before.
    #[must_use]
    pub fn command_of(&self, nth: u32) -> Option<String> {
        let manifest = &self.manifest;
        let mut words: Vec<String> = vec![];
        let mut arguments = manifest.argv.iter();
        while let Some(word) = arguments.next() {
            if word == OUT {
                arguments.next();
            } else if !word.strip_prefix(OUT).is_some_and(|rest| rest.starts_with('=')) {
                words.push(quoted(word));
            }
        }
        // A resumed experiment has its seed on file.
        let tells_seed = |word: &String| ["--seed", "workload.seed", "--resume"].iter().any(|at| word.contains(at));
        if !words.is_empty() && !manifest.argv.iter().any(tells_seed) {
            let before = u64::from(nth.saturating_sub(1));
            words.push(format!("--seed {}", manifest.spec.workload.seed.wrapping_sub(before)));
        }
        (!words.is_empty()).then(|| words.join(" "))
    }
}

/// As a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use crate::report::tests::context;
    use crate::report::{Accumulator, Closing, State};

    #[test]
    fn the_command_line_runs_again_with_the_same_seed_and_without_the_old_directory() {
        let command = |argv: &[&str], round| {
            let mut report = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Complete));
            report.manifest.argv = argv.iter().map(|&word| word.to_owned()).collect();
            report.manifest.round = round;
            report.command()
        };
        let same = |argv: &[&str], round, want: &str| assert_eq!(command(argv, round).as_deref(), Some(want));
        same(&["gspbench", "run", "--out", "x", "--label=it's"], None, r"gspbench run '--label=it'\''s' --seed 42");
        same(&["gspbench", "ab", "--out=x", "--output-details"], Some(3), "gspbench ab --output-details --seed 40");
        same(&["gspbench", "ab", "--seed=42"], Some(1), "gspbench ab --seed=42");
        same(&["gspbench", "ab", "--set", "workload.seed=7"], Some(1), "gspbench ab --set workload.seed=7");
        assert_eq!(command(&[], None), None);
    }
}
