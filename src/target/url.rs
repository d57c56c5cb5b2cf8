//! Joining a base URL and a route.

/// Puts `route` (as `/v1/models`) behind `base`, whose path and query are kept; a base that already ends in `/v1` does
/// not get a second one, and routes outside `/v1` leave it.
#[must_use]
pub fn join(base: &str, route: &str) -> String {
    let (base, query) = base.split_once('?').map_or((base, None), |(base, query)| (base, Some(query)));
    let base = base.trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base);
    query.map_or_else(|| format!("{base}{route}"), |query| format!("{base}{route}?{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_may_have_a_path_a_slash_a_version_and_a_query() {
        let chat = "/v1/chat/completions";
        let cases = [
            ("http://h:1", "http://h:1/v1/chat/completions"),
            ("http://h:1/", "http://h:1/v1/chat/completions"),
            ("http://h:1/api/v1", "http://h:1/api/v1/chat/completions"),
            ("http://h:1/api/v1/", "http://h:1/api/v1/chat/completions"),
            ("http://h:1/api/v1?k=1", "http://h:1/api/v1/chat/completions?k=1"),
            ("http://[::1]:8001/v1", "http://[::1]:8001/v1/chat/completions"),
        ];
        for (base, url) in cases {
            assert_eq!(join(base, chat), url);
        }
        assert_eq!(join("http://h:1/v1", "/generate"), "http://h:1/generate");
    }
}
