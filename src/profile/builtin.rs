//! The built-in profiles: the TOML files of `profiles/`, embedded, so that the program needs no file beside it.

/// Names and texts, in the order in which they are listed: the one to begin with comes first.
const BUILTIN: [(&str, &str); 4] = [
    ("quick", include_str!("../../profiles/quick.toml")),
    ("dpa8-gsp", include_str!("../../profiles/dpa8-gsp.toml")),
    ("mla-showcase", include_str!("../../profiles/mla-showcase.toml")),
    ("pd-multiturn", include_str!("../../profiles/pd-multiturn.toml")),
];

/// The text of a built-in profile.
#[must_use]
pub fn builtin(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Each built-in profile's name, and the sentence that its first line says of it.
pub fn builtins() -> impl Iterator<Item = (&'static str, &'static str)> {
    BUILTIN.iter().map(|(name, text)| {
        let first = text.lines().next().unwrap_or_default();
        (*name, first.trim_start_matches('#').trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Context, experiment_spec, load};

    #[test]
    fn every_built_in_profile_says_what_it_is_for_and_makes_an_experiment() {
        for (name, sentence) in builtins() {
            assert!(sentence.len() > 40 && sentence.ends_with('.'), "{name}: {sentence}");
            let profile = load(name, builtin(name).unwrap(), &[]).unwrap();
            let context = Context { name: name.into(), drawn_seed: 7, compares_arms: true };
            let spec = experiment_spec(&profile, &context).unwrap();
            assert_eq!((spec.arms.len(), spec.run.workload.seed), (2, 7), "{name}: the seed is drawn anew each time");
        }
    }

    #[test]
    fn a_name_that_is_none_has_no_text() {
        assert_eq!(builtin("quick.toml"), None);
    }
}
