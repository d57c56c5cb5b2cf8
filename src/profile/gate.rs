//! Gates: what must hold for a run or a comparison to pass.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ProfileError;

/// The grammar, as errors and `--help` show it.
pub const GRAMMAR: &str = "METRIC worse P%, or METRIC OP VALUE with OP one of < <= > >= == !=; METRIC is a path in \
                           run.json: `ttft_ms.p99 worse 5%`, `totals.failed > 0`";

/// A condition that fails a run or a comparison when it is true.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Gate {
    /// A path in run.json; metrics are named without their `metrics.`.
    pub metric: String,
    pub condition: Condition,
}

/// When a gate fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Condition {
    /// Against the baseline: worse by more than this share, such as 0.05.
    Worse(f64),
    /// The value itself.
    Is(Relation, f64),
}

/// How a value stands to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    Less,
    AtMost,
    More,
    AtLeast,
    Equal,
    Unequal,
}

impl Relation {
    const ALL: [Self; 6] = [Self::Less, Self::AtMost, Self::More, Self::AtLeast, Self::Equal, Self::Unequal];

    fn sign(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::More => ">",
            Self::AtLeast => ">=",
            Self::Equal => "==",
            Self::Unequal => "!=",
        }
    }

    /// Whether `value` stands so to `limit`.
    #[must_use]
    #[expect(
        clippy::float_cmp,
        reason = "`==` in a gate is meant for counts and words of counts, and means what it says"
    )]
    pub fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::Less => value < limit,
            Self::AtMost => value <= limit,
            Self::More => value > limit,
            Self::AtLeast => value >= limit,
            Self::Equal => value == limit,
            Self::Unequal => value != limit,
        }
    }
}

impl FromStr for Gate {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let wrong = |why: &str| ProfileError::Gate { text: text.to_owned(), why: why.to_owned() };
        let words = words(text);
        let mut words = words.split_whitespace();
        let metric = words.next().ok_or_else(|| wrong("it is empty"))?;
        let is_path = metric.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        if !is_path || metric.split('.').any(str::is_empty) {
            return Err(wrong(&format!("`{metric}` is no path in run.json")));
        }
        let (Some(relation), Some(limit), None) = (words.next(), words.next(), words.next()) else {
            return Err(wrong("a metric, a relation and a value are wanted"));
        };
        let number = |text: &str| text.parse().ok().filter(|value: &f64| value.is_finite());
        let condition = if relation == "worse" {
            let share = limit.strip_suffix('%').and_then(number).filter(|percent| *percent >= 0.0);
            Condition::Worse(share.ok_or_else(|| wrong(&format!("`{limit}` is no share such as 5%")))? / 100.0)
        } else {
            let known = Relation::ALL.into_iter().find(|known| known.sign() == relation);
            let relation = known.ok_or_else(|| wrong(&format!("`{relation}` is no relation")))?;
            Condition::Is(relation, number(limit).ok_or_else(|| wrong(&format!("`{limit}` is no number")))?)
        };
        Ok(Self { metric: metric.to_owned(), condition })
    }
}

/// The text with blanks around each run of signs, as in `totals.failed>0`, where they may be left out.
fn words(text: &str) -> String {
    let is_sign = |c: char| "<>=!".contains(c);
    let mut spaced = String::with_capacity(text.len() + 2);
    for c in text.chars() {
        if spaced.chars().last().is_some_and(|before| is_sign(before) != is_sign(c)) {
            spaced.push(' ');
        }
        spaced.push(c);
    }
    spaced
}

impl std::fmt::Display for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.condition {
            // Six decimals of a percentage are more than anyone writes, and hide what binary fractions add.
            Condition::Worse(share) => write!(f, "{} worse {}%", self.metric, (share * 1e8).round() / 1e6),
            Condition::Is(relation, limit) => write!(f, "{} {} {limit}", self.metric, relation.sign()),
        }
    }
}

impl TryFrom<String> for Gate {
    type Error = ProfileError;

    fn try_from(text: String) -> Result<Self, ProfileError> {
        text.parse()
    }
}

impl From<Gate> for String {
    fn from(gate: Gate) -> Self {
        gate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_written_back() {
        let texts =
            ["ttft_ms.p99 worse 5%", "totals.failed > 0", "cache_hit_rate.value <= 0.75", "client.redials != 3"];
        for text in texts {
            assert_eq!(text.parse::<Gate>().unwrap().to_string(), text);
        }
        let gate: Gate = "  ttft_ms.p99   worse  2.5% ".parse().unwrap();
        assert_eq!(gate.condition, Condition::Worse(0.025));
        assert_eq!(gate.to_string(), "ttft_ms.p99 worse 2.5%");
        for text in ["totals.failed>0", "totals.failed >0", "totals.failed> 0"] {
            assert_eq!(text.parse::<Gate>().unwrap().to_string(), "totals.failed > 0", "blanks may be left out");
        }
        assert_eq!("a.b>=-1e3".parse::<Gate>().unwrap().condition, Condition::Is(Relation::AtLeast, -1_000.0));
        assert_eq!("a.b worse 0.07%".parse::<Gate>().unwrap().to_string(), "a.b worse 0.07%");
    }

    #[test]
    fn what_is_no_gate_is_shown_the_grammar() {
        let texts = [
            "",
            "ttft_ms.p99",
            "ttft_ms.p99 worse",
            "ttft_ms.p99 worse 5",
            "ttft_ms.p99 worse -5%",
            "ttft_ms.p99 worse x%",
            "ttft_ms.p99 worse 5 %",
            "ttft_ms..p99 > 1",
            "ttft$ > 1",
            "totals.failed>",
            ">0",
            "totals.failed=>0",
            "totals.failed > > 0",
            "totals.failed=0",
            "ttft_ms.p99worse5%",
            "totals.failed => 0",
            "totals.failed > many",
            "totals.failed > inf",
            "totals.failed > 0 now",
        ];
        for text in texts {
            let said = text.parse::<Gate>().unwrap_err().to_string();
            assert!(said.contains(&format!("`{text}`")) && said.contains("METRIC OP VALUE"), "{said}");
        }
    }

    #[test]
    fn a_relation_means_what_it_says_on_its_limit() {
        let holds = Relation::ALL.map(|relation| [0.9, 1.0, 1.1].map(|value| relation.holds(value, 1.0)));
        assert_eq!(
            holds,
            [
                [true, false, false],
                [true, true, false],
                [false, false, true],
                [false, true, true],
                [false, true, false],
                [true, false, true],
            ]
        );
    }
}
