//! Whether routing keys arrive: counters and gauges of servers that look at them.

use crate::wire::{Exposition, Sample};

/// What a server shows of routing keys at one instant; absent where it shows nothing.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct KeySigns {
    /// Requests so far that carried a key, and that carried none.
    keyed: Option<f64>,
    keyless: Option<f64>,
    /// Distinct keys of the requests under way.
    active: Option<f64>,
}

/// How requests carry their key, as far as it changes what a sign means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// On SGLang's native route the key is a field of the body: its gauge of key headers says nothing then.
    pub in_body: bool,
    /// SMG takes an `Authorization` for a key where there is none.
    pub with_authorization: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    Keyed,
    Keyless,
    Active,
}

type Only = Option<(&'static str, &'static [&'static str])>;

/// Names without `_total`, with the label values that are meant.
const SIGNS: &[(&str, Sign, Only)] = &[
    ("gspbench_sim_keyed_requests", Sign::Keyed, None),
    ("gspbench_sim_keyless_requests", Sign::Keyless, None),
    ("smg_manual_policy_branch", Sign::Keyed, Some(("branch", &["vacant", "occupied_hit", "occupied_miss"]))),
    ("smg_manual_policy_branch", Sign::Keyless, Some(("branch", &["no_routing_id"]))),
    (CONSISTENT_HASHING, Sign::Keyed, Some(("branch", &["routing_key_hit"]))),
    (CONSISTENT_HASHING, Sign::Keyless, Some(("branch", &["random_fallback"]))),
    (KEY_HEADERS, Sign::Active, None),
    // Refreshed with each prefill and every 40th decode step, and only while all running requests have keys.
    ("sglang:num_unique_running_routing_keys", Sign::Active, None),
    ("smg_worker_routing_keys_active", Sign::Active, None),
];
const CONSISTENT_HASHING: &str = "smg_consistent_hashing_policy_branch";
const KEY_HEADERS: &str = "sglang:routing_keys_active";

/// Looks while a keyed request runs, below which an idle gauge proves nothing: SGLang's is refreshed too seldom.
const LEAST_LOOKS: usize = 3;

impl KeySigns {
    /// Reads an exposition.
    #[must_use]
    pub fn read(exposition: &Exposition, carried: Carried) -> Self {
        let mut signs = Self::default();
        for sample in exposition.samples.iter().filter(|sample| sample.value.is_finite()) {
            let Some(sign) = sign(sample, carried) else { continue };
            let slot = match sign {
                Sign::Keyed => &mut signs.keyed,
                Sign::Keyless => &mut signs.keyless,
                Sign::Active => &mut signs.active,
            };
            *slot.get_or_insert(0.0) += sample.value;
        }
        signs
    }

    /// The signs of two addresses together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |a: Option<f64>, b: Option<f64>| a.map_or(b, |a| Some(a + b.unwrap_or(0.0)));
        let Self { keyed, keyless, active } = other;
        Self { keyed: sum(self.keyed, keyed), keyless: sum(self.keyless, keyless), active: sum(self.active, active) }
    }

    /// Whether there is something to watch while a request runs.
    #[must_use]
    pub fn has_gauge(&self) -> bool {
        self.active.is_some()
    }
}

fn sign(sample: &Sample, carried: Carried) -> Option<Sign> {
    let name = sample.name.strip_suffix("_total").unwrap_or(&sample.name);
    let means_nothing =
        (name == KEY_HEADERS && carried.in_body) || (name == CONSISTENT_HASHING && carried.with_authorization);
    let is_meant = |only: &Only| {
        only.is_none_or(|(label, values)| {
            sample.labels.get(label).is_some_and(|value| values.contains(&value.as_str()))
        })
    };
    let found = SIGNS.iter().find(|(known, _, only)| *known == name && is_meant(only));
    found.filter(|_| !means_nothing).map(|(_, sign, _)| *sign)
}

/// Whether the key of one request arrived, of which `before` and `after` are the last signs without it and `during` those
/// while it ran; none when they do not tell.
#[must_use]
pub fn key_arrived(before: KeySigns, during: &[KeySigns], after: KeySigns) -> Option<bool> {
    // Series of these names may begin with their first event.
    let grew = |from: Option<f64>, to: Option<f64>| to.is_some_and(|to| to > from.unwrap_or(0.0));
    let rose = during.iter().any(|look| grew(before.active, look.active));
    if grew(before.keyed, after.keyed) || rose {
        return Some(true);
    }
    if grew(before.keyless, after.keyless) {
        return Some(false);
    }
    // A gauge that stood above 0 before may be stale, and a rise would not show.
    let was_idle =
        before.active == Some(0.0) && during.iter().filter(|look| look.active.is_some()).count() >= LEAST_LOOKS;
    was_idle.then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Carried = Carried { in_body: false, with_authorization: false };

    fn signs(text: &str, carried: Carried) -> KeySigns {
        KeySigns::read(&Exposition::parse(text), carried)
    }

    fn active(keys: f64) -> KeySigns {
        signs(&format!("sglang:routing_keys_active {keys}\n"), HEADER)
    }

    #[test]
    fn a_gauge_that_rises_while_a_keyed_request_runs_has_seen_its_key() {
        assert_eq!(key_arrived(active(0.0), &[active(0.0), active(1.0)], active(0.0)), Some(true));
        assert_eq!(key_arrived(active(1.0), &[active(2.0)], active(1.0)), Some(true), "beside those of others");
    }

    #[test]
    fn a_gauge_that_stays_idle_has_seen_none_once_it_was_looked_at_often_enough() {
        assert_eq!(key_arrived(active(0.0), &[active(0.0); 3], active(0.0)), Some(false));
        assert_eq!(key_arrived(active(0.0), &[active(0.0); 2], active(0.0)), None);
        assert_eq!(key_arrived(active(1.0), &[active(1.0); 9], active(1.0)), None, "it may be stale");
        let none = KeySigns::default();
        assert_eq!(key_arrived(none, &[none; 9], none), None);
    }

    #[test]
    fn a_gauge_of_key_headers_says_nothing_of_keys_in_bodies() {
        let native = Carried { in_body: true, ..HEADER };
        assert!(!signs("sglang:routing_keys_active 1\n", native).has_gauge());
        let running = "sglang:num_unique_running_routing_keys{dp_rank=\"3\"} 1\n";
        assert_eq!(signs(running, native).active, Some(1.0));
    }

    #[test]
    fn counters_tell_without_a_look_in_between() {
        let count = |keyed: u32, keyless: u32| {
            let text = format!(
                "smg_manual_policy_branch_total{{branch=\"vacant\"}} {keyed}\n\
                 smg_manual_policy_branch_total{{branch=\"no_routing_id\"}} {keyless}\n"
            );
            signs(&text, HEADER)
        };
        assert_eq!(key_arrived(count(4, 1), &[], count(5, 1)), Some(true));
        assert_eq!(key_arrived(count(4, 1), &[], count(4, 2)), Some(false));
        assert_eq!(key_arrived(count(4, 1), &[], count(4, 1)), None);
        assert_eq!(key_arrived(KeySigns::default(), &[], count(1, 0)), Some(true), "its first event made the series");
    }

    #[test]
    fn an_authorization_that_hashes_like_a_key_is_no_sign_of_one() {
        let text = "smg_consistent_hashing_policy_branch_total{branch=\"routing_key_hit\"} 7\n";
        assert_eq!(signs(text, Carried { with_authorization: true, ..HEADER }), KeySigns::default());
        assert_eq!(signs(text, HEADER).keyed, Some(7.0));
    }
}
