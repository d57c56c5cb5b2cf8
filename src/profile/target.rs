//! Targets as they stand on a command line: `http://host:port`, `sim:POLICY[,key=value…]`,
//! `pin:POLICY[,key=value…]@URL[,URL…]`.

use std::collections::BTreeMap;

use super::{ProfileError, Target};
use crate::units::public_address;

impl std::str::FromStr for Target {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_http(text) {
            return Ok(Self::Url(base_url(text, text)?));
        }
        if let Some(sim) = text.strip_prefix("sim:") {
            let (policy, settings) = policy(text, sim, "sim:round_robin")?;
            return Ok(Self::Sim { policy, settings });
        }
        if let Some(pin) = text.strip_prefix("pin:") {
            let example = "pin:prefix_affinity@http://HOST:PORT";
            let (pin, urls) = pin.split_once('@').ok_or_else(|| {
                ProfileError::target(text, &format!("say where the turns are placed, as in {example}"))
            })?;
            let (policy, settings) = policy(text, pin, example)?;
            return Ok(Self::Pin { policy, settings, urls: base_urls(text, urls)? });
        }
        Err(ProfileError::target(text, "a target is http://HOST:PORT, https://HOST, sim:POLICY or pin:POLICY@URL"))
    }
}

fn is_http(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// A base URL without its trailing slash; `text` is what an error names.
fn base_url(text: &str, url: &str) -> Result<String, ProfileError> {
    let parsed = reqwest::Url::parse(url).map_err(|why| ProfileError::target(text, &why.to_string()))?;
    // Routes are put behind it, and would become a part of either.
    if parsed.fragment().is_some() || url.contains(char::is_whitespace) {
        return Err(ProfileError::target(text, "an address has no `#` and no blanks"));
    }
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let base = base.trim_end_matches('/');
    Ok(query.map_or_else(|| base.to_owned(), |query| format!("{base}?{query}")))
}

fn base_urls(text: &str, urls: &str) -> Result<Vec<String>, ProfileError> {
    let mut bases: Vec<String> = Vec::new();
    for url in urls.split(',').map(str::trim) {
        if !is_http(url) {
            return Err(ProfileError::target(text, "after the @ stand addresses, http://HOST:PORT, by commas"));
        }
        let base = base_url(text, url)?;
        if bases.contains(&base) {
            return Err(ProfileError::target(text, "an address stands there twice: give each once"));
        }
        bases.push(base);
    }
    Ok(bases)
}

/// A policy's name and its settings.
fn policy(text: &str, given: &str, example: &str) -> Result<(String, BTreeMap<String, String>), ProfileError> {
    let mut parts = given.split(',');
    let policy = parts.next().unwrap_or_default().trim();
    if policy.is_empty() {
        return Err(ProfileError::target(text, &format!("name a policy, as in {example}")));
    }
    let mut settings = BTreeMap::new();
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| ProfileError::target(text, "settings after the policy are key=value, by commas"))?;
        let key = key.trim().replace('_', "-");
        if settings.insert(key.clone(), value.trim().to_owned()).is_some() {
            return Err(ProfileError::target(text, &format!("`{key}` stands there twice: give each setting once")));
        }
    }
    Ok((policy.to_owned(), settings))
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Shown and stored in many places, so it tells no secret.
            Self::Url(url) => f.write_str(&public_address(url)),
            Self::Sim { policy, settings } => write_policy(f, "sim", policy, settings),
            Self::Pin { policy, settings, urls } => {
                write_policy(f, "pin", policy, settings)?;
                let urls: Vec<String> = urls.iter().map(|url| public_address(url)).collect();
                write!(f, "@{}", urls.join(","))
            }
        }
    }
}

fn write_policy(
    f: &mut std::fmt::Formatter<'_>,
    kind: &str,
    policy: &str,
    settings: &BTreeMap<String, String>,
) -> std::fmt::Result {
    write!(f, "{kind}:{policy}")?;
    settings.iter().try_for_each(|(key, value)| write!(f, ",{key}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_loses_its_trailing_slash_and_keeps_path_and_query() {
        let cases = [
            ("http://h:1", "http://h:1"),
            ("http://h:1/", "http://h:1"),
            ("http://h:1/api/v1/", "http://h:1/api/v1"),
            ("http://h:1/api/v1/?k=1", "http://h:1/api/v1?k=1"),
            ("http://[::1]:8001/v1", "http://[::1]:8001/v1"),
        ];
        for (text, base) in cases {
            assert_eq!(text.parse::<Target>().unwrap(), Target::Url(base.into()));
        }
        let no_url = ["http://", "https:///", "localhost:1", "http://h:1#x", "http://h:1 ", "http://h:1/a b"];
        let no_sim = ["sim:", "sim:round_robin,ranks", "sim:a,ranks=2,ranks=3", "sim:a,kv-tokens=2,kv_tokens=3"];
        let no_pin =
            ["pin:oracle", "pin:@http://h", "pin:oracle@h", "pin:oracle@http://h,http://h/", "pin:a,b@http://h"];
        for wrong in no_url.into_iter().chain(no_sim).chain(no_pin) {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_simulated_target_reads_back_from_its_text() {
        let target: Target = "sim:prefix_affinity,ranks=4,kv_tokens=9000".parse().unwrap();
        assert_eq!(target.to_string(), "sim:prefix_affinity,kv-tokens=9000,ranks=4");
        assert_eq!(target.to_string().parse::<Target>().unwrap(), target);
    }

    #[test]
    fn a_pinned_target_reads_back_from_its_text_which_shows_no_secret() {
        let target: Target = "pin:prefix_affinity,guard=none@http://h:1/,http://h:2?k=v".parse().unwrap();
        assert_eq!(target.urls(), ["http://h:1", "http://h:2?k=v"]);
        assert_eq!(target.to_string(), "pin:prefix_affinity,guard=none@http://h:1,http://h:2?k=(hidden)");
        let one: Target = "pin:round_robin,ranks=4@https://u:p@h/v1".parse().unwrap();
        assert_eq!(one.to_string(), "pin:round_robin,ranks=4@https://h/v1");
    }
}
